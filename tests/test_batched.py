"""A run through batches: the answers of the live one, nothing lost and nothing submitted twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import pytest

from blindcal import design
from blindcal.auditing import batch_sender as batched
from blindcal.auditing.batch_sender import Polling, ask_in_batches
from blindcal.auditing.job import Job, RunOutcome
from blindcal.auditing.limits import Limits
from blindcal.auditing.live_sender import ask_live
from blindcal.endpoints.batches import Batches
from blindcal.endpoints.http import Address, HttpEndpoint
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.errors import EndpointError, FatalError, PendingError
from blindcal.methods import make_design
from blindcal.prices import Prices
from blindcal.records import IntArray, Progress, Round, Usage
from blindcal.simulation.http_server import HttpResponse
from blindcal.store.run_store import Batch, SavedAnswer, Store
from hostile_batches import BatchBehaviour, Fate, HostileServer, Trouble
from serving import PAIR, items, recording

Kept = TypeVar("Kept", bound=Store)

N = 24
ODDS = np.random.default_rng(5).normal(0, 3, N)
LABELS = (np.random.default_rng(6).random(N) < 0.5).astype(int)
QUICK = Polling(every=0.001, longest=0.002)
SOON = Limits(backoff=0.001, patience=20)


def one_round(seed: int = 0) -> design.Design:
    return make_design("latent", LABELS, seed=seed, adaptive=False)


def two_rounds() -> design.Design:
    return make_design("extraction", LABELS, queries=2)


@contextlib.asynccontextmanager
async def world(**behaviour: Any) -> AsyncIterator[tuple[HostileServer, HttpEndpoint]]:
    async with (
        HostileServer(recording(ODDS.tolist()), items(N), batches=BatchBehaviour(**behaviour)) as server,
        HttpEndpoint(Address(server.base_url, "replay"), environ={}) as endpoint,
    ):
        yield server, endpoint


@contextlib.contextmanager
def opened(kind: type[Kept], path: Path) -> Iterator[Kept]:
    """A run file that is begun; not forced to disk, as no power fails here."""
    with kind.open(path) as store:
        assert isinstance(store, kind)
        store._db.execute("PRAGMA synchronous=OFF")
        store.begin({}, items(N))
        yield store


async def go(
    endpoint: HttpEndpoint,
    path: Path,
    asking: design.Design | None = None,
    *,
    polling: Polling = QUICK,
    limits: Limits = SOON,
    **more: Any,
) -> RunOutcome:
    with opened(Store, path) as store:
        job = Job(items(N), TokenQuestion(PAIR, seed=3), store, limits, **more)
        return await ask_in_batches(asking or one_round(), job, Batches(endpoint), polling=polling)


async def live(endpoint: HttpEndpoint, path: Path, asking: design.Design | None = None) -> RunOutcome:
    with opened(Store, path) as store:
        job = Job(items(N), TokenQuestion(PAIR, seed=3), store)
        return await ask_live(asking or one_round(), job, endpoint)


def same(one: RunOutcome, other: RunOutcome) -> bool:
    return all(
        np.array_equal(getattr(one.answered, name), getattr(other.answered, name))
        for name in ("items", "shifts", "temperatures", "answers")
    )


@pytest.mark.parametrize("method", ["latent", "blind", "sampling", "temperature", "extraction", "twice"])
def test_batches_bring_what_live_queries_bring(method: str, tmp_path: Path) -> None:
    """Every method's answers through batches are those of the same design and seed asked live."""
    asking = make_design(
        "latent" if method == "twice" else method,
        LABELS,
        queries={"latent": 1, "blind": 1, "twice": 1.5}.get(method, 2),
        adaptive=False,
    )

    async def talk() -> None:
        async with world() as (server, endpoint):
            through = await go(endpoint, tmp_path / "batched", asking)
            expected = await live(endpoint, tmp_path / "live", asking)
            assert same(through, expected)
            assert through.usage == expected.usage
            rounds = {"extraction": 2, "twice": 2}.get(method, 1)
            assert len(server.desk.batches) == rounds
            assert set(server.desk.billed.values()) == set(server.desk.submitted.values()) == {1}

    asyncio.run(talk())


