"""Simulated audits: answers as METHOD 2 defines them, estimates near the oracle, and the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from scipy.special import expit

from blindcal.errors import BlindcalError
from blindcal.estimate.truth import binned_ece
from blindcal.items.score_files import read_scores
from blindcal.methods import SIMULABLE
from blindcal.records import Round
from blindcal.simulation.simulate import generate, log_odds, respond, simulate
from commanding import blindcal
from paths import ROOT, SHARED
from serving import OWN_LOGITS

FILES = sorted((SHARED / "scores").glob("*.csv.gz"))


def round_of(shifts: list[float], temperatures: list[float]) -> Round:
    return Round(np.arange(len(shifts)), np.array(shifts), np.array(temperatures))


def test_thresholds_are_answered_as_method_2_says() -> None:
    """At T = 0 the answer is 1[s >= -b], the edge included; p = 0 and 1 are infinitely sure."""
    s = np.array([1.0, 1.0, 1.0, -np.inf, np.inf])
    asked = round_of([-1.0, -1.0000001, 0.0, 40.0, -40.0], [0.0] * 5)
    assert respond(s, asked, np.random.default_rng(0)).tolist() == [1, 0, 1, 0, 1]
    assert log_odds(np.array([0.0, 0.5, 1.0])).tolist() == [-np.inf, 0.0, np.inf]


@pytest.mark.parametrize(
    ("s", "b", "temperature", "jitter", "share"),
    [
        (0.7, -0.2, 0.5, 0.0, expit(1.0)),
        (-1.0, 0.0, 2.0, 0.0, expit(-0.5)),
        (0.4, -0.3, 0.0, 0.2, 0.6915),  # Phi(0.5)
    ],
)
def test_answers_follow_the_response_curve(
    s: float, b: float, temperature: float, jitter: float, share: float
) -> None:
    """At T > 0 the share of positive answers is sigmoid((s + b)/T), and jitter blurs a threshold."""
    n = 20_000
    asked = round_of([b] * n, [temperature] * n)
    answers = respond(np.full(n, s), asked, np.random.default_rng(1), jitter=jitter)
    assert abs(answers.mean() - share) < 4 * 0.0035  # binomial: at most 1/(2 sqrt n)


@pytest.mark.parametrize("method", SIMULABLE)
def test_every_method_runs_and_says_what_it_asked(method: str) -> None:
    """Each method has as many estimates as repeats, the oracle, the queries asked, and can be repeated."""
    labels, p = generate(400, 1)
    queries = 1.0 if method in ("blind", "logprobs") else 2.0
    result = simulate(method, labels, p, queries=queries, repeats=2, seed=3)
    assert (result.n, result.method, len(result.estimates)) == (400, method, 2)
    assert result.queries == pytest.approx(0.8 if method == "blind" else queries)
    assert result.oracle == binned_ece(labels, p, 5).ece.value
    assert result.mae == pytest.approx(np.mean(np.abs(np.array(result.estimates) - result.oracle)))
    again = simulate(method, labels, p, queries=queries, repeats=1, seed=4)
    assert again.estimates[0] == result.estimates[1]


def test_latent_beats_blind() -> None:
    """With the same single query `latent` errs less than half as much, on made-up and on recorded items.

    On real models' scores, where they are at hand, it errs at most a quarter as much on average.
    """
    scores = read_scores(OWN_LOGITS)
    for labels, p, repeats in ((*generate(3000, 0), 6), (scores.labels, scores.p, 10)):
        blind, latent = (simulate(method, labels, p, repeats=repeats) for method in ("blind", "latent"))
        assert latent.mae < 0.5 * blind.mae
    real = [read_scores(path) for path in FILES]
    if real:
        latent_error, blind_error = (
            np.mean([simulate(method, known.labels, known.p, repeats=2).mae for known in real])
            for method in ("latent", "blind")
        )
        assert latent_error < 0.25 * blind_error
        # .0044 over 20 repeats (docs/accuracy.md); two repeats scatter more
        assert latent_error < 0.006


@pytest.mark.parametrize(("method", "queries"), [("sampling", 2), ("sampling", 4), ("extraction", 3)])
def test_latent_reads_the_answers_of_other_methods_better(method: str, queries: float) -> None:
    """The same answers, read by the likelihood, err less than half as much as read the method's own way."""
    labels, p = generate(3000, 0)
    own, fitted = (
        simulate(method, labels, p, estimator=estimator, queries=queries, repeats=4)
        for estimator in ("own", "latent")
    )
    assert (own.queries, own.estimator, fitted.estimator) == (fitted.queries, "own", "latent")
    assert fitted.mae < 0.5 * own.mae


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("latent", {"repeats": 0}, "repeats: must be a whole number of at least 1, got 0"),
        ("latent", {"queries": np.nan}, "queries: must be a positive number, got nan"),
        ("blind", {"estimator": "mle"}, "estimator: must be one of own, latent, got 'mle'"),
        ("verbalized", {}, "method: known probabilities do not tell"),
    ],
)
def test_bad_arguments_are_named(method: str, arguments: dict[str, Any], message: str) -> None:
    """The error names the argument, the rule and the value."""
    with pytest.raises(BlindcalError, match=message):
        simulate(method, *generate(50, 1), **({"repeats": 1} | arguments))


