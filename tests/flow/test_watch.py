"""A watch asks each item of a stream once, whatever arrives when and in which order."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, logit

from blindcal.asking.run_context import Limits
from blindcal.errors import InputError
from blindcal.results.watch_result import WatchResult
from blindcal.simulation.http_server import HttpResponse
from blindcal.simulation.replay import error
from blindcal.store.run_store import RUN_FILE
from blindcal.store.watch_store import WatchStore
from blindcal.watching.watch import watch, watch_async
from watching import REFERENCE, N, Production, production, write

STREAM = range(REFERENCE, N)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    """A model in production."""
    with production(tmp_path_factory.mktemp("live")) as found:
        yield found


@pytest.fixture(scope="module")
def plain(live: Production, tmp_path_factory: pytest.TempPathFactory) -> tuple[WatchResult, Path]:
    """The watch of a stream whose labels come with the items, and its folder."""
    folder = tmp_path_factory.mktemp("plain")
    stream = write(folder / "stream.jsonl", live.records())
    return live.watch(stream, folder / "watch"), folder / "watch"


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    return tmp_path / "stream.jsonl"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "watch"


def check_same_evidence(found: WatchResult, wanted: WatchResult) -> None:
    """The same items, gaps and final evidence, up to the order of the summands."""
    for name in ("records", "chosen", "answered", "invalid", "labelled"):
        assert getattr(found, name) == getattr(wanted, name), name
    assert found.state.gaps == wanted.state.gaps
    for mine, other in zip(found.state.alarms, wanted.state.alarms, strict=True):
        assert (mine.observations, mine.raised) == (other.observations, other.raised)
        if mine.name != "endpoint":
            assert mine.log_evidence == pytest.approx(other.log_evidence, abs=1e-9)


def test_every_item_is_asked_at_a_threshold_of_its_own(
    live: Production, plain: tuple[WatchResult, Path]
) -> None:
    """The answer says whether the true probability is at least the threshold, which is uniform."""
    found, out = plain
    asked = live.asked(out)
    assert found.records == found.chosen == found.answered == found.labelled == len(asked) == len(STREAM)
    assert found.waiting == found.invalid == found.duplicates == found.conflicts == found.unreadable == 0
    for k in STREAM:
        shift, answer = asked[f"q{k}"]
        assert answer == (logit(live.p[k]) + shift >= 0)
    t = np.sort(expit([-shift for shift, _ in asked.values()]))
    gaps = np.abs(t - (np.arange(t.size) + 0.5) / t.size)
    assert gaps.max() < 1.63 / np.sqrt(t.size)  # Kolmogorov-Smirnov, 1%
    assert not found.raised
    assert found.stopped is None
    assert found.window is not None
    assert WatchResult.load(out) == found


def test_the_same_again_asks_nothing(live: Production, plain: tuple[WatchResult, Path]) -> None:
    """A watch that has nothing new to read says the same again."""
    found, out = plain
    before = live.server.requests
    assert live.watch(out.parent / "stream.jsonl", out) == found
    assert live.looks == [found]
    assert live.server.requests == before


def test_a_look_has_a_given_number_of_records(live: Production, stream: Path, out: Path) -> None:
    """A look per 100 records, and one for the rest; the anchors are asked at each, slices have alarms."""
    records = [live.record(k, topic="ab"[k % 2]) if k % 5 else live.record(k) for k in STREAM]
    found = live.watch(write(stream, records), out, by_field="topic")
    assert [(look.look, look.records) for look in live.looks] == [(1, 100), (2, 200), (3, 240)]
    endpoint = found.state.alarm("endpoint")
    assert endpoint is not None
    assert (endpoint.observations, endpoint.raised) == (12, False)
    counted = {one.name: one.labelled for one in found.state.slices}
    assert counted["a"] == sum(k % 2 == 0 and k % 5 != 0 for k in STREAM)
    assert (len(counted), sum(counted.values())) == (3, len(STREAM))


def test_labels_may_come_before_or_after_their_items(
    live: Production, plain: tuple[WatchResult, Path], stream: Path, out: Path
) -> None:
    """In a second file, days earlier or later: the same gaps, counts and evidence in the end."""
    labels = stream.with_name("labels.csv")
    rows = [f"q{k},{live.labels[k]}\n" for k in STREAM]
    labels.write_text("id,label\n" + "".join(rows[:70]))
    write(stream, live.records(range(REFERENCE, 200), labelled=False))
    first = live.watch(stream, out, labels=labels)
    assert (first.labelled, first.answered, first.labels_without_item) == (40, 40, 30)
    write(stream, live.records(range(200, N), labelled=False), "a")
    second = live.watch(stream, out, labels=labels)
    assert (second.labelled, second.answered, second.labels_without_item) == (70, len(STREAM), 0)
    asked = live.server.answered
    labels.write_text("id,label\n" + "".join(rows))
    check_same_evidence(live.watch(stream, out, labels=labels), plain[0])
    assert live.server.answered == asked


def test_the_order_of_labels_changes_nothing(live: Production, tmp_path: Path) -> None:
    """Labels that come between two looks in another order lead to the identical state."""
    states = []
    rows = [{"id": f"q{k}", "label": int(live.labels[k])} for k in range(200, 260)]
    for name, order in (("forth", rows), ("back", rows[::-1])):
        (tmp_path / name).mkdir()
        stream = write(tmp_path / name / "stream.jsonl", live.records(range(200, 280), labelled=False))
        labels = write(tmp_path / name / "labels.jsonl", order)
        states.append(live.watch(stream, tmp_path / name / "watch", labels=labels).state)
    assert states[0] == states[1]
    assert (states[0].labelled, states[0].answers) == (60, 80)


def test_the_order_of_items_changes_no_query(
    live: Production, plain: tuple[WatchResult, Path], stream: Path, out: Path
) -> None:
    """Shuffled, with duplicates and conflicts among them, the same items are asked the same, once each."""
    records = live.records(np.random.default_rng(3).permutation(STREAM).tolist())
    odd = [live.record(200), {**live.record(201), "label": 1 - int(live.labels[201])}, live.record(202, n=7)]
    before = live.server.paid.copy()
    found = live.watch(write(stream, [*records, *odd]), out)
    assert (found.duplicates, found.conflicts) == (1, 2)
    assert live.asked(out) == live.asked(plain[1])
    check_same_evidence(found, plain[0])
    paid = live.server.paid - before
    assert all(paid[f"q{k}"] == 1 for k in STREAM)


def test_broken_lines_are_counted_and_named_once(live: Production, stream: Path, out: Path) -> None:
    """What is no record, or lacks a field of the prompt, is skipped; a bad label alone is left out."""
    lines = write(stream, live.records(range(200, 220))).read_text().splitlines()
    lines[10:10] = ["{broken", "[1]", '{"id": "x"}', '{"id": "y", "n": 3, "label": "maybe"}', "", "\xff"]
    stream.write_text("\n".join(lines) + "\n")
    stages: list[str] = []
    found = live.watch(stream, out, stage=stages.append)
    assert (found.unreadable, found.records, found.labelled) == (5, 21, 20)
    (skipped,) = [stage for stage in stages if "skipped" in stage]
    assert "stream.jsonl, byte" in skipped


def test_records_of_another_kind_are_an_error(live: Production, stream: Path, out: Path) -> None:
    """If no record can be read, the first error is raised, and no folder is left."""
    write(stream, [{"id": k, "text": "hm"} for k in range(30)])
    with pytest.raises(InputError, match="named in the template, is missing"):
        live.watch(stream, out)
    assert not out.exists()


def test_a_rate_chooses_by_the_id(live: Production, tmp_path: Path, stream: Path, out: Path) -> None:
    """A share of the items is asked, the same whatever the order; the others are counted as records."""
    found = live.watch(write(stream, live.records()), out, rate=0.3)
    assert found.records == len(STREAM)
    assert 45 <= found.chosen == found.answered <= 100  # 72 with a standard deviation of 7
    back = write(tmp_path / "back.jsonl", live.records()[::-1])
    live.watch(back, tmp_path / "back", rate=0.3)
    assert live.asked(tmp_path / "back") == live.asked(out)
    with pytest.raises(InputError, match=r"rate: 0\.3 then, 0\.5 now"):
        live.watch(stream, out, rate=0.5)


def test_the_rest_of_a_pipe_is_kept_if_a_watch_is_stopped(
    live: Production, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that were taken from a pipe are nowhere else: they are asked about the next time."""

    def piped(lines: Sequence[object], stop: asyncio.Event | None = None) -> WatchResult:
        reading, writing = os.pipe()
        with os.fdopen(writing, "w") as pipe:
            pipe.writelines(json.dumps(line) + "\n" for line in lines)
        with os.fdopen(reading) as pipe:
            monkeypatch.setattr(sys, "stdin", pipe)

            def look(found: WatchResult) -> None:
                if stop is not None and found.records:
                    stop.set()

            return asyncio.run(watch_async("-", live.run, out=out, every=20, on_look=look, stop=stop))

    first = piped(live.records(range(200, 260)), asyncio.Event())
    assert (first.stream, first.records) == ("standard input", 20)
    again = piped([])
    assert again.records == again.answered == 60