@pytest.mark.parametrize(
    "behaviour",
    [
        {"looks": 1},
        {"looks": 5},
        {"fates": ("expired",)},
        {"fates": ("cancelled", "expired", "cancelled")},
        {"fates": ("expired",), "answered": 0.0},
        {"fates": ("failed", "failed")},
        {"broken": 0.4},
        {"doubled": 0.5, "unknown": 5},
        {"fates": ("expired",), "broken": 0.3, "doubled": 0.3, "unknown": 2},
    ],
)
def test_whatever_a_batch_comes_to_everything_is_answered_once(
    behaviour: dict[str, Any], tmp_path: Path
) -> None:
    """Expired, cancelled, failed, partial: what was answered is kept, and the rest submitted again."""

    async def talk() -> None:
        async with world(**behaviour) as (server, endpoint):
            outcome = await go(endpoint, tmp_path / "run", two_rounds())
            assert same(outcome, await live(endpoint, tmp_path / "live", two_rounds()))
            assert outcome.stopped is None
            assert outcome.usage.queries == 2 * N
            assert set(server.desk.billed.values()) == {1}
            assert sum(server.desk.billed.values()) == 2 * N

    asyncio.run(talk())


def test_lines_that_never_came_are_asked_for_again(tmp_path: Path) -> None:
    """A completed batch without some of its lines is a partial one."""

    async def talk() -> None:
        async with world(missing=0.3) as (server, endpoint):
            outcome = await go(endpoint, tmp_path / "run")
            assert same(outcome, await live(endpoint, tmp_path / "live"))
            assert len(server.desk.batches) > 1
            assert outcome.usage.attempts == sum(server.desk.submitted.values())

    asyncio.run(talk())


# Crashes


class CrashError(BaseException):
    """The process ends here."""


class Moments:
    """Counts the moments at which a process can end, and ends it at one of them."""

    def __init__(self, at: int) -> None:
        self.passed = 0
        self._at = at

    def __call__(self) -> None:
        if self.passed == self._at:
            raise CrashError
        self.passed += 1


class CrashingStore(Store):
    """A run file whose owner may end before and after each write."""

    moment: Moments

    def add_round(self, asked: Round) -> None:
        self.moment()
        super().add_round(asked)
        self.moment()

    def add_batches(self, pieces: Iterable[IntArray]) -> None:
        self.moment()
        super().add_batches(pieces)
        self.moment()

    def set_batch(self, batch: Batch, saved: list[SavedAnswer] | None = None) -> None:
        self.moment()
        super().set_batch(batch, saved)
        self.moment()


class CrashingBatches(Batches):
    """A client that may end after the server has done its part and before it hears of it."""

    moment: Moments

    async def _call(self, *arguments: Any, **options: Any) -> Any:
        found = await super()._call(*arguments, **options)
        self.moment()
        return found


async def crash(endpoint: HttpEndpoint, path: Path, moment: Moments) -> bool:
    """Run until the moment comes; returns whether it came."""
    client = CrashingBatches(endpoint)
    client.moment = moment
    with opened(CrashingStore, path) as store:
        store.moment = moment
        try:
            job = Job(items(N), TokenQuestion(PAIR, seed=3), store, SOON)
            await ask_in_batches(two_rounds(), job, client, polling=QUICK)
        except CrashError:
            return True
    return False


def test_a_crash_at_any_moment_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """Ended before and after each write and response in turn, a run goes on and submits nothing twice."""

    async def talk() -> int:
        async with world(fates=("expired",)) as (server, endpoint):
            expected = await go(endpoint, tmp_path / "whole", two_rounds())
            total, batches = sum(server.desk.submitted.values()), len(server.desk.batches)
        for at in range(10_000):
            async with world(fates=("expired",)) as (server, endpoint):
                path = tmp_path / f"crash{at}"
                crashed = await crash(endpoint, path, Moments(at))
                outcome = await go(endpoint, path, two_rounds())
                assert same(outcome, expected), at
                assert set(server.desk.billed.values()) == {1}, at
                assert sum(server.desk.submitted.values()) == total, at
                assert len(server.desk.batches) == batches, at
                assert len(server.desk.files) - batches in (4, 5), (
                    at
                )  # output and error files; at most one lost
                if not crashed:
                    return at
        raise AssertionError("it never ended")

    assert asyncio.run(talk()) > 50


