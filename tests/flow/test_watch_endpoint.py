"""A watch notices if the endpoint changes, and seldom says so if it has not."""

from __future__ import annotations

import asyncio
import csv
import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import binom

from blindcal.asking.job import Job
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.records import FloatArray, Item, Message, Reply, Request
from blindcal.results.monitor import Monitor
from blindcal.results.watch_result import WatchResult
from blindcal.simulation.recording import Recording
from blindcal.store.watch_store import WatchStore
from blindcal.watching.anchors import Anchors, is_wrong
from paths import SHARED
from serving import PAIR
from watching import REFERENCE, N, Production, production, write

WITHIN = 50  # anchor queries
BEFORE = 20


def watch_a_change(live: Production, folder: Path, **behaviour: Any) -> WatchResult:
    """Watch a few looks, change the behaviour of the endpoint or its ``model``, and watch on."""
    stream = write(folder / "stream.jsonl", live.records(range(REFERENCE, REFERENCE + 50)))
    before = live.watch(stream, folder / "watch", every=10)
    assert not before.raised
    endpoint = before.state.alarm("endpoint")
    assert endpoint is not None
    assert endpoint.observations == BEFORE
    if (p := behaviour.pop("model", None)) is not None:
        known = live.server.recording
        live.server.recording = Recording.from_probabilities(known.ids, p, name=known.name)
    live.server.behaviour = replace(live.server.behaviour, **behaviour)
    write(stream, live.records(range(REFERENCE + 50, REFERENCE + 180)), "a")
    return live.watch(stream, folder / "watch", every=10)


def check_raised(found: WatchResult) -> None:
    """The endpoint alarm was raised within a few anchor queries, and dates the change."""
    endpoint = found.state.alarm("endpoint")
    assert endpoint is not None
    assert endpoint.raised_at is not None
    assert endpoint.raised_at <= BEFORE + WITHIN
    assert endpoint.since is not None
    assert BEFORE - 10 <= endpoint.since < endpoint.raised_at
    assert "endpoint" in found.first_seen
    assert found.raised
    assert not found.facts


def test_another_model_behind_the_name_is_noticed(tmp_path: Path) -> None:
    """A model with other probabilities under the same name, with no other trace."""
    with production(tmp_path) as live:
        check_raised(watch_a_change(live, tmp_path, model=np.random.default_rng(9).permutation(live.p)))


def test_a_small_shift_is_noticed_through_noise(tmp_path: Path) -> None:
    """A shift of 0.5 in all log-odds, with a jitter of 0.2."""
    with production(tmp_path, jitter=0.2 / np.sqrt(2)) as live:
        check_raised(watch_a_change(live, tmp_path, drift=0.5))


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the recorded models")
def test_one_recorded_model_in_place_of_another_is_noticed(tmp_path: Path) -> None:
    """Qwen's answers to BoolQ, and then those of SmolLM2."""
    files = (SHARED / "logits" / f"{name}__boolq__logits.csv.gz" for name in ("qwen", "smollm2"))
    qwen, smollm = map(_recorded, files)
    with production(tmp_path, p=qwen[:N]) as live:
        check_raised(watch_a_change(live, tmp_path, model=smollm[:N]))


def _recorded(path: Path) -> FloatArray:
    """The probability of True against False, by the likeliest spelling of each."""
    with gzip.open(path, "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    names = {name: name.rpartition("|")[0].strip().lower() for name in rows[0]}
    true, false = (
        np.array([max(float(row[name]) for name in names if names[name] == word) for row in rows])
        for word in ("true", "false")
    )
    return np.asarray(expit(true - false))


def test_a_bias_that_acts_no_more_is_a_fact(tmp_path: Path) -> None:
    """Items wait, because their answers would measure nothing; forced, the watch goes on."""
    with production(tmp_path) as live:
        found = watch_a_change(live, tmp_path, bias="ignored")
        assert found.raised
        (fact,) = found.facts
        assert "the logit_bias no longer acts" in fact
        assert found.stopped == "the logit_bias no longer acts"
        assert (found.answered, found.waiting) == (50, 10)
        forced = live.watch(tmp_path / "stream.jsonl", tmp_path / "watch", every=10, force=True)
        assert (forced.facts, forced.waiting) == (found.facts, 0)


def test_another_fingerprint_is_a_fact(tmp_path: Path) -> None:
    """Replies that name another system than those of the reference; it stays noted."""
    with production(tmp_path, fingerprint="fp_1") as live:
        found = watch_a_change(live, tmp_path, fingerprint="fp_2")
        (fact,) = found.facts
        assert fact == "replies come from replay (fp_2); those of the reference audit came from replay (fp_1)"
        assert found.raised
        assert found.stopped is None
        endpoint = found.state.alarm("endpoint")
        assert endpoint is not None
        assert not endpoint.raised
        live.server.behaviour = replace(live.server.behaviour, fingerprint="fp_1")
        assert live.watch(tmp_path / "stream.jsonl", tmp_path / "watch").facts == found.facts


class Noisy:
    """A model with these log-odds whose answers are noisy."""

    def __init__(self, log_odds: dict[str, float], jitter: float, rng: np.random.Generator) -> None:
        self._log_odds, self._jitter, self._rng = log_odds, jitter, rng

    async def ask(self, request: Request) -> Reply:
        """Answer by the sum of the log-odds, the shift and the noise."""
        shift = request.logit_bias[1] - request.logit_bias[2]
        noisy = self._log_odds[request.messages[0].content] + self._rng.normal(0, self._jitter)
        return Reply("Yes" if noisy + shift >= 0 else "No", prompt_tokens=1)

    async def close(self) -> None:
        """Nothing to close."""


def test_anchors_are_seldom_wrong_about_a_steady_endpoint(tmp_path: Path) -> None:
    """Of 40 endpoints with a jitter of 0.2 that stay the same for 400 anchor queries, few are accused.

    At a level of 5%, more than 6 of 40 would be with a chance of 0.4%.
    """
    rng, jitter, raised = np.random.default_rng(15), 0.2, 0
    items = [Item(f"q{k}", 0, (Message("user", f"q{k}"),)) for k in range(12)]

    async def is_raised(store: WatchStore, seed: int) -> bool:
        log_odds = dict(zip((item.id for item in items), logit(rng.beta(0.5, 0.5, 12)), strict=True))
        endpoint = Noisy(log_odds, jitter, rng)
        job = Job(items=items, question=TokenQuestion(PAIR), store=store, max_shift=50.0)
        anchors = Anchors(job, store, jitter, seed)
        known = await anchors.set_up(items, endpoint)
        answers = await anchors._ask_all(known, range(400), endpoint)
        monitor = Monitor(level=0.05)
        monitor.expect_anchors(known.up_wrong, known.up_asked, known.down_wrong, known.down_asked)
        up, wrong = np.array([[each.up, is_wrong(each)] for each in answers], np.int64).T
        monitor.add_anchors(up, wrong)
        alarm = monitor.state().alarm("endpoint")
        assert alarm is not None
        return alarm.raised

    for seed in range(40):
        with WatchStore.open(tmp_path / f"{seed}.sqlite") as store:
            raised += asyncio.run(is_raised(store, seed))
    assert binom.sf(6, 40, 0.05) < 0.004
    assert raised <= 6
