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
from blindcal.planning.forecast import preset
from blindcal.records import IntArray
from blindcal.settings import Settings
from blindcal.simulation.replay import Server
from blindcal.simulation.simulate import ask
from blindcal.store.run_store import RUN_FILE, Store
from serving import replaying

N = 240


def labels_of(n: int, share: float = 0.3) -> IntArray:
    return (np.random.default_rng(1).random(n) < share).astype(np.int64)


def test_a_part_has_the_shares_of_the_whole() -> None:
    """Labels and parts come in the file's proportions, within one item of each stratum."""
    labels = labels_of(1000)
    parts = [["a", "b", None][k % 3] for k in range(1000)]
    (chosen,) = grown([], 300, labels, None, parts, seed=4)
    assert np.unique(chosen).size == chosen.size == 300
    for part in ("a", "b", None):
        mine = np.array([one == part for one in parts])
        for y in (0, 1):
            stratum = mine & (labels == y)
            assert stratum[chosen].sum() == pytest.approx(0.3 * stratum.sum(), abs=1.01)


def test_growing_keeps_what_was_taken_and_is_nested() -> None:
    """A part grown in steps is the part taken at once, and its stages do not overlap."""
    labels = labels_of(500)
    steps = grown(grown(grown([], 100, labels), 250, labels), 400, labels)
    assert [stage.size for stage in steps] == [100, 150, 150]
    assert set(np.concatenate(steps)) == set(grown([], 400, labels)[0])
    assert grown(steps, 400, labels) == steps
    assert np.concatenate(grown(steps, 10_000, labels)).size == 500


def test_groups_stay_whole() -> None:
    """A group is in or out, and at most one is more than was asked for."""
    labels = labels_of(400)
    groups = np.arange(400) // 7
    (chosen,) = grown([], 100, labels, groups)
    inside = np.bincount(groups[chosen], minlength=groups.max() + 1)
    assert set(inside) <= {0, 7, 400 % 7}
    assert 100 <= chosen.size < 107
    assert grown([chosen], 100, labels, groups) == (chosen,)


def test_a_part_cannot_shrink() -> None:
    """Fewer than were taken is refused: what was asked stays asked."""
    with pytest.raises(InputError, match="already asks 100 items, and 50 are wanted now"):
        grown(grown([], 100, labels_of(500)), 50, labels_of(500))


@pytest.mark.parametrize(("method", "queries"), [("latent", 1.5), ("temperature", 2.0), ("extraction", 2.0)])
def test_stages_are_asked_one_after_the_other(method: str, queries: float) -> None:
    """A staged design asks the first stage to its end as before it grew, and then only new items."""
    labels, p = preset("confident").sample(400, np.random.default_rng(0))
    first = grown([], 150, labels)
    both = grown(first, 400, labels)
    early = ask(make_design(method, labels, queries=queries, stages=first), p)
    late = ask(make_design(method, labels, queries=queries, stages=both), p)
    known = len(early)
    assert known == round(queries * 150)
    assert len(late) == known + round(queries * 250)
    assert np.array_equal(late.items[:known], early.items)
    assert np.array_equal(late.shifts[:known], early.shifts)
    assert set(late.items[known:]) == set(both[1])


def test_blind_takes_a_part_but_does_not_grow() -> None:
    """Blind splits its members alone, and refuses a second stage."""
    labels = labels_of(300)
    stages = grown([], 100, labels)
    plan = make_design("blind", labels, bins=5, stages=stages)
    assert isinstance(plan, design.BlindDesign)
    assert np.isfinite(plan.thresholds()).sum() == 100
    with pytest.raises(InputError, match="blind splits all its items at once and cannot grow"):
        make_design("blind", labels, bins=5, stages=grown(stages, 200, labels))


@pytest.fixture
def items(tmp_path: Path) -> Path:
    labels, _ = truth()
    path = tmp_path / "items.jsonl"
    with path.open("w") as file:
        for k, label in enumerate(labels):
            record = {"id": f"q{k}", "prompt": f"question {k}?", "label": int(label), "topic": "ab"[k % 2]}
            file.write(json.dumps(record) + "\n")
    return path


