"""Methods against known probabilities, in Python and on the command line, made-up and real."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
from click.testing import CliRunner, Result
from scipy.special import expit

from blindcal.cli import app
from blindcal.errors import BlindcalError
from blindcal.estimate.truth import binned_ece
from blindcal.items.score_files import read_scores
from blindcal.methods import SIMULABLE
from blindcal.records import Round
from blindcal.simulation.simulate import Simulation, generate, log_odds, respond, simulate
from paths import SHARED
from serving import OWN_LOGITS

SCORES = SHARED / "scores"


def round_of(shifts: list[float], temperatures: list[float]) -> Round:
    return Round(np.arange(len(shifts)), np.array(shifts), np.array(temperatures))


def test_thresholds_are_answered_as_method_2_says() -> None:
    """At T = 0 the answer is 1[s >= -b], the edge included."""
    s = np.array([1.0, 1.0, 1.0, -np.inf, np.inf])
    asked = round_of([-1.0, -1.0000001, 0.0, 40.0, -40.0], [0.0] * 5)
    assert respond(s, asked, np.random.default_rng(0)).tolist() == [1, 0, 1, 0, 1]


def test_samples_follow_the_response_curve() -> None:
    """At T > 0 the share of positive answers is sigmoid((s + b)/T)."""
    n = 20_000
    for s, b, temperature in ((0.7, -0.2, 0.5), (-1.0, 0.0, 2.0), (3.0, 0.0, 1.0)):
        asked = round_of([b] * n, [temperature] * n)
        share = respond(np.full(n, s), asked, np.random.default_rng(1)).mean()
        # binomial: at most 1/(2 sqrt n) = .0035; 4 of them
        assert abs(share - expit((s + b) / temperature)) < 4 * 0.0035


def test_jitter_blurs_the_threshold() -> None:
    """With noise of sd j the answer is positive with the chance that a normal falls short of (s + b)/j."""
    n = 20_000
    asked = round_of([-0.3] * n, [0.0] * n)
    share = respond(np.full(n, 0.4), asked, np.random.default_rng(2), jitter=0.2).mean()
    assert abs(share - 0.6915) < 4 * 0.0035  # Phi(0.5)


def test_certain_probabilities_are_infinite_log_odds() -> None:
    """p = 0 and 1 are infinitely sure, without a warning."""
    assert log_odds(np.array([0.0, 0.5, 1.0])).tolist() == [-np.inf, 0.0, np.inf]


@pytest.mark.parametrize("method", SIMULABLE)
def test_every_method_runs_and_says_what_it_asked(method: str) -> None:
    """Each method has as many estimates as repeats, the oracle, the queries asked, and can be repeated."""
    labels, p = generate(400, 1)
    queries = 1.0 if method in ("blind", "logprobs") else 2.0
    found = simulate(method, labels, p, queries=queries, repeats=2, seed=3)
    assert (found.n, found.method, len(found.estimates)) == (400, method, 2)
    assert found.queries == pytest.approx(0.8 if method == "blind" else queries)
    assert found.oracle == binned_ece(labels, p, 5).ece.value
    assert found.mae == pytest.approx(np.mean(np.abs(np.array(found.estimates) - found.oracle)))
    assert simulate(method, labels, p, queries=queries, repeats=1, seed=4).estimates[0] == found.estimates[1]


def test_what_is_said_in_words_cannot_be_simulated() -> None:
    """Probabilities do not tell what a model would say of them."""
    with pytest.raises(BlindcalError, match="method: known probabilities do not tell"):
        simulate("verbalized", *generate(50, 1), repeats=1)


def test_a_simulation_shows_itself_in_one_line() -> None:
    """The method, how much was simulated, and how far it was from the oracle."""
    found = Simulation(
        n=1500, method="latent", estimator="own", queries=1.0, oracle=0.1, estimates=(0.11, 0.12)
    )
    assert repr(found) == "Simulation(latent, 1,500 items, 2 audits, error 0.0150)"


def test_latent_beats_blind_on_made_up_items() -> None:
    """With the same single query `latent` errs less than half as much."""
    labels, p = generate(3000, 0)
    blind, latent = (simulate(method, labels, p, repeats=6) for method in ("blind", "latent"))
    assert latent.mae < 0.5 * blind.mae


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


def test_methods_that_are_fitted_are_read_the_same_either_way() -> None:
    """For `latent` and `temperature` the likelihood is the method's own estimator."""
    labels, p = generate(300, 1)
    for method in ("latent", "temperature"):
        own, fitted = (
            simulate(method, labels, p, estimator=name, queries=2, repeats=1) for name in ("own", "latent")
        )
        assert own.estimates == fitted.estimates


