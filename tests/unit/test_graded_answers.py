"""Scored answers become questions whether they are correct, with the score as the label."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blindcal.errors import InputError
from blindcal.items.catalogue import open_items
from blindcal.items.graded_answers import whose_answers
from blindcal.items.question_files import Items
from blindcal.items.record_format import RecordFormat
from commanding import blindcal, refusal

ASKED = "\nIs the proposed answer correct? Reply only with Yes or No."
GRADED = {"id": "a", "question": "2 + 2?", "answer": "4, as {2} twice", "score": 1}


def table(folder: Path, *records: dict[str, Any]) -> Path:
    path = folder / "graded.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def checked(path: Path, **reading: Any) -> Items:
    return open_items(path, RecordFormat(self_check=True, **reading))


def promptfoo(folder: Path, *results: dict[str, Any]) -> Path:
    """The ``results.json`` of a promptfoo evaluation."""
    usual = {
        "provider": {"id": "openai:chat:gpt-4o-mini", "label": ""},
        "prompt": {"raw": "2 + 2?", "label": "{{question}}"},
        "vars": {"question": "2 + 2?", "topic": "sums"},
        "response": {"output": "4"},
        "success": True,
        "score": 1,
        "namedScores": {},
        "testIdx": 0,
    }
    path = folder / "results.json"
    path.write_text(
        json.dumps({"evalId": "e", "results": {"version": 3, "results": [usual | each for each in results]}})
    )
    return path


def test_a_table_asks_whether_each_answer_is_correct(tmp_path: Path) -> None:
    """The template can be changed, and new answers need no score."""
    path = table(tmp_path, GRADED, GRADED | {"id": "b", "score": "incorrect"})
    items = checked(path)
    assert (items[0].messages[0].content, items.labels.tolist(), items.words) == (
        f"Question: 2 + 2?\nProposed answer: 4, as {{2}} twice{ASKED}",
        [1, 0],
        None,
    )
    items = checked(path, template="{answer}: is it right?")
    assert items[1].messages[0].content == "4, as {2} twice: is it right?"
    path = table(tmp_path, {"question": "2 + 2?", "answer": "4"})
    assert len(open_items(path, RecordFormat(self_check=True), labelled=False)) == 1


@pytest.mark.parametrize(
    ("field", "scores", "reading"),
    [
        ("score", [0, 1.0, "0.0", True], {}),
        ("label", ["fail", "PASS", "incorrect", "Correct"], {}),
        ("grade", [0.2, 0.5, "0.49", 1], {"label_field": "grade", "pass_score": 0.5}),
        ("score", [1, 5, 3, "4"], {"pass_score": 4}),
        ("score", ["weak", "strong", "weak", "strong"], {"label_map": {"weak": 0, "strong": 1}}),
    ],
)
def test_scores_are_labels(field: str, scores: list[object], reading: dict[str, Any], tmp_path: Path) -> None:
    """Scores of 0 or 1 in any form, or those that reach the lowest score that passes."""
    rows = ({"question": "q", "answer": f"a{k}", field: score} for k, score in enumerate(scores))
    assert checked(table(tmp_path, *rows), **reading).labels.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("change", "options", "line"),
    [
        ({"score": 0.5}, (), "must be a score of 0 or 1, not '0.5': name the lowest score that counts "
         "as correct with --set pass_score=VALUE"),
        ({"score": float("nan")}, ("--set", "pass_score=.5"), "not 'nan': correct it, or remove the record"),
        ({"score": "meh"}, (), "not 'meh': correct it, or remove the record"),
        ({"score": None}, (), "not 'None': correct it, or remove the record"),
        ({"answer": None}, (), "field 'answer' must be text or a number, not None"),
    ],
)  # fmt: skip
def test_what_is_not_a_score_is_refused(
    change: dict[str, Any], options: tuple[str, ...], line: str, tmp_path: Path
) -> None:
    """One line names the place, the cause and the cure."""
    path = table(tmp_path, GRADED | change)
    shown = refusal(blindcal("audit", path, "--self-check", "--model", "m", "--dry-run", *options))
    assert shown.startswith(f"{path}, line 1: ")
    assert line in shown


def test_fields_that_are_missing_are_named(tmp_path: Path) -> None:
    """Questions without answers or scores, named sets and a cut without a self-check are refused."""
    bare = {"question": "q", "answer": "a"}
    with pytest.raises(InputError, match=r"field 'score' is missing.*label_field"):
        checked(table(tmp_path, bare))
    with pytest.raises(InputError, match="field 'answer', named in the template, is missing"):
        checked(table(tmp_path, {"question": "q", "score": 1}))
    with pytest.raises(InputError, match="builtin: holds questions without answers of a model"):
        checked(Path("builtin"))
    with pytest.raises(InputError, match="pass_score: is for the scores of a self-check"):
        RecordFormat(pass_score=0.5)
    with pytest.raises(InputError, match="or ask whether each answer is correct with self_check=True"):
        open_items(table(tmp_path, GRADED))
    with pytest.raises(InputError, match="self_check: asks a model for its confidence"):
        RecordFormat(self_check=True, confidence_field="p")
    with pytest.raises(
        InputError, match=r"holds scored answers.*: self_check=True asks whether each is correct"
    ):
        open_items(promptfoo(tmp_path))
    assert refusal(blindcal("audit", promptfoo(tmp_path), "--self-check")).endswith(
        "Missing option '--model'."
    )


def test_results_of_promptfoo(tmp_path: Path) -> None:
    """A test passed or failed, by each provider; the prompt is the question, and a test is a group."""
    chat = json.dumps([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "3 + 3?"}])
    path = promptfoo(
        tmp_path,
        {"score": 0.8},
        {"provider": "ollama:llama3", "success": False, "response": {"output": {"sum": 5}}, "score": 0.2},
        {"prompt": {"raw": chat}, "testIdx": 1, "namedScores": {"brief": 0}},
    )
    items = checked(path)
    assert items.labels.tolist() == [1, 0, 1]
    assert items.parts == ("openai:chat:gpt-4o-mini", "ollama:llama3", "openai:chat:gpt-4o-mini")
    assert items.by_field == "answered_by"
    asked = [item.messages[0].content.removesuffix(ASKED) for item in items]
    assert asked == [
        "Question: 2 + 2?\nProposed answer: 4",
        'Question: 2 + 2?\nProposed answer: {"sum": 5}',
        "Question: Be brief.\n\n3 + 3?\nProposed answer: 4",
    ]
    assert items.groups is not None
    assert items.groups.tolist() == [0, 0, 1]
    assert checked(path, label_field="score", pass_score=0.9).labels.tolist() == [0, 0, 1]
    assert checked(path, by_field="topic").parts == ("sums",) * 3
    assert "2 of 3 are the model's own" in whose_answers(items.parts, "gpt-4o-mini")


@pytest.mark.parametrize(
    ("name", "model", "own"),
    [
        ("openai/gpt-4o", "gpt-4o", 1),
        ("gpt-4o", "openai/gpt-4o", 1),
        ("ollama:qwen:8b", "llama3:8b", 0),
        (None, "m", 0),
    ],
)
def test_own_answers_are_known_by_the_name_of_the_model(name: str | None, model: str, own: int) -> None:
    """Logs put the provider before a name; a size alone is no name."""
    assert f"{own} of 1 are the model's own" in whose_answers([name], model)


@pytest.mark.parametrize(
    ("change", "reading", "line"),
    [
        (
            {"response": None},
            {},
            "result 1: the provider gave no answer: run the tests that ended in an error again",
        ),
        (
            {},
            {"label_field": "brief"},
            r"result 1: has no score 'brief' \(there are: success, score\): choose one",
        ),
        ({"prompt": None}, {}, "is not a log of Inspect, nor results of promptfoo"),
    ],
)
def test_results_without_a_scored_answer(
    change: dict[str, Any], reading: dict[str, Any], line: str, tmp_path: Path
) -> None:
    """What cannot be asked about is named with its place."""
    path = promptfoo(tmp_path, change)
    with pytest.raises(InputError, match=f"results.json: {line}"):
        checked(path, **reading)


@pytest.mark.parametrize(
    ("field", "labels"),
    [("label", [0, 1]), ("exact_match", [0, 1]), ("exact_match,flexible-extract", [1, 1])],
)
def test_samples_of_the_harness_have_a_score_per_filter(
    field: str, labels: list[int], tmp_path: Path
) -> None:
    """The first filter counts unless another is named, as the harness names it."""
    path = tmp_path / "samples_gsm8k_2026-11-19T00-00-00.jsonl"
    rows = [
        {
            "doc_id": number,
            "doc": {"answer": "#### 4"},
            "target": "4",
            "arguments": {"gen_args_0": {"arg_0": f"{number} + 2?", "arg_1": {"until": ["\n"]}}},
            "resps": [["It is 4."]],
            "filter": name,
            "metrics": ["exact_match"],
            "exact_match": score,
        }
        for name, scores in (("strict-match", (0.0, 1.0)), ("flexible-extract", (1.0, 1.0)))
        for number, score in enumerate(scores)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "results_2026-11-19T00-00-00.json").write_text('{"model_name": "smol"}')
    items = checked(path, label_field=field)
    assert (items.labels.tolist(), items.parts) == (labels, ("smol", "smol"))
    assert items[1].messages[0].content == f"Question: 1 + 2?\nProposed answer: It is 4.{ASKED}"
    with pytest.raises(InputError, match="line 1: has no score 'acc'"):
        checked(path, label_field="acc")
    with pytest.raises(InputError, match="has no samples of the filter 'other'"):
        checked(path, label_field="exact_match,other")