# The command


def call(*arguments: object) -> Result:
    return blindcal("simulate", *arguments)


def objects(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    labels, p = generate(300, 5)
    path = tmp_path / "some.csv"
    rows = (f"{i},{y},{f}\n" for i, (y, f) in enumerate(zip(labels, p, strict=True)))
    path.write_text("id,label,p\n" + "".join(rows))
    return path


def test_json_is_one_object_per_file_and_method(scores: Path, tmp_path: Path) -> None:
    """Every file meets every method, in the order given, and the options are those of `simulate`."""
    other = tmp_path / "other.csv"
    other.write_bytes(scores.read_bytes())
    options = "--queries", 2, "--bins", 10, "--seed", 7, "--repeats", 2, "--json"
    rows = objects(call(scores, other, "--method", "latent", "--method", "sampling", *options))
    assert [(Path(row["file"]).name, row["method"]) for row in rows] == [
        (name, method) for name in ("some.csv", "other.csv") for method in ("latent", "sampling")
    ]
    assert list(rows[0]) == ["file", "n", "method", "estimator", "queries", "oracle", "estimates", "mae"]
    known = read_scores(scores)
    same = simulate("latent", known.labels, known.p, queries=2, bins=10, repeats=2, seed=7)
    assert (rows[0]["estimates"], rows[0]["mae"]) == (list(same.estimates), pytest.approx(same.mae))
    assert rows[0]["estimates"] == rows[2]["estimates"]


def test_the_table_has_a_line_per_file_and_a_mean_per_method(scores: Path) -> None:
    """Without --json: a header, a row for each file and method, and the mean of each method."""
    result = call(scores, "--generate", 200, "--method", "blind", "--method", "extraction", "--repeats", 1)
    assert result.exit_code == 0
    first = [line.split()[0] for line in result.stdout.splitlines()]
    assert first == ["file", "some.csv", "some.csv", "generated", "generated", "mean", "mean"]
    assert "nan" not in result.stdout


def test_bad_options_are_named(scores: Path) -> None:
    """An option that breaks a rule is named with the rule and the value, and a missing file too."""
    for options, message in (
        (["--queries", "nan"], "queries must be a number from 0.001 to 100"),
        (["--method", "extraction", "--queries", "1.5"], "queries: extraction asks a whole number"),
        (["--method", "guess"], "is not one of 'logprobs', 'latent', 'blind'"),
    ):
        result = call(scores, "--repeats", 1, *options)
        assert result.exit_code != 0
        assert message in result.output or message in str(result.exception)
    assert "give at least one score file" in call().stderr


@pytest.mark.parametrize(("count", "queries"), [(3, {"latent": 2.0, "logprobs": 1.0}), (2, {"latent": 1.0})])
def test_choice_files_have_usual_numbers_of_queries(
    count: int, queries: dict[str, float], tmp_path: Path
) -> None:
    """Without a number, each method asks its own; a choice file of two answers is asked once."""
    rng = np.random.default_rng(0)
    rows = [",".join(map(str, (k, *rng.normal(0, 2, count), k % count))) for k in range(60)]
    header = ",".join(["id", *(f"logit_{letter}" for letter in "ABC"[:count]), "label"])
    path = tmp_path / "choices.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    for method, wanted in queries.items():
        (row,) = objects(call(path, "--method", method, "--repeats", 1, "--json"))
        assert row["queries"] == pytest.approx(wanted)


@pytest.mark.skipif(not (SHARED / "scores").is_dir(), reason="needs ../shared/scores")
def test_simulate_finds_the_numbers_it_found_before() -> None:
    """Every method on the two smallest real score sets; the last digits differ between processors.

    bench/same_numbers.py compares all twelve, to the last digit.
    """
    command = [sys.executable, str(ROOT / "bench" / "same_numbers.py"), "--data", str(SHARED)]
    run = subprocess.run([*command, "--smallest=2", "--tolerance=1e-9"], capture_output=True, text=True)
    assert run.stdout == "16 simulations of 2 files, 0 numbers differ\n", run.stderr
    assert run.returncode == 0
