"""An audit killed at any moment, again and again, ends as one that was left alone."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest

from blindcal.auditing.audit import audit
from blindcal.auditing.limits import Limits
from blindcal.results.result import ANSWERS_FILE, RESULT_FILE, AuditResult
from blindcal.settings import Settings
from blindcal.store.run_store import RUN_FILE, Store
from serving import replaying

KILLS = 50
ITEMS = 150
CONCURRENCY = 4


def run_audit(items: Path, base_url: str, out: Path) -> None:
    """What the killed process does: the whole audit, over real HTTP, into its folder."""
    # Two rounds, the second of which follows from the answers to the first.
    settings = Settings(model="replay", base_url=base_url, method="extraction", queries=2)
    audit(items, settings, out=out, limits=Limits(concurrency=CONCURRENCY))


def answers(folder: Path) -> list[tuple[str, ...]]:
    with (folder / ANSWERS_FILE).open(newline="") as file:
        return [
            tuple(value for name, value in row.items() if name != "seconds") for row in csv.DictReader(file)
        ]


def check_finished(folder: Path, expected: AuditResult, reference: Path) -> None:
    result = AuditResult.load(folder / RESULT_FILE)
    assert result.complete
    assert (result.ece, result.bins, result.counts) == (expected.ece, expected.bins, expected.counts)
    assert result.spend.queries == expected.spend.queries
    assert answers(folder) == answers(reference)
    with Store.read(folder / RUN_FILE) as store:
        asked = sum(len(one) for one in store.rounds())
        assert store.usage().queries == asked  # each exactly once: the query number is the primary key


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_fifty_kills_lose_nothing_and_cost_little(tmp_path: Path) -> None:
    """After 50 kills at random moments every query has one answer, only those in flight are paid twice."""
    rng = np.random.default_rng(11)
    p = rng.beta(0.5, 0.5, ITEMS)
    path = tmp_path / "items.jsonl"
    with path.open("w") as file:
        for k in range(ITEMS):
            file.write(
                json.dumps({"id": f"q{k}", "prompt": f"question {k}?", "label": int(rng.random() < p[k])})
                + "\n"
            )
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["blindcal.auditing.audit"])
    moments = random.Random(7)
    with replaying(path, p, latency=0.003) as server:
        reference = tmp_path / "reference"
        run_audit(path, server.base_url, reference)
        expected = AuditResult.load(reference / RESULT_FILE)
        whole = server.answered

        kills, runs, killed_in_this = 0, 0, 0
        paid = server.answered
        while kills < KILLS or killed_in_this:
            folder = tmp_path / f"run{runs}"
            process = context.Process(target=run_audit, args=(path, server.base_url, folder))
            process.start()
            process.join(moments.uniform(0.05, 0.5) if kills < KILLS else None)
            if process.is_alive():
                assert process.pid is not None
                os.kill(process.pid, signal.SIGKILL)
                process.join()
                kills, killed_in_this = kills + 1, killed_in_this + 1
                continue
            assert process.exitcode == 0
            check_finished(folder, expected, reference)
            assert server.answered - paid <= whole + killed_in_this * CONCURRENCY
            paid, runs, killed_in_this = server.answered, runs + 1, 0
    assert kills == KILLS
