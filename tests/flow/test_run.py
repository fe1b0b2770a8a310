"""The run: everything asked once, whatever the endpoint does, and nothing lost."""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from blindcal.asking.ask_design import HOPELESS, RunOutcome
from blindcal.asking.run_context import Limits
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.errors import EndpointError, FatalError, InputError, RetryableError, StoreError
from blindcal.prices import Prices
from blindcal.records import (
    INVALID,
    AnswerTable,
    Item,
    Progress,
    Reply,
    Request,
    Round,
)
from blindcal.simulation.http_server import HttpResponse
from blindcal.simulation.recording import Recording
from blindcal.store.run_file import StoredReply
from blindcal.store.run_store import Store
from engine import ask_all, make_items
from misbehaving import Behaviour, Fault, Server


def truth(n: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.random.default_rng(5).beta(0.5, 0.5, n)


@dataclass(frozen=True)
class Dithered:
    """A trivial design: in each round every item is asked one random threshold."""

    n: int
    rounds: int = 1

    def next_round(self, answered: AnswerTable) -> Round | None:
        number = len(answered) // self.n
        if number >= self.rounds:
            return None
        t = np.random.default_rng([3, number]).random(self.n)
        return Round(np.arange(self.n), -np.log(t / (1 - t)), np.zeros(self.n))


@dataclass
class Fake:
    """An endpoint that answers as a model of known log-odds would, after what ``before`` does."""

    n: int
    before: Callable[[int, Request], None] = lambda *_: None
    tokens: tuple[int, ...] = (100,) * 7
    asked: Counter[str] = field(default_factory=Counter)

    @property
    def calls(self) -> int:
        return self.asked.total()

    async def ask(self, request: Request) -> Reply:
        text = request.messages[-1].content
        self.asked[text] += 1
        call = self.calls
        await asyncio.sleep(0)
        self.before(call, request)
        item = int(text.split()[-1])
        p = truth(self.n)[item]
        s = np.log(p / (1 - p)) + request.logit_bias[1] - request.logit_bias[2]
        return Reply("Yes" if s >= 0 else "No", prompt_tokens=self.tokens[item % 7], completion_tokens=1)

    async def close(self) -> None:
        pass


def ran(
    fake: Fake, folder: Path, *, rounds: int = 1, items: list[Item] | None = None, **more: Any
) -> RunOutcome:
    """The outcome of asking a fake endpoint."""
    return asyncio.run(ask_all(fake, folder, Dithered(fake.n, rounds), items or make_items(fake.n), **more))


def expected(n: int, rounds: int = 1) -> list[int]:
    answers: list[int] = []
    for number in range(rounds):
        t = np.random.default_rng([3, number]).random(n)
        answers += (truth(n) >= t).astype(int).tolist()
    return answers


def test_every_query_is_asked_once_and_answered_right(tmp_path: Path) -> None:
    """Two rounds of a design give the answers of the model, one call each; running again makes none."""
    fake = Fake(100)
    outcome = ran(fake, tmp_path, rounds=2)
    assert outcome.stopped is None
    assert outcome.answered.answers.tolist() == expected(100, 2)
    assert set(fake.asked.values()) == {2}
    assert outcome.usage.prompt_tokens == 200 * 100
    again = ran(fake, tmp_path, rounds=2)
    assert (fake.calls, again.usage) == (200, outcome.usage)
    assert again.answered.answers.tolist() == outcome.answered.answers.tolist()


def test_shifts_stay_inside_the_range_of_the_endpoint(tmp_path: Path) -> None:
    """A shift beyond what the endpoint honours is cut before it is stored and asked."""
    outcome = ran(Fake(200), tmp_path, max_shift=2.0)
    assert np.abs(outcome.answered.shifts).max() == 2.0


def test_a_fatal_error_stops_at_once_and_keeps_what_came(tmp_path: Path) -> None:
    """A revoked key ends the run; answers under way are kept, and a later run asks only the rest."""

    def revoke(call: int, _: Request) -> None:
        if call > 40:
            raise FatalError("the key was revoked")

    fake = Fake(100, revoke)
    with pytest.raises(FatalError, match="revoked"):
        ran(fake, tmp_path)
    assert fake.calls <= 40 + 32
    again = Fake(100)
    outcome = ran(again, tmp_path)
    assert again.calls == 60
    assert outcome.answered.answers.tolist() == expected(100)


def test_an_answer_on_its_way_to_disk_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow disk too: a query that fails four times ends no run in which another was answered."""
    slow = threading.Event()
    insert = Store._insert

    def insert_late(store: Store, answers: list[StoredReply]) -> None:
        slow.wait()
        insert(store, answers)

    def fail(_call: int, request: Request) -> None:
        if request.messages[0].content == "question 3" and fake.asked["question 3"] <= 4:
            if fake.asked["question 3"] == 4:
                slow.set()
            raise RetryableError("500")

    monkeypatch.setattr(Store, "_insert", insert_late)
    fake = Fake(5, fail)
    outcome = ran(fake, tmp_path)
    assert outcome.stopped is None
    assert outcome.answered.answers.tolist() == expected(5)


def test_one_impossible_query_does_not_stop_the_rest(tmp_path: Path) -> None:
    """A query that fails every time stays open and is said; the next run tries it again."""

    def fail(_call: int, request: Request) -> None:
        if request.messages[0].content == "question 7":
            raise RetryableError("500")

    outcome = ran(Fake(50, fail), tmp_path)
    assert outcome.stopped is not None
    assert "1 queries failed 8 times each: 500" in outcome.stopped.reason
    assert len(outcome.answered) == 49
    again = Fake(50)
    outcome = ran(again, tmp_path)
    assert outcome.stopped is None
    assert again.calls == 1


def test_answers_that_are_all_invalid_end_the_run(tmp_path: Path) -> None:
    """A model that never says one of the words is not asked a thousand times; what it said is kept."""

    class Chatty(Fake):
        async def ask(self, request: Request) -> Reply:
            await super().ask(request)
            return Reply("\x1b[31mSure")

    fake = Chatty(1000)
    outcome = ran(fake, tmp_path)
    assert re.search(r"none of \d+ answers .*'\\\\x1b\[31mSure'", str(outcome.stopped))
    assert set(outcome.answered.answers) == {INVALID}
    assert 50 <= len(outcome.answered) == outcome.usage.queries
    assert fake.calls < 100


def test_a_stopped_run_has_asked_a_random_sample(tmp_path: Path) -> None:
    """What is asked first does not depend on the order of the file."""
    outcome = ran(Fake(1000), tmp_path, limits=Limits(max_queries=200))
    assert 400 < outcome.answered.items.mean() < 600


def test_a_limit_ends_a_run_at_the_same_query_however_often_it_was_stopped(tmp_path: Path) -> None:
    """Stopped three times on the way, a run has asked what one that was left alone has asked."""
    prices = Prices(input=10, output=20)
    for name, stops in (("left", ()), ("stopped", (30, 31, 60))):
        for most in (*stops, None):
            fake = Fake(300, tokens=(60, 130, 70, 150, 60, 140, 80))
            limits = Limits(max_queries=most, max_cost=0.1)
            ran(fake, tmp_path / name, limits=limits, prices=prices)
    with (
        Store.read(tmp_path / "left" / "run.sqlite") as left,
        Store.read(tmp_path / "stopped" / "run.sqlite") as stopped,
    ):
        assert left.answers(0, 300).tolist() == stopped.answers(0, 300).tolist()


def test_an_item_that_cannot_be_read_any_more_ends_the_run(tmp_path: Path) -> None:
    """Where it is looked at for its price, too, its error ends the run; what was answered is kept."""

    class Torn(list[Item]):
        def __getitem__(self, number: Any) -> Any:
            if number == 7:
                raise InputError("the file has changed")
            return super().__getitem__(number)

    limits, torn = Limits(max_cost=1.0, concurrency=4), Torn(make_items(60))
    with pytest.raises(InputError, match="the file has changed"):
        ran(Fake(60), tmp_path, limits=limits, items=torn, prices=Prices(1, 1))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("error", [RuntimeError("interpreter shutdown"), MemoryError()])
def test_an_answer_that_cannot_be_committed_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Whatever goes wrong while answers are written, the run ends with that error and does not hang."""

    def broken(_store: Store, _replies: list[StoredReply]) -> None:
        raise error

    monkeypatch.setattr(Store, "_insert", broken)
    with pytest.raises(type(error)):
        ran(Fake(100), tmp_path)


def test_progress_counts_only_what_is_on_disk(tmp_path: Path) -> None:
    """Whenever progress is told, the file holds at least that many answers."""
    told: list[Progress] = []

    def look(progress: Progress) -> None:
        told.append(progress)
        with Store.read(tmp_path / "run.sqlite") as reader:
            assert reader.usage().queries >= progress.done

    ran(Fake(300), tmp_path, progress=look, prices=Prices(1, 1))
    assert told[-1].done == told[-1].total == 300
    assert told[-1].cost == pytest.approx(300 * 101 / 1e6)


# Over real HTTP, against a server that misbehaves


async def ask_server(
    server: Server, path: Path, limits: Limits, timeout: float = 5.0, **more: Any
) -> RunOutcome:
    items = make_items(len(server.recording.ids))
    async with HttpEndpoint(Address(server.base_url, "replay", timeout=timeout), environ={}) as endpoint:
        return await ask_all(endpoint, path, Dithered(len(items)), items, limits=limits, **more)


async def over_http(
    path: Path, behaviour: Behaviour, n: int = 60, timeout: float = 5.0
) -> tuple[RunOutcome, Server]:
    items, limits = make_items(n), Limits(concurrency=8, backoff=0.01)
    recording = Recording.from_probabilities([item.id for item in items], truth(n))
    async with Server(recording, items, behaviour) as server:
        return await ask_server(server, path, limits, timeout), server


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(fault="429", fault_share=0.3),
        Behaviour(fault="429", fault_share=0.3, retry_after="0.05"),
        Behaviour(fault="429", fault_share=0.3, retry_after="nonsense"),
        Behaviour(fault="500", fault_share=0.3),
        Behaviour(fault="reset", fault_share=0.3),
        Behaviour(fault="truncated", fault_share=0.3),
        Behaviour(fault="hang", fault_first=3),
    ],
    ids=lambda behaviour: f"{behaviour.fault}-{behaviour.retry_after}",
)
def test_passing_faults_lose_nothing(tmp_path: Path, behaviour: Behaviour) -> None:
    """Requests that are throttled, failing, reset, cut short or never answered are asked again."""
    outcome, server = asyncio.run(over_http(tmp_path, behaviour, timeout=0.5))
    assert outcome.stopped is None
    assert outcome.answered.answers.tolist() == expected(60)
    assert server.requests > 60