def truth() -> tuple[IntArray, Any]:
    return preset("confident").sample(N, np.random.default_rng(5))


def serving(items: Path, **behaviour: Any) -> Any:
    return replaying(items, truth()[1], **behaviour)


@pytest.fixture
def server(items: Path) -> Iterator[Server]:
    with serving(items) as one:
        yield one


def settings(server: Server, **more: Any) -> Settings:
    return Settings(**{"model": "replay", "base_url": server.base_url, "resamples": 50, **more})


def test_an_audit_asks_a_part_and_grows(items: Path, server: Server, tmp_path: Path) -> None:
    """The result speaks of the items asked; more cost only their own queries, and what was said stays."""
    out = tmp_path / "run"
    small = audit(items, settings(server, sample=80, by_field="topic"), out=out)
    assert small.complete
    assert (small.counts.items, small.counts.positive + small.counts.negative) == (80, 80)
    assert sum(part.items for part in small.parts) == 80
    assert {part.items for part in small.parts} == {40}
    answers = (out / "answers.csv").read_text().splitlines()
    asked = server.answered
    large = audit(items, settings(server, sample=200), out=out)
    assert large.counts.items == 200
    controls = large.spend.control_queries - small.spend.control_queries
    assert server.answered - asked == 120 + controls
    assert (out / "answers.csv").read_text().splitlines()[:81] == answers
    everything = audit(items, settings(server), out=out)
    assert everything.counts.items == N
    with pytest.raises(InputError, match="already asks 240 items, and 100 are wanted now"):
        audit(items, settings(server, sample=100), out=out)


def test_a_whole_run_cannot_become_a_part(items: Path, server: Server, tmp_path: Path) -> None:
    """A run begun with all items refuses fewer, and takes as many."""
    whole = audit(items, settings(server), out=tmp_path / "run")
    with pytest.raises(InputError, match="already asks 240 items"):
        audit(items, settings(server, sample=50), out=tmp_path / "run")
    asked = server.answered
    assert audit(items, settings(server, sample=N), out=tmp_path / "run").ece == whole.ece
    assert server.answered == asked


def test_blind_audits_a_part(items: Path, server: Server, tmp_path: Path) -> None:
    """Blind estimates from its part, and says that it cannot grow before anything is asked."""
    found = audit(items, settings(server, method="blind", sample=100, bins=5), out=tmp_path / "run")
    assert found.counts.items == 100
    assert found.counts.positive + found.counts.negative == 80
    asked = server.requests
    with pytest.raises(InputError, match="cannot grow"):
        audit(items, settings(server, method="blind", sample=150, bins=5), out=tmp_path / "run")
    assert server.requests == asked


def grow(items: Path, base_url: str, out: Path, size: int) -> None:
    """What the killed process does."""
    settings = Settings(model="replay", base_url=base_url, resamples=50, queries=1.5, sample=size)
    audit(items, settings, out=out, limits=Limits(concurrency=4))


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_a_run_killed_while_growing_ends_as_one_left_alone(items: Path, tmp_path: Path) -> None:
    """Killed in the first part and in the second, it asks the same and answers the same."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["blindcal.auditing.audit"])
    with serving(items, latency=0.004) as server:
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
        for one, other in zip(left.rounds(), run.rounds(), strict=True):
            assert np.array_equal(one.items, other.items)
            assert np.array_equal(one.shifts, other.shifts)
        assert run.usage("design").queries == left.usage("design").queries == 270


def test_the_command_takes_a_number_of_items(items: Path, server: Server, tmp_path: Path) -> None:
    """``audit --items`` asks so many, and its dry run counts so many."""
    given = ["audit", str(items), "--model", "replay", "--base-url", server.base_url, "--sample", "60"]
    dry = CliRunner().invoke(app, [*given, "--dry-run"])
    assert "items      60" in dry.output
    done = CliRunner().invoke(app, [*given, "--out", str(tmp_path / "run"), "--quiet", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["counts"]["items"] == 60
