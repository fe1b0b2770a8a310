"""A watch asks each item of a stream once, whatever arrives when, and notices if the endpoint changes."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import binom

from blindcal.asking.job import Job
from blindcal.asking.run_context import Limits
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.errors import InputError
from blindcal.estimate.streams.alarms import Alarm
from blindcal.items.score_files import read_scores
from blindcal.prices import Prices
from blindcal.records import FloatArray, Item, Message, Reply, Request
from blindcal.results.watch_result import WatchResult
from blindcal.simulation.http_server import HttpResponse
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import error
from blindcal.store.run_store import RUN_FILE
from blindcal.store.watch_store import WatchStore
from blindcal.watching.anchors import Anchors, is_wrong
from blindcal.watching.monitor import Monitor
from blindcal.watching.watch import watch_async
from paths import SHARED
from serving import PAIR
from watching import REFERENCE, N, Production, production, write

STREAM = range(REFERENCE, N)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    """A model in production."""
    with production(tmp_path_factory.mktemp("live")) as live:
        yield live


@pytest.fixture(scope="module")
def plain(live: Production, tmp_path_factory: pytest.TempPathFactory) -> tuple[WatchResult, Path]:
    """The watch of a stream whose labels come with the items, and its folder."""
    folder = tmp_path_factory.mktemp("plain")
    result = live.watch(write(folder / "stream.jsonl", live.records()), folder / "watch")
    assert [(look.look, look.records) for look in live.looks] == [(1, 100), (2, 200), (3, 240)]
    return result, folder / "watch"


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    return tmp_path / "stream.jsonl"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "watch"


def endpoint_alarm(result: WatchResult) -> Alarm:
    alarm = result.state.alarm("endpoint")
    assert alarm is not None
    return alarm


def check_same_evidence(result: WatchResult, wanted: WatchResult) -> None:
    """The same items, gaps and final evidence, up to the order of the summands."""
    for name in ("records", "chosen", "answered", "invalid", "labelled"):
        assert getattr(result, name) == getattr(wanted, name), name
    assert result.state.gaps == wanted.state.gaps
    for mine, other in zip(result.state.alarms, wanted.state.alarms, strict=True):
        assert (mine.observations, mine.raised) == (other.observations, other.raised)
        if mine.name != "endpoint":
            assert mine.log_evidence == pytest.approx(other.log_evidence, abs=1e-9)


def test_every_item_is_asked_once_at_a_threshold_of_its_own(
    live: Production, plain: tuple[WatchResult, Path]
) -> None:
    """The answer says whether the true probability is at least the threshold, which is uniform.

    A look has 100 records or the rest, and four anchors. With nothing new, the same comes out again.
    """
    result, out = plain
    asked = live.asked(out)
    assert result.records == result.chosen == result.answered == result.labelled == len(asked) == len(STREAM)
    assert result.waiting == result.invalid == result.duplicates == result.conflicts == result.unreadable == 0
    for k in STREAM:
        shift, answer = asked[f"q{k}"]
        assert answer == (logit(live.p[k]) + shift >= 0)
    t = np.sort(expit([-shift for shift, _ in asked.values()]))
    gaps = np.abs(t - (np.arange(t.size) + 0.5) / t.size)
    assert gaps.max() < 1.63 / np.sqrt(t.size)  # Kolmogorov-Smirnov, 1%
    assert (endpoint_alarm(result).observations, result.raised, result.stopped) == (12, False, None)
    assert result.window is not None
    assert WatchResult.load(out) == result
    before = live.server.requests
    assert live.watch(out.parent / "stream.jsonl", out) == result
    assert live.looks == [result]
    assert live.server.requests == before


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


def test_the_order_of_items_changes_no_query(
    live: Production, plain: tuple[WatchResult, Path], stream: Path, out: Path
) -> None:
    """Shuffled, with duplicates and conflicts among them, the same items are asked the same, once each."""
    records = live.records(np.random.default_rng(3).permutation(STREAM).tolist())
    again, other, prompt = live.records(range(200, 203))
    odd = [again, {**other, "label": 1 - other["label"]}, {**prompt, "n": 7}]
    before = live.server.paid.copy()
    result = live.watch(write(stream, [*records, *odd]), out)
    assert (result.duplicates, result.conflicts) == (1, 2)
    assert live.asked(out) == live.asked(plain[1])
    check_same_evidence(result, plain[0])
    paid = live.server.paid - before
    assert all(paid[f"q{k}"] == 1 for k in STREAM)


def test_broken_lines_are_counted_and_named_once(live: Production, stream: Path, out: Path) -> None:
    """What is no record, or lacks a field of the prompt, is skipped; a bad label alone is left out.

    If no record at all can be read, the first error is raised, and no folder is left.
    """
    write(stream, [{"id": k, "text": "hm"} for k in range(30)])
    with pytest.raises(InputError, match="named in the template, is missing"):
        live.watch(stream, out)
    assert not out.exists()
    lines = write(stream, live.records(range(200, 220))).read_text().splitlines()
    lines[10:10] = ["{broken", "[1]", '{"id": "x"}', '{"id": "y", "n": 3, "label": "maybe"}', "", "\xff"]
    stream.write_text("\n".join(lines) + "\n")
    stages: list[str] = []
    result = live.watch(stream, out, stage=stages.append)
    assert (result.unreadable, result.records, result.labelled) == (5, 21, 20)
    (skipped,) = [stage for stage in stages if "skipped" in stage]
    assert "stream.jsonl, byte" in skipped


def test_a_rate_chooses_by_the_id(live: Production, tmp_path: Path, stream: Path, out: Path) -> None:
    """A share of the items is asked, the same whatever the order; the others are counted as records."""
    result = live.watch(write(stream, live.records()), out, rate=0.3)
    assert result.records == len(STREAM)
    assert 45 <= result.chosen == result.answered <= 100  # 72 with a standard deviation of 7
    live.watch(write(tmp_path / "back.jsonl", live.records()[::-1]), tmp_path / "back", rate=0.3)
    assert live.asked(tmp_path / "back") == live.asked(out)
    for more, why in (
        ({"rate": 0.5}, r"rate: 0\.3 then, 0\.5 now"),
        ({"rate": 0.0}, "rate: must be above 0"),
        ({"every": 0}, "every: must be"),
        ({"limits": Limits(max_cost=1)}, "what a query costs"),
    ):
        with pytest.raises(InputError, match=why):
            live.watch(stream, out, **more)


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

            def look(result: WatchResult) -> None:
                if stop is not None and result.records:
                    stop.set()

            return asyncio.run(watch_async("-", live.run, out=out, every=20, on_look=look, stop=stop))

    first = piped(live.records(range(200, 260)), asyncio.Event())
    assert (first.stream, first.records) == ("standard input", 20)
    again = piped([])
    assert again.records == again.answered == 60


def test_following_ends_when_stopped(live: Production, stream: Path, out: Path) -> None:
    """Records that come while it waits are looked at; stopping looks once more and loses nothing."""
    write(stream, live.records(range(200, 220)))
    looks: list[int] = []

    async def main() -> WatchResult:
        stop = asyncio.Event()

        def look(result: WatchResult) -> None:
            looks.append(result.records)
            if result.records == 20:
                write(stream, live.records(range(220, 240)), "a")
            elif result.records == 40:
                write(stream, live.records(range(240, 245)), "a")
                stop.set()

        about: dict[str, Any] = {"out": out, "follow": True, "every": 20, "on_look": look, "stop": stop}
        return await watch_async(stream, live.run, limits=Limits(concurrency=4), **about)

    assert asyncio.run(main()).answered == 40
    assert looks == [20, 40]
    assert live.watch(stream, out).records == 45


def test_prompts_are_not_kept_if_the_reference_keeps_none(tmp_path: Path, stream: Path, out: Path) -> None:
    """Then the first items of the stream are the anchors, and all other prompts are deleted once asked."""
    with production(tmp_path, settings={"keep_prompts": False}) as live:
        few = live.watch(write(stream, live.records(range(200, 204))), out)
        assert few.state.alarm("endpoint") is None
        write(stream, live.records(range(204, 300)), "a")
        assert endpoint_alarm(live.watch(stream, out)).observations == 4
    with WatchStore.read(out / RUN_FILE) as store:
        assert all(not item.messages for item in store.items_between(0, 1000))
        assert 'Is \\"20' in json.dumps(store.note("anchors"))


@pytest.mark.parametrize("limit", ["max_queries", "max_cost"])
def test_a_limit_ends_the_watch_and_a_higher_one_goes_on(
    live: Production, stream: Path, out: Path, limit: str
) -> None:
    """Even while it follows; the result names the limit and counts what waits; nothing is asked twice."""
    before, prices = live.server.paid.copy(), Prices(1000.0, 1000.0)
    most = 250 if limit == "max_queries" else 2.5  # a query costs a cent
    limits = Limits(concurrency=4, **{limit: most})  # type: ignore[arg-type]  # one of two limits
    result = live.watch(write(stream, live.records()), out, limits=limits, prices=prices, follow=True)
    assert result.stopped == f"{limit} = {most} reached"
    assert result.waiting > 0
    assert result.spend.cost is not None
    assert (live.server.paid - before).total() == result.spend.queries
    assert (result.spend.cost if limit == "max_cost" else result.spend.queries) <= most
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
    result = live.watch(write(stream, live.records(range(200, 230))), out, limits=limits, every=15)
    assert (result.answered, result.invalid, result.waiting, result.stopped) == (29, 1, 0, None)
    assert len(live.looks) == 2


# The endpoint


def test_another_system_is_a_fact_that_is_reported_once(
    live: Production, stream: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays noted; over restarts too, an alarm is reported again only if the report failed.

    Times never go back, whatever the clock does.
    """
    answers, reports = iter([False, True]), list[WatchResult]()

    async def report(result: WatchResult) -> bool:
        reports.append(result)
        return next(answers)

    write(stream, live.records(range(200, 220)))
    assert not live.watch(stream, out, on_alarm=report).raised
    assert reports == []
    with sqlite3.connect(out / RUN_FILE) as db:
        db.execute("UPDATE looks SET at = '2999-01-01T00:00:00+00:00'")
    usual = live.server.behaviour
    for begin, name in ((220, "another"), (230, "another"), (240, usual.fingerprint)):
        monkeypatch.setattr(live.server, "behaviour", replace(usual, fingerprint=name))
        write(stream, live.records(range(begin, begin + 10)), "a")
        result = live.watch(stream, out, on_alarm=report)
        assert result.raised_names == ("endpoint",)
        assert (endpoint_alarm(result).raised, result.stopped) == (False, None)
        (fact,) = result.facts
        assert fact == "replies come from replay (another); those of the reference audit came from replay"
        assert result.looked == "2999-01-01T00:00:00+00:00"
    assert [result.look for result in reports] == [2, 3]