def test_crash_after_crash_ends_well(tmp_path: Path) -> None:
    """A run whose every process ends a little later than the one before still submits everything once."""

    async def talk() -> None:
        async with world(fates=("cancelled",)) as (server, endpoint):
            at = 0
            while await crash(endpoint, tmp_path / "run", Moments(at)):
                at = (at + 1) % 7 + 1  # some of them get far, some hardly begin
            assert set(server.desk.billed.values()) == {1}
            assert sum(server.desk.submitted.values()) == 2 * N + N // 2

    asyncio.run(talk())


@pytest.mark.parametrize("operation", ["upload", "create", "look", "content", "list"])
@pytest.mark.parametrize("trouble", ["lost", "refused", "throttled"])
def test_lost_and_refused_responses(operation: str, trouble: Trouble, tmp_path: Path) -> None:
    """A response that is lost, an error and a 429 are each followed by another try that doubles nothing."""

    async def talk() -> None:
        async with world(fates=("expired",)) as (server, endpoint):
            times = 0

            def strike(name: str) -> Trouble | None:
                nonlocal times
                times += name == operation
                if operation == "list" and name == "create" and len(server.desk.batches) == 0:
                    return "lost"  # so that there is a reason to list
                return trouble if name == operation and times <= 2 else None

            server.desk.trouble = strike
            outcome = await go(endpoint, tmp_path / "run", two_rounds())
            assert times > 2
            assert outcome.stopped is None
            assert set(server.desk.billed.values()) == {1}
            assert sum(server.desk.submitted.values()) == 2 * N + N // 2

    asyncio.run(talk())


def test_an_unheard_batch_is_given_time_to_show(tmp_path: Path) -> None:
    """After a lost response the list is looked at only when the batch must be in it."""

    async def talk() -> None:
        async with world() as (server, endpoint):
            server.desk.trouble = lambda name: "lost" if name == "create" else None
            begin = asyncio.get_running_loop().time()
            await go(endpoint, tmp_path / "run", polling=Polling(every=0.02, longest=0.02))
            assert asyncio.get_running_loop().time() - begin >= 0.12
            assert len(server.desk.batches) == 1

    asyncio.run(talk())


# What a provider allows and refuses


def test_files_are_split_as_the_provider_wants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file holds more requests or more bytes than allowed, and there are no more files than that takes."""

    async def talk(name: str, **behaviour: Any) -> list[int]:
        async with world(**behaviour) as (server, endpoint):
            outcome = await go(endpoint, tmp_path / name)
            assert outcome.usage.queries == N
            assert set(server.desk.submitted.values()) == {1}
            return [file["bytes"] for file in server.desk.files.values() if file["purpose"] == "batch"]

    (whole,) = asyncio.run(talk("whole"))
    monkeypatch.setattr(batched, "MOST_REQUESTS", 7)
    assert len(asyncio.run(talk("requests", most_requests=7))) == 4
    monkeypatch.setattr(batched, "MOST_REQUESTS", 50_000)
    monkeypatch.setattr(batched, "MOST_BYTES", whole // 3)
    sizes = asyncio.run(talk("bytes", most_bytes=whole // 3))
    assert len(sizes) == 4
    assert sum(sizes) == whole


def test_a_full_queue_is_waited_for_and_asked_for_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many tokens at once: half of them are tried, and the other half when there is room."""
    monkeypatch.setattr(batched, "LEAST", 2)
    fates: tuple[Fate, ...] = ("full", "completed", "full", "completed")

    async def talk() -> None:
        async with world(fates=fates, looks=4) as (server, endpoint):
            outcome = await go(endpoint, tmp_path / "run")
            assert outcome.usage.queries == N
            assert set(server.desk.submitted.values()) == {1}
            assert len(server.desk.batches) == 4
        async with world(fates=("full",) * 20) as (_, endpoint):
            with pytest.raises(EndpointError, match="Enqueued token limit reached"):
                await go(endpoint, tmp_path / "never")

    asyncio.run(talk())


