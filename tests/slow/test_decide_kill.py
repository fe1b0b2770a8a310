"""Decisions whose process is killed at any moment, again and again, are those of one left alone."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from blindcal.auditing.audit import audit
from blindcal.certifying.decide import decide
from blindcal.results.decisions import DecisionResult
from blindcal.settings import Settings
from certified_runs import certificate_of, read_lines, without_labels
from finished_runs import without_page
from killing import CONCURRENCY, LIMITS, REFUSAL, Fate, killed, serving, write_items

N = 80
STEPS = (("reply", 5), ("request", 8), ("reply", 20), ("request", 25), ("reply", 30), ("request", 12))
FATES = (*(Fate(*step) for step in STEPS), Fate("before save"))


def run_decide(rule: Path, items: Path, out: Path, base_url: str, fate: Fate) -> None:
    fate.surrounds(DecisionResult, "save")
    decide(rule, items, out=out, endpoint=fate.endpoint(base_url), limits=LIMITS)


def files_of(out: Path) -> list[bytes]:
    return [(out / name).read_bytes() for name in ("decisions.csv", "decisions.jsonl")]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_kills_change_no_decision_and_cost_little(tmp_path: Path) -> None:
    """With refused items and requests that fail, only what was in flight is asked again."""
    labelled, items, rule = (tmp_path / name for name in ("labelled.jsonl", "items.jsonl", "rule.json"))
    write_items(labelled, N)
    without_labels(labelled, items)
    whole, out = tmp_path / "whole", tmp_path / "out"
    with serving(labelled, failing=0.0) as server, without_page():
        settings = Settings(model="replay", base_url=server.base_url, method="latent", resamples=20)
        audit(labelled, settings, out=tmp_path / "audit")
        certificate_of(tmp_path / "audit", 0.7, 0.3).save(rule)
        before = server.settled
        assert not killed(run_decide, rule, items, whole, server.base_url, Fate())
        expected = server.settled - before
    with serving(labelled, seed=1) as server:
        assert all(killed(run_decide, rule, items, out, server.base_url, fate) for fate in FATES)
        assert not killed(run_decide, rule, items, out, server.base_url, Fate())
        again = server.settled - expected
    assert 0 <= again <= len(FATES) * CONCURRENCY
    assert files_of(out) == files_of(whole)
    refused = [line for line in read_lines(out) if REFUSAL in (line["reason"] or "")]
    assert len(refused) == N // 20
    assert json.loads((out / "summary.json").read_text())["undecided"] == 0
