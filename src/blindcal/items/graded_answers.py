"""Scored answers in free text, from the logs of other tools, as records that a self-check asks about.

Readers take a log, and the name of the scorer or the metric if an answer has several. A record has the fields
``question``, ``answer``, ``score``, and ``answered_by``, the model that gave the answer. A table with such
fields needs no reader.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blindcal.errors import InputError, errors_at
from blindcal.items.eval_logs import (
    RESERVED,
    harness_messages,
    harness_results,
    inspect_message,
    inspect_samples,
    read_inspect,
    simple_fields,
)
from blindcal.items.record_files import Record, numbered_records
from blindcal.items.record_format import SCORE_FIELD
from blindcal.json_form import JsonError, read_json
from blindcal.text import encodable, printable

if TYPE_CHECKING:
    from inspect_ai.log import EvalSample

ANSWERED_BY = "answered_by"
"""Field with the name of the model that gave an answer."""
INSPECT_SCORES = {"C": 1, "I": 0, "P": 0.5, "N": 0}  # correct, incorrect, partial, no answer


def whose_answers(names: Sequence[str | None] | None, model: str) -> str:
    """How many answers a model is asked about are its own; logs write ``openai/NAME`` for a model."""
    if names is None:
        return "asked of given answers whether they are correct; the items do not say which model gave them"
    own = sum(_same_model(name or "", model) or _same_model(model, name or "") for name in names)
    return (
        f"asked of given answers whether they are correct; {own:,} of {len(names):,} are the model's own, of "
        "which models tend to be surer"
    )


def _same_model(longer: str, shorter: str) -> bool:
    return shorter != "" and (longer == shorter or longer.endswith((f"/{shorter}", f":{shorter}")))


def _record(
    asked: list[str], answer: object, score: object, model: object, more: Mapping[str, Any]
) -> Record:
    own = {name: value for name, value in simple_fields(more).items() if name not in RESERVED}
    text = answer if isinstance(answer, str) else json.dumps(answer)
    question = encodable("\n\n".join(asked))
    return {
        **own,
        "question": question,
        "answer": encodable(text).strip(),
        SCORE_FIELD: score,
        ANSWERED_BY: str(model),
    }


def _chosen(scores: Mapping[str, Any], chosen: str | None) -> Any:
    """The score of an answer, by name if there are several."""
    if len(scores) == 1 and chosen is None:
        return next(iter(scores.values()))
    if not scores:
        raise InputError("has no score", remedy="score it, or leave it out")
    if chosen is None or chosen not in scores:
        problem = "several scores" if chosen is None else f"no score {printable(chosen, 40)!r}"
        raise InputError(
            f"has {problem} (there are: {printable(', '.join(scores), 80)})",
            remedy="choose one with {label_field}",
            options={"label_field": ...},
        )
    return scores[chosen]


# Inspect


def inspect_answers(path: Path, chosen: str | None) -> Iterator[Record]:
    log = read_inspect(path)
    for sample, named in inspect_samples(log):
        with errors_at(f"sample {printable(str(sample.id), 40)}"):
            yield {**_inspect_answer(sample, chosen, log.eval.model), **named}


def _inspect_answer(sample: EvalSample, chosen: str | None, model: str) -> Record:
    given = sample.input
    asked = [given] if isinstance(given, str) else [inspect_message(each).content for each in given]
    score = _chosen(sample.scores or {}, chosen).value
    if isinstance(score, str):
        score = INSPECT_SCORES.get(score, score)
    return _record(asked, sample.output.completion, score, model, sample.metadata)


# lm-evaluation-harness


def harness_answers(path: Path, chosen: str | None) -> Iterator[Record]:
    model = harness_results(path).get("model_name") or "unknown"
    metric, _, chosen_filter = (chosen or "").partition(",")
    seen: set[str] = set()
    for where, sample in numbered_records(path):
        with errors_at(f"{path}, {where}", "is not one of lm-evaluation-harness"):
            if str(sample["doc_id"]) in seen or chosen_filter not in ("", sample["filter"]):
                continue
            seen.add(str(sample["doc_id"]))
            yield _harness_answer(sample, metric or None, model)
    if not seen:
        raise InputError(f"has no samples of the filter {printable(chosen_filter, 40)!r}")


def _harness_answer(sample: Record, chosen: str | None, model: str) -> Record:
    (request, *others) = sample["arguments"].values()
    prompt, *options = request.values()
    ((answer, *again),) = sample["resps"][:1]
    if others or again or not options or not isinstance(options[0], dict):
        raise InputError(
            "has no single answer in text",
            remedy="log a task with generate_until and one answer per question",
        )
    scores = {name: sample[name] for name in sample.get("metrics", ())}
    asked = [message.content for message in harness_messages(prompt)]
    record = _record(asked, answer, _chosen(scores, chosen), model, sample["doc"])
    return {**record, "id": sample["doc_id"]}


# promptfoo


def is_promptfoo(path: Path) -> bool:
    return path.suffix.lower() == ".json"


def promptfoo_results(path: Path) -> Iterator[tuple[Record, Any, Record]]:
    """Each result, what the provider put out, and its id and group."""
    for number, result in enumerate(read_json(path.read_bytes())["results"]["results"], 1):
        named = {"id": number, "group": str(result.get("testIdx", number))}
        yield result, (result.get("response") or {}).get("output"), named


def promptfoo_answers(path: Path, chosen: str | None) -> Iterator[Record]:
    with errors_at(path, "is not a log of Inspect, nor results of promptfoo"):
        for result, output, named in promptfoo_results(path):
            with errors_at(f"result {named['id']}"):
                yield {**_promptfoo_answer(result, output, chosen), **named}


def _promptfoo_answer(result: Record, output: Any, chosen: str | None) -> Record:
    if output is None:
        raise InputError("the provider gave no answer", remedy="run the tests that ended in an error again")
    raw, provider = result["prompt"]["raw"], result["provider"]
    try:
        chat = read_json(raw.encode())
        asked = [encodable(message["content"]) for message in chat]
    except (JsonError, KeyError, TypeError):
        asked = [raw]  # not a chat
    scores = {"success": result["success"], "score": result["score"], **(result.get("namedScores") or {})}
    score = _chosen(scores, chosen or "success")
    model = provider.get("id") if isinstance(provider, dict) else provider
    return _record(asked, output, score, model, result.get("vars") or {})
