"""Repeated answers at an endpoint's own setting, and several answers in one request."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from blindcal.asking.ask_design import RunOutcome
from blindcal.asking.job import asking_order, request_numbers
from blindcal.asking.run_context import INTERRUPTED, Limits, Stopped
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.endpoints.replies import read
from blindcal.errors import FatalError, InputError, ReplyError
from blindcal.estimate.drift import drift_test
from blindcal.methods import make_design
from blindcal.prices import Prices
from blindcal.records import AnswerTable, Message, Reply, Request, Round, Usage
from blindcal.settings import DesignSettings, Settings
from blindcal.store.run_store import Store
from engine import QUICK, ask_all, make_items
from serving import PAIR

QUESTION = TokenQuestion(PAIR, biased=False, tempered=False)
N, K = 40, 3


# The method


def test_one_answer_per_item_is_refused_and_said_why() -> None:
    """Below two answers per item neither a design nor settings are made."""
    why = "repeated asks each item at least 2 times: one answer per item cannot tell a model that wavers"
    with pytest.raises(InputError, match=why):
        make_design("repeated", [0, 1], queries=1.5)
    with pytest.raises(InputError, match=why):
        DesignSettings(method="repeated", queries=1)
    assert Settings(model="m", method="repeated").resolved(10).queries == 2


def test_every_item_is_asked_the_same_without_a_shift() -> None:
    """2.5 answers per item: two for all, a third for half of them, recorded at T = 1 and shift 0."""
    asked = make_design("repeated", np.arange(200) % 2, queries=2.5).next_round(AnswerTable.empty())
    assert asked is not None
    assert np.bincount(np.bincount(asked.items)).tolist() == [0, 0, 100, 100]
    assert set(asked.shifts) == {0.0}
    assert set(asked.temperatures) == {1.0}


def test_neither_bias_nor_temperature_is_sent() -> None:
    """The request is the prompt alone; a seed is sent if it is asked for."""
    messages = (Message("user", "q"),)
    assert QUESTION.request(messages, 0.0, 1.0, 3) == Request(messages, temperature=None)
    seeded = replace(QUESTION, seed=3)
    assert len({seeded.request(messages, 0.0, 1.0, number).seed for number in range(50)}) == 50


# Several answers in one request


@dataclass(frozen=True)
class Repeated:
    """Every item K times, in passes over the items."""

    n: int = N
    times: int = K

    def next_round(self, answered: AnswerTable) -> Round | None:
        if len(answered):
            return None
        items = np.tile(np.arange(self.n), self.times)
        return Round(items, np.zeros(items.size), np.ones(items.size))


@dataclass
class Several:
    """An endpoint with ``gives`` choices for a request that asks for n: its answers are numbered."""

    gives: Callable[[int], int] = lambda n: n
    before: Callable[[int, Request], None] = lambda *_: None
    requests: list[Request] = field(default_factory=list)
    answered: Counter[str] = field(default_factory=Counter)
    now: int = 0
    most: int = 0

    async def ask(self, request: Request) -> Reply:
        self.requests.append(request)
        self.now += request.n
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(0)
            self.before(len(self.requests), request)
        finally:
            self.now -= request.n
        many = self.gives(request.n)
        self.answered[request.messages[-1].content] += many
        further = tuple(Reply("No") for _ in range(many - 1))
        return Reply("Yes", prompt_tokens=100, completion_tokens=many, further=further)

    async def close(self) -> None:
        pass


def ran(endpoint: Several, folder: Path, at_once: int = K, **more: Any) -> RunOutcome:
    """The outcome of asking every item K times."""
    design, items = Repeated(), make_items(N)
    return asyncio.run(ask_all(endpoint, folder, design, items, question=QUESTION, at_once=at_once, **more))


def rows(folder: Path, columns: str) -> list[tuple[Any, ...]]:
    with Store.read(folder / "run.sqlite") as store:
        return store._execute(f"SELECT {columns} FROM answers ORDER BY query")


@pytest.mark.parametrize(
    ("at_once", "sizes"), [(1, {1: 120}), (2, {1: 40, 2: 40}), (3, {3: 40}), (8, {3: 40})]
)
def test_equal_queries_share_a_request(at_once: int, sizes: dict[int, int], tmp_path: Path) -> None:
    """The answers of an item come in as few requests as allowed; the first one carries the cost."""
    endpoint, requests = Several(), sum(sizes.values())
    outcome = ran(endpoint, tmp_path, at_once=at_once)
    assert outcome.stopped is None
    assert Counter(request.n for request in endpoint.requests) == sizes
    assert set(endpoint.answered.values()) == {K}
    paid = {"prompt_tokens": 100 * requests, "completion_tokens": N * K}
    assert outcome.usage == Usage(queries=N * K, attempts=requests, **paid)
    assert int(outcome.answered.answers.sum()) == requests
    stored = rows(tmp_path, "answer, prompt_tokens, completion_tokens, attempts")
    costs = Counter((1, 100, size, 1) for size, count in sizes.items() for _ in range(count))
    assert Counter(stored) == costs + Counter({(0, 0, 0, 0): N * K - requests})


@pytest.mark.parametrize("gives", [1, 2])
def test_what_a_reply_leaves_unanswered_is_asked_again(gives: int, tmp_path: Path) -> None:
    """An endpoint that gives fewer choices than asked for is asked until all queries have one answer each."""
    endpoint = Several(lambda n: min(n, gives))
    outcome = ran(endpoint, tmp_path)
    assert outcome.stopped is None
    assert outcome.usage.queries == len(outcome.answered) == N * K
    assert set(endpoint.answered.values()) == {K}
    asked = {1: {3: N, 2: N, 1: N}, 2: {3: N, 1: N}}[gives]
    assert Counter(request.n for request in endpoint.requests) == asked


def test_more_choices_than_asked_for_are_not_kept(tmp_path: Path) -> None:
    """Each query has one answer, whatever comes on top."""
    outcome = ran(Several(lambda n: n + 2), tmp_path)
    assert outcome.usage.queries == len(outcome.answered) == N * K


def test_a_refused_item_has_all_its_queries_refused_at_the_cost_of_one(tmp_path: Path) -> None:
    """A content filter's refusal is the outcome of every query of the request."""

    def refuse(_: int, request: Request) -> None:
        if request.messages[-1].content in ("question 3", "question 17"):
            raise FatalError("filtered", status=400)

    outcome = ran(Several(before=refuse), tmp_path)
    assert outcome.stopped is None
    assert (outcome.usage.queries, outcome.usage.unusable, outcome.usage.attempts) == (N * K, 2 * K, N)
    assert {row[0] for row in rows(tmp_path, "query % 40, unusable") if row[1]} == {3, 17}


