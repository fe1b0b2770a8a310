"""Confidences that a file gives: every way to write them, what is refused, and what follows from a run."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blindcal as bc
from blindcal.records import FloatArray, IntArray
from commanding import blindcal, refusal

N = 900
RNG = np.random.default_rng(3)
P = np.round(RNG.beta(0.8, 0.8, N), 2)
"""Two digits, so that many lie at the edges of bins."""
LABELS = (RNG.random(N) < 0.15 + 0.7 * P).astype(np.int64)
SHARES = np.round(RNG.dirichlet([0.6, 0.6, 0.6], N), 4)
RIGHT = np.array([RNG.choice(3, p=row / row.sum()) for row in SHARES])

Rows = Sequence[dict[str, Any]]


def write(path: Path, rows: Rows) -> Path:
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    elif path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def table(**columns: Callable[[int], Any]) -> Rows:
    return [{name: value(k) for name, value in columns.items()} for k in range(N)]


def sure(k: int) -> float:
    """The confidence in the likelier answer."""
    return round(float(max(P[k], 1 - P[k])), 2)


def label(k: int) -> int:
    return int(LABELS[k])


def yes(k: int) -> str:
    return "Yes" if P[k] >= 0.5 else "No"


def binned(labels: IntArray, p: FloatArray, bins: int = 5) -> float:
    """The calibration error in exact fractions: an edge belongs to the bin above it."""
    gaps = [Fraction(0)] * bins
    for y, written in zip(labels.tolist(), p.tolist(), strict=True):
        value = Fraction(str(written))
        gaps[min(int(value * bins), bins - 1)] += value - y
    return float(sum(map(abs, gaps)) / labels.size)


WRITTEN: dict[str, tuple[str, Rows, tuple[str, ...]]] = {
    "probability": ("a.csv", table(id=str, label=label, p=lambda k: P[k]), ("p",)),
    "without ids": ("a.jsonl", table(label=label, p=lambda k: float(P[k])), ("p",)),
    "parquet": ("a.parquet", table(label=label, p=lambda k: float(P[k])), ("p",)),
    "per cent": ("a.csv", table(label=label, p=lambda k: f"{100 * P[k]:.0f}%"), ("p",)),
    "per cent without a sign": ("a.csv", table(label=label, p=lambda k: f"{100 * P[k]:.0f}"), ("p",)),
    "confidence in an answer": (
        "a.csv",
        table(label=label, said=yes, sure=sure),
        ("sure", "--answer", "said"),
    ),
    "confidence in a named answer": (
        "a.csv",
        table(
            label=lambda k: "spam" if LABELS[k] else "ham",
            said=lambda k: "spam" if P[k] >= 0.5 else "ham",
            sure=sure,
        ),
        ("sure", "--answer", "said", "--answers", "spam,ham"),
    ),
    "an answer each": (
        "a.csv",
        table(label=label, p_no=lambda k: round(1 - P[k], 2), p_yes=lambda k: P[k]),
        ("p_no,p_yes",),
    ),
    "a map": (
        "a.jsonl",
        table(label=label, p=lambda k: {"yes": float(P[k]), "no": round(1 - P[k], 2)}),
        ("p",),
    ),
    "a map in a cell": ("a.csv", table(label=label, p=lambda k: json.dumps({"yes": P[k]})), ("p",)),
}


@pytest.mark.parametrize("how", WRITTEN)
def test_written(how: str, tmp_path: Path) -> None:
    """However the same confidences are written, the result is the same, and its ECE that of exact sums."""
    name, rows, field = WRITTEN[how]
    path = write(tmp_path / name, rows)
    done = blindcal("audit", path, "--confidence", *field, "--set", "resamples=50", "--out", tmp_path / "r")
    assert done.exit_code == 0, done.output
    result = bc.open_run(tmp_path / "r").result
    assert result.ece.value == pytest.approx(binned(LABELS, P), rel=1e-12)
    assert result.counts.positive == int((P >= 0.5).sum())
    assert result.counts.positive_labels == int(LABELS.sum())
    assert (result.spend.queries, result.method, result.semantics) == (0, "given", "given")


CHOICES: dict[str, tuple[str, Rows, tuple[str, ...]]] = {
    "columns": (
        "a.csv",
        table(
            label=lambda k: "ABC"[RIGHT[k]],
            **{f"p_{x}": (lambda k, j=j: SHARES[k, j]) for j, x in enumerate("ABC")},
        ),
        ("p_A,p_B,p_C",),
    ),
    "map": (
        "a.jsonl",
        table(label=lambda k: int(RIGHT[k]), p=lambda k: dict(zip("ABC", SHARES[k].tolist(), strict=True))),
        ("p",),
    ),
    "answer": (
        "a.csv",
        table(
            label=lambda k: "ABC"[RIGHT[k]],
            said=lambda k: "ABC"[SHARES[k].argmax()],
            p=lambda k: max(SHARES[k]),
        ),
        ("p", "--answer", "said"),
    ),
}


@pytest.mark.parametrize("how", CHOICES)
def test_several_answers(how: str, tmp_path: Path) -> None:
    """Of more than two answers, the confidence in the one given is audited."""
    name, rows, field = CHOICES[how]
    path = write(tmp_path / name, rows)
    done = blindcal("audit", path, "--confidence", *field, "--set", "resamples=50", "--out", tmp_path / "r")
    assert done.exit_code == 0, done.output
    result = bc.open_run(tmp_path / "r").result
    right = (SHARES.argmax(axis=1) == RIGHT).astype(np.int64)
    assert result.answers == ("A", "B", "C")
    assert result.ece.value == pytest.approx(binned(right, SHARES.max(axis=1)), rel=1e-12)
    assert result.accuracy.value == pytest.approx(right.mean())
    each = [binned(np.equal(RIGHT, k).astype(np.int64), SHARES[:, k]) for k in range(3)]
    shown = None if how == "answer" else pytest.approx(np.mean(each), rel=1e-9)
    assert result.classwise.value == shown


def test_free_text(tmp_path: Path) -> None:
    """Labels of 0 and 1 beside answers in free text say whether these are right."""
    rows = table(label=label, said=lambda k: f"answer {k}", sure=lambda k: P[k])
    path = write(tmp_path / "a.csv", rows)
    result = bc.audit(
        path, bc.Settings(confidence_field="sure", answer_field="said", resamples=50), out=tmp_path / "r"
    )
    assert result.ece.value == pytest.approx(binned(LABELS, P), rel=1e-12)


ODD: dict[str, tuple[str, str, Sequence[str]]] = {
    "no label": ("p\n.2\n.7\n", "'label' is missing", ()),
    "no such field": ("label,q\n1,.2\n0,.7\n", "'p' is missing (the record has: label, q)", ()),
    "two labels": ("label,label,p\n1,0,.2\n0,1,.7\n", "names the field 'label' twice", ()),
    "empty file": ("", "holds no", ()),
    "header only": ("label,p\n", "holds no", ()),
    "empty cell": ("label,p\n1,.3\n0,\n", "line 3: field 'p' must be a confidence", ()),
    "not a number": ("label,p\n1,.3\n0,nan\n", "line 3: field 'p' must be a confidence", ()),
    "words": ("label,p\n1,high\n0,low\n", "and is 'high': fill it in, or leave the record out", ()),
    "emoji": ("label,p\n1,👍\n0,👎\n", "and is '👍'", ()),
    "decimal comma": ("label;p\n1;0,3\n0;0,7\n", "", ()),
    "log-odds": ("label,p\n1,-2.1\n0,4.5\n", "p = 1 / (1 + exp(-x))", ()),
    "log-probabilities": ("label,p\n1,-2.1\n0,-0.5\n", "p = exp(x)", ()),
    "infinite": ("label,p\n1,inf\n0,.5\n", "not probabilities", ()),
    "large scores": ("label,p\n1,750\n0,13\n", "runs from 13 to 750", ()),
    "a scale": ("label,p\n1,9\n0,3\n", "marks on a scale", ()),
    "signs mixed": ("label,p\n1,90%\n0,.3\n", "mixes percentages (line 2) and numbers without", ()),
    "units mixed": ("label,p\n1,90\n0,.3\n", "--set percent=VALUE", ()),
    "over 100%": ("label,p\n1,120%\n0,30%\n", "runs from 30 to 120", ()),
    "fractions said to be": ("label,p\n1,90\n0,.3\n", "must be a probability", ("--set", "percent=false")),
    "labels of three kinds": ("label,p\n1,.3\n0,.6\n2,.6\n", "line 4: field 'label' must be 0/1", ()),
    "labels in emoji": ("label,p\n✅,.3\n❌,.6\n", "map other words to 0 and 1 with --set label_map", ()),
    "label missing in a row": ("label,p\n1,.3\n,.6\n", "field 'label' must be 0/1", ()),
    "duplicate ids": ("id,label,p\na,1,.3\na,0,.6\n", "items 1 and 2 share the id 'a'", ()),
    "too many cells": ("label,p\n1,.3,.4\n", "has more fields than the header", ()),
    "answers not named": ("label,said,p\nham,spam,.9\nspam,spam,.8\n", "--answers", ("--answer", "said")),
    "no such answer": ("label,p\n1,.9\n0,.8\n", "'said' is missing", ("--answer", "said")),
    "another method": ("label,p\n1,.9\n0,.8\n", "leave --method", ("--method", "latent")),
    "nothing to plan": ("label,p\n1,.9\n0,.8\n", "nothing is asked", ("--dry-run",)),
    "one of several": ("label,p\nA,.9\nB,.8\n", "--answer", ("--answers", "A,B,C")),
}


@pytest.mark.parametrize("what", ODD)
def test_odd_files(what: str, tmp_path: Path) -> None:
    """A file that cannot be audited is refused in one line with the cause, the place and a cure."""
    text, words, options = ODD[what]
    path = tmp_path / "odd.csv"
    path.write_text(text, encoding="utf-8")
    said = refusal(blindcal("audit", path, "--confidence", "p", *options, "--out", tmp_path / "r"))
    assert words in said
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"a": 0.9, "b": 0.8}, "add up to 1.7"),
        ({"a": 0.0, "b": 0.0}, "probability 0"),
        ({"a": True, "b": 0.0}, "is 'True'"),
        ({"a": 0.4, "b": None}, "is empty"),
    ],
)
def test_odd_maps(row: dict[str, Any], words: str, tmp_path: Path) -> None:
    """Probabilities of all answers must be some."""
    path = write(tmp_path / "a.jsonl", [{"label": "a", **{f"p_{x}": value for x, value in row.items()}}])
    said = refusal(blindcal("audit", path, "--confidence", "p_a,p_b", "--out", tmp_path / "r"))
    assert words in said


def test_one_class(tmp_path: Path) -> None:
    """With labels of one kind there is an ECE, and no AUROC."""
    path = write(tmp_path / "a.csv", table(label=lambda _: 1, p=lambda k: P[k]))
    result = bc.audit(path, bc.Settings(confidence_field="p", resamples=50), out=tmp_path / "r")
    assert result.ece.value == pytest.approx(binned(np.ones(N, np.int64), P), rel=1e-12)
    assert result.auroc.value is None


def test_named_neither(tmp_path: Path) -> None:
    """Without a model and a field, the command says which fields look like confidences."""
    rows = table(id=lambda k: k, label=label, topic=lambda k: "ab"[k % 2], p=lambda k: P[k], said=yes)
    said = refusal(blindcal("audit", write(tmp_path / "a.csv", rows)))
    assert "'p' (0 to 1)" in said
    assert "--confidence p audits them" in said
    assert "topic" not in said
    assert refusal(blindcal("audit", "builtin")).endswith("Missing option '--model'.")


def test_again(tmp_path: Path) -> None:
    """The same command gives the same result; other confidences in the file are another run."""
    rows = table(id=str, label=label, p=lambda k: float(P[k]))
    path, settings = write(tmp_path / "a.jsonl", rows), bc.Settings(confidence_field="p", resamples=50)
    first = bc.audit(path, settings, out=tmp_path / "r")
    assert bc.audit(path, settings, out=tmp_path / "r").ece == first.ece
    write(path, [{**rows[0], "p": 0.123}, *rows[1:]])
    with pytest.raises(bc.InputError, match="the questions changed"):
        bc.audit(path, settings, out=tmp_path / "r")


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("given")
    path = write(folder / "a.csv", table(id=lambda k: f"q{k}", label=label, p=lambda k: f"{P[k]:.0%}"))
    bc.audit(path, bc.Settings(confidence_field="p", resamples=100), out=folder / "r")
    return folder


def test_certified(audited: Path) -> None:
    """A certificate of a file decides a file, with the unit of the audit, and nothing is asked."""
    certificate = bc.certify(audited / "r", 0.6, confidence=0.9)
    assert (certificate.queries, certificate.request.url) == (0, "")
    fresh = write(audited / "new.csv", [{"id": "x", "sure": 99}, {"id": "y", "sure": "2%"}])
    command = ("decide", audited / "r" / "certificate.json", fresh, "--out", audited / "d")
    assert "--confidence" in refusal(blindcal(*command))
    done = blindcal(*command, "--confidence", "sure", "--json", "--quiet")
    decided = {row["id"]: row["decision"] for row in map(json.loads, done.stdout.splitlines())}
    assert decided == {"x": "accept", "y": "reject"}
    assert "p, in a file" in blindcal("status", audited / "d").stdout


def test_threshold(audited: Path) -> None:
    """A threshold is compared with the field, and there is no request to print."""
    done = blindcal("threshold", audited / "r", "--precision", "0.6", "--resamples", "100")
    assert "compare    the probability in the field 'p'" in done.stdout
    assert "POST" not in done.stdout
    said = refusal(blindcal("threshold", audited / "r", "--precision", "0.6", "--snippet", "curl"))
    assert "nothing is asked" in said


def test_watched(audited: Path) -> None:
    """A stream of confidences is watched against the run, without an endpoint."""
    swapped = table(id=lambda k: f"s{k}", label=lambda k: 1 - label(k), p=lambda k: f"{P[k]:.0%}")
    done = blindcal(
        *("watch", write(audited / "stream.jsonl", swapped), "--reference", audited / "r"),
        *("--out", audited / "w", "--every", "300"),
    )
    assert done.exit_code == 4, done.output
    assert "ALARM calibration" in done.output


def test_page(audited: Path) -> None:
    """The page of a file's run is not about an endpoint, queries or their cost."""
    page = (audited / "r" / "report.html").read_text(encoding="utf-8")
    for word in ("logit_bias", "What it cost", "Invalid answers", "Tokens for", "Can this endpoint"):
        assert word not in page
    assert "What was read" in page
    status = blindcal("status", audited / "r").stdout
    assert "p, in a file" in status
    assert "queries so far" not in status


def test_calibration() -> None:
    """Arrays give the same result as a file."""
    result = bc.calibration(LABELS, P, resamples=50)
    assert result.ece.value == pytest.approx(binned(LABELS, P), rel=1e-12)
    chosen = bc.calibration(RIGHT, SHARES, resamples=50, level=0.9)
    right = (SHARES.argmax(axis=1) == RIGHT).astype(np.int64)
    assert chosen.ece.value == pytest.approx(binned(right, SHARES.max(axis=1)), rel=1e-12)
    with pytest.raises(bc.InputError, match="900 labels, 899 confidences"):
        bc.calibration(LABELS, P[1:])
