"""Results as frames of pandas and polars, with the numbers of result.json."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from typing import Any

import pytest

import blindcal as bc
import results
from blindcal.estimate.findings import AnswerPart
from blindcal.records import Estimate
from blindcal.results.tables import frame
from results import NOTHING, around, part


@pytest.fixture(params=["pandas", "polars"])
def library(request: pytest.FixtureRequest) -> Any:
    """Each library, where it is installed."""
    pytest.importorskip(request.param)
    return request.param


def rows(found: Any) -> list[dict[str, Any]]:
    """The rows of a frame, with ``None`` for an unknown value."""
    listed = found.to_dict("records") if hasattr(found, "iloc") else found.to_dicts()
    return [{name: None if _unknown(value) else value for name, value in row.items()} for row in listed]


def _unknown(value: Any) -> bool:
    return value is None or value != value or type(value).__name__ == "NAType"


def test_a_result_is_a_frame_of_its_metrics(library: Any) -> None:
    """One row per metric, also for those that the method cannot estimate."""
    result = results.result(tce=NOTHING, calibrated_pvalue=0.25)
    table = {row["metric"]: row for row in rows(result.to_frame(library=library))}
    assert list(table) == [
        *("ece", "overconfidence", "leaning", "auroc", "accuracy", "brier", "log_loss", "tce"),
        *("smece", "atb", "miscalibration", "discrimination", "uncertainty", "aurc", "coverage"),
        *("classwise", "calibrated_pvalue"),
    ]
    assert table["ece"] == {"metric": "ece", "value": 0.125, "low": 0.105, "high": 0.145, "level": 0.95}
    assert table["tce"] == {"metric": "tce", "value": None, "low": None, "high": None, "level": None}
    assert (table["calibrated_pvalue"]["value"], table["calibrated_pvalue"]["low"]) == (0.25, None)


def test_frames_hold_what_the_result_holds(library: Any) -> None:
    """Each record is a row, an estimate is three columns, and the rows of a confusion are labels."""
    answer = AnswerPart(0, 4, 5, 3, around(0.1), around(0.6), around(0.7), around(0.1), False)
    result = results.result(
        answers=("A", "B"),
        confusion=((3, 1), (2, 4)),
        by_answer=(answer, replace(answer, answer=1, given=0, right=0)),
        parts=(part("=1+1", NOTHING), part("law", around(0.1))),
    )
    for table in ("bins", "operating", "parts", "by_answer"):
        records: Any = getattr(result, table)
        framed = rows(result.to_frame(table, library))
        for row, record in zip(framed, records, strict=True):
            for field in fields(record):
                value = getattr(record, field.name)
                estimated = isinstance(value, Estimate)
                assert row[field.name] == (value.value if estimated else value)
                if estimated:
                    assert (row[f"{field.name}_low"], row[f"{field.name}_high"]) == (value.low, value.high)
    assert rows(result.to_frame("confusion", library)) == [
        {"label": "A", "A": 3, "B": 1},
        {"label": "B", "A": 2, "B": 4},
    ]
    assert result.curve is not None
    assert result.confidence is not None
    assert tuple(row["value"] for row in rows(result.to_frame("curve", library))) == result.curve.value
    shares = [row["positives"] for row in rows(result.to_frame("confidence", library))]
    assert tuple(shares) == result.confidence.positives
    costs = rows(result.to_frame("costs", library))
    expected = [cost.value for curve in result.costs for cost in curve.expected]
    assert [row["expected"] for row in costs] == expected


def test_columns_have_their_types(library: Any) -> None:
    """Numbers are numbers even if none is known, and texts and flags are what they are."""
    result = results.result(parts=(part("law", NOTHING), part("physics", NOTHING)))
    types = {name: str(kind).lower() for name, kind in _types(result.to_frame("parts", library)).items()}
    assert types["ece"] == types["accuracy"] == "float64"
    assert types["items"] == "int64"
    assert types["few"] in ("bool", "boolean")
    assert types["name"] in ("str", "string", "object")
    assert str(_types(frame({"given": [3, None]}, library))["given"]) == "Int64"  # pandas keeps it whole


def _types(found: Any) -> dict[str, Any]:
    return dict(zip(found.columns, found.dtypes, strict=True))


def test_wrong_names_are_answered_with_the_right_ones() -> None:
    """Of tables and of libraries."""
    bare = results.result(curve=None, confidence=None, risk=(), operating=(), costs=(), parts=())
    with pytest.raises(bc.InputError, match=r"^table: this result has metrics and bins, got 'curve'$"):
        bare.to_frame("curve")
    with pytest.raises(bc.InputError, match=r"^library: must be one of pandas, polars, got 'dask'$"):
        bare.to_frame(library="dask")  # type: ignore[arg-type]  # the error is what is tested


@pytest.mark.parametrize("missing", ["pandas", "polars"])
def test_whichever_is_installed_is_used(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If both are, it is pandas; without any, the error says what helps."""
    other = "polars" if missing == "pandas" else "pandas"
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("polars")
    assert isinstance(results.result().to_frame(), pandas.DataFrame)
    monkeypatch.setitem(sys.modules, missing, None)
    assert type(results.result().to_frame()).__module__.partition(".")[0] == other
    with pytest.raises(bc.MissingExtraError, match=rf"needs {missing}, .*: pip install {missing}$"):
        frame({"a": [1]}, missing)  # type: ignore[arg-type]  # a str here
    monkeypatch.setitem(sys.modules, other, None)
    with pytest.raises(bc.MissingExtraError) as caught:
        results.result().to_frame()
    assert str(caught.value) == (
        "a frame needs pandas or polars, which are not installed: pip install pandas or pip install polars"
    )
