"""A sum of money decides how much is asked, is spent where it helps, and is never exceeded."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from blindcal import design
from blindcal.auditing.audit import audit
from blindcal.auditing.controls import controls_usage, stored_controls
from blindcal.auditing.limits import Limits
from blindcal.cli import app
from blindcal.errors import ConfigError, InputError
from blindcal.items.files import load
from blindcal.methods import METHODS
from blindcal.planning import shapes
from blindcal.prices import Prices
from blindcal.results.result import AuditResult
from blindcal.settings import Settings
from blindcal.simulation.replay import Server
from blindcal.simulation.simulate import ask
from blindcal.store.run_store import RUN_FILE, Store
from serving import replaying

N = 200
PRICES = Prices(1000.0, 0.0)  # a dollar for a thousand tokens


@pytest.fixture
def items(tmp_path: Path) -> Path:
    labels, _ = shapes.preset("confident").sample(N, np.random.default_rng(5))
    path = tmp_path / "items.jsonl"
    rng = np.random.default_rng(6)
    with path.open("w") as file:
        for k, label in enumerate(labels):
            words = "word " * int(rng.integers(5, 60))  # questions differ in length, and so in price
            file.write(json.dumps({"id": f"q{k}", "prompt": f"{words}{k}?", "label": int(label)}) + "\n")
    return path


def serving(items: Path, **behaviour: Any) -> Any:
    _, p = shapes.preset("confident").sample(N, np.random.default_rng(5))
    return replaying(items, p, **behaviour)


@pytest.fixture
def server(items: Path) -> Iterator[Server]:
    with serving(items) as one:
        yield one


def spend(
    items: Path, server: Server, out: Path, max_cost: float | None, concurrency: int = 8, **more: Any
) -> AuditResult:
    settings = Settings(**{"model": "replay", "base_url": server.base_url, "resamples": 50, **more})
    limits = Limits(concurrency=concurrency, max_cost=max_cost)
    return audit(items, settings, out=out, limits=limits, prices=PRICES)


@pytest.fixture
def unit(items: Path, tmp_path: Path) -> tuple[float, float]:
    """What the probe costs, and one query an item; a fresh server draws the same answers again."""
    with serving(items) as server:
        found = spend(items, server, tmp_path / "unit", None, queries=1)
    assert found.spend.cost is not None
    with Store.read(tmp_path / "unit" / RUN_FILE) as store:
        asked = PRICES.cost(store.usage() + controls_usage(stored_controls(store)))
    return found.spend.cost - asked, asked


@pytest.mark.parametrize("queries", [0.5, 1.0, 1.5, 2.5])
def test_the_money_decides_how_much_is_asked(
    queries: float, items: Path, server: Server, unit: tuple[float, float], tmp_path: Path
) -> None:
    """A budget for K queries an item buys about K, never costs more, and is a finished audit."""
    probe, each = unit
    money = probe + queries * each
    found = spend(items, server, tmp_path / "run", money)
    assert found.complete
    assert found.spend.cost is not None
    assert 0.9 * money < found.spend.cost <= money
    asked = found.spend.asked
    assert asked / N == pytest.approx(queries, rel=0.1)  # those asked again are longer or shorter than others
    assert found.settings["queries"] == pytest.approx(asked / N, rel=0.05)
    assert found.next_dollar is not None
    assert found.ece.low is not None
    assert found.ece.high is not None
    assert 0 < found.next_dollar.half_width <= (found.ece.high - found.ece.low) / 2


def test_a_part_of_the_budget_asks_a_fair_part_of_the_items(
    items: Path, server: Server, unit: tuple[float, float], tmp_path: Path
) -> None:
    """Below one query an item, those asked have the file's share of labels."""
    spend(items, server, tmp_path / "run", unit[0] + 0.5 * unit[1])
    loaded = load(items)
    with Store.read(tmp_path / "run" / RUN_FILE) as store:
        asked = np.unique(np.concatenate([one.items for one in store.rounds()]))
        assert loaded.labels[asked].mean() == pytest.approx(loaded.labels.mean(), abs=0.03)
        assert 0.4 * N < asked.size < 0.6 * N


