"""Exports of other tools, as records of the numbers that they hold, or of scored answers.

A reader of numbers gives what an export holds, under names that ``--confidence`` and ``--label-field`` can
choose from; a score with one clear meaning is also the field ``label``. To add a tool, add one entry to
`EXPORTS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blindcal.errors import errors_at
from blindcal.items import graded_answers as graded
from blindcal.items.answers import LETTERS
from blindcal.items.confidences import are_booleans
from blindcal.items.eval_logs import (
    harness_question,
    inspect_samples,
    is_harness,
    is_inspect,
    read_inspect,
    simple_fields,
)
from blindcal.items.record_files import Record, has_reader, numbered_records
from blindcal.json_form import JsonError, read_json

PROBABILITIES = "probabilities"
"""Field with the probability of each answer, or of each token that may begin one."""


@dataclass(frozen=True)
class Export:
    """The export of a tool: how it is known, from the file or its first record, and what is read."""

    tool: str
    known: Callable[[Path, Record], bool]
    records: Callable[[Path], Iterator[Record]]
    answers: Callable[[Path, str | None], Iterator[Record]] | None = None


def exported_records(path: Path) -> list[Record] | None:
    """The records of an export; ``None`` if the file is none."""
    export = _export(path)
    return None if export is None else _read(path, export, export.records(path))


def graded_records(path: Path, label_field: str) -> list[Record] | None:
    """The scored answers of an export; ``None`` if the file has none.

    A ``label_field`` of another name than usual is that of the scorer or the metric.
    """
    export = _export(path)
    if export is None or export.answers is None:
        return None
    return _read(path, export, export.answers(path, None if label_field == "label" else label_field))


def _export(path: Path) -> Export | None:
    first = next(numbered_records(path), ("", {}))[1] if has_reader(path) else {}
    return next((export for export in EXPORTS if export.known(path, first)), None)


def _read(path: Path, export: Export, records: Iterator[Record]) -> list[Record]:
    with errors_at(path, f"looks like an export of {export.tool}, but is not in the form that it writes"):
        return list(records)


def _flat(name: str, value: Any) -> Record:
    """A value and what it holds, such as ``judge`` and ``judge.confidence``."""
    if not isinstance(value, Mapping):
        return {name: value}
    return {f"{name}.{key}": each for key, each in simple_fields(value).items()}


def _inspect(path: Path) -> Iterator[Record]:
    for sample, named in inspect_samples(read_inspect(path)):
        record = {**simple_fields(sample.metadata), "target": sample.target}
        scores = sample.scores or {}
        for name, score in scores.items():
            record |= _flat(name, score.metadata or {})
            record |= _flat(name, graded.INSPECT_SCORES.get(str(score.value), score.value))
        if len(scores) == 1:
            record |= {"label": record.get(next(iter(scores)))}
        chosen = sample.output.choices[0] if sample.output.choices else None
        if chosen is not None and chosen.logprobs is not None and chosen.logprobs.content:
            listed = chosen.logprobs.content[0].top_logprobs or ()
            record[PROBABILITIES] = _by_token([(each.token, each.logprob) for each in listed])
        yield {**record, **named}


def _harness(path: Path) -> Iterator[Record]:
    samples = {str(sample["doc_id"]): sample for _, sample in reversed(list(numbered_records(path)))}
    read = [(sample, *harness_question(sample)) for sample in reversed(samples.values())]
    shown = {tuple(text.strip() for text in options) for _, _, options in read}
    words = next(iter(shown)) if len(shown) == 1 else ()
    if len(words) < 2 or not (are_booleans(words) or all(len(word.split()) == 1 for word in words)):
        words = LETTERS
    for sample, question, options in read:
        record = {**question.fields, **{name: sample[name] for name in sample.get("metrics", ())}}
        if options:
            answers = sample["filtered_resps"][: len(options)]
            logs = [float(answer[0]) for answer in answers]  # each with whether it is the likeliest
            whole = math.fsum(math.exp(log - max(logs)) for log in logs)
            shares = [math.exp(log - max(logs)) / whole for log in logs]
            record[PROBABILITIES] = dict(zip(words, shares, strict=False))
            record["label"] = words[int(question.target)]
        yield {**record, "id": sample["doc_id"]}


def _promptfoo(path: Path) -> Iterator[Record]:
    for result, output, named in graded.promptfoo_results(path):
        if isinstance(output, str) and output.lstrip().startswith("{"):
            output = read_json(output.encode())
        yield {
            **simple_fields(result.get("vars") or {}),
            **_flat("output", output),
            **(result.get("namedScores") or {}),
            **named,
            **{"label": result["success"], "score": result["score"]},
        }


def _openai(path: Path) -> Iterator[Record]:
    for _, record in numbered_records(path):
        reply = _reply(record)
        known = {**simple_fields(record), **simple_fields(reply.get("metadata") or {})}
        named = {"id": record.get("custom_id", reply.get("id", record.get("id")))}
        yield {**known, **named, **_shown(reply)}


def _reply(record: Record) -> Record:
    reply = record.get("response", record)
    reply = read_json(reply.encode()) if isinstance(reply, str) else reply
    body: Record = reply.get("body", reply) if isinstance(reply, dict) else {}
    return body


def _shown(reply: Record) -> Record:
    """What a reply of a chat, of plain completions or of a decision API shows."""
    if "answers" in reply:
        given = reply["answers"]
        answer = given[0] if isinstance(given, list) else next(iter(given.values()))
        single = answer.get("probability", answer.get("noul"))
        shown = answer.get("probabilities", single) if single is None else single
        if isinstance(shown, list):
            shown = {row.get("label", row.get("value")): row["probability"] for row in shown}
        return {PROBABILITIES: shown}
    choice = reply["choices"][0]
    logprobs = choice.get("logprobs") or {}
    if isinstance(first := (logprobs.get("top_logprobs") or [None])[0], dict):
        listed = list(first.items())
    else:
        token = (logprobs.get("content") or [{}])[0]
        listed = [(each["token"], each["logprob"]) for each in token.get("top_logprobs") or ()]
    said = choice.get("text", (choice.get("message") or {}).get("content"))
    return {"answer": said, **({PROBABILITIES: _by_token(listed)} if listed else {})}


def _by_token(listed: list[tuple[str, float]]) -> dict[str, float]:
    """The probability of each token without the spaces around it."""
    shown: dict[str, float] = {}
    for token, log in listed:
        shown[token.strip()] = shown.get(token.strip(), 0.0) + math.exp(log)
    return shown


def _pivoted(
    path: Path, unit: Callable[[Record], str], cells: Callable[[Record], Record]
) -> Iterator[Record]:
    """One record for each unit, with the cells of all its rows."""
    units: dict[str, Record] = {}
    for _, row in numbered_records(path):
        units.setdefault(unit(row), {"id": unit(row)}).update(cells(row))
    yield from units.values()


def _langfuse(path: Path) -> Iterator[Record]:
    def cells(row: Record) -> Record:
        text = row["data_type"] in ("CATEGORICAL", "TEXT")
        return {f"{row['name']}.{row['source'].lower()}": row["string_value" if text else "value"]}

    return _pivoted(path, lambda row: row["observation_id"] or row["trace_id"], cells)


def _phoenix(path: Path) -> Iterator[Record]:
    def cells(row: Record) -> Record:
        name = f"{row['annotation_name']}.{row['annotator_kind'].lower()}"
        return {f"{name}.label": row["label"], f"{name}.score": row["score"]}

    return _pivoted(path, lambda row: row["span_id"], cells)


def _arize(path: Path) -> Iterator[Record]:
    return ({**row, "id": row["context.span_id"]} for _, row in numbered_records(path))


def _has(*names: str) -> Callable[[Path, Record], bool]:
    return lambda _, first: all(name in first for name in names)


def _is_openai(_: Path, first: Record) -> bool:
    try:
        reply = _reply(first)
        given = reply.get("choices") or reply.get("answers") or ()
        entry = next(iter(given.values() if isinstance(given, dict) else given), None)
        return isinstance(entry, dict)
    except (JsonError, TypeError):
        return False


EXPORTS = (
    Export("Inspect", lambda path, _: is_inspect(path), _inspect, graded.inspect_answers),
    Export("lm-evaluation-harness", lambda path, _: is_harness(path), _harness, graded.harness_answers),
    Export("promptfoo", lambda path, _: graded.is_promptfoo(path), _promptfoo, graded.promptfoo_answers),
    Export("Langfuse", _has("trace_id", "name", "value", "data_type", "source"), _langfuse),
    Export("Phoenix", _has("span_id", "annotation_name", "annotator_kind", "score"), _phoenix),
    Export("Arize", _has("context.span_id"), _arize),
    Export("an API in OpenAI's format", _is_openai, _openai),
)
"""Readers of exports: a test of the file, a generator of records, and one of scored answers if it has any."""