def test_following_ends_when_stopped(live: Production, stream: Path, out: Path) -> None:
    """Records that come while it waits are looked at; stopping looks once more and loses nothing."""
    write(stream, live.records(range(200, 220)))
    looks: list[WatchResult] = []

    async def main() -> WatchResult:
        stop = asyncio.Event()

        def look(found: WatchResult) -> None:
            looks.append(found)
            if found.records == 20:
                write(stream, live.records(range(220, 240)), "a")
            elif found.records == 40:
                write(stream, live.records(range(240, 245)), "a")
                stop.set()

        about: dict[str, Any] = {"out": out, "follow": True, "every": 20, "on_look": look, "stop": stop}
        return await watch_async(stream, live.run, limits=Limits(concurrency=4), **about)

    found = asyncio.run(main())
    assert [look.records for look in looks] == [20, 40]
    assert found.answered == 40
    assert live.watch(stream, out).records == 45


def test_prompts_are_not_kept_if_the_reference_keeps_none(tmp_path: Path, stream: Path, out: Path) -> None:
    """Then the first items of the stream are the anchors, and all other prompts are deleted once asked."""
    with production(tmp_path, settings={"keep_prompts": False}) as live:
        few = live.watch(write(stream, live.records(range(200, 204))), out)
        assert few.state.alarm("endpoint") is None
        write(stream, live.records(range(204, 300)), "a")
        endpoint = live.watch(stream, out).state.alarm("endpoint")
        assert endpoint is not None
        assert endpoint.observations == 4
    with WatchStore.read(out / RUN_FILE) as store:
        assert all(not item.messages for item in store.items_between(0, 1000))
        assert 'Is \\"20' in json.dumps(store.note("anchors"))