def test_more_money_goes_on_and_asks_nothing_twice(
    items: Path, server: Server, unit: tuple[float, float], tmp_path: Path
) -> None:
    """The same folder with a larger budget buys more; the same budget again costs nothing."""
    probe, each = unit
    first = spend(items, server, tmp_path / "run", probe + 0.6 * each)
    asked = server.requests
    assert spend(items, server, tmp_path / "run", probe + 0.6 * each).spend == first.spend
    assert spend(items, server, tmp_path / "run", None).spend == first.spend
    assert server.requests == asked
    second = spend(items, server, tmp_path / "run", probe + 1.4 * each)
    assert second.spend.cost is not None
    assert second.spend.cost <= probe + 1.4 * each
    assert second.spend.asked / N == pytest.approx(1.4, rel=0.1)
    with Store.read(tmp_path / "run" / RUN_FILE) as store:
        assert store.usage().queries == second.spend.asked


@pytest.mark.parametrize("method", ["blind", "sampling", "extraction", "temperature"])
def test_the_money_decides_how_many_items_other_methods_ask(
    method: str, items: Path, server: Server, unit: tuple[float, float], tmp_path: Path
) -> None:
    """As many items as it pays for are asked, each as often as ever; more money asks more, nothing twice."""
    probe, once = unit
    queries = METHODS[method].queries * (0.75 if method == "blind" else 1)
    small, large = (probe + share * queries * once for share in (0.4, 0.8))
    first = spend(items, server, tmp_path / "run", small, method=method)
    assert first.complete
    assert first.spend.cost is not None
    assert 0.85 * small < first.spend.cost <= small
    assert 0.3 * N < first.counts.items < 0.5 * N
    asked = server.requests
    for again in (small, None):
        assert spend(items, server, tmp_path / "run", again, method=method).spend == first.spend
    assert server.requests == asked
    if method == "blind":
        with pytest.raises(ConfigError, match="by blind, which splits them all at once and cannot grow"):
            spend(items, server, tmp_path / "run", large, method=method)
        assert server.requests == asked
        return
    second = spend(items, server, tmp_path / "run", large, method=method)
    assert second.spend.cost is not None
    assert 0.85 * large < second.spend.cost <= large
    assert second.counts.items > 1.5 * first.counts.items
    assert server.requests - asked == second.spend.queries - first.spend.queries


def test_far_too_much_money_is_not_spent(
    items: Path, server: Server, unit: tuple[float, float], tmp_path: Path
) -> None:
    """Beyond four queries an item nothing is left to learn, and the money stays."""
    found = spend(items, server, tmp_path / "run", unit[0] + 50 * unit[1])
    assert found.complete
    assert found.spend.asked == 4 * N
    assert found.next_dollar is None


def test_a_budget_below_the_probe_is_refused_before_anything_is_asked(
    items: Path, server: Server, tmp_path: Path
) -> None:
    """What cannot pay for the probe is refused with its price, and no request is made."""
    with pytest.raises(
        ConfigError, match=r"does not pay for the probe: .* cost about \$\d.*nothing was asked"
    ):
        spend(items, server, tmp_path / "run", 0.01)
    assert server.requests == 0


def test_a_budget_for_hardly_more_than_the_probe_is_refused(
    items: Path, server: Server, unit: tuple[float, float], tmp_path: Path
) -> None:
    """A handful of queries is no audit; with more money the same command goes on."""
    with pytest.raises(ConfigError, match=r"pays for \d+ queries after the probe.* at least 40"):
        spend(items, server, tmp_path / "run", unit[0] + 0.1 * unit[1])
    assert spend(items, server, tmp_path / "run", unit[0] + 0.5 * unit[1]).complete


@pytest.mark.parametrize("money", [0.0, -1.0, float("nan"), float("inf")])
def test_sums_that_are_none_are_refused(money: float) -> None:
    """A budget is a number of dollars above zero."""
    with pytest.raises(InputError, match="max_cost: must be a number of dollars above 0"):
        Limits(max_cost=money)


def test_a_sum_of_money_needs_prices(items: Path, server: Server, tmp_path: Path) -> None:
    """A limit that cannot be kept is refused before anything is asked, and the error says what is missing."""
    settings = Settings(model="replay", base_url=server.base_url)
    with pytest.raises(ConfigError, match=r"max_cost=0\.5 limits nothing .*: give prices=\.\.\. too"):
        audit(items, settings, out=tmp_path / "run", limits=Limits(max_cost=0.5))
    assert server.requests == 0


