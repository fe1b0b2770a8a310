"""Audits that read the probabilities which an endpoint shows, and everything that follows such an audit."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, logit

import blindcal as bc
from blindcal.auditing.audit import audit
from blindcal.endpoints.replies import shown_answers
from blindcal.errors import UnfitError
from blindcal.estimate.truth import binned_ece
from blindcal.items.catalogue import open_items
from blindcal.items.score_files import read_scores
from blindcal.records import FloatArray, IntArray
from blindcal.results.answer_counts import of_run, read_counts, write_counts
from blindcal.results.compare import compare
from blindcal.results.merge import merge
from blindcal.results.run import Run, open_run
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from blindcal.simulation.simulate import simulate
from commanding import blindcal
from deciding import TEMPLATE, audited, model, serving, settings, write_items
from fitting import asked, fitted
from misbehaving import Behaviour, Server
from paths import SHARED
from serving import OWN_LOGITS, Altered

N = 240
LABELS, P = model(N, 3)
SETS = sorted((SHARED / "scores").glob("*.csv.gz"))


# Exact readings


def near(fit: bc.LatentFit, labels: IntArray, p: FloatArray) -> float:
    """How far the estimate is from the ECE of the probabilities themselves."""
    return abs(float(fit.ece) - float(binned_ece(labels, p, 5).ece))


@pytest.mark.skipif(not SETS, reason="no score files")
def test_exact_readings_give_the_ece_of_real_models() -> None:
    """On every set of scores the estimate is that of the probabilities, and its interval holds it.

    A cell is at most 1/480 wide, and the errors of items within it cancel.
    """
    for path in SETS:
        scores = read_scores(path)
        some = np.random.default_rng(0).permutation(scores.labels.size)[:1500]
        labels, p = scores.labels[some], scores.p[some]
        fit = fitted(labels, asked(labels, p, method="logprobs"), resamples=100)
        assert near(fit, labels, p) < 3e-4, path.name
        assert float(binned_ece(labels, p, 5).ece) in fit.ece
        accuracy = ((p >= 0.5) == (labels == 1)).mean()
        assert float(fit.accuracy) == pytest.approx(accuracy, abs=1e-9)
        assert float(fit.brier) == pytest.approx(((p - labels) ** 2).mean(), abs=1e-3)


def test_sure_and_certain_models_are_read() -> None:
    """Probabilities of exactly 0 and 1, and all the same, have an estimate and an interval."""
    labels = np.arange(200) % 2
    for p in (labels.astype(float), np.full(200, 0.5), np.where(np.arange(200) < 100, 0.0, 1.0)):
        fit = fitted(labels, asked(labels, p, method="logprobs"), resamples=50)
        assert near(fit, labels, p) < 1.1e-3  # half a cell
        assert fit.ece.low is not None


def test_bounds_and_answers_are_one_likelihood() -> None:
    """Readings of half the items and thresholds of the others are one fit, better than thresholds alone."""
    labels, p = model(1200, 5, 0.6)
    read, told = asked(labels, p, method="logprobs"), asked(labels, p)
    mixed = read.of(np.arange(600)).joined(told.of(np.arange(600, 1200)))
    assert mixed.bounds is not None
    assert np.isnan(mixed.bounds[:, 0]).sum() == 600
    widths = [fitted(labels, one, resamples=200).ece.half_width for one in (read, mixed, told)]
    assert widths == sorted(widths)


def test_wide_bounds_are_read_as_such() -> None:
    """Bounds that say no more than an answer at a threshold are that answer, but may all err on one side."""
    labels, p = model(600, 6)
    told = asked(labels, p)
    low = np.where(told.answers == 1, -told.shifts, -np.inf)
    high = np.where(told.answers == 1, np.inf, -told.shifts)
    y = labels[told.items]
    shown = bc.latent(y, np.zeros(600), told.answers, bounds=np.column_stack([low, high]), resamples=50)
    thresholds = bc.latent(y, told.shifts, told.answers, resamples=50)
    assert float(shown.ece) == float(thresholds.ece)
    assert shown.ece.half_width > thresholds.ece.half_width


@pytest.mark.parametrize(
    ("bounds", "rule"),
    [
        ([[1.0, 0.0]], "the lower one first"),
        ([[np.nan, 0.0]], "or NaN twice"),
        ([0.0, 1.0], "one row of two per label"),
    ],
)
def test_bounds_that_are_none_are_named(bounds: Any, rule: str) -> None:
    """The error says what bounds must be."""
    with pytest.raises(bc.InputError, match=rule):
        bc.latent([1], [0.0], [1], bounds=bounds)


# Audits


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_items(tmp_path_factory.mktemp("logprobs") / "items.jsonl", LABELS)


@pytest.fixture(scope="module")
def server(items: Path) -> Iterator[Server]:
    """A service that shows logprobs, rejects any bias and tells no token ids."""
    with serving(items, P, logprobs=True, bias="rejected", tokenize="none") as found:
        yield found


@pytest.fixture(scope="module")
def folder(items: Path, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return audited(items, server, tmp_path_factory.mktemp("runs") / "run", method="logprobs")


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return open_run(folder)


def test_an_audit_reads_what_a_simulation_reads(run: Run, server: Server) -> None:
    """One query per item, no token ids, and the ECE of the probabilities themselves; some are asked twice."""
    result, steady = run.result, run.result.steadiness
    assert result.complete
    spend = result.spend
    assert (spend.queries - spend.probe_queries - spend.control_queries, result.counts.invalid) == (N, 0)
    assert steady is not None
    assert steady.spread is not None
    assert steady.spread.pairs == spend.control_queries == 60
    assert steady.spread.most < 1e-6
    assert float(result.ece) == pytest.approx(float(binned_ece(LABELS, P, 5).ece), abs=1e-3)
    # the rest of the vocabulary, 6e-6 of the probability, may move a reading into the next cell
    simulated = simulate("logprobs", LABELS, P, repeats=1).estimates[0]
    assert float(result.ece) == pytest.approx(simulated, abs=1e-5)
    assert result.ece.has_interval
    assert (result.semantics, result.estimator) == ("sum", "latent")
    assert result.measures.startswith("all spellings of the positive answer against all of the negative")
    assert server.behaviour.bias == "rejected"
    assert run.answered.bounds is not None
    middle = run.answered.bounds.mean(axis=1)
    assert middle == pytest.approx(logit(P[run.answered.items]), abs=0.2)


def test_the_result_says_what_is_left_open(run: Run, folder: Path, items: Path, server: Server) -> None:
    """The mass outside the answers and the list is in the result, on the console and in the report."""
    shown = run.result.shown
    assert shown is not None
    assert shown.readings == N
    assert 0 < shown.outside <= shown.most_outside < 1e-5
    assert 0 <= shown.open <= shown.most_open < 1e-4
    again = blindcal(
        *("audit", items, "--model", "replay", "--base-url", server.base_url, "--out", folder),
        *("--method", "logprobs", "--template", TEMPLATE, "--set", "resamples=40", "-v"),
    )
    assert again.exit_code == 0, again.output
    assert "shown      below 0.01% of the probability is on neither answer" in again.output
    page = (folder / "report.html").read_text()
    assert "Probability shown for neither answer" in page
    assert "Tokens for" not in page


def test_the_answers_are_written_with_their_bounds(run: Run, folder: Path) -> None:
    """The CSV has the bounds of the log-odds, and the text what was said and both probabilities."""
    with (folder / "answers.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert run.answered.bounds is not None
    assert [float(row["low"]) for row in rows] == pytest.approx(run.answered.bounds[:, 0].tolist(), rel=1e-6)
    assert all(float(row["low"]) <= float(row["high"]) for row in rows)
    assert all("(Yes " in row["text"] for row in rows)


def test_counts_of_readings_give_the_same_fit(run: Run, tmp_path: Path) -> None:
    """Counted, added up and read back from a file, the readings give the same estimate and interval."""
    counts = of_run(run)
    pytest.importorskip("pyarrow")
    write_counts(counts, tmp_path / "counts.parquet")
    assert read_counts(tmp_path / "counts.parquet") == counts
    fit = counts.latent(resamples=40)
    assert fit.ece == run.fit(resamples=40).smooth.ece


def test_parts_of_a_file_merge_to_the_whole(items: Path, server: Server, run: Run, tmp_path: Path) -> None:
    """Runs on two halves are one run on all items."""
    lines = items.read_text().splitlines(keepends=True)
    folders = []
    for part, half in enumerate((lines[: N // 2], lines[N // 2 :])):
        path = tmp_path / f"part{part}.jsonl"
        path.write_text("".join(half))
        folders.append(audited(path, server, tmp_path / f"run{part}", method="logprobs"))
    both = merge(folders, resamples=40)
    assert float(both.ece) == pytest.approx(float(run.result.ece), abs=1e-12)
    assert both.shown is not None
    assert run.result.shown is not None
    assert both.shown.outside == pytest.approx(run.result.shown.outside)
    assert (both.shown.readings, both.shown.most_open) == (N, run.result.shown.most_open)


def test_a_threshold_of_shown_probabilities_is_compared_with_them(folder: Path) -> None:
    """No bias is sent: the probability in the reply is compared with it."""
    chosen = blindcal("threshold", folder, "--cost-fp", 5, "--cost-fn", 1)
    assert chosen.exit_code == 0, chosen.output
    assert "compare    the probability of 'Yes' in choices[0].logprobs" in chosen.output
    assert "queries tested thresholds" not in chosen.output  # every reading tests every threshold


def test_what_was_read_is_estimated_as_it_is(run: Run, folder: Path) -> None:
    """Results, gates and comparisons rest on the probabilities themselves, not on a smooth fit of them."""
    assert run.answered.bounds is not None
    labels, p = run.labels[run.answered.items], expit(run.answered.bounds).mean(axis=1)
    result = run.result
    known = binned_ece(labels, p, 5)
    assert [float(one.gap) for one in result.bins] == pytest.approx(known.gaps.tolist(), abs=1e-12)
    assert float(result.brier) == pytest.approx(((p - labels) ** 2).mean(), abs=1e-12)
    assert [float(one.positive_rate) for one in result.operating] == pytest.approx(
        [(p >= one.threshold).mean() for one in result.operating], abs=1e-12
    )
    assert "taken as they are" in result.measures
    (ece, *_) = compare(folder, folder, resamples=40).differences
    assert ece.first.value == result.ece.value
    assert float(ece.difference) == 0
    assert ece.correlation == pytest.approx(1)


@pytest.mark.parametrize("semantics", [None, "max", "pair"])
def test_spellings_are_summed_unless_told_otherwise(semantics: str | None, tmp_path: Path) -> None:
    """A real model's recorded spellings give the ECE of their sum, or of the likeliest, or of one pair."""
    recording, labels = Recording.load(OWN_LOGITS), read_scores(OWN_LOGITS).labels
    items = tmp_path / "items.jsonl"
    rows = zip(recording.ids, labels.tolist(), strict=True)
    items.write_text("".join(json.dumps({"id": k, "prompt": f"Is {k}?", "label": y}) + "\n" for k, y in rows))
    loaded = open_items(items)
    with running(Server(recording, loaded, Behaviour(logprobs=True))) as server:
        chosen = settings(server, model=recording.name, template=None, method="logprobs", semantics=semantics)
        found = audit(items, chosen, out=tmp_path / "run", oracle=OWN_LOGITS)
    assert found.semantics == (semantics or "sum")
    assert found.oracle is not None
    assert found.oracle.difference == pytest.approx(0, abs=2e-3)


