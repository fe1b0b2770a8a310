"""Decisions by the embedded model, for real: each is the one that its hidden log-odds give."""

from __future__ import annotations

from pathlib import Path

from blindcal.asking.limits import Limits
from blindcal.certifying.decide import decide
from blindcal.endpoints.local_server import ServerSettings, serve
from certified_runs import near, ruled
from local_ruling import ruling, write_questions
from serving import model_or_skip

N = 24


def test_each_decision_follows_the_hidden_log_odds(tmp_path: Path) -> None:
    """Accepted, rejected and abstained from as the certified rule says; no item is at a threshold."""
    path = write_questions(tmp_path / "questions.jsonl", N)
    with serve(model_or_skip(), ServerSettings(context=512, threads=1)) as served:
        rule, p = ruling(served, path)
        found = decide(rule, path, out=tmp_path / "out", limits=Limits(concurrency=2), timeout=600)
    assert near(p, rule, within=1e-4) == 0
    assert [one.decision for one in found] == ruled(p, rule)
    assert min(found.accepted, found.rejected, found.abstained) >= N // 4
    assert not found.forced
