"""Questions from the logs of Inspect (inspect_ai), read with its own reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from blindcal.errors import InputError, MissingExtraError
from blindcal.items.answers import LETTERS
from blindcal.items.eval_logs import LoggedQuestion, LogReader
from blindcal.items.record_format import RecordFormat
from blindcal.records import Message
from blindcal.text import encodable, printable

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog, EvalSample
    from inspect_ai.model import ChatMessage

_HEAD = 4096  # bytes; the start of a JSON log names its parts


def _recognises(path: Path) -> bool:
    if path.suffix.lower() != ".json":
        return path.suffix.lower() == ".eval"
    with path.open("rb") as file:
        return b'"eval"' in file.read(_HEAD)


def _questions(path: Path, _: RecordFormat) -> Iterator[LoggedQuestion]:
    samples: dict[str, EvalSample] = {}
    for sample in _read(path).samples or ():
        samples.setdefault(str(sample.id), sample)  # the first of several epochs
    for sample in samples.values():
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
    messages = tuple(_message(message) for message in _sent(sample))
    question = sample.input if isinstance(sample.input, str) else _message(sample.input[-1]).content
    choices = tuple(encodable(text) for text in sample.choices or ())
    metadata = sample.metadata.items()
    return LoggedQuestion(
        id=sample.id,
        messages=messages,
        target=_target(sample, choices),
        question=encodable(question),
        choices=choices,
        fields={name: value for name, value in metadata if isinstance(value, str | int | float)},
    )


def _sent(sample: EvalSample) -> list[ChatMessage]:
    sent = list(sample.messages)
    if sent and sent[-1].role == "assistant":
        sent.pop()
    if not sent:  # the sample failed before anything was sent
        raise InputError("nothing was sent to the model", remedy="run the sample again, or leave it out")
    given = [] if isinstance(sample.input, str) else sample.input
    turns, examples = (sum(message.role == "assistant" for message in part) for part in (sent, given))
    calls = any(message.role == "tool" or _calls(message) for message in sent)
    if sent[-1].role != "user" or calls or turns > examples:
        raise InputError(
            "is a conversation of several turns or with tools, not a question",
            remedy="log a task that generates one answer per sample",
        )
    return sent


def _calls(message: ChatMessage) -> bool:
    return message.role == "assistant" and bool(message.tool_calls)


def _message(message: ChatMessage) -> Message:
    if not isinstance(message.content, str) and any(part.type != "text" for part in message.content):
        raise InputError("holds images or other parts that are not text", remedy="leave it out")
    return Message(message.role, encodable(message.text))


def _target(sample: EvalSample, choices: tuple[str, ...]) -> str:
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


READER = LogReader(_recognises, _questions)