def test_batches_that_bring_nothing_end_the_run(tmp_path: Path) -> None:
    """Three submissions in a row without an answer: an error if there is none at all, else a part."""

    async def talk() -> None:
        async with world(fates=("failed",) * 3) as (_, endpoint):
            with pytest.raises(EndpointError, match=r"3 batches in a row brought no answer: .*not be valid"):
                await go(endpoint, tmp_path / "none")
            again = await go(endpoint, tmp_path / "none")  # whoever comes back may try again
            assert again.usage.queries == N
        async with world(fates=("expired", "failed", "failed", "failed")) as (_, endpoint):
            some = await go(endpoint, tmp_path / "some")
            assert some.stopped is not None
            assert some.stopped.startswith("12 queries were in 3 submissions in a row")
            assert len(some.answered) == N // 2

    asyncio.run(talk())


def answering(status: int, body: object, every: int = 1) -> Any:
    """What a desk does that answers every so many requests in its own way."""

    def change(server: HostileServer) -> None:
        plain, count = server.desk.answer, 0

        def answer(asked: bytes, chat: bool) -> HttpResponse:
            nonlocal count
            count += 1
            if count % every == 0:
                return HttpResponse(msgspec.json.encode(body), status)
            return plain(asked, chat)

        server.desk.answer = answer

    return change


def test_a_refused_item_is_an_invalid_answer(tmp_path: Path) -> None:
    """What a filter refuses or makes no sense is kept as invalid with its reason, if others are answered."""
    filtered = {"error": {"message": "content filter"}}

    async def talk() -> None:
        async with world() as (server, endpoint):
            answering(400, filtered, every=6)(server)
            outcome = await go(endpoint, tmp_path / "run")
            assert outcome.usage.invalid == N // 6
            assert len(server.desk.batches) == 1
        with Store.open(tmp_path / "run") as store:
            texts = [text for _, answer, text, *_ in store.texts() if answer == -1]
        assert texts == ["(the endpoint refuses this item (400): content filter)"] * (N // 6)
        async with world() as (server, endpoint):
            answering(400, filtered)(server)
            with pytest.raises(EndpointError, match="content filter"):
                await go(endpoint, tmp_path / "all")
        async with world(fates=("expired",), answered=1 / N) as (server, endpoint):
            plain = server.desk.answer

            def first(body: bytes, chat: bool) -> HttpResponse:
                server.desk.answer = refuse
                return plain(body, chat)

            def refuse(_: bytes, __: bool) -> HttpResponse:
                return HttpResponse(msgspec.json.encode(filtered), 400)

            server.desk.answer = first  # one answer, and then nothing but refusals
            with pytest.raises(EndpointError, match="content filter"):
                await go(endpoint, tmp_path / "nearly all")

    asyncio.run(talk())


def test_what_fails_for_all_is_said_at_once(tmp_path: Path) -> None:
    """A batch whose every line has a wrong model or key is an error, and not submitted again."""

    async def talk() -> None:
        async with world() as (server, endpoint):
            answering(404, {"error": {"message": "no such model"}})(server)
            with pytest.raises(FatalError, match="no model 'replay'"):
                await go(endpoint, tmp_path / "run")
            assert len(server.desk.batches) == 1

    asyncio.run(talk())


def test_a_refused_batch_leaves_no_trace(tmp_path: Path) -> None:
    """When the provider refuses to create a batch, the next run uploads and submits anew."""

    async def talk() -> None:
        async with world() as (server, endpoint):
            forget = {"left": True}

            def lose_the_file(name: str) -> Trouble | None:
                if name == "create" and forget.pop("left", False):
                    server.desk.files.clear()
                return None

            server.desk.trouble = lose_the_file
            with pytest.raises(FatalError, match="no such file"):
                await go(endpoint, tmp_path / "run")
            outcome = await go(endpoint, tmp_path / "run")
            assert outcome.usage.queries == N
            assert set(server.desk.submitted.values()) == {1}

    asyncio.run(talk())


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "has no file file-"), (b'{"custom_id": "other"}\n{}\n', "answered 24 queries, but none of them")],
)
def test_answers_that_cannot_be_read_are_not_paid_again(
    content: bytes | None, says: str, tmp_path: Path
) -> None:
    """An output that is gone or foreign is an error each time, and never a reason to submit again."""

    async def talk() -> None:
        async with world(looks=1) as (server, endpoint):

            def spoil(name: str) -> Trouble | None:
                if name == "content":
                    for file in server.desk.contents:
                        server.desk.contents[file] = content or b""
                    if content is None:
                        server.desk.contents.clear()
                return None

            server.desk.trouble = spoil
            for _ in range(2):
                with pytest.raises(EndpointError, match=says):
                    await go(endpoint, tmp_path / "run")
            assert len(server.desk.batches) == 1

    asyncio.run(talk())


