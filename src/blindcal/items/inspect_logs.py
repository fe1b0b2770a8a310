"""Questions from the logs of Inspect (inspect_ai), read with its own reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blindcal.errors import InputError, MissingExtraError
from blindcal.items.answers import LETTERS
from blindcal.items.logged_questions import LoggedQuestion
from blindcal.records import Message
from blindcal.text import encodable, printable

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog, EvalSample
    from inspect_ai.model import ChatMessage


def inspect_questions(path: Path) -> Iterator[LoggedQuestion]:
    """The samples of a log, each once: of several epochs, the first."""
    log = _read(path)
    seen = set[str]()
    for sample in log.samples or ():
        if str(sample.id) in seen:
            continue
        seen.add(str(sample.id))
        try:
            yield _question(sample)
        except InputError as error:
            raise error.prefixed(f"sample {printable(str(sample.id), 40)}: ") from None


def _read(path: Path) -> EvalLog:
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


def _question(sample: EvalSample) -> LoggedQuestion:
    messages = tuple(_message(one) for one in _sent(sample))
    question = sample.input if isinstance(sample.input, str) else _message(sample.input[-1]).content
    fields = {name: value for name, value in sample.metadata.items() if _plain(value)}
    choices = tuple(encodable(one) for one in sample.choices or ())
    target = _target(sample, choices)
    return LoggedQuestion(sample.id, messages, target, encodable(question), choices, fields=fields)


def _sent(sample: EvalSample) -> list[ChatMessage]:
    """The messages before the model's answer."""
    said = list(sample.messages)
    if said and said[-1].role == "assistant":
        said.pop()
    if not said:  # the sample failed before anything was sent
        raise InputError("nothing was sent to the model", remedy="run the sample again, or leave it out")
    given = [] if isinstance(sample.input, str) else sample.input
    turns, examples = (sum(one.role == "assistant" for one in part) for part in (said, given))
    calls = any(one.role == "tool" or _calls(one) for one in said)
    if said[-1].role != "user" or calls or turns > examples:
        raise InputError(
            "is a conversation of several turns or with tools, not a question",
            remedy="log a task that generates one answer per sample",
        )
    return said


def _calls(message: ChatMessage) -> bool:
    return message.role == "assistant" and bool(message.tool_calls)


def _message(message: ChatMessage) -> Message:
    if not isinstance(message.content, str) and any(part.type != "text" for part in message.content):
        raise InputError("holds images or other parts that are not text", remedy="leave it out")
    return Message(message.role, encodable(message.text))


def _target(sample: EvalSample, choices: tuple[str, ...]) -> str:
    """The right answer: a word, or the letter of the right choice."""
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


def _plain(value: Any) -> bool:
    return isinstance(value, str | int | float)
