"""Questions from the logs of other tools, as records of items.

Read are logs of Inspect (inspect_ai), with its own reader, and samples of lm-evaluation-harness
(``samples_TASK_DATE.jsonl``). Logs seldom say which answers were possible: they are the options of a
question, the words that were scored, or the few words that occur as targets. Without any of these, answers
are free text, which only a self-check can audit (`graded_answers`).
"""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blindcal.errors import InputError, MissingExtraError, errors_at
from blindcal.items.answers import CHOICES_FIELD, LETTERS, QUESTION_TEMPLATE, lettered
from blindcal.items.record_files import UNREADABLE, Record, decode, json_lines, numbered_records
from blindcal.items.record_format import ANSWERS_FIELD, WORDS_FIELD, RecordFormat
from blindcal.json_form import JsonError, read_json
from blindcal.records import Message
from blindcal.text import encodable, printable

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog, EvalSample
    from inspect_ai.model import ChatMessage

_PAIRS = (("yes", "no"), ("true", "false"))  # the positive answer first
RESERVED = {
    *("id", "label", "prompt", "messages", "question", "group"),
    *(CHOICES_FIELD, ANSWERS_FIELD, WORDS_FIELD),
}
LARGEST_ENTRY = 256 * 2**20
"""Maximum size of an entry of an ``.eval`` file in bytes, which may unpack to gigabytes."""
_HEAD = 4096  # bytes; the start of Inspect's JSON names its parts
_KEYS = {"doc_id", "doc", "arguments", "target"}
_CUES = ("Answer:", "A:")  # endings of prompts whose continuation the harness scores


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


def log_records(path: Path, reading: RecordFormat) -> list[Record] | None:
    """The questions of a log as records of items; ``None`` if the file is no log."""
    questions = _inspect_questions if is_inspect(path) else _harness_questions if is_harness(path) else None
    if questions is None:
        return None
    with errors_at(path):
        return item_records(list(questions(path, reading)), reading.answers)


def item_records(questions: Sequence[LoggedQuestion], named: tuple[str, ...] = ()) -> list[Record]:
    """Questions as records of items; ``named`` are the answers that the user sets."""
    words: tuple[str, ...] = ()
    if not named and any(not each.choices and not each.answers for each in questions):
        words = _target_words(questions)
    return [_item_record(each, () if named else each.answers or words) for each in questions]


def _item_record(each: LoggedQuestion, answers: tuple[str, ...]) -> Record:
    own = {name: value for name, value in each.fields.items() if name not in RESERVED}
    record = {"id": each.id, "label": each.target, "question": each.question, **own}
    *before, last = each.messages
    if not each.choices:
        alone = not before and last.role in ("user", "prompt")
        messages = [asdict(message) for message in each.messages]
        named = {ANSWERS_FIELD: list(answers)} if answers else {}
        return {**record, **({"prompt": last.content} if alone else {"messages": messages}), **named}
    record[CHOICES_FIELD] = list(each.choices)
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
        remedy="if every target is one of a few words, name these with {answers}; if the answers in the log "
        "were scored, {self_check} asks whether each is right",
        options={"answers": ..., "self_check": True},
    )


def _spelled_alike(pair: tuple[str, str], example: str) -> tuple[str, str]:
    if example.isupper():
        return pair[0].upper(), pair[1].upper()
    return (pair[0].title(), pair[1].title()) if example[:1].isupper() else pair


def simple_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if isinstance(value, str | int | float)}


# Inspect


def is_inspect(path: Path) -> bool:
    if path.suffix.lower() != ".json":
        return path.suffix.lower() == ".eval"
    with path.open("rb") as file:
        return b'"eval"' in file.read(_HEAD)


def _inspect_questions(path: Path, _: RecordFormat) -> Iterator[LoggedQuestion]:
    samples: dict[str, EvalSample] = {}
    for sample in read_inspect(path).samples or ():
        samples.setdefault(str(sample.id), sample)  # the first of several epochs
    for sample in samples.values():
        with errors_at(f"sample {printable(str(sample.id), 40)}"):
            yield _inspect_question(sample)