@pytest.mark.parametrize("fault", ["html", "schema", "empty", "reasoning"])
def test_a_useless_reply_now_and_then_is_asked_again(tmp_path: Path, fault: Fault) -> None:
    """A web page or a wrong form among good replies does not become an answer."""
    outcome, _ = asyncio.run(over_http(tmp_path, Behaviour(fault=fault, fault_share=0.1)))
    assert outcome.stopped is None
    assert (outcome.answered.answers == INVALID).sum() <= 2


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("401", "wants an API key"),
        ("404", "no model 'replay' at this address"),
        ("500", "nothing but failures so far"),
        ("html", "web page"),
        ("reasoning", "turn reasoning off"),
        ("empty", "no choices"),
        ("schema", "not a completion"),
    ],
)
def test_a_broken_endpoint_stops_early_and_says_why(tmp_path: Path, fault: Fault, message: str) -> None:
    """An endpoint that fails every time is left after a few requests, in words that say what to do."""
    with pytest.raises(EndpointError, match=message):
        asyncio.run(over_http(tmp_path, Behaviour(fault=fault), n=500))


# Items that a content filter refuses, and endpoints that break


class Filtered(Server):
    """A replay that refuses some items outright, or serves something without an answer for them.

    ``served`` counts responses with status 200 by item text, ``refused`` the others that were refused.
    """

    def __init__(
        self, n: int, refused: Callable[[int], bool], how: str = "filter", latency: float = 0.0
    ) -> None:
        items = make_items(n)
        recording = Recording.from_probabilities([item.id for item in items], truth(n))
        super().__init__(recording, items, Behaviour(latency=latency))
        self.is_refused, self.how = refused, how
        self.asked: Counter[int] = Counter()
        self.served = 0

    def _complete(self, body: bytes, *, chat: bool) -> HttpResponse:
        item = int(re.findall(rb"question (\d+)", body)[-1])
        self.asked[item] += 1
        response = super()._complete(body, chat=chat)
        if self.is_refused(item):
            if self.how == "filter":
                said = {"message": "filtered by the content policy", "code": "content_filter"}
                return replace(response, status=400, body=msgspec.json.encode({"error": said}), delay=0.0)
            if self.how == "flagged":
                said = {"message": "Invalid prompt: it was flagged", "code": "invalid_prompt"}
                return replace(response, status=400, body=msgspec.json.encode({"error": said}))
            self.served += 1
            empty = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}}
            return replace(response, body=msgspec.json.encode(empty))
        self.served += 1
        return response