def test_an_unknown_estimator_is_refused_with_those_there_are() -> None:
    """A wrong name is answered with the right ones."""
    labels, p = generate(50, 1)
    with pytest.raises(BlindcalError, match="estimator: must be one of own, latent, got 'mle'"):
        simulate("blind", labels, p, estimator="mle", repeats=1)


def test_extraction_converges_to_the_oracle() -> None:
    """Ten queries of bisection leave nothing but rounding."""
    labels, p = generate(500, 2)
    assert simulate("extraction", labels, p, queries=10, repeats=1).mae < 0.002


def test_latent_beats_blind_on_a_small_real_model() -> None:
    """On SmolLM2's recorded log-odds of 240 questions `latent` errs less than half as much as `blind`."""
    scores = read_scores(OWN_LOGITS)
    latent, blind = (simulate(name, scores.labels, scores.p, repeats=10) for name in ("latent", "blind"))
    assert latent.oracle == pytest.approx(float(binned_ece(scores.labels, scores.p).ece))
    assert latent.mae < 0.5 * blind.mae


FILES = sorted(SCORES.glob("*.csv.gz"))


@pytest.mark.skipif(not FILES, reason="the real score files are not here (../shared/scores)")
def test_latent_beats_blind_on_real_models() -> None:
    """On real models' scores at one query `latent` errs at most a quarter as much as `blind`, on average."""
    errors: dict[str, list[float]] = {"blind": [], "latent": []}
    for path in FILES:
        scores = read_scores(path)
        for method, found in errors.items():
            found.append(simulate(method, scores.labels, scores.p, repeats=2).mae)
    assert np.mean(errors["latent"]) < 0.25 * np.mean(errors["blind"])
    # .0044 over 20 repeats (docs/accuracy.md); two repeats scatter more
    assert np.mean(errors["latent"]) < 0.006


# The command


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *arguments])


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    labels, p = generate(300, 5)
    path = tmp_path / "some.csv"
    path.write_text(
        "id,label,p\n" + "".join(f"{i},{y},{f}\n" for i, (y, f) in enumerate(zip(labels, p, strict=True)))
    )
    return path


def objects(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_json_is_one_object_per_file_with_these_keys(scores: Path) -> None:
    """The keys are file, n, method, estimator, queries, oracle, estimates, mae; numbers are finite."""
    (found,) = objects(call(str(scores), "--method", "latent", "--repeats", "2", "--json"))
    assert list(found) == ["file", "n", "method", "estimator", "queries", "oracle", "estimates", "mae"]
    assert (found["file"], found["n"], found["method"], found["queries"]) == (str(scores), 300, "latent", 1.0)
    assert len(found["estimates"]) == 2
    data = read_scores(scores)
    assert found["oracle"] == pytest.approx(binned_ece(data.labels, data.p, 5).ece.value)
    assert found["mae"] == pytest.approx(np.mean([abs(e - found["oracle"]) for e in found["estimates"]]))


def test_methods_and_files_repeat(scores: Path, tmp_path: Path) -> None:
    """Every file meets every method, in the order given."""
    other = tmp_path / "other.csv.gz"
    other.write_bytes(gzip.compress(scores.read_bytes()))
    found = objects(
        call(str(scores), str(other), "--method", "blind", "--method", "sampling", "--repeats", "1", "--json")
    )
    assert [(Path(one["file"]).name, one["method"]) for one in found] == [
        ("some.csv", "blind"),
        ("some.csv", "sampling"),
        ("other.csv.gz", "blind"),
        ("other.csv.gz", "sampling"),
    ]
    assert found[0]["queries"] == pytest.approx(0.8)
    assert found[0]["estimates"] == found[2]["estimates"]


def test_parquet_reads_like_csv(scores: Path, tmp_path: Path) -> None:
    """The same scores in Parquet give the same estimates."""
    data = read_scores(scores)
    path = tmp_path / "some.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table({"id": list(data.ids), "label": data.labels.tolist(), "p": data.p.tolist()}), path
    )
    first, second = objects(call(str(scores), str(path), "--repeats", "1", "--json"))
    assert first["estimates"] == second["estimates"]