def read_inspect(path: Path) -> EvalLog:
    _check_entries(path)
    try:
        from inspect_ai.log import read_eval_log
    except ImportError:
        raise MissingExtraError(
            f"{path}: reading logs of Inspect needs inspect_ai", remedy="pip install 'blindcal[inspect]'"
        ) from None
    try:
        return read_eval_log(
            str(path), resolve_attachments="core", exclude_fields={"events", "store", "timelines"}
        )
    except Exception as error:  # what a damaged file raises is not documented
        why = printable(" ".join(str(error).split()), 120)
        raise InputError(f"{path}: is not a log that Inspect can read ({why})") from None


def inspect_samples(log: EvalLog) -> Iterator[tuple[EvalSample, Record]]:
    """The samples of a log, each with its id, and with its group if there are several epochs."""
    samples = log.samples or []
    several = len({sample.id for sample in samples}) < len(samples)
    for sample in samples:
        epoch = {"id": f"{sample.id}/{sample.epoch}", "group": str(sample.id)}
        yield sample, epoch if several else {"id": sample.id}


def _check_entries(path: Path) -> None:
    with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as log:  # else its reader says so
        for entry in log.infolist():
            if entry.file_size > LARGEST_ENTRY:
                name, most = printable(entry.filename, 60), LARGEST_ENTRY >> 20
                raise InputError(f"{path}, {name}: has more than {most} MB; log fewer or shorter samples")


def _inspect_question(sample: EvalSample) -> LoggedQuestion:
    messages = tuple(inspect_message(message) for message in _sent(sample))
    question = sample.input if isinstance(sample.input, str) else inspect_message(sample.input[-1]).content
    choices = tuple(encodable(text) for text in sample.choices or ())
    return LoggedQuestion(
        id=sample.id,
        messages=messages,
        target=_inspect_target(sample, choices),
        question=encodable(question),
        choices=choices,
        fields=simple_fields(sample.metadata),
    )


def _sent(sample: EvalSample) -> list[ChatMessage]:
    sent = list(sample.messages)
    if sent and sent[-1].role == "assistant":
        sent.pop()
    if not sent:  # the sample failed before anything was sent
        raise InputError("nothing was sent to the model", remedy="run the sample again, or leave it out")
    given = [] if isinstance(sample.input, str) else sample.input
    turns, examples = (sum(message.role == "assistant" for message in part) for part in (sent, given))
    calls = any(
        message.role == "tool" or (message.role == "assistant" and message.tool_calls) for message in sent
    )
    if sent[-1].role != "user" or calls or turns > examples:
        raise InputError(
            "is a conversation of several turns or with tools, not a question",
            remedy="log a task that generates one answer per sample",
        )
    return sent


def inspect_message(message: ChatMessage) -> Message:
    if not isinstance(message.content, str) and any(part.type != "text" for part in message.content):
        raise InputError("holds images or other parts that are not text", remedy="leave it out")
    return Message(message.role, encodable(message.text))


def _inspect_target(sample: EvalSample, choices: tuple[str, ...]) -> str:
    given = [sample.target] if isinstance(sample.target, str) else sample.target
    if len(given) != 1 or not given[0].strip():
        raise InputError(
            f"has {len(given)} targets" if len(given) != 1 else "has an empty target",
            remedy="an audit needs exactly one right answer per question: leave the others out",
        )
    target = given[0].strip()
    if not choices or target in LETTERS[: len(choices)]:
        return target
    if choices.count(target) == 1:
        return LETTERS[choices.index(target)]
    raise InputError(
        f"the target {printable(target, 40)!r} is not the letter of one of its {len(choices)} choices"
    )


# lm-evaluation-harness


def is_harness(path: Path) -> bool:
    try:
        return path.suffix.lower() == ".jsonl" and set(decode(next(json_lines(path))[1])) >= _KEYS
    except (StopIteration, InputError, *UNREADABLE):
        return False  # the reader of files of items says what is wrong


def harness_results(path: Path) -> Mapping[str, Any]:
    """What ``results_DATE.json`` beside the samples says of model and prompts; empty without it."""
    results = path.with_name(f"results_{path.name.removesuffix('.jsonl').rpartition('_')[2]}.json")
    try:
        found = read_json(results.read_bytes())
    except (OSError, JsonError):
        return {}
    return found if isinstance(found, dict) else {}


