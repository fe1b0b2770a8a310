"""Results and runs as frames of pandas and polars, with the numbers of result.json and answers.csv."""

from __future__ import annotations

import csv
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import blindcal as bc
import results
from blindcal.results.tables import FILES, frame, write_tables
from deciding import TEMPLATE, model, serving, write_items
from results import NOTHING, around, part

N = 120
SEVERAL = results.result(answers=("A", "B"), confusion=((3, 1), (2, 4)))


@pytest.fixture(params=["pandas", "polars"])
def library(request: pytest.FixtureRequest) -> Any:
    """Each library, where it is installed."""
    pytest.importorskip(request.param)
    return request.param


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> bc.Run:
    """A finished audit, broken down into two parts."""
    folder = tmp_path_factory.mktemp("frames")
    labels, p = model(N, 3)
    topics = ["law" if k % 2 else "physics" for k in range(N)]
    items = write_items(folder / "questions.jsonl", labels, topic=topics)
    with serving(items, p) as server:
        settings = bc.Settings(
            model="replay", base_url=server.base_url, template=TEMPLATE, resamples=20, by_field="topic"
        )
        bc.audit(items, settings, out=folder / "run")
    return bc.open_run(folder / "run")


def rows(found: Any) -> list[dict[str, Any]]:
    """The rows of a frame, with ``None`` for what is not known."""
    listed = found.to_dict("records") if hasattr(found, "iloc") else found.to_dicts()
    return [{name: None if _unknown(value) else value for name, value in row.items()} for row in listed]


def _unknown(value: Any) -> bool:
    return value is None or value != value or type(value).__name__ == "NAType"


def test_a_result_is_a_frame_of_its_metrics(library: Any) -> None:
    """One row per metric, also for those that the method cannot tell."""
    found = results.result(tce=NOTHING, calibrated_pvalue=0.25)
    table = {row["metric"]: row for row in rows(found.to_frame(library=library))}
    assert list(table) == [
        *("ece", "overconfidence", "leaning", "auroc", "accuracy", "brier", "log_loss", "tce"),
        "calibrated_pvalue",
    ]
    assert table["ece"] == {"metric": "ece", "value": 0.125, "low": 0.105, "high": 0.145, "level": 0.95}
    assert table["tce"] == {"metric": "tce", "value": None, "low": None, "high": None, "level": None}
    assert (table["calibrated_pvalue"]["value"], table["calibrated_pvalue"]["low"]) == (0.25, None)


@pytest.mark.parametrize("table", FILES)
def test_frames_hold_what_the_csv_files_hold(table: Any, library: Any, tmp_path: Path) -> None:
    """Both are made from the same tables, to the last digit."""
    found = replace(SEVERAL, by_answer=()) if table != "by_answer" else _by_answer()
    write_tables(found, found.answers, tmp_path)
    with (tmp_path / f"{FILES[table]}.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    framed = rows(found.to_frame(table, library))
    assert [list(row) for row in framed] == [list(row) for row in written]
    assert [["" if one is None else str(one) for one in row.values()] for row in framed] == [
        list(row.values()) for row in written
    ]


def _by_answer() -> bc.AuditResult:
    from blindcal.estimate.findings import AnswerPart

    one = AnswerPart(0, 4, 5, 3, around(0.1), around(0.6), around(0.7), around(0.1), False)
    return replace(SEVERAL, by_answer=(one, replace(one, answer=1, given=0, right=0)))


def test_columns_have_their_types(library: Any) -> None:
    """Numbers are numbers even if none is known, and texts and flags are what they are."""
    found = results.result(parts=(part("law", NOTHING), part("physics", NOTHING)))
    types = {name: str(kind).lower() for name, kind in _types(found.to_frame("parts", library)).items()}
    assert types["ece"] == types["calibrated_pvalue"] == "float64"
    assert types["items"] == "int64"
    assert types["few"] in ("bool", "boolean")
    assert types["name"] in ("str", "string", "object")
    assert str(_types(frame({"given": [3, None]}, library))["given"]) == "Int64"  # pandas keeps it whole


def _types(found: Any) -> dict[str, Any]:
    return dict(zip(found.columns, found.dtypes, strict=True))


def test_answers_are_those_of_the_csv_file(run: bc.Run, library: Any) -> None:
    """One row per answer with the columns of answers.csv, and the part of its item."""
    with (run.folder / "answers.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    framed = rows(run.answers(library))
    assert len(framed) == len(written) == run.result.counts.answers
    for one, row in zip(framed, written, strict=True):
        for name in ("id", "label", "round", "answer", "text", "seconds"):
            assert str(one[name]) == row[name]
        assert one["group"] is None
        assert math.isclose(one["threshold"], float(row["threshold"]), rel_tol=1e-8)
        assert math.isclose(one["shift"], float(row["shift"]), rel_tol=1e-8, abs_tol=1e-8)
        assert one["part"] == ("law" if int(one["id"].strip("q")) % 2 else "physics")


def test_pandas_comes_first() -> None:
    """If both are installed, nobody has to choose."""
    pandas = pytest.importorskip("pandas")
    assert isinstance(results.result().to_frame(), pandas.DataFrame)


@pytest.mark.parametrize("missing", ["pandas", "polars"])
def test_whichever_is_installed_is_used(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one serves if one is not there."""
    other = "polars" if missing == "pandas" else "pandas"
    pytest.importorskip(other)
    monkeypatch.setitem(sys.modules, missing, None)
    assert type(results.result().to_frame()).__module__.partition(".")[0] == other
    with pytest.raises(bc.MissingExtraError, match=rf"needs {missing}, .*: pip install {missing}$"):
        frame({"a": [1]}, missing)  # type: ignore[arg-type]  # a str here


def test_without_any_the_error_says_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is required, and which to install is for the user to say."""
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(bc.MissingExtraError) as caught:
        results.result().to_frame()
    assert str(caught.value) == (
        "a frame needs pandas or polars, which are not installed: pip install pandas or pip install polars"
    )


def test_wrong_names_are_answered_with_the_right_ones() -> None:
    """Of tables and of libraries."""
    bare = results.result(curve=None, confidence=None, operating=(), costs=(), parts=())
    with pytest.raises(bc.InputError, match=r"^table: this result has metrics and bins, got 'curve'$"):
        bare.to_frame("curve")
    with pytest.raises(bc.InputError, match=r"^library: must be one of pandas, polars, got 'dask'$"):
        bare.to_frame(library="dask")  # type: ignore[arg-type]  # the error is what is tested