def test_a_batch_is_done_when_its_output_is_written(tmp_path: Path) -> None:
    """A batch that is completed before its output file has a name is looked at again."""

    async def talk() -> None:
        async with world(looks=None) as (server, endpoint):
            names: list[str] = []

            def hide(__: Progress) -> None:
                (held,) = server.desk.batches.values()
                if len(names) == 2:  # seen without its name
                    held.shown["output_file_id"] = names[0]
                for _ in range(3):
                    server.desk.step()
                if len(names) < 2:
                    names.append(held.shown["output_file_id"])
                    held.shown["output_file_id"] = None

            outcome = await go(endpoint, tmp_path / "run", progress=hide)
            assert outcome.usage.queries == N
            assert len(names) == 2
            assert len(server.desk.batches) == 1

    asyncio.run(talk())


# Waiting, limits and progress


def test_without_waiting_it_returns_at_once(tmp_path: Path) -> None:
    """Submit, come back, come back: each time one look, and the next round goes out when one is answered."""

    async def talk() -> None:
        async with world(looks=2) as (server, endpoint):
            said, pending = "", 0
            while True:
                try:
                    outcome = await go(endpoint, tmp_path / "run", two_rounds(), polling=Polling(wait=False))
                    break
                except PendingError as error:
                    said, pending = str(error), pending + 1
            assert said.startswith("24 queries are with the provider in 1 batch: batch_0000000")
            assert pending == 4
            assert outcome.usage.queries == 2 * N
            assert set(server.desk.submitted.values()) == {1}

    asyncio.run(talk())


def test_stopping_keeps_what_is_under_way(tmp_path: Path) -> None:
    """Stopped while it waits, a run says so, and goes on later without another batch."""

    async def talk() -> None:
        async with world(looks=None) as (server, endpoint):
            stop = asyncio.Event()

            outcome = await go(endpoint, tmp_path / "run", progress=lambda _: stop.set(), stop=stop)
            assert outcome.stopped == "interrupted"
            assert len(outcome.answered) == 0
            for _ in range(3):
                server.desk.step()
            again = await go(endpoint, tmp_path / "run")
            assert again.usage.queries == N
            assert len(server.desk.batches) == 1

    asyncio.run(talk())


def test_limits_bound_what_is_submitted(tmp_path: Path) -> None:
    """Limits on queries and cost, the probe's included, cut what is submitted; raising them goes on."""
    spent = Usage(queries=4, prompt_tokens=24)  # as long as all are: six dollars each live, three in a batch

    async def talk() -> None:
        async with world() as (server, endpoint):
            few = await go(endpoint, tmp_path / "a", limits=Limits(max_queries=10), spent=spent)
            assert few.stopped == "max_queries = 10 reached"
            assert few.usage.queries == sum(server.desk.submitted.values()) == 6
            more = await go(endpoint, tmp_path / "a", spent=spent)
            assert more.usage.queries == sum(server.desk.submitted.values()) == N
        async with world() as (server, endpoint):
            cheap = await go(
                endpoint, tmp_path / "b", limits=Limits(max_cost=40), prices=Prices(1e6, 0), spent=spent
            )
            assert cheap.usage.queries == 5
            assert cheap.stopped == "max_cost = 40 reached"

    asyncio.run(talk())


def test_progress_counts_what_the_provider_has_answered(tmp_path: Path) -> None:
    """Progress ends at the whole, with the batch price."""
    seen: list[Progress] = []

    async def talk() -> None:
        async with world(looks=4) as (_, endpoint):
            outcome = await go(endpoint, tmp_path / "run", progress=seen.append, prices=Prices(1e6, 0))
            assert sorted({one.done for one in seen}) == [0, N // 4, N // 3, N // 2, N]
            assert seen[-1].done == seen[-1].total == N
            assert seen[-1].cost == pytest.approx(outcome.usage.prompt_tokens / 2)

    asyncio.run(talk())
