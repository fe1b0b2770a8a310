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
from blindcal.estimate.truth import binned_ece
from blindcal.estimation import UNNAMED, estimate
from blindcal.items.catalogue import open_items
from blindcal.methods import METHODS, SIMULABLE
from blindcal.records import Estimate, Token
from blindcal.results.result import AuditResult
from blindcal.settings import Settings
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from blindcal.simulation.simulate import simulate
from blindcal.store.run_store import RUN_FILE, Store
from commanding import blindcal
from fitting import estimates_in
from misbehaving import Behaviour, Server
from reporting import evidence, population
from result_schema import schema
from serving import replaying, write_items

N = 3000


def test_a_latent_result_is_near_the_truth() -> None:
    """Curve and confidence of one query per item agree with the hidden probabilities."""
    labels, p = population()
    some = estimate(evidence("latent", labels, p))
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


@pytest.mark.parametrize("seed", [0, 1, 6])
@pytest.mark.parametrize("method", SIMULABLE)
def test_every_estimate_is_in_its_interval(method: str, seed: int) -> None:
    """Also where many items have the same confidence, which the smooth density of the fit cannot follow."""
    rng = np.random.default_rng(seed)
    n = 300
    p = np.where(rng.random(n) < 0.5, rng.beta(0.3, 0.3, n), rng.choice([0.3, 0.5, 0.95], n))
    labels = (rng.random(n) < p**1.5).astype(np.int64)
    read = estimate(replace(evidence(method, labels, p, seed=seed), estimator="latent", bins=10))
    estimates = [each for each in estimates_in(read) if each.has_interval]
    assert read.curve is not None
    estimates += map(Estimate, read.curve.value, read.curve.low or (), read.curve.high or ())
    assert len(estimates) > 400
    assert all(float(each) in each for each in estimates)


@pytest.mark.parametrize("method", SIMULABLE)
def test_nothing_is_made_of_no_answers(method: str) -> None:
    """With every answer invalid each estimate is unknown, and the ECE may be anything."""
    labels, p = population(200)
    some = estimate(evidence(method, labels, p, invalid=1.1))
    assert some.ece.value is None
    assert some.ece_if_invalid == (0.0, 1.0)
    assert [one.gap.value for one in some.bins] == [None] * 5


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
    return write_items(tmp_path / "items.jsonl", population(300)[0], topic=("x", "y", ""))


def serving(path: Path) -> Any:
    return replaying(path, population(len(path.read_text().splitlines()))[1], logprobs=True, n="ignored")


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
            resamples=50,
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


# Sums of spellings by thresholds: numbers of our own make greedy answers follow all of them


def test_an_audit_measures_the_sum_of_all_spellings(tmp_path: Path) -> None:
    """Two spellings of each word, of which the likeliest says something else than the sum."""
    n, rng = 900, np.random.default_rng(0)
    s = rng.normal(0.4, 1.5, n)
    f = 1 / (1 + np.exp(-s))
    labels = (rng.random(n) < 1 / (1 + np.exp(-0.5 * s))).astype(int)  # overconfident
    path = write_items(tmp_path / "items.jsonl", labels)
    # three tokens for Yes with equal weight, one for No: the greedy answer is off by log 3
    tokens = (Token(1, "Yes"), Token(2, " Yes"), Token(3, "yes"), Token(4, "No"))
    logits = np.column_stack([*([s - np.log(3)] * 3), np.zeros(n)])
    items = list(open_items(path))
    names = tuple(item.id for item in items)
    known = Recording("replay", names, tokens, logits, logits.max(axis=1) - 12, np.zeros(n, np.int64))
    with running(Server(known, items, Behaviour())) as server:
        settings = Settings(
            model="replay",
            base_url=server.base_url,
            method="latent",
            semantics="sum",
            queries=2,
            positive_ids=(1, 2, 3),
            negative_ids=(4,),
            resamples=100,
        )
        result, again = (audit(path, settings, out=tmp_path / "run") for _ in range(2))
    assert result.semantics == "sum"
    assert result.ece == again.ece
    assert float(binned_ece(labels, f).ece) in result.ece
    assert result.accuracy.value == pytest.approx(((s >= 0) == (labels == 1)).mean(), abs=0.05)
    with Store.read(tmp_path / "run" / RUN_FILE) as store:
        assert all((asked.temperatures == 1).all() for asked in store.rounds())