def test_a_reply_that_cannot_be_used_is_billed_once(tmp_path: Path) -> None:
    """Three replies are paid for and useless; then the queries of the request have no usable reply."""

    def useless(_: int, request: Request) -> None:
        if request.messages[-1].content == "question 5":
            raise ReplyError("reasoning only", billed=(100, 9, 0))

    outcome = ran(Several(before=useless), tmp_path)
    assert (outcome.usage.unusable, outcome.usage.wasted) == (K, 2)
    assert outcome.usage.completion_tokens == (N - 1) * K + 3 * 9
    assert outcome.usage.attempts == N - 1 + 3


@pytest.mark.parametrize("concurrency", [1, 2, 7, 64])
def test_no_more_queries_are_under_way_than_allowed(concurrency: int, tmp_path: Path) -> None:
    """The bound counts queries, not requests; a single request may always be sent."""
    endpoint = Several()
    ran(endpoint, tmp_path, limits=Limits(concurrency=concurrency))
    assert endpoint.most <= max(K, concurrency)


@pytest.mark.parametrize("most", [1, 2, 3, 50, 119])
def test_the_limit_on_queries_holds(most: int, tmp_path: Path) -> None:
    """A request counts as all its queries, before it is sent; raising the limit asks the rest."""
    endpoint = Several()
    outcome = ran(endpoint, tmp_path, limits=replace(QUICK, max_queries=most))
    assert outcome.stopped == Stopped(f"max_queries = {most} reached", "max_queries")
    assert sum(endpoint.answered.values()) == most - most % K
    outcome = ran(endpoint, tmp_path)
    assert outcome.stopped is None
    assert set(endpoint.answered.values()) == {K}


@pytest.mark.parametrize("billed", [1, K])
def test_the_limit_on_the_cost_holds(billed: int, tmp_path: Path) -> None:
    """Whether the prompt is billed once or for every answer, no more is spent than allowed."""

    @dataclass
    class Billing(Several):
        async def ask(self, request: Request) -> Reply:
            reply = await super().ask(request)
            return replace(reply, prompt_tokens=12 * (request.n if billed > 1 else 1))

    endpoint, prices = Billing(), Prices(1.0, 1.0)
    most = 30 * (12 * billed + K) / 1e6
    limits = replace(QUICK, max_cost=most)
    outcome = ran(endpoint, tmp_path, limits=limits, prices=prices)
    assert outcome.stopped is not None
    assert outcome.stopped.limit == "max_cost"
    spent = len(endpoint.requests) * (12 * billed + K) / 1e6
    assert most / 2 < spent <= most