def test_the_command_names_unknown_prices_and_the_next_dollar(
    items: Path, server: Server, unit: tuple[float, float], tmp_path: Path
) -> None:
    """Without prices a budget is refused, naming the model; with them the next dollar is in the headline."""
    given = ["audit", str(items), "--model", "replay", "--base-url", server.base_url, "--resamples", "50"]
    given += ["--out", str(tmp_path / "run"), "--max-cost", str(unit[0] + 0.7 * unit[1])]
    asked = server.requests
    dry = CliRunner().invoke(app, [*given, "--price-in", "1000", "--price-out", "0", "--dry-run"])
    assert re.search(r"budget     \$.* pays for about 0\.[5-9]\d queries per item", dry.output)
    for method, words in (
        ("blind", r"budget .* pays for all of it"),
        ("sampling", r"budget .* pays for about \d+ of the items"),
        ("verbalized", r"budget .* pays for about \d+% of the queries: the run stops there"),
    ):
        priced = ["--price-in", "1000", "--price-out", "100", "--method", method, "--dry-run"]
        found = CliRunner().invoke(app, [*given, *priced])
        assert re.search(words, found.output), found.output
    refused = CliRunner().invoke(app, given)
    assert refused.exit_code == 2
    assert "none are known for 'replay'" in refused.output
    elsewhere = CliRunner().invoke(app, [*given, "--model", "gpt-4o-mini"])
    assert elsewhere.exit_code == 2
    assert f"those known for 'gpt-4o-mini' are OpenAI's own, not those at {server.base_url}" in (
        " ".join(elsewhere.output.split())
    )
    assert server.requests == asked
    done = CliRunner().invoke(app, [*given, "--price-in", "1000", "--price-out", "0"])
    assert done.exit_code == 0, done.output
    assert "more queries, and narrow the ECE's interval from +- 0." in done.output


def killed(items: Path, base_url: str, out: Path, money: float) -> None:
    """What the killed process does."""
    settings = Settings(model="replay", base_url=base_url, resamples=50, send_seed=True)
    audit(items, settings, out=out, limits=Limits(concurrency=4, max_cost=money), prices=PRICES)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_a_killed_run_keeps_to_its_budget_and_its_decision(items: Path, tmp_path: Path) -> None:
    """Killed in the pilot and after it, the rounds follow from what was noted, and the sum holds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["blindcal.auditing.audit"])
    money = 18.0
    with serving(items, latency=0.004) as server:
        killed(items, server.base_url, tmp_path / "left", money)
        for patience in (0.3, 0.5, 0.6, 0.7, None):
            process = context.Process(target=killed, args=(items, server.base_url, tmp_path / "run", money))
            process.start()
            process.join(patience)
            if process.is_alive():
                assert process.pid is not None
                os.kill(process.pid, signal.SIGKILL)
                process.join()
        assert process.exitcode == 0
    result = AuditResult.load(tmp_path / "run" / "result.json")
    assert result.complete
    assert result.spend.cost is not None
    assert result.spend.cost <= money
    with Store.read(tmp_path / "left" / RUN_FILE) as left, Store.read(tmp_path / "run" / RUN_FILE) as run:
        assert left.note("budget") == run.note("budget")
        for one, other in zip(left.rounds(), run.rounds(), strict=True):
            assert np.array_equal(one.items, other.items)
            assert np.array_equal(one.shifts, other.shifts)
        assert run.usage().queries == left.usage().queries


def test_asking_ends_when_nothing_is_left_to_learn() -> None:
    """A thousand queries of two items end after the few that pin them down."""
    labels, p = np.array([0, 1]), np.array([0.2, 0.9])
    answered = ask(design.LatentDesign(labels, 1000.0, 0), p)
    assert len(answered) < 60


def test_absurd_numbers_of_queries_are_refused() -> None:
    """More than a hundred queries per item is refused, with the reason."""
    with pytest.raises(
        ConfigError, match="queries must be at most 100 per item: more would tell nothing more"
    ):
        Settings(model="m", queries=1000)