def test_a_limit_ends_the_watch_and_a_higher_one_goes_on(live: Production, stream: Path, out: Path) -> None:
    """The result says which limit was reached, and what waits; nothing is asked twice."""
    before = live.server.paid.copy()
    limits = Limits(concurrency=4, max_queries=250)
    found = live.watch(write(stream, live.records()), out, limits=limits)
    assert found.stopped == "max_queries = 250 reached"
    assert found.waiting > 0
    assert (live.server.paid - before).total() <= 250
    whole = live.watch(stream, out)
    assert (whole.answered, whole.stopped) == (len(STREAM), None)
    paid = live.server.paid - before
    assert all(paid[f"q{k}"] == 1 for k in STREAM)


def test_an_item_that_always_fails_does_not_hold_up_the_others(
    live: Production, stream: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where others are answered, it counts as invalid after its last attempt, and the watch goes on."""
    usual = live.server._complete

    def failing(body: bytes, *, chat: bool) -> HttpResponse:
        return error(500, "not this one", None) if b'\\"205\\"' in body else usual(body, chat=chat)

    monkeypatch.setattr(live.server, "_complete", failing)
    limits = Limits(concurrency=4, attempts=2, backoff=0.001)
    found = live.watch(write(stream, live.records(range(200, 230))), out, limits=limits, every=15)
    assert (found.answered, found.invalid, found.waiting, found.stopped) == (29, 1, 0, None)
    assert len(live.looks) == 2


@pytest.mark.parametrize("more", [{"rate": 0.0}, {"rate": 1.5}, {"every": 0}, {"max_cost_per_day": -1.0}])
def test_odd_numbers_are_refused(live: Production, stream: Path, more: dict[str, Any]) -> None:
    """Before anything is read or asked."""
    with pytest.raises(InputError, match=next(iter(more))):
        watch(stream, live.run, **more)


def test_an_alarm_is_reported_once(
    live: Production, stream: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once per alarm, over restarts too; if the report fails, the next look reports it again."""
    answers, reports = iter([False, True]), list[WatchResult]()

    async def report(result: WatchResult) -> bool:
        reports.append(result)
        return next(answers)

    write(stream, live.records(range(200, 220)))
    assert not live.watch(stream, out, on_alarm=report).raised
    assert reports == []
    monkeypatch.setattr(live.server, "behaviour", replace(live.server.behaviour, fingerprint="another"))
    for begin in (220, 230, 240):
        write(stream, live.records(range(begin, begin + 10)), "a")
        assert live.watch(stream, out, on_alarm=report).raised_names == ("endpoint",)
    assert [result.look for result in reports] == [2, 3]
    assert reports[0].facts
