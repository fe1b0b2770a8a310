"""A part of the items that stands for all of them, and grows without asking anything twice."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from blindcal import design
from blindcal.asking.run_context import Limits
from blindcal.auditing.audit import audit
from blindcal.auditing.item_sample import grown
from blindcal.cli import app
from blindcal.errors import InputError
from blindcal.methods import make_design
from blindcal.planning.forecast import OVERCONFIDENT
from blindcal.records import IntArray
from blindcal.settings import Settings
from blindcal.simulation.replay import Server
from blindcal.simulation.simulate import ask
from blindcal.store.run_store import RUN_FILE, Store
from serving import replaying, settings_of, write_items

N = 240


def labels_of(n: int) -> IntArray:
    return (np.random.default_rng(1).random(n) < 0.3).astype(np.int64)


@pytest.mark.parametrize("answers", [2, 4])
def test_a_part_has_the_shares_of_the_whole(answers: int) -> None:
    """Labels and parts come in the file's proportions, within one item of each stratum."""
    labels, of_item = np.arange(1000) ** 2 % 11 % answers, np.arange(1000) % 3
    (chosen,) = grown([], 300, labels, None, [["a", "b", None][k] for k in of_item], seed=4)
    assert np.unique(chosen).size == chosen.size == 300
    for part in range(3):
        for label in range(answers):
            stratum = (of_item == part) & (labels == label)
            assert stratum[chosen].sum() == pytest.approx(0.3 * stratum.sum(), abs=1.01)


def test_growing_keeps_what_was_taken_and_is_nested() -> None:
    """A part grown in steps is the part taken at once, its stages do not overlap, and it cannot shrink."""
    labels = labels_of(500)
    steps = grown(grown(grown([], 100, labels), 250, labels), 400, labels)
    assert [stage.size for stage in steps] == [100, 150, 150]
    assert set(np.concatenate(steps)) == set(grown([], 400, labels)[0])
    assert grown(steps, 400, labels) == steps
    assert np.concatenate(grown(steps, 10_000, labels)).size == 500
    with pytest.raises(InputError, match="already asks 400 items, and 50 are wanted now"):
        grown(steps, 50, labels)


def test_groups_stay_whole() -> None:
    """A group is in or out, and the last one may exceed the size asked for."""
    labels, groups = labels_of(400), np.arange(400) // 7
    (chosen,) = grown([], 100, labels, groups)
    assert set(np.bincount(groups[chosen], minlength=groups.max() + 1)) <= {0, 7, 400 % 7}
    assert 100 <= chosen.size < 107
    assert grown([chosen], 100, labels, groups) == (chosen,)


def test_a_group_counts_under_its_commonest_label() -> None:
    """Of 100 groups, a quarter mostly positive, a sample of 20 groups has five of these."""
    groups = np.repeat(np.arange(100), 3)
    mostly = np.arange(100) % 4 == 0
    labels = np.where(np.arange(300) % 3 == 1, ~mostly[groups], mostly[groups]).astype(np.int64)
    (chosen,) = grown([], 60, labels, groups)
    assert mostly[np.unique(groups[chosen])].sum() == 5


@pytest.mark.parametrize(("method", "queries"), [("latent", 1.5), ("temperature", 2.0), ("extraction", 2.0)])
def test_stages_are_asked_one_after_the_other(method: str, queries: float) -> None:
    """A staged design asks the first stage to its end as before it grew, and then only new items."""
    labels, p = OVERCONFIDENT.sample(400, np.random.default_rng(0))
    first = grown([], 150, labels)
    both = grown(first, 400, labels)
    early, late = (ask(make_design(method, labels, queries=queries, stages=s), p) for s in (first, both))
    known = len(early)
    assert (known, len(late)) == (round(queries * 150), round(queries * 150) + round(queries * 250))
    assert np.array_equal(late.items[:known], early.items)
    assert np.array_equal(late.shifts[:known], early.shifts)
    assert set(late.items[known:]) == set(both[1])


@pytest.fixture
def items(tmp_path: Path) -> Path:
    return write_items(tmp_path / "items.jsonl", truth()[0], topic="ab")


def truth() -> tuple[IntArray, Any]:
    return OVERCONFIDENT.sample(N, np.random.default_rng(5))