def test_options_reach_the_method(scores: Path) -> None:
    """Queries, bins and seed matter, and the default method is latent."""
    (found,) = objects(
        call(str(scores), "--queries", "1.5", "--bins", "10", "--seed", "7", "--repeats", "1", "--json")
    )
    data = read_scores(scores)
    known = simulate("latent", data.labels, data.p, queries=1.5, bins=10, repeats=1, seed=7)
    assert (found["method"], found["queries"]) == ("latent", 1.5)
    assert found["estimates"] == list(known.estimates)
    assert found["oracle"] == pytest.approx(binned_ece(data.labels, data.p, 10).ece.value)


def test_the_table_has_a_line_per_file_and_a_mean_per_method(scores: Path) -> None:
    """Without --json: a header, a row for each file and method, and the mean of each method."""
    result = call(str(scores), "--method", "blind", "--method", "extraction", "--repeats", "1")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["file", "some.csv", "some.csv", "mean", "mean"]
    assert "nan" not in result.stdout


def test_a_set_can_be_generated() -> None:
    """--generate N needs no file."""
    (found,) = objects(call("--generate", "200", "--method", "blind", "--repeats", "1", "--json"))
    assert found["n"] == 200


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,label,p\na,0,1.5\n", "row 1, p: must be a number in [0, 1], got '1.5'"),
        ("id,label,p\na,7,0.5\n", "row 1, label: must be 0 or 1, got '7'"),
        ("id,label,p\n", "holds no rows"),
        ("a,b\n1,2\n", "lacks label"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    """The error names the file and what is wrong with it; nothing is printed for it."""
    path = tmp_path / "bad.csv"
    path.write_text(text)
    result = call(str(path), "--repeats", "1", "--json")
    assert result.exit_code != 0
    assert result.stdout == ""
    assert isinstance(result.exception, BlindcalError)
    assert message in str(result.exception)
    assert "bad.csv" in str(result.exception)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--repeats", "0"], "'--repeats': 0 is not in the range"),
        (["--queries", "nan"], "queries must be a number above 0"),
        (["--bins", "0"], "bins must be a"),
        (["--method", "extraction", "--queries", "1.5"], "queries: extraction asks a whole number"),
        (["--generate", "0"], "'--generate': 0 is not in the range"),
    ],
)
def test_bad_options_are_named(scores: Path, options: list[str], message: str) -> None:
    """An option that breaks a rule is named with the rule and the value."""
    result = call(str(scores), "--repeats", "1", *options)
    assert result.exit_code != 0
    assert message in result.output or message in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"repeats": 0}, "repeats: must be a whole number of at least 1, got 0"),
        ({"queries": 0.0}, "queries: must be a positive number, got 0.0"),
        ({"queries": np.nan}, "queries: must be a positive number, got nan"),
        ({"bins": 0}, "bins: must be a whole number of at least 1, got 0"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    """In Python too."""
    with pytest.raises(BlindcalError, match=message):
        simulate("latent", *generate(50, 1), **({"repeats": 1} | arguments))


def test_no_file_and_a_foreign_method_are_usage_errors(scores: Path) -> None:
    """Nothing to audit, or a method that does not exist, says so with the usage."""
    assert "give at least one score file" in call().stderr
    assert "is not one of 'logprobs', 'latent', 'blind'" in call(str(scores), "--method", "guess").stderr


def test_tiny_files_do_not_break_any_method(tmp_path: Path) -> None:
    """One item is enough for a result or a clear error, whatever the method."""
    path = tmp_path / "one.csv"
    path.write_text("id,label,p\na,1,0.8\n")
    for method in SIMULABLE:
        result = call(str(path), "--method", method, "--repeats", "1", "--json")
        if result.exit_code == 0:
            assert all(np.isfinite(objects(result)[0]["estimates"]))
        else:
            assert isinstance(result.exception, BlindcalError), method


def test_several_answers_have_usual_numbers_of_queries(tmp_path: Path) -> None:
    """Without a number, each method asks its own; a choice file of two answers is asked once."""
    rng = np.random.default_rng(0)
    for count, queries in ((3, {"latent": 2.0, "logprobs": 1.0}), (2, {"latent": 1.0})):
        rows = [",".join(map(str, (k, *rng.normal(0, 2, count), k % count))) for k in range(60)]
        header = ",".join(["id", *(f"logit_{letter}" for letter in "ABC"[:count]), "label"])
        path = tmp_path / f"{count}.csv"
        path.write_text("\n".join([header, *rows]) + "\n")
        for method, wanted in queries.items():
            found = call(str(path), "--method", method, "--repeats", "1", "--json")
            assert found.exit_code == 0, found.output
            assert json.loads(found.output)["queries"] == pytest.approx(wanted)
