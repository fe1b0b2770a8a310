"""Questions from the logs of other tools, as records of items.

A tool's module turns its logs into `LoggedQuestion` objects and offers a `LogReader`. Logs seldom say which
answers were possible: they are the options of a question, the words that were scored, or the few words that
occur as targets. Without any of these, answers are free text, and cannot be audited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from blindcal.errors import InputError
from blindcal.items.answers import CHOICES_FIELD, LETTERS, QUESTION_TEMPLATE, lettered
from blindcal.items.record_files import Record
from blindcal.items.record_format import ANSWERS_FIELD, WORDS_FIELD, RecordFormat
from blindcal.records import Message
from blindcal.text import printable

_PAIRS = (("yes", "no"), ("true", "false"))  # the positive answer first
_RESERVED = {
    *("id", "label", "prompt", "messages", "question", "group"),
    *(CHOICES_FIELD, ANSWERS_FIELD, WORDS_FIELD),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedQuestion:
    """A question in a log, with its messages as sent; a plain prompt is one message.

    With ``choices``, the text ``question`` is asked in a prompt of ours, and ``target`` is the right letter.
    Otherwise the messages are asked unchanged, and ``answers`` are the answer words if the log names them.
    """

    id: str | int
    messages: tuple[Message, ...]
    target: str
    question: str
    choices: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogReader:
    """Recognises and reads the logs of one tool."""

    recognises: Callable[[Path], bool]
    questions: Callable[[Path, RecordFormat], Iterable[LoggedQuestion]]

    def records(self, path: Path, reading: RecordFormat) -> Iterator[Record]:
        try:
            yield from item_records(list(self.questions(path, reading)), reading.answers)
        except InputError as error:
            raise error if error.message.startswith(str(path)) else error.prefixed(f"{path}: ") from None


def item_records(questions: Sequence[LoggedQuestion], named: tuple[str, ...] = ()) -> Iterator[Record]:
    """Questions as records of items; ``named`` are the answers that the user sets."""
    words: tuple[str, ...] = ()
    if not named and any(not each.choices and not each.answers for each in questions):
        words = _target_words(questions)
    for each in questions:
        own = {name: value for name, value in each.fields.items() if name not in _RESERVED}
        record = {"id": each.id, "label": each.target, "question": each.question, **own, **_prompt(each)}
        if not each.choices and not named:
            record[ANSWERS_FIELD] = list(each.answers or words)
        yield record


def two_words(options: Sequence[str]) -> tuple[str, str]:
    """Two answer words, the positive one first: yes or true, else the second."""
    first, second = options
    positive = {pair[0] for pair in _PAIRS}
    return (first, second) if first.casefold() in positive else (second, first)


def _prompt(each: LoggedQuestion) -> Record:
    *before, last = each.messages
    if not each.choices:
        alone = not before and last.role in ("user", "prompt")
        messages = [asdict(message) for message in each.messages]
        return {"prompt": last.content} if alone else {"messages": messages}
    record: Record = {CHOICES_FIELD: list(each.choices)}
    if before:  # instructions and examples stay, and the question is asked as without them
        asked = QUESTION_TEMPLATE.replace("{choices}", lettered(each.choices))
        last = Message("user", asked.replace("{question}", each.question))
        record["messages"] = [asdict(message) for message in (*before, last)]
    return record


def _target_words(questions: Sequence[LoggedQuestion]) -> tuple[str, ...]:
    targets = list(dict.fromkeys(each.target for each in questions if not each.choices))
    folded = {target.casefold() for target in targets}
    for pair in _PAIRS:
        if folded <= set(pair):
            return _spelled_alike(pair, targets[0])
    if len(targets) > 1 and all(target in LETTERS for target in targets):
        return LETTERS[: 1 + LETTERS.index(max(targets))]
    usual = {*LETTERS, *_PAIRS[0], *_PAIRS[1]}
    other = next((target for target in targets if usual.isdisjoint((target, target.casefold()))), None)
    raise InputError(
        f"the target {printable(other or targets[0], 40)!r} is free text"
        if other is not None
        else f"the targets {printable(', '.join(targets), 60)} do not show which answers are possible",
        remedy="an audit needs questions with a fixed set of answers; if every target is one of a few words, "
        "name these with {answers}",
        options={"answers": ...},
    )


def _spelled_alike(pair: tuple[str, str], example: str) -> tuple[str, str]:
    if example.isupper():
        return pair[0].upper(), pair[1].upper()
    return (pair[0].title(), pair[1].title()) if example[:1].isupper() else pair