def test_an_interrupted_run_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """Stopped again and again in the middle, it ends with every query answered and paid for once."""
    endpoint = Several(lambda n: min(n, 2))
    for _ in range(200):
        stop = asyncio.Event()
        begun = len(endpoint.requests)

        def after_some(call: int, _: Request, stop: asyncio.Event = stop, begun: int = begun) -> None:
            if call >= begun + 7:
                stop.set()

        endpoint.before = after_some
        outcome = ran(endpoint, tmp_path, limits=Limits(concurrency=5), stop=stop)
        if outcome.stopped is None:
            break
        assert outcome.stopped == INTERRUPTED
    assert outcome.usage.queries == N * K
    assert set(endpoint.answered.values()) == {K}


def ask_until_killed(folder: Path) -> None:
    """Ask, and kill this process when the twentieth request comes."""
    endpoint = Several()

    def kill(call: int, _: Request) -> None:
        if call == 20:
            (folder / "answered").write_text(str(sum(endpoint.answered.values())))
            os.kill(os.getpid(), signal.SIGKILL)

    endpoint.before = kill
    ran(endpoint, folder, limits=Limits(concurrency=6))


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGKILL")
def test_a_killed_run_loses_at_most_what_is_under_way(tmp_path: Path) -> None:
    """After kill -9 requests are on disk as a whole, and all but the six queries under way are there."""
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=ask_until_killed, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    kept = Counter(row[0] for row in rows(tmp_path, "query % 40"))
    assert set(kept.values()) == {K}
    assert kept.total() >= int((tmp_path / "answered").read_text()) - 6
    endpoint = Several()
    assert ran(endpoint, tmp_path).usage.queries == N * K
    assert sum(endpoint.answered.values()) == N * K - kept.total()


@pytest.mark.parametrize("at_once", [2, 3, 5])
def test_the_queries_of_a_request_are_equal_and_follow_each_other(at_once: int) -> None:
    """Only queries with the same item, shift and temperature share one, as many as allowed."""
    rng = np.random.default_rng(at_once)
    item, shift, temperature = (rng.integers(size, size=200) for size in (9, 2, 2))
    asked = Round(item, shift / 2, np.asarray(1.0 + temperature, np.float64))
    numbers, order = request_numbers(asked, at_once), asking_order(0, asked, at_once)
    assert sorted(order.tolist()) == list(range(200))
    kinds = list(zip(asked.items, asked.shifts, asked.temperatures, strict=True))
    for number in range(numbers.max() + 1):
        mine = np.flatnonzero(numbers == number)
        assert len({kinds[k] for k in mine}) == 1
        assert 1 <= mine.size <= at_once
        places = np.flatnonzero(numbers[order] == number)
        assert np.ptp(places) == mine.size - 1
    requests = sum(-(-many // at_once) for many in Counter(kinds).values())
    assert numbers.max() + 1 == requests


def test_alike_answers_of_a_request_are_no_change() -> None:
    """Answers about an item resemble each other, which does not look like a change."""
    accused = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        p = expit(4 * rng.standard_normal(300))
        which = np.repeat(np.arange(300), 4)
        answers = (rng.random(which.size) < p[which]).astype(np.int64)
        table = AnswerTable(which, np.zeros(which.size), np.ones(which.size), answers)
        labels = (rng.random(300) < 0.5).astype(np.int64)
        found = drift_test(labels, [table], [which])
        assert found is not None
        accused += found.pvalue < 0.05
    assert accused <= 10 + 3 * np.sqrt(200 * 0.05 * 0.95)


def test_choices_that_cannot_be_used_are_left_out() -> None:
    """Of three choices one has no answer: two answers, at the cost of all. None at all is an error."""
    said = {"message": {"content": "Yes"}}
    silent = {"message": {"content": None, "reasoning_content": "hm"}}
    usage = {"prompt_tokens": 9, "completion_tokens": 30}
    reply = read(200, json.dumps({"choices": [silent, said, said], "usage": usage}).encode())
    assert isinstance(reply, Reply)
    assert (reply.text, [one.text for one in reply.further]) == ("Yes", ["Yes"])
    assert reply.usage == Usage(queries=2, attempts=1, prompt_tokens=9, completion_tokens=30)
    with pytest.raises(ReplyError, match="reasoning and no answer"):
        read(200, json.dumps({"choices": [silent, silent], "usage": usage}).encode())
