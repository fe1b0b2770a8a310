"""Questions from the sample logs of lm-evaluation-harness, ``samples_TASK_DATE.jsonl``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from blindcal.errors import InputError
from blindcal.items.answers import LETTERS
from blindcal.items.eval_logs import LoggedQuestion, LogReader, two_words
from blindcal.items.record_files import UNREADABLE, Record, decode, json_lines, read_records
from blindcal.items.record_format import RecordFormat
from blindcal.records import Message
from blindcal.text import encodable, printable

_KEYS = {"doc_id", "doc", "arguments", "target"}
_CUES = ("Answer:", "A:")  # endings of prompts whose continuation is scored


def _templated(path: Path) -> bool:
    # `results_DATE.json` says whether prompts went through a chat template; without it, none is assumed.
    results = path.with_name(f"results_{path.name.removesuffix('.jsonl').rpartition('_')[2]}.json")
    try:
        return bool(json.loads(results.read_bytes()).get("chat_template"))
    except (OSError, ValueError, AttributeError):
        return False


def _recognises(path: Path) -> bool:
    try:
        return path.suffix.lower() == ".jsonl" and set(decode(next(json_lines(path))[1])) >= _KEYS
    except (StopIteration, InputError, *UNREADABLE):
        return False  # the reader of files of items says what is wrong


def _questions(path: Path, reading: RecordFormat) -> list[LoggedQuestion]:
    if _templated(path) and reading.role != "prompt":
        raise InputError(
            f"{path}: its prompts are filled in by a chat template already",
            remedy="audit them as plain prompts, with {api}",
            options={"api": "completions"},
        )
    samples: dict[str, Record] = {}
    for record in read_records(path):
        samples.setdefault(str(record.get("doc_id")), record)  # the first of several filters
    questions, scored = [], []
    for number, sample in enumerate(samples.values(), 1):
        try:
            question, options = _question(sample)
        except InputError as error:
            raise error.prefixed(f"{path}, sample {number}: ") from None
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            raise InputError(f"{path}, sample {number}: is not one of lm-evaluation-harness") from None
        questions.append(question)
        scored.append(options)
    return _with_answers(questions, scored) if all(scored) else questions


def _question(sample: Record) -> tuple[LoggedQuestion, tuple[str, ...]]:
    requests = [tuple(request.values()) for request in sample["arguments"].values()]
    first = requests[0]
    messages = _messages(first[0])
    question = LoggedQuestion(
        id=sample["doc_id"],
        messages=messages,
        target=str(sample["target"]).strip(),
        question=messages[-1].content,
        fields={name: value for name, value in sample["doc"].items() if isinstance(value, str | int | float)},
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


def _messages(given: Any) -> tuple[Message, ...]:
    if isinstance(given, list):  # a chat, as JSON text
        (given,) = given
        return tuple(
            Message(str(message["role"]), encodable(message["content"])) for message in json.loads(given)
        )
    return (Message("prompt", encodable(given)),)


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
        answers = two_words(most) if len(most) == 2 else most
        return [
            replace(each, target=options[int(each.target)], answers=answers)
            for each, options in zip(questions, shown, strict=True)
        ]
    return [
        replace(each, target=LETTERS[int(each.target)], choices=options, question=_without_cue(each.question))
        for each, options in zip(questions, shown, strict=True)
    ]


def _without_cue(prompt: str) -> str:
    text = prompt.rstrip()
    for cue in _CUES:
        if text.endswith(f"\n{cue}"):
            return text.removesuffix(cue).rstrip()
    return text


READER = LogReader(_recognises, _questions)