def _harness_questions(path: Path, reading: RecordFormat) -> list[LoggedQuestion]:
    if harness_results(path).get("chat_template") and reading.role != "prompt":
        raise InputError(
            f"{path}: its prompts are filled in by a chat template already",
            remedy="audit them as plain prompts, with {api}",
            options={"api": "completions"},
        )
    samples: dict[str, Record] = {}
    for _, record in numbered_records(path):
        samples.setdefault(str(record.get("doc_id")), record)  # the first of several filters
    questions, scored = [], []
    for number, sample in enumerate(samples.values(), 1):
        with errors_at(f"{path}, sample {number}", "is not one of lm-evaluation-harness"):
            question, options = harness_question(sample)
        questions.append(question)
        scored.append(options)
    return _with_answers(questions, scored) if all(scored) else questions


def harness_question(sample: Record) -> tuple[LoggedQuestion, tuple[str, ...]]:
    requests = [tuple(request.values()) for request in sample["arguments"].values()]
    first = requests[0]
    messages = harness_messages(first[0])
    question = LoggedQuestion(
        id=sample["doc_id"],
        messages=messages,
        target=str(sample["target"]).strip(),
        question=messages[-1].content,
        fields=simple_fields(sample["doc"]),
    )
    if len(first) == 2 and isinstance(first[1], dict):
        return question, ()
    if len(first) != 2 or len(requests) < 2:
        raise InputError(
            "is the likelihood of a text, not a question with answers",
            remedy="log a task whose output_type is multiple_choice or generate_until",
        )
    if requests[1][0] != first[0] and requests[1][1] == first[1]:
        raise InputError(
            "its answers are in the prompts, which differ", remedy="log a task with one prompt per question"
        )
    own = (request for request in requests if request[0] == first[0])  # not those without a prompt
    options = tuple(encodable(str(request[1])) for request in own)
    right = _right(sample["target"], tuple(text.strip() for text in options))
    return replace(question, target=str(right)), options


def harness_messages(given: Any) -> tuple[Message, ...]:
    if not isinstance(given, list):
        return (Message("prompt", encodable(given)),)
    (chat,) = (read_json(text.encode()) for text in given)
    return tuple(Message(str(message["role"]), encodable(message["content"])) for message in chat)


def _right(target: Any, options: tuple[str, ...]) -> int:
    # Targets are indices, or else the text of an option.
    text = str(target).strip()
    index = int(text) if text.isdigit() and int(text) < len(options) else None
    if index is not None and text in options and options[index] != text:  # the harness writes all as text
        raise InputError(
            f"the target {text!r} may be the text of an option or its index, and these differ",
            remedy="log the task with options that are not small numbers",
        )
    if index is not None:
        return index
    if options.count(text) == 1:
        return options.index(text)
    raise InputError(
        f"the target {printable(text, 40)!r} is not exactly one of its {len(options)} options",
        remedy="an audit needs exactly one right answer per question: leave the others out",
    )


def _with_answers(
    questions: Sequence[LoggedQuestion], scored: Sequence[tuple[str, ...]]
) -> list[LoggedQuestion]:
    shown = [tuple(text.strip() for text in options) for options in scored]
    most = max(shown, key=len)
    letters = all(options == LETTERS[: len(options)] for options in shown)
    if letters or (len(set(shown)) == 1 and all(len(text.split()) == 1 for text in most)):
        answers = _two_words(*most) if len(most) == 2 else most
        return [
            replace(each, target=options[int(each.target)], answers=answers)
            for each, options in zip(questions, shown, strict=True)
        ]
    return [
        replace(each, target=LETTERS[int(each.target)], choices=options, question=_without_cue(each.question))
        for each, options in zip(questions, shown, strict=True)
    ]


def _two_words(first: str, second: str) -> tuple[str, str]:
    # The positive answer first: yes or true, else the second.
    positive = {pair[0] for pair in _PAIRS}
    return (first, second) if first.casefold() in positive else (second, first)


def _without_cue(prompt: str) -> str:
    text = prompt.rstrip()
    cue = next((cue for cue in _CUES if text.endswith(f"\n{cue}")), "")
    return text.removesuffix(cue).rstrip()