async def filtered(
    path: Path, server: Filtered, stops: Sequence[int] = (), *, concurrency: int = 8, **more: Any
) -> RunOutcome:
    """A run that is stopped when it has so many answers, and is taken up again each time."""
    limits = Limits(concurrency=concurrency, backoff=0.001, **more.pop("limits", {}))
    async with server:
        for stop_at in stops:
            stop = asyncio.Event()

            def look(progress: Progress, stop: asyncio.Event = stop, stop_at: int = stop_at) -> None:
                if progress.done >= stop_at:
                    stop.set()

            await ask_server(server, path, limits, **more, stop=stop, progress=look)
        return await ask_server(server, path, limits, **more)


@pytest.mark.parametrize(("share", "concurrency"), [(3, 4), (10, 64), (50, 16)])
@pytest.mark.parametrize("how", ["filter", "flagged"])
def test_refused_items_are_final_at_once(tmp_path: Path, how: str, share: int, concurrency: int) -> None:
    """A run with refused items is stopped and resumed, and asks each of its items exactly once."""
    n = 300
    refused = set(np.random.default_rng(share).permutation(n)[: n * share // 100].tolist())
    server = Filtered(n, refused.__contains__, how, latency=0.001)
    outcome = asyncio.run(filtered(tmp_path, server, (50, 150, 280), concurrency=concurrency))
    assert outcome.stopped is None
    assert set(server.asked.values()) == {1}
    invalid = outcome.answered.answers == INVALID
    assert set(np.flatnonzero(invalid)) == refused
    assert outcome.answered.answers[~invalid].tolist() == np.array(expected(n))[~invalid].tolist()
    assert outcome.usage.invalid == outcome.usage.unusable == len(refused)


def test_a_row_of_refused_items_is_no_broken_endpoint(tmp_path: Path) -> None:
    """With 95% refused there are long rows; an item that was answered is asked again, and the run goes on."""
    n = 300
    kept = set(np.random.default_rng(1).permutation(n)[: n // 20].tolist())
    server = Filtered(n, lambda item: item not in kept)
    outcome = asyncio.run(filtered(tmp_path, server))
    assert outcome.stopped is None
    assert outcome.usage.unusable == n - len(kept)
    checks = sum(server.asked.values()) - n
    assert 0 < checks == outcome.usage.wasted <= n / HOPELESS


@pytest.mark.parametrize("how", ["filter", "empty"])
def test_an_endpoint_that_breaks_ends_the_run_and_burns_nothing(tmp_path: Path, how: str) -> None:
    """If from some point on nothing can be used, the run ends soon and those queries stay open."""
    n, answered = 400, 0

    def broken(_: int) -> bool:
        nonlocal answered
        answered += 1
        return broken_now and answered > 100

    broken_now = True
    server = Filtered(n, broken, how)
    with pytest.raises(EndpointError, match="content policy" if how == "filter" else "no choices"):
        asyncio.run(filtered(tmp_path, server))
    assert sum(server.asked.values()) <= 100 + 3 * (HOPELESS + 2 * 8)
    with Store.read(tmp_path / "run.sqlite") as store:
        usage = store.usage()
        assert (usage.queries, usage.unusable) == (100, 0)
        assert usage.served >= server.served
    broken_now = False
    outcome = asyncio.run(filtered(tmp_path, server))
    assert outcome.stopped is None
    assert outcome.answered.answers.tolist() == expected(n)


@pytest.mark.parametrize("n", [7, 300])
def test_an_endpoint_that_never_answers_leaves_open_queries_and_its_bill(tmp_path: Path, n: int) -> None:
    """If nothing was ever answered, nothing is final; other settings may be tried, and the bill stands."""
    server = Filtered(n, lambda _: True, "empty")
    with pytest.raises(EndpointError, match="no choices"):
        asyncio.run(filtered(tmp_path, server))
    assert server.served <= 3 * (HOPELESS + 2 * 8)
    with Store.open(tmp_path / "run.sqlite") as store:
        usage = store.usage()
        assert (usage.queries, usage.wasted) == (0, server.served)
        assert usage.prompt_tokens == 7 * server.served
        assert store.begin({"extra_body": {"reasoning_effort": "none"}}, make_items(n))


@pytest.mark.parametrize("concurrency", [1, 8, 64])
@pytest.mark.parametrize("limits", [{"max_queries": 200}, {"max_cost": 0.01}])
def test_what_was_served_is_spent(tmp_path: Path, limits: dict[str, Any], concurrency: int) -> None:
    """With 40% empty replies, no limit is passed, stopped and resumed or not; money counts what it pays."""
    n, chance, prices = 300, np.random.default_rng(4), Prices(input=10, output=20)
    server = Filtered(n, lambda _: chance.random() < 0.4, "empty")
    more: dict[str, Any] = {"concurrency": concurrency, "limits": dict(limits), "prices": prices}
    outcome = asyncio.run(filtered(tmp_path, server, (50,), **more))
    assert outcome.stopped is not None
    assert outcome.stopped.limit in limits
    assert outcome.usage.served == server.served <= limits.get("max_queries", n)
    with Store.read(tmp_path / "run.sqlite") as store:
        assert store.usage() == outcome.usage
    assert prices.cost(outcome.usage) <= limits.get("max_cost", 1)
    assert "max_cost" in limits or server.served > 200 - 2 * concurrency


def test_a_deleted_folder_ends_the_run_at_once(tmp_path: Path) -> None:
    """What nobody will find is not paid for: the run stops with what is under way, and says why."""
    folder = tmp_path / "run"
    server = Filtered(2000, lambda _: False)
    deleted_at = 0

    def delete(progress: Progress) -> None:
        nonlocal deleted_at
        if progress.done >= 100 and not deleted_at:
            shutil.rmtree(folder)
            deleted_at = server.requests

    with pytest.raises(StoreError, match=r"run\.sqlite was moved or deleted during the run"):
        asyncio.run(filtered(folder, server, progress=delete))
    assert deleted_at > 0
    assert server.requests <= deleted_at + 3 * 8
    assert not folder.exists()


def test_a_server_that_throttles_everything_is_left_alone(tmp_path: Path) -> None:
    """429 without Retry-After for everything: a few dozen requests in all, until patience ends the run."""
    limits = Limits(concurrency=32, backoff=0.02, patience=2.0)

    async def throttled() -> int:
        items = make_items(200)
        recording = Recording.from_probabilities([item.id for item in items], truth(200))
        async with Server(recording, items, Behaviour(fault="429")) as server:
            with pytest.raises(EndpointError, match="no answer for"):
                await ask_server(server, tmp_path, limits)
            return server.requests

    assert asyncio.run(throttled()) < 100