def test_a_short_list_is_refused(items: Path, tmp_path: Path) -> None:
    """Where only the likeliest token is shown, another method is chosen; forced, it is read as such."""
    with serving(items, P, logprobs=True, top_logprobs=1) as server:
        with pytest.raises(UnfitError, match=r"so few logprobs are shown that \d+% of the probability"):
            audit(items, settings(server, method="logprobs"), out=tmp_path / "run")
        chosen = audit(items, settings(server, method="auto"), out=tmp_path / "auto")
        forced = audit(items, settings(server, method="logprobs"), out=tmp_path / "forced", force=True)
    assert chosen.method == "latent"
    assert forced.objection is not None
    assert forced.shown is not None
    assert forced.shown.open > 0.05
    assert float(binned_ece(LABELS, P, 5).ece) in forced.ece
    assert "shows so few logprobs" in (tmp_path / "forced" / "report.html").read_text()


@pytest.mark.parametrize("outside", [0.0, 0.1, 0.5])
def test_intervals_allow_for_tokens_that_are_not_shown(outside: float) -> None:
    """The likelier token alone is shown, so that all bounds err on its side; the intervals hold the truth."""
    labels, p = model(1500, 8)
    likelier = np.maximum(p, 1 - p) * (1 - outside)
    shown = [
        shown_answers({word: float(np.log(chance))}, ("Yes", "No"))
        for word, chance in zip(np.where(p > 0.5, "Yes", "No"), likelier, strict=True)
    ]
    bounds = np.array([(each.low(), each.high()) for each in shown])
    readings = asked(labels, p, method="logprobs")
    fit = fitted(labels, replace(readings, bounds=bounds[readings.items]), resamples=100)
    exact = fitted(labels, readings, resamples=100)
    for name in ("ece", "accuracy", "brier", "auroc", "overconfidence"):
        assert float(getattr(exact, name)) in getattr(fit, name), name
    assert np.isnan(fit.calibrated_pvalue) == (fit.ece.low == 0)


