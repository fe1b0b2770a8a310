"""What a watch spends in a day, whatever the clock does."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from blindcal.errors import InputError
from blindcal.prices import Prices
from blindcal.results.watch_result import WatchResult
from watching import NOON, REFERENCE, Clock, Production, production, without_times, write

PRICES = Prices(1000.0, 1000.0)
DAILY = 1.2  # dollars: about 120 queries, fewer than the set-up of the anchors takes
BUDGET = {"prices": PRICES, "max_cost_per_day": DAILY}
ITEMS = range(REFERENCE, REFERENCE + 120)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    """A model in production."""
    with production(tmp_path_factory.mktemp("days")) as found:
        yield found


@pytest.fixture
def stream(live: Production, tmp_path: Path) -> Path:
    return write(tmp_path / "stream.jsonl", live.records(ITEMS))


def test_a_days_budget_is_never_exceeded_and_items_wait(
    live: Production, stream: Path, tmp_path: Path
) -> None:
    """Over many days, each with as much money; what is asked in the end is the same as without a budget."""
    clock, spent, waiting, days = Clock(), 0.0, True, 0
    while waiting and days < 20:
        found = live.watch(stream, tmp_path / "watch", clock=clock, every=40, **BUDGET)
        assert found.spend.cost is not None
        assert found.cost_today is not None
        assert found.cost_today == pytest.approx(found.spend.cost - spent)
        assert found.cost_today <= DAILY
        assert found.stopped is None
        assert found.records == len(ITEMS)  # items are read whatever is left
        spent, waiting, days = found.spend.cost, bool(found.waiting), days + 1
        again = live.watch(stream, tmp_path / "watch", clock=clock, every=40, **BUDGET)
        assert again.spend.cost == spent  # nothing is left of this day's money
        clock.time += timedelta(days=1)
    assert not waiting
    assert days >= 3
    whole = live.watch(stream, tmp_path / "whole", every=40)
    assert live.asked(tmp_path / "watch") == live.asked(tmp_path / "whole")
    assert found.state.gaps == whole.state.gaps


def test_a_clock_that_goes_back_gives_no_money_again(live: Production, stream: Path, tmp_path: Path) -> None:
    """A day ends when the date is later than ever before, in UTC."""
    clock, costs = Clock(), list[float]()
    east, west = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))
    for time in (
        NOON,
        NOON - timedelta(days=3),
        datetime(2026, 11, 17, 1, tzinfo=east),  # still the 16th in UTC
        datetime(2026, 11, 16, 11, tzinfo=west),  # 23:00 in UTC
        NOON + timedelta(days=1),
        NOON,
        NOON + timedelta(days=1, hours=1),
    ):
        clock.time = time
        cost = live.watch(stream, tmp_path / "watch", clock=clock, **BUDGET).spend.cost
        assert cost is not None
        costs.append(cost)
    assert len(set(costs[:4])) == len(set(costs[4:])) == 1
    assert 0 < costs[4] - costs[0] <= DAILY


def test_clock_jumps_change_nothing_else(live: Production, tmp_path: Path) -> None:
    """The same looks with a clock that jumps: the same numbers, and times that never go back."""
    results = []
    for name, jumps in (("steady", (0, 0, 0)), ("jumping", (0, -40, 700))):
        folder, clock = tmp_path / name, Clock()
        folder.mkdir()
        for part, days in enumerate(jumps):
            clock.time = NOON + timedelta(days=days)
            records = live.records(ITEMS[40 * part : 40 * part + 40])
            stream = write(folder / "s.jsonl", records, "a" if part else "w")
            results.append(live.watch(stream, folder / "watch", clock=clock))
    assert [without_times(one) for one in results[:3]] == [without_times(one) for one in results[3:]]
    times = [datetime.fromisoformat(one.looked) for one in results[3:]]
    assert times == sorted(times)
    assert times[0] == times[1] == NOON.astimezone(UTC)


def test_a_budget_needs_prices(live: Production, stream: Path, tmp_path: Path) -> None:
    """A limit on the cost means nothing if it is not known."""
    with pytest.raises(InputError, match="max_cost_per_day"):
        live.watch(stream, tmp_path / "watch", max_cost_per_day=1.0)


def test_a_new_day_is_noticed_while_it_follows(live: Production, stream: Path, tmp_path: Path) -> None:
    """Items that wait for money are asked as soon as the date changes, though no record comes."""
    clock, looks = Clock(), list[WatchResult]()

    class EnoughError(Exception):
        pass

    def look(found: WatchResult) -> None:
        looks.append(found)
        clock.time += timedelta(days=1)
        if not found.waiting:
            raise EnoughError

    about = {"clock": clock, "follow": True, "every": 120, "interval": 0.01, "on_look": look, **BUDGET}
    with pytest.raises(EnoughError):
        live.watch(stream, tmp_path / "watch", **about)
    assert 2 <= len(looks) <= 10