@pytest.fixture
def server(items: Path) -> Iterator[Server]:
    with replaying(items, truth()[1]) as server:
        yield server


def test_an_audit_asks_a_part_and_grows(items: Path, server: Server, tmp_path: Path) -> None:
    """The result is about the items asked; more cost only their own queries, and answers stay."""
    out = tmp_path / "run"
    small = audit(items, settings_of(server, sample=80, by_field="topic"), out=out)
    assert small.complete
    assert (small.counts.items, small.counts.positive + small.counts.negative) == (80, 80)
    assert [part.items for part in small.parts] == [40, 40]
    answers = (out / "answers.csv").read_text().splitlines()
    asked = server.answered
    large = audit(items, settings_of(server, sample=200), out=out)
    assert large.counts.items == 200
    controls = large.spend.control_queries - small.spend.control_queries
    assert server.answered - asked == 120 + controls
    assert (out / "answers.csv").read_text().splitlines()[:81] == answers
    everything = audit(items, settings_of(server), out=out)
    assert everything.counts.items == N
    with pytest.raises(InputError, match="already asks 240 items, and 100 are wanted now"):
        audit(items, settings_of(server, sample=100), out=out)
    asked = server.answered
    assert audit(items, settings_of(server, sample=N), out=out).ece == everything.ece
    assert server.answered == asked


def test_blind_audits_a_part_but_does_not_grow(items: Path, server: Server, tmp_path: Path) -> None:
    """Blind splits its members alone, and refuses a second stage before anything is asked."""
    stages = grown([], 100, labels_of(300))
    plan = make_design("blind", labels_of(300), bins=5, stages=stages)
    assert isinstance(plan, design.BlindDesign)
    assert np.isfinite(plan.thresholds()).sum() == 100
    result = audit(items, settings_of(server, method="blind", sample=100, bins=5), out=tmp_path / "run")
    assert (result.counts.items, result.counts.positive + result.counts.negative) == (100, 80)
    asked = server.requests
    with pytest.raises(InputError, match="which splits them all at once and cannot grow"):
        audit(items, settings_of(server, method="blind", sample=150, bins=5), out=tmp_path / "run")
    assert server.requests == asked


def grow(items: Path, base_url: str, out: Path, size: int) -> None:
    """What the killed process does."""
    settings = Settings(model="replay", base_url=base_url, resamples=20, queries=1.5, sample=size)
    audit(items, settings, out=out, limits=Limits(concurrency=4))


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_a_run_killed_while_growing_ends_as_one_left_alone(items: Path, tmp_path: Path) -> None:
    """Killed in the first part and in the second, it asks the same and answers the same."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["blindcal.auditing.audit"])
    with replaying(items, truth()[1], latency=0.004) as server:
        for size in (100, 180):
            grow(items, server.base_url, tmp_path / "left", size)
        for size in (100, 180):
            for patience in (0.4, 0.7, None):
                process = context.Process(target=grow, args=(items, server.base_url, tmp_path / "run", size))
                process.start()
                process.join(patience)
                if process.is_alive():
                    assert process.pid is not None
                    os.kill(process.pid, signal.SIGKILL)
                    process.join()
            assert process.exitcode == 0
    with Store.read(tmp_path / "left" / RUN_FILE) as left, Store.read(tmp_path / "run" / RUN_FILE) as run:
        assert left.note("stages") == run.note("stages")
        for whole, resumed in zip(left.rounds(), run.rounds(), strict=True):
            assert np.array_equal(whole.items, resumed.items)
            assert np.array_equal(whole.shifts, resumed.shifts)
        assert run.usage("design").queries == left.usage("design").queries == 270


def test_the_command_takes_a_number_of_items(items: Path, server: Server, tmp_path: Path) -> None:
    """``audit --sample`` asks that number, and its dry run counts it."""
    given = ["audit", str(items), "--model", "replay", "--base-url", server.base_url, "--sample", "60"]
    assert "items      60" in CliRunner().invoke(app, [*given, "--method", "latent", "--dry-run"]).output
    done = CliRunner().invoke(app, [*given, "--out", str(tmp_path / "run"), "--quiet", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["counts"]["items"] == 60