@pytest.mark.parametrize(
    ("logprobs", "message"),
    [
        (None, "logprobs are hidden"),
        ({"token_id:1": -0.1, "token_id:2": -2.4}, "by token id and not by text"),
        ({"Yes": 12.5, "No": 11.0}, "it seems to show logits"),
    ],
)
def test_an_endpoint_that_shows_no_probabilities_is_refused(
    logprobs: dict[str, float] | None, message: str, items: Path, tmp_path: Path
) -> None:
    """No logprobs, token ids and logits are named before the first item is asked."""

    class Odd(Altered):
        def alter(self, _: bytes, body: bytes) -> bytes:
            reply = json.loads(body)
            shown = None if logprobs is None else {"top_logprobs": [logprobs]}
            reply["choices"][0]["logprobs"] = shown
            return json.dumps(reply).encode()

    loaded = open_items(items, bc.Settings(model="replay", template=TEMPLATE).prompt)
    questions = list(loaded)
    recording = Recording.from_probabilities([item.id for item in questions], P)
    with running(Odd(recording, questions, Behaviour(logprobs=True))) as server:
        with pytest.raises(UnfitError, match=message):
            audit(items, settings(server, method="logprobs"), out=tmp_path / "run")
        assert server.requests < 30


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        ({"logprobs_of": "answers swapped"}, r"the logprobs contradict \d+ of \d+ answers"),
        ({"logprobs_scale": 1e4}, "all probabilities shown are 0 or 1"),
    ],
)
def test_logprobs_that_lie_are_refused(
    lie: dict[str, Any], message: str, items: Path, tmp_path: Path
) -> None:
    """Probabilities that the answers beside them contradict, or that no model has, do not pass the probe."""
    with serving(items, P, logprobs=True, **lie) as server:
        with pytest.raises(UnfitError, match=message):
            audit(items, settings(server, method="logprobs"), out=tmp_path / "run")
        chosen = audit(items, settings(server, method="auto"), out=tmp_path / "auto")
    assert (chosen.method, chosen.warnings) == ("latent", ())