def watch_a_change(
    live: Production, folder: Path, p: FloatArray | None = None, **changed: Any
) -> WatchResult:
    """Watch a few looks, change the probabilities or the behaviour of the endpoint, and watch on."""
    stream = write(folder / "stream.jsonl", live.records(range(REFERENCE, REFERENCE + 50)))
    before = live.watch(stream, folder / "watch", every=10)
    assert not before.raised
    assert endpoint_alarm(before).observations == 20
    if p is not None:
        known = live.server.recording
        live.server.recording = Recording.from_probabilities(known.ids, p, name=known.name)
    live.server.behaviour = replace(live.server.behaviour, **changed)
    write(stream, live.records(range(REFERENCE + 50, REFERENCE + 180)), "a")
    return live.watch(stream, folder / "watch", every=10)


def recorded(name: str) -> FloatArray:
    """A real model's probability of True against False."""
    return read_scores(SHARED / "logits" / f"{name}__boolq__logits.csv.gz", words=("True", "False")).p[:N]


Change = tuple[dict[str, Any], Callable[[Production], dict[str, Any]]]
CHANGES: dict[str, Callable[[], Change]] = {
    "another model": lambda: ({}, lambda live: {"p": np.random.default_rng(9).permutation(live.p)}),
    "a shift of 0.5 through noise": lambda: ({"jitter": 0.2 / np.sqrt(2)}, lambda _: {"drift": 0.5}),
    "a recorded model": lambda: ({"p": recorded("qwen")}, lambda _: {"p": recorded("smollm2")}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_model_is_noticed(tmp_path: Path, change: str) -> None:
    """Without any other trace, within 50 anchor queries, and dated."""
    if "recorded" in change and not SHARED.is_dir():
        pytest.skip("needs the recorded models")
    usual, then = CHANGES[change]()
    with production(tmp_path, **usual) as live:
        result = watch_a_change(live, tmp_path, **then(live))
    alarm = endpoint_alarm(result)
    assert alarm.raised_at is not None
    assert alarm.raised_at <= 20 + 50
    assert alarm.since is not None
    assert 10 <= alarm.since < alarm.raised_at
    assert "endpoint" in result.first_seen
    assert result.raised
    assert not result.facts


def test_a_bias_that_acts_no_more_is_a_fact(tmp_path: Path) -> None:
    """Items wait, because their answers would measure nothing; forced, the watch goes on."""
    with production(tmp_path) as live:
        result = watch_a_change(live, tmp_path, bias="ignored")
        assert result.raised
        (fact,) = result.facts
        assert "the logit_bias no longer acts" in fact
        assert result.stopped == "the logit_bias no longer acts"
        assert (result.answered, result.waiting) == (50, 10)
        forced = live.watch(tmp_path / "stream.jsonl", tmp_path / "watch", every=10, force=True)
        assert (forced.facts, forced.waiting) == (result.facts, 0)


class Noisy:
    """A model with these log-odds whose answers are noisy."""

    def __init__(self, log_odds: dict[str, float], jitter: float, rng: np.random.Generator) -> None:
        self._log_odds, self._jitter, self._rng = log_odds, jitter, rng

    async def ask(self, request: Request) -> Reply:
        """Answer by the sum of the log-odds, the shift and the noise."""
        shift = request.logit_bias[1] - request.logit_bias[2]
        noisy = self._log_odds[request.messages[0].content] + self._rng.normal(0, self._jitter)
        return Reply("Yes" if noisy + shift >= 0 else "No", prompt_tokens=1)

    async def close(self) -> None:
        """Nothing to close."""


def test_anchors_are_seldom_wrong_about_a_steady_endpoint(tmp_path: Path) -> None:
    """Of 40 endpoints with a jitter of 0.2 that stay the same for 400 anchor queries, few are accused.

    At a level of 5%, more than 6 of 40 would be with a chance of 0.4%.
    """
    rng, jitter, raised = np.random.default_rng(15), 0.2, 0
    items = [Item(f"q{k}", 0, (Message("user", f"q{k}"),)) for k in range(12)]

    async def is_raised(store: WatchStore, seed: int) -> bool:
        log_odds = dict(zip((item.id for item in items), logit(rng.beta(0.5, 0.5, 12)), strict=True))
        endpoint = Noisy(log_odds, jitter, rng)
        job = Job(items=items, question=TokenQuestion(PAIR), store=store, max_shift=50.0)
        anchors = Anchors(job, store, jitter, seed)
        known = await anchors.set_up(items, None, endpoint)
        answers = await anchors._ask_all(known, range(400), endpoint)
        monitor = Monitor(level=0.05)
        monitor.expect_anchors(*known.seen)
        up, wrong = np.array([[each.up, is_wrong(each)] for each in answers], np.int64).T
        monitor.add_anchors(up, wrong)
        alarm = monitor.state().alarm("endpoint")
        assert alarm is not None
        return alarm.raised

    for seed in range(40):
        with WatchStore.open(tmp_path / f"{seed}.sqlite") as store:
            raised += asyncio.run(is_raised(store, seed))
    assert binom.sf(6, 40, 0.05) < 0.004
    assert raised <= 6
