"""A file of verdicts, from the command line to the page, with labels for some of the items."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blindcal.results.result import AuditResult
from commanding import blindcal, refusal


def written(path: Path, verdicts: Sequence[Any], labels: Sequence[Any], **columns: Sequence[Any]) -> Path:
    """A CSV file with an id, a verdict and a label per row; an empty cell is no value."""
    table = {"id": range(len(verdicts)), "verdict": verdicts, "label": labels, **columns}
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(table)
        rows.writerows(zip(*table.values(), strict=True))
    return path


def judged(path: Path, *options: object) -> dict[str, Any]:
    """What the audit of a file of verdicts finds."""
    result = blindcal("audit", path, "--verdict", "verdict", "--out", path.parent / "run", "--json", *options)
    assert result.exit_code == 0, (result.output, result.exception)
    found = json.loads(result.stdout)
    assert found == json.loads((path.parent / "run" / "result.json").read_text())
    return dict(found["judge"])


@pytest.mark.parametrize(
    ("passed", "failed"),
    [
        ("pass", "fail"),
        ("PASS", "FAIL"),
        ("Passed.", "Failed."),
        ("true", "false"),
        ("1", "0"),
        ("1.0", "0.0"),
        ("Yes", "no"),
        ("correct", "Incorrect"),
        ("✅", "❌"),
        ("✔️", "✖️"),
        ("👍🏽", "👎"),
        ("✅ PASS", "❌ fail"),
        ("**Pass**", "[FAIL]"),
        ("pass: it names both causes", "Fail - it says no to all"),
        ("good", "0"),  # mixed
    ],
)
def test_a_verdict_is_read_in_any_spelling(tmp_path: Path, passed: str, failed: str) -> None:
    """Words, numbers and emoji of either column mean pass and fail; an empty label is none."""
    path = written(tmp_path / "judge.csv", [passed, passed, failed, failed], [passed, failed, failed, ""])
    found = judged(path)
    counts = [found[name] for name in ("items", "labelled", "true_passes", "false_passes", "true_fails")]
    assert (counts, found["judged_pass_rate"]) == ([4, 3, 1, 1, 1], 0.5)


@pytest.mark.parametrize(
    ("verdicts", "labels", "message"),
    [
        (
            ["maybe", 1],
            [1, 0],
            "line 2: field 'verdict' must be pass or fail, not 'maybe': say what other words",
        ),
        (["pass", 0.83], [1, 0], "not '0.83': audit a number from 0 to 1 with --confidence"),
        (["✅ pass", "4"], [1, 0], "turn a mark into pass or fail"),
        ([1, -1], [1, 0], "line 3: field 'verdict' must be pass or fail, not '-1'"),
        (["pass fail", 1], [1, 0], "must be pass or fail, not 'pass fail'"),
        (["not correct", 1], [1, 0], "must be pass or fail, not 'not correct'"),
        ([1, 0], ["ok", "hm"], "line 3: field 'label' must be pass or fail, not 'hm'"),
        (["", ""], [1, 0], "no record has a value in field 'verdict' (the last has: id, verdict, label)"),
        ([1, 0], ["", ""], "no record has a value in field 'label'"),
        (["{}", 1], [1, 0], "must be pass or fail, not '{}'"),
    ],
)
def test_an_odd_column_is_refused_in_one_line(
    tmp_path: Path, verdicts: list[Any], labels: list[Any], message: str
) -> None:
    """The line, the field, the value, and what to do."""
    path = written(tmp_path / "judge.csv", verdicts, labels)
    text = refusal(blindcal("audit", path, "--verdict", "verdict", "--out", tmp_path / "run"))
    assert message in text
    assert not (tmp_path / "run").exists()


def test_other_words_are_mapped_and_items_without_verdict_left_out(tmp_path: Path) -> None:
    """``label_map`` names the words of a judge; an item that it did not judge does not count."""
    path = written(tmp_path / "judge.csv", ["sound", "poor", ""], ["sound", "sound", "poor"])
    found = judged(path, "--set", 'label_map={"sound": 1, "poor": 0}')
    assert (found["items"], found["true_passes"], found["false_fails"]) == (2, 1, 1)


def test_a_file_of_verdicts_says_how_it_is_audited(tmp_path: Path) -> None:
    """Without a model or a field, the command names the one that looks like verdicts."""
    path = written(tmp_path / "judge.csv", ["pass", "fail"], [1, ""])
    assert "--verdict verdict audits them" in refusal(blindcal("audit", path))


def test_ids_must_be_unique_and_lines_may_lack_a_label(tmp_path: Path) -> None:
    """JSON lines without the field of the label have no label; an id names one item."""
    path = tmp_path / "judge.jsonl"
    rows = [{"id": "a", "verdict": True, "label": True}, {"id": "b", "verdict": False}]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert judged(path)["labelled"] == 1
    path.write_text("\n".join(map(json.dumps, [*rows, rows[0]])))
    assert "line 3: has the id of line 1, 'a'" in refusal(blindcal("audit", path, "--verdict", "verdict"))


def drawn(n: int = 400) -> tuple[list[int], list[int], list[float]]:
    """Verdicts of a judge that passes too much, true labels, and the probabilities of a pass it states."""
    rng = np.random.default_rng(3)
    truth = rng.random(n) < 0.7
    p = np.clip(np.where(truth, 0.85, 0.55) + 0.25 * rng.standard_normal(n), 0.01, 0.99)
    return (p >= 0.5).astype(int).tolist(), truth.astype(int).tolist(), p.round(3).tolist()


def test_groups_and_repeated_outputs_are_one_unit(tmp_path: Path) -> None:
    """Four copies of an item, by their group or by the same question and output, say no more than one."""
    verdicts, truth, _ = drawn(100)
    once = judged(written(tmp_path / "judge.csv", verdicts, truth))["tpr"]
    names = [str(k) for k in range(100)] * 4
    for columns in ({"group": names}, {"question": names, "output": names}):
        often = judged(written(tmp_path / "judge.csv", verdicts * 4, truth * 4, **columns))["tpr"]
        assert often["high"] - often["low"] == pytest.approx(once["high"] - once["low"], rel=0.15)
    free = judged(written(tmp_path / "judge.csv", verdicts * 4, truth * 4))["tpr"]
    assert free["high"] - free["low"] < 0.6 * (once["high"] - once["low"])


def test_labels_that_were_chosen_by_verdict_are_noticed(tmp_path: Path) -> None:
    """The page and the command warn, and name the way out, which silences them."""
    verdicts, truth, _ = drawn()
    some = [label if k % 10 == 0 else "" for k, label in enumerate(truth)]
    some = [label if verdict else known for verdict, label, known in zip(verdicts, some, truth, strict=True)]
    path = written(tmp_path / "judge.csv", verdicts, some)
    command = ("audit", path, "--verdict", "verdict", "--out", tmp_path / "run")
    printed, page = blindcal(*command).stdout, (tmp_path / "run" / "report.html").read_text()
    assert "100.0% of the fails have a label, more unequal than chance explains" in printed
    assert "name the field of the verdict as that of the strata" in page
    again = blindcal(*command, "--strata", "verdict").stdout
    assert "WARNING" not in again
    assert "strata, which are weighted by their size" in (tmp_path / "run" / "report.html").read_text()


def test_verdicts_and_confidences_share_a_page(tmp_path: Path) -> None:
    """With a confidence too, one run has both: the calibration of labelled items, and the true pass rate."""
    verdicts, truth, p = drawn()
    path = written(tmp_path / "judge.csv", verdicts, [*truth[:150], *[""] * 250], p=p)
    result = blindcal(
        "audit", path, "--verdict", "verdict", "--confidence", "p", "--out", tmp_path / "run", "--quiet"
    )
    assert result.exit_code == 0, (result.output, result.exception)
    both = AuditResult.load(tmp_path / "run" / "result.json")
    assert both.judge is not None
    assert (both.counts.items, both.judge.items, both.judge.labelled) == (150, 400, 150)
    assert both.ece.has_interval
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count('id="judge"') == 1
    assert "Calibration error" in page
    alone = judged(path)
    assert alone["pass_rate"]["value"] == both.judge.pass_rate.value
