"""The estimates of every method agree with each other and with known probabilities."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from markupsafe import Markup

from blindcal.auditing.audit import audit
from blindcal.estimate.findings import Findings
from blindcal.estimate.truth import binned_ece
from blindcal.evidence import UNNAMED, estimate
from blindcal.methods import METHODS, SIMULABLE
from blindcal.records import FloatArray, IntArray
from blindcal.results.result import AuditResult
from blindcal.settings import Settings
from blindcal.simulation.simulate import simulate
from commanding import blindcal
from reporting import evidence, population
from result_schema import schema
from serving import replaying

N = 3000


def found(method: str, queries: float | None = None) -> tuple[Findings, IntArray, FloatArray]:
    """The estimates of a method for a population, with its labels and probabilities."""
    labels, p = population()
    return estimate(evidence(method, labels, p, queries=queries)), labels, p


@pytest.mark.parametrize("method", SIMULABLE)
def test_gaps_add_up_to_the_ece(method: str) -> None:
    """The absolute gaps sum to the ECE, and each is its share times predicted minus observed."""
    some, *_ = found(method)
    gaps = [one.gap.value for one in some.bins]
    assert some.ece.value == pytest.approx(sum(abs(gap or 0) for gap in gaps))
    assert some.leaning.value == pytest.approx(sum(gap or 0 for gap in gaps))
    for one in some.bins:
        if method == "blind":
            assert (one.share, one.predicted, one.observed, one.gap.low) == (None, None, None, None)
            continue
        assert one.share is not None
        if one.share > 0:
            assert one.predicted is not None
            assert one.observed is not None
            assert one.gap.value == pytest.approx(one.share * (one.predicted - one.observed), abs=1e-9)
            assert one.low - 1e-9 <= one.predicted <= one.high + 1e-9


def test_a_latent_result_is_near_the_truth() -> None:
    """Curve, confidence and operating points of one query per item agree with the hidden probabilities."""
    some, labels, p = found("latent")
    assert some.curve is not None
    assert some.curve.low is not None
    assert some.curve.high is not None
    assert len(some.curve.f) == 99 + 6
    assert (some.curve.f[0], some.curve.f[-1]) == (0.001, 0.999)
    inside = [
        low <= 0.15 + 0.7 * f <= high
        for f, low, high in zip(some.curve.f, some.curve.low, some.curve.high, strict=True)
    ]
    assert np.mean(inside) > 0.8  # a pointwise band of 95%, strongly dependent along f
    assert some.confidence is not None
    for label, shares in enumerate((some.confidence.negatives, some.confidence.positives)):
        assert sum(shares) == pytest.approx(1)
        true = np.histogram(p[labels == label], some.confidence.edges)[0] / (labels == label).sum()
        # n = 3000: a share estimated from half the items, one answer each, has a standard error near 0.015
        assert np.abs(np.array(shares) - true).max() < 0.08
    assert len(some.operating) == 39
    right = []
    for row in some.operating:
        decided = p >= row.threshold
        truth = (
            (row.precision, labels[decided].mean()),
            (row.recall, decided[labels == 1].mean()),
            (row.accuracy, (decided == (labels == 1)).mean()),
            (row.positive_rate, decided.mean()),
            (row.false_positive, (decided & (labels == 0)).mean()),
            (row.false_negative, (~decided & (labels == 1)).mean()),
        )
        assert row.shift == pytest.approx(-np.log(row.threshold / (1 - row.threshold)))
        for one, true_value in truth:
            assert one.value is not None
            assert one.low is not None
            assert one.high is not None
            assert 0 <= one.low <= one.value <= one.high <= 1
            right.append(true_value in one)
    assert np.mean(right) > 0.85  # 95% intervals, strongly dependent along the threshold


def test_face_value_is_taken_exactly() -> None:
    """Sampling and extraction estimate what follows from their own probabilities, and nothing else."""
    some, labels, p = found("extraction", 30.0)  # bisected until the probability is exact
    truth = binned_ece(labels, p, 5)
    assert some.ece.value == pytest.approx(truth.ece.value, abs=1e-4)
    assert some.auroc.value is not None
    order = np.sort(p[labels == 0])
    wins = np.searchsorted(order, p[labels == 1]).mean() / order.size
    assert some.auroc.value == pytest.approx(wins, abs=1e-4)
    half = next(row for row in some.operating if row.threshold == 0.5)
    assert half.accuracy == some.accuracy
    assert (some.curve, some.tce.value, some.calibrated_pvalue, some.ece.low) == (None, None, None, None)
    shares, *_ = found("sampling", 2.0)
    assert shares.log_loss.value is None  # a share of 0 among positives: infinite, so not a number


@pytest.mark.parametrize("method", SIMULABLE)
def test_nothing_is_made_of_no_answers(method: str) -> None:
    """With every answer invalid each estimate is unknown, and the ECE may be anything."""
    labels, p = population(200)
    some = estimate(evidence(method, labels, p, invalid=1.1))
    assert some.ece.value is None
    assert some.ece_if_invalid == (0.0, 1.0)
    assert [one.gap.value for one in some.bins] == [None] * 5


def test_a_brief_estimate_leaves_out_what_parts_do_not_show() -> None:
    """Brief estimates agree with full ones and have no curve, no operating points and no parts."""
    labels, p = population(300)
    known = evidence("latent", labels, p, parts=["a"] * 300)
    full, brief = estimate(known), estimate(known, brief=True)
    assert (brief.ece, brief.bins, brief.accuracy) == (full.ece, full.bins, full.accuracy)
    assert (brief.curve, brief.operating, brief.costs, brief.parts) == (None, (), (), ())
    assert full.operating
    assert len(full.parts) == 1


def test_parts_with_few_groups_are_marked_and_not_compared() -> None:
    """Two texts of 150 questions are two observations, which do not tell whether texts differ."""
    labels, p = population(300)
    text = np.arange(300) // 150
    known = evidence("latent", labels, p, parts=[("first", "second")[k] for k in text])
    some = estimate(replace(known, groups=text, resamples=20))
    assert [part.few for part in some.parts] == [True, True]
    assert some.parts_pvalue is None
    some = estimate(replace(known, groups=np.arange(300) // 10, resamples=20))
    assert [part.few for part in some.parts] == [False, False]
    assert some.parts_pvalue is not None


def test_parts_are_read_apart_and_few_is_said() -> None:
    """A miscalibrated part clearly differs; a small one is marked; items without a part are one too."""
    labels, p = population()
    rng = np.random.default_rng(1)
    names = rng.choice(["a", "b", "c"], N).astype(object)
    wrong = names == "a"
    labels[wrong] = rng.random(wrong.sum()) < 1 - p[wrong]
    names[:40] = None
    some = estimate(evidence("latent", labels, p, parts=names.tolist()))
    parts, pvalue = some.parts, some.parts_pvalue
    assert [one.name for one in parts] == [UNNAMED, "a", "b", "c"]
    assert [one.few for one in parts] == [True, False, False, False]
    assert sum(one.items for one in parts) == N
    by_name = {one.name: one for one in parts}
    assert (by_name["a"].ece.low or 0) > (by_name["b"].ece.high or 1)
    assert pvalue is not None
    assert pvalue < 1e-6


@pytest.fixture
def items(tmp_path: Path) -> Path:
    labels, _ = population(300)
    path = tmp_path / "items.jsonl"
    lines = [
        json.dumps({"id": f"q{k}", "prompt": f"Is {k} so?", "label": int(y), "topic": ["x", "y", ""][k % 3]})
        for k, y in enumerate(labels)
    ]
    path.write_text("\n".join(lines))
    return path


def serving(path: Path) -> Any:
    return replaying(path, population(len(path.read_text().splitlines()))[1], logprobs=True)


@pytest.mark.parametrize("method", SIMULABLE)
def test_an_audit_by_every_method_finds_what_a_simulation_finds(
    method: str, items: Path, tmp_path: Path
) -> None:
    """The same ECE to the last digit, over HTTP or not; the file fits the published JSON Schema."""
    labels, p = population(300)
    queries = {"extraction": 8, "sampling": 8, "temperature": 2}.get(method)  # too few for another token
    with serving(items) as server:
        settings = Settings(
            model="replay", base_url=server.base_url, method=method, queries=queries, by_field="topic",
            resamples=50, send_seed=True,
        )  # fmt: skip
        one = audit(items, settings, out=tmp_path / "run")
    usual = METHODS[method].queries
    known = simulate(method, labels, p, queries=queries or usual, bins=len(one.bins), repeats=1)
    # the probability of other tokens may move a shown one into the next cell
    assert one.ece.value == pytest.approx(known.estimates[0], abs=1e-5 if method == "logprobs" else 0.0)
    assert one.semantics == {"logprobs": "sum", "temperature": "sum", "repeated": "configured"}.get(
        method, "pair"
    )
    written = tmp_path / "run" / "result.json"
    jsonschema.validate(json.loads(written.read_text()), schema())
    assert AuditResult.load(written) == one
    assert one.by == "topic"
    assert [(part.name, part.items) for part in one.parts] == [(UNNAMED, 100), ("x", 100), ("y", 100)]
    assert one.seconds > 0
    assert one.example is not None
    assert one.example.messages[0].content.startswith("Is ")
    assert one.example.left_out == 0
    assert len(one.example.logit_bias) == (2 if METHODS[method].biased else 0)


def test_a_finished_run_is_broken_down_anew_for_nothing(items: Path, tmp_path: Path) -> None:
    """``--by`` shapes no query: with another field the same run gives another table and asks nothing."""
    with serving(items) as server:
        command = ["audit", items, "--model", "replay", "--base-url", server.base_url, "--json", "--quiet"]
        command += ["--method", "blind", "--out", tmp_path / "run"]
        first = json.loads(blindcal(*command).output)
        asked = server.requests
        second = json.loads(blindcal(*command, "--by", "topic").output)
        assert server.requests == asked
    assert first["parts"] == []
    assert [part["name"] for part in second["parts"]] == [UNNAMED, "x", "y"]
    assert (first["ece"], first["seconds"]) == (second["ece"], second["seconds"])


def test_all_invalid_ends_with_a_result_and_an_error(items: Path, tmp_path: Path) -> None:
    """When no answer can be read, result and page claim nothing, and the command fails by name."""
    items.write_text("\n".join(items.read_text().splitlines()[:30]))
    with serving(items) as server:
        done = blindcal(
            *("audit", items, "--model", "replay", "--base-url", server.base_url, "--out", tmp_path / "run"),
            *("--force", "--set", "positive_ids=7", "--set", "negative_ids=8", "--method", "latent"),
        )
    assert done.exit_code == 1, done.output
    assert "no valid answer" in done.output
    one = AuditResult.load(tmp_path / "run" / "result.json")
    jsonschema.validate(json.loads(one.to_json()), schema())
    assert (one.ece.value, one.counts.positive, one.counts.negative) == (None, 0, 0)
    assert one.counts.invalid > 0
    page = Markup((tmp_path / "run" / "report.html").read_text()).striptags()
    assert "Nothing can be said about its calibration: not one of" in page