LIES: dict[str, dict[str, Any]] = {
    "swapped": {"logprobs_of": "answers swapped"},
    "of another item": {"logprobs_of": "another item"},
    "after T = 1/2": {"logprobs_scale": 2.0},
    "after T = 3": {"logprobs_scale": 0.33},
}
HONEST: dict[str, dict[str, Any]] = {
    "as it is": {},
    "temperature ignored": {"temperature": "ignored"},
    "temperature refused": {"temperature": "rejected"},
    "noisy": {"jitter": 0.3},
}


@pytest.mark.parametrize("kind", [*LIES, *HONEST])
def test_a_run_compares_answers_with_the_logprobs_beside_them(kind: str, items: Path, tmp_path: Path) -> None:
    """Logprobs that begin to lie after the probe make all estimates doubtful; honest ones do not."""
    lie = kind in LIES
    usual = {"logprobs": True, "bias": "rejected", "tokenize": "none", **HONEST.get(kind, {})}
    later = Behaviour(**usual, **LIES[kind]) if lie else None
    with serving(items, P, **usual, later=later, later_from=20) as server:
        found = audit(items, settings(server, method="logprobs"), out=tmp_path / "run")
    assert len(found.warnings) == lie
    assert all(text.startswith("The logprobs ") for text in found.warnings)


def test_a_stopped_run_goes_on_with_what_was_shown(
    items: Path, server: Server, run: Run, tmp_path: Path
) -> None:
    """Bounds are kept like answers: a run in two parts asks nothing twice and ends with the same estimate."""
    chosen, asked_before = settings(server, method="logprobs"), server.answered
    first = audit(items, chosen, out=tmp_path / "run", limits=bc.Limits(max_queries=90))
    assert not first.complete
    assert first.shown is not None
    assert first.shown.readings == first.counts.answers
    second = audit(items, chosen, out=tmp_path / "run")
    assert server.answered - asked_before == second.spend.queries
    assert second.spend.control_queries == run.result.spend.control_queries
    assert (second.ece, second.shown) == (run.result.ece, run.result.shown)


def test_words_that_the_model_never_says_end_the_run(items: Path, server: Server, tmp_path: Path) -> None:
    """Words that are in no list of logprobs are found out by the probe."""
    chosen = settings(server, method="logprobs", positive="Oui", negative="Non")
    with pytest.raises(UnfitError, match="show no answer word"):
        audit(items, chosen, out=tmp_path / "run")
