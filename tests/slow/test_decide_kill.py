"""Decisions whose process is killed at any moment, again and again, are those of one left alone."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pytest

from blindcal.auditing.audit import audit
from blindcal.settings import Settings
from certified_runs import certificate_of, read_lines, without_labels
from decide_killing import DecisionKiller
from killing import REFUSAL, serving, write_items

N = 80
KILLS = 6


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_kills_change_no_decision_and_cost_little(tmp_path: Path) -> None:
    """With refused items and requests that fail, only what was in flight is asked again."""
    labelled, items = tmp_path / "labelled.jsonl", tmp_path / "items.jsonl"
    write_items(labelled, N)
    without_labels(labelled, items)
    with serving(labelled, failing=0.0) as server:
        settings = Settings(model="replay", base_url=server.base_url, method="latent", resamples=20)
        audit(labelled, settings, out=tmp_path / "audit")
        rule = certificate_of(tmp_path / "audit", 0.7, 0.3)
        killer = DecisionKiller(rule, items, tmp_path, random.Random(7))
        killer.whole(server.base_url)
    with serving(labelled, seed=1) as server:
        killer.run(server.base_url, KILLS)
    assert killer.kills["asking"] >= KILLS - 1
    refused = [one for one in read_lines(tmp_path / "run0") if REFUSAL in (one["reason"] or "")]
    assert len(refused) == N // 20
    assert json.loads((tmp_path / "run0" / "summary.json").read_text())["undecided"] == 0
