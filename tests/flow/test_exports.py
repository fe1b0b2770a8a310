"""Exports of other tools are audited as they are: each in the form that its tool writes."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blindcal as bc
from blindcal.items.exports import EXPORTS, exported_records
from commanding import blindcal, refusal

N = 40
P = np.round(np.linspace(0.03, 0.97, N), 2)
LABELS = (np.random.default_rng(0).random(N) < P).astype(int)
#: The calibration error in five bins, which none of the values is at the edge of.
ECE = float(sum(abs((P - LABELS)[(P * 5).astype(int) == b].sum()) for b in range(5)) / N)


def lines(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def table(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def inspect(folder: Path) -> Path:
    pytest.importorskip("inspect_ai")
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSample, EvalSpec, write_eval_log
    from inspect_ai.model import ModelOutput
    from inspect_ai.scorer import Score

    spec = EvalSpec(
        created="2026-01-01T00:00:00+00:00", task="t", model="m", dataset=EvalDataset(), config=EvalConfig()
    )
    samples = [
        EvalSample(
            id=k,
            epoch=1,
            input="?",
            target="x",
            output=ModelOutput.from_content("m", "x"),
            scores={"judge": Score(value="C" if LABELS[k] else "I", metadata={"confidence": float(P[k])})},
        )
        for k in range(N)
    ]
    path = folder / "log.eval"
    write_eval_log(EvalLog(eval=spec, samples=samples, status="success"), str(path))
    return path


def harness(folder: Path) -> Path:
    """Samples of a task with two scored answers, whose labels are indices."""

    def sample(k: int) -> dict[str, Any]:
        logs = [math.log(1 - P[k]) - 3, math.log(P[k]) - 3]
        return {
            "doc_id": k,
            "doc": {"question": f"q{k}"},
            "target": str(LABELS[k]),
            "arguments": {
                f"gen_args_{j}": {"arg_0": f"q{k}", "arg_1": f" {word}"}
                for j, word in enumerate(("no", "yes"))
            },
            "resps": [[[str(log), "False"]] for log in logs],
            "filtered_resps": [[str(log), "False"] for log in logs],
            "metrics": ["acc"],
            "acc": 1.0,
        }

    return lines(folder / "samples_t_2026-01-01T00-00-00.000000.jsonl", map(sample, range(N)))


def promptfoo(folder: Path) -> Path:
    results = [
        {
            "provider": {"id": "m"},
            "prompt": {"raw": "?"},
            "vars": {"topic": "a"},
            "response": {"output": json.dumps({"answer": "x", "confidence": float(P[k])})},
            "success": bool(LABELS[k]),
            "score": float(LABELS[k]),
            "namedScores": {},
            "testIdx": k,
        }
        for k in range(N)
    ]
    path = folder / "results.json"
    path.write_text(json.dumps({"evalId": "e", "results": {"version": 3, "results": results}}))
    return path


def langfuse(folder: Path) -> Path:
    """A row per score: a judge's on every trace, and a person's on all but two."""
    usual = {"project_id": "p", "observation_id": "", "comment": "", "string_value": ""}
    judged = [
        {"id": f"a{k}", "trace_id": f"t{k}", "name": "right", "value": P[k], "source": "EVAL"}
        for k in range(N)
    ]
    people = [
        {"id": f"b{k}", "trace_id": f"t{k}", "name": "right", "value": LABELS[k], "source": "ANNOTATION"}
        for k in range(N)
    ]
    extra = [{**judged[k], "id": f"c{k}", "trace_id": f"none{k}"} for k in range(2)]
    kinds = {"EVAL": "NUMERIC", "ANNOTATION": "BOOLEAN"}
    rows = [{**usual, **row, "data_type": kinds[str(row["source"])]} for row in (*judged, *people, *extra)]
    return table(folder / "scores.csv", rows)


def phoenix(folder: Path) -> Path:
    kinds = (("LLM", lambda k: P[k]), ("HUMAN", lambda k: LABELS[k]))
    rows = [
        {
            "span_id": f"s{k}",
            "annotation_name": "right",
            "annotator_kind": kind,
            "label": "",
            "score": score(k),
        }
        for kind, score in kinds
        for k in range(N)
    ]
    return table(folder / "annotations.csv", rows)


def arize(folder: Path) -> Path:
    rows = [
        {"context.span_id": f"s{k}", "eval.right.score": P[k], "annotation.right.score": LABELS[k]}
        for k in range(N)
    ]
    return table(folder / "spans.csv", rows)


def logprobs(k: int) -> dict[str, Any]:
    """A reply of a chat, whose list also has another spelling and a token that is no answer."""
    shown = {"Yes": 0.8 * P[k], " yes": 0.1 * P[k], "No": 0.9 * (1 - P[k]), "The": 0.1}
    top = [{"token": token, "logprob": math.log(p)} for token, p in shown.items()]
    content = [{"token": "Yes", "logprob": top[0]["logprob"], "top_logprobs": top}]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "Yes"},
        "logprobs": {"content": content},
    }
    return {"id": f"c{k}", "object": "chat.completion", "choices": [choice]}


def batch(folder: Path) -> Path:
    """The output of a batch, with a label added to each line."""
    rows = (
        {"custom_id": f"q{k}", "label": int(LABELS[k]), "response": {"status_code": 200, "body": logprobs(k)}}
        for k in range(N)
    )
    return lines(folder / "batch.jsonl", rows)


def stored(folder: Path) -> Path:
    """Stored completions, whose labels are in their metadata."""
    rows = ({**logprobs(k), "metadata": {"label": str(LABELS[k])}} for k in range(N))
    return lines(folder / "stored.jsonl", rows)


def decisions(folder: Path) -> Path:
    rows = (
        {
            "id": k,
            "label": int(LABELS[k]),
            "response": {"answers": [{"kind": "predicate", "probability": P[k]}]},
        }
        for k in range(N)
    )
    return lines(folder / "decisions.jsonl", rows)


MADE: dict[Callable[[Path], Path], tuple[str, ...]] = {
    inspect: ("judge.confidence",),
    harness: ("probabilities",),
    promptfoo: ("output.confidence",),
    langfuse: ("right.eval", "--label-field", "right.annotation"),
    phoenix: ("right.llm.score", "--label-field", "right.human.score"),
    arize: ("eval.right.score", "--label-field", "annotation.right.score"),
    batch: ("probabilities", "--answers", "Yes,No"),
    stored: ("probabilities", "--answers", "Yes,No"),
    decisions: ("probabilities",),
}


@pytest.mark.parametrize("made", MADE, ids=lambda made: made.__name__)
def test_exports(made: Callable[[Path], Path], tmp_path: Path) -> None:
    """The confidences of each export are found by their field, and the same in all."""
    path, (field, *options) = made(tmp_path), MADE[made]
    done = blindcal(
        *("audit", path, "--confidence", field, *options, "--set", "resamples=20", "--out", tmp_path / "r")
    )
    assert done.exit_code == 0, done.output
    result = bc.open_run(tmp_path / "r").result
    assert result.counts.items == N
    assert result.ece.value == pytest.approx(ECE, abs=1e-9)
    assert ("2 of 42 records have no label" in done.output) == (made is langfuse)
    said = refusal(blindcal("audit", path))
    assert f"--confidence {field.split(',')[0]} audits" in said or f"'{field}' (" in said


def test_every_reader_is_tested(tmp_path: Path) -> None:
    read = {
        next(export.tool for export in EXPORTS if export.known(path, first(path)))
        for path in (made(tmp_path) for made in MADE)
    }
    assert read == {export.tool for export in EXPORTS}


def first(path: Path) -> dict[str, Any]:
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return next(csv.DictReader(file))
    row: dict[str, Any] = json.loads(path.read_text().splitlines()[0]) if path.suffix == ".jsonl" else {}
    return row


def test_another_form(tmp_path: Path) -> None:
    """An export in another form than known is refused, and a table with a field of such a name is a table."""
    path = harness(tmp_path)
    lines(path, [{**json.loads(path.read_text().splitlines()[0]), "filtered_resps": None}])
    with pytest.raises(bc.InputError, match="looks like an export of lm-evaluation-harness"):
        exported_records(path)
    assert exported_records(lines(tmp_path / "a.jsonl", [{"choices": ["a", "b"], "p": 0.5}])) is None
