"""A watch whose process is killed at any moment, again and again, comes to what one left alone does."""

from __future__ import annotations

import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blindcal.results.watch_result import WatchResult
from blindcal.store.watch_store import WatchStore
from blindcal.watching.watch import watch
from killing import CONCURRENCY, LIMITS, Fate, killed
from watching import copied_monitors, production, write

STEPS = ("before begin_look", "after begin_look", "before end_look", "after end_look", "before save")


def run_watch(run: Path, stream: Path, out: Path, base_url: str, fate: Fate, more: dict[str, Any]) -> None:
    fate.surrounds(WatchStore, "begin_look")
    fate.surrounds(WatchStore, "end_look")
    fate.surrounds(WatchResult, "save")
    with copied_monitors(run.parent):
        watch(stream, run, out=out, endpoint=fate.endpoint(base_url), limits=LIMITS, **more)


def result_of(out: Path) -> WatchResult:
    """What a watch wrote, apart from where and when, and from the number of requests that failed."""
    result = WatchResult.load(out)
    spend = replace(result.spend, attempts=0)
    return replace(result, folder="", started="", looked="", first_seen={}, spend=spend)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_twenty_kills_change_nothing_and_cost_little(tmp_path: Path) -> None:
    """With failing requests, late labels and a share of the items: the same result to the last digit.

    At most what was in flight is asked again, and nothing is lost that was counted.
    """
    luck = random.Random(15)
    fates = [Fate(step) for step in STEPS for _ in range(2)]
    fates += [Fate(step, luck.randint(5, 40)) for step in ("request", "reply") for _ in range(5)]
    luck.shuffle(fates)
    whole, out = tmp_path / "whole", tmp_path / "killed"
    with production(tmp_path, fault="500", fault_share=0.05) as live:
        stream = write(tmp_path / "stream.jsonl", live.records(labelled=False))
        rows = [{"id": f"q{k}", "label": int(live.labels[k])} for k in range(150, 390)]
        more = {"labels": write(tmp_path / "labels.jsonl", rows), "rate": 0.8, "every": 15}
        url, before = live.server.base_url, live.server.answered
        assert not killed(run_watch, live.run, stream, whole, url, Fate(), more)
        alone, before = live.server.answered - before, live.server.answered
        expected = result_of(whole)
        assert not expected.raised, (expected.state.alarms, expected.facts)
        assert all(killed(run_watch, live.run, stream, out, url, fate, more) for fate in fates)
        assert not killed(run_watch, live.run, stream, out, url, Fate(), more)
        again = live.server.answered - before - alone
        assert live.asked(out) == live.asked(whole)
    assert 0 <= again <= len(fates) * CONCURRENCY
    assert expected.look == 13
    assert expected.labelled > 150
    assert result_of(out) == expected
