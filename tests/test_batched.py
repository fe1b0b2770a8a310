"""A run through batches: the answers of the live one, nothing lost and nothing submitted twice."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
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
from blindcal.errors import EndpointError, FatalError, PendingError, RetryableError
from blindcal.methods import make_design
from blindcal.prices import Prices
from blindcal.records import IntArray, Progress, Round, Usage
from blindcal.simulation.http_server import HttpResponse, Manner, json_response
from blindcal.simulation.replay_batches import error_response
from blindcal.store.run_store import Batch, SavedAnswer, Store
from hostile_batches import BatchBehaviour, Fate, HostileServer, Trouble
from serving import PAIR, items, recording

Kept = TypeVar("Kept", bound=Store)

N = 24
ODDS = np.random.default_rng(5).normal(0, 3, N)
LABELS = (np.random.default_rng(6).random(N) < 0.5).astype(int)
QUICK = Polling(every=0.001, longest=0.002, settle=0.02)
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
    stage: Callable[[str], None] | None = None,
    **more: Any,
) -> RunOutcome:
    with opened(Store, path) as store:
        job = Job(items(N), TokenQuestion(PAIR, seed=3), store, limits, **more)
        return await ask_in_batches(
            asking or one_round(), job, Batches(endpoint), polling=polling, stage=stage
        )


async def go_on(
    server: HostileServer, endpoint: HttpEndpoint, path: Path, asking: design.Design
) -> RunOutcome:
    """Go on as a user does: if the run asks, look whether the provider has the batch, and resubmit it."""
    try:
        return await go(endpoint, path, asking)
    except EndpointError as error:
        (token,) = re.findall(r"not known whether .* metadata (\w{32}): if it is there", str(error))
        assert all(held.shown["metadata"] != {"blindcal": token} for held in server.desk.batches.values())
        return await go(endpoint, path, asking, polling=replace(QUICK, resubmit=True))


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


def test_replies_that_contradict_each_other_are_no_answer(tmp_path: Path) -> None:
    """Different replies to one query are an invalid answer that is not paid again; equal ones are one."""

    async def talk() -> None:
        async with world(conflicting=0.3, doubled=0.5) as (server, endpoint):
            said: list[str] = []
            outcome = await go(endpoint, tmp_path / "run", stage=said.append)
            assert 2 < outcome.usage.invalid < N // 2
            assert outcome.usage.queries == sum(server.desk.submitted.values()) == N
            assert (
                outcome.usage.prompt_tokens == (await live(endpoint, tmp_path / "live")).usage.prompt_tokens
            )
        with Store.open(tmp_path / "run") as store:
            texts = [text for _, answer, text, *_ in store.texts() if answer == -1]
            (batch,) = store.batches()
        assert texts == ["(different replies to the same query)"] * outcome.usage.invalid
        words = f"different replies to {len(texts)} queries, which are invalid answers"
        assert batch.said == words
        assert words in said[-1]

    asyncio.run(talk())


NESTED = b'{"custom_id": "%b", "response": {"status_code": 200, "body": ' + b"[" * 100_000


@pytest.mark.parametrize(
    "line", [NESTED, b'{"custom_id": "%b", "x": "' + b"x" * 9 * 2**20, b'{"custom_id": "%b"']
)
def test_a_line_that_cannot_be_read_does_not_stop_the_others(line: bytes, tmp_path: Path) -> None:
    """Nested too deeply, too long or cut short: an invalid answer, as it was billed; the others are kept."""

    async def talk() -> None:
        async with world() as (server, endpoint):

            def spoil(response: HttpResponse) -> HttpResponse:
                first, *others = response.body.splitlines(keepends=True)
                name = msgspec.json.decode(first)["custom_id"].encode()
                return replace(response, body=line.replace(b"%b", name) + b"\n" + b"".join(others))

            server.desk.answers["content"] = spoil
            outcome = await go(endpoint, tmp_path / "run")
            assert (outcome.usage.queries, outcome.usage.invalid) == (N, 1)
            assert len(server.desk.batches) == 1

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

    async def _send(self, *arguments: Any, **options: Any) -> Any:
        found = await super()._send(*arguments, **options)
        self.moment()
        return found


async def crash(endpoint: HttpEndpoint, path: Path, moment: Moments, polling: Polling = QUICK) -> bool:
    """Run until the moment comes; returns whether it came."""
    client = CrashingBatches(endpoint)
    client.moment = moment
    with opened(CrashingStore, path) as store:
        store.moment = moment
        try:
            job = Job(items(N), TokenQuestion(PAIR, seed=3), store, SOON)
            await ask_in_batches(two_rounds(), job, client, polling=polling)
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
                outcome = await go_on(server, endpoint, path, two_rounds())
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
            trusting = replace(QUICK, resubmit=True, settle=0)  # this provider's list is never out of date
            while await crash(endpoint, tmp_path / "run", Moments(at), trusting):
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
            unsure = operation == "create" and trouble == "refused"  # a 500: it may have been created
            for _ in range(2 if unsure else 0):
                with pytest.raises(EndpointError, match="not known whether the provider has created a batch"):
                    await go(
                        endpoint, tmp_path / "run", two_rounds(), polling=replace(QUICK, resubmit=times > 0)
                    )
            outcome = await go_on(server, endpoint, tmp_path / "run", two_rounds())
            assert times > 2
            assert outcome.stopped is None
            assert set(server.desk.billed.values()) == {1}
            assert sum(server.desk.submitted.values()) == 2 * N + N // 2

    asyncio.run(talk())


# Submissions of which it is not certain what became


OFF_FORM: dict[str, dict[str, Any]] = {
    "null counts": {"request_counts": {"total": 0, "completed": None, "failed": None}},
    "no counts": {"request_counts": None},
    "a list of errors": {"errors": []},
    "a number as id": {"id": 17},
    "no id": {"id": None},
    "another status": {"status": None},
}


@pytest.mark.parametrize("form", [*OFF_FORM, "202", "not JSON", "nested too deeply", "cut short"])
def test_a_batch_is_created_whatever_the_form_of_its_confirmation(form: str, tmp_path: Path) -> None:
    """A success that is slightly off form is a success: nothing is submitted again, now or later."""

    async def talk() -> None:
        async with world(looks=1) as (server, endpoint):

            def confirm(response: HttpResponse) -> HttpResponse:
                if form in OFF_FORM:
                    (held,) = server.desk.batches.values()
                    if form == "a number as id":
                        server.desk.batches["17"] = held
                        held.shown["id"] = 17
                    return json_response({**held.shown, **OFF_FORM[form]})
                raw = {"not JSON": b"OK", "nested too deeply": b'{"id":' + b"[" * 100_000}.get(form)
                manner: Manner = "truncated" if form == "cut short" else "whole"
                return replace(response, body=raw or response.body, status=202, manner=manner)

            server.desk.answers["create"] = confirm
            outcome = await go(endpoint, tmp_path / "run")
            assert outcome.usage.queries == N
            assert server.desk.operations.count("create") == 1
            assert set(server.desk.billed.values()) == {1}

    asyncio.run(talk())


@pytest.mark.parametrize("status", [400, 401, 409, 413, 422, 429, 500, 503, 504])
@pytest.mark.parametrize("lag", [0, 5])
def test_a_batch_is_not_paid_twice_if_the_provider_denies_it(status: int, lag: int, tmp_path: Path) -> None:
    """An error after the batch was created, and a list that shows it late: it is found all the same."""

    async def talk() -> None:
        async with world(looks=1, lag=lag) as (server, endpoint):
            server.desk.answers["create"] = lambda _: error_response(status, "so sorry")
            patient = replace(QUICK, settle=30)
            if lag and status in (400, 401, 413, 422):
                with pytest.raises(EndpointError, match="so sorry"):  # told at once
                    await go(endpoint, tmp_path / "run", polling=patient)
            outcome = await go(endpoint, tmp_path / "run", polling=patient)
            assert outcome.usage.queries == N
            assert server.desk.operations.count("create") == 1

    asyncio.run(talk())


@pytest.mark.parametrize("status", [429, 503])
def test_a_refused_batch_is_submitted_again_by_itself(status: int, tmp_path: Path) -> None:
    """A service that is busy and lists no batch has created none: no user is asked."""

    async def talk() -> None:
        async with world(looks=1) as (server, endpoint):
            server.desk.instead["create"] = [error_response(status, "busy")] * 2
            outcome = await go(endpoint, tmp_path / "run")
            assert outcome.usage.queries == N
            assert server.desk.operations.count("create") == 3
        async with world(looks=1) as (server, endpoint):
            server.desk.instead["create"] = [error_response(status, "busy")] * 3
            with pytest.raises(EndpointError, match="busy"):
                await go(endpoint, tmp_path / "busier")
            outcome = await go(endpoint, tmp_path / "busier")
            assert outcome.usage.queries == N

    asyncio.run(talk())


@pytest.mark.parametrize("days", [1, -1])
def test_no_clock_decides_about_a_second_submission(
    days: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a lost response the list is looked at as long, whatever day the computer thinks it is."""

    async def talk() -> None:
        async with world(looks=1, lag=8) as (server, endpoint):
            server.desk.trouble = lambda name: "lost" if name == "create" else None
            with pytest.raises(EndpointError, match="not known whether"):
                await go(endpoint, tmp_path / "run", polling=replace(QUICK, settle=0))
            now = time.time() + days * 86_400
            monkeypatch.setattr(time, "time", lambda: now)
            outcome = await go(endpoint, tmp_path / "run", polling=replace(QUICK, settle=30, resubmit=True))
            assert outcome.usage.queries == N
            assert server.desk.operations.count("create") == 1

    asyncio.run(talk())


def test_the_user_decides_about_a_batch_that_nobody_can_find(tmp_path: Path) -> None:
    """Without a confirmation and a list, only ``resubmit`` submits again, once a command."""

    async def talk() -> None:
        async with world(looks=1) as (server, endpoint):
            server.desk.answers["create"] = lambda _: error_response(500, "so sorry")
            server.desk.answers["list"] = lambda _: error_response(404, "no lists here")
            for _ in range(3):
                with pytest.raises(
                    EndpointError,
                    match=r"of 24 queries: .*its list at /batches \(404\).*resubmit=True submits it",
                ):
                    await go(endpoint, tmp_path / "run")
            assert server.desk.operations.count("create") == 1
            with pytest.raises(EndpointError, match="not known whether"):
                await go(endpoint, tmp_path / "run", polling=replace(QUICK, resubmit=True))
            assert server.desk.operations.count("create") == 2
            del server.desk.answers["create"]
            outcome = await go(endpoint, tmp_path / "run", polling=replace(QUICK, resubmit=True))
            assert outcome.usage.queries == N
            assert server.desk.operations.count("create") == 3

    asyncio.run(talk())


def test_a_wrong_key_is_not_taken_for_a_list_without_the_batch(tmp_path: Path) -> None:
    """Whoever comes back with a wrong key hears of the key, and is not asked about the batch."""

    async def talk() -> None:
        async with world(looks=1) as (server, endpoint):
            server.desk.trouble = lambda name: "lost" if name == "create" else None
            server.desk.answers["list"] = lambda _: error_response(401, "who are you?")
            for resubmit in (False, True):
                with pytest.raises(FatalError, match="wants an API key"):
                    await go(endpoint, tmp_path / "run", polling=replace(QUICK, resubmit=resubmit))
            server.desk.answers.clear()
            assert (await go(endpoint, tmp_path / "run")).usage.queries == N
            assert server.desk.operations.count("create") == 1

    asyncio.run(talk())


def test_a_list_that_does_not_end_is_no_proof(tmp_path: Path) -> None:
    """Pages that repeat, and what is no list at all, show nothing about a batch."""

    async def talk() -> None:
        pages: tuple[object, ...] = (
            {"data": [{"id": "x"}], "has_more": True},
            {"data": None},
            {"error": "?"},
        )
        for number, page in enumerate(pages):
            response = json_response(page)
            async with world(looks=1) as (server, endpoint):
                server.desk.instead["create"] = [error_response(429, "busy")]
                server.desk.answers["list"] = partial(lambda page, _: page, response)
                with pytest.raises(EndpointError, match="cannot be searched"):
                    await go(endpoint, tmp_path / f"run{number}")

    asyncio.run(talk())


def test_other_batches_are_collected_before_the_user_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch that nobody confirms holds up neither the others nor their answers."""
    monkeypatch.setattr(batched, "MOST_REQUESTS", 8)

    async def talk() -> None:
        async with world(looks=3) as (server, endpoint):
            server.desk.instead["create"] = [error_response(500, "so sorry")]
            with pytest.raises(EndpointError, match="a batch of 8 queries"):
                await go(endpoint, tmp_path / "run")
            assert len(server.desk.billed) == 16
            cancelled = await go(endpoint, tmp_path / "run", polling=replace(QUICK, cancel=True))
            assert (cancelled.stopped, cancelled.usage.queries) == ("cancelled", 16)
            whole = await go(endpoint, tmp_path / "run")
            assert whole.usage.queries == N
            assert set(server.desk.billed.values()) == {1}

    asyncio.run(talk())


def test_a_server_that_could_not_be_reached_has_created_nothing(tmp_path: Path) -> None:
    """A connection that was refused is tried again: nothing was sent, so there is nothing to ask."""

    class Offline(Batches):
        left = 2

        async def create(self, file_id: str, token: str) -> Any:
            self.left -= 1
            if self.left >= 0:
                raise RetryableError("the connection failed: x: refused", unsent=True)
            return await super().create(file_id, token)

    async def talk() -> None:
        async with world(looks=1) as (server, endpoint):
            with opened(Store, tmp_path / "run") as store:
                job = Job(items(N), TokenQuestion(PAIR, seed=3), store, SOON)
                outcome = await ask_in_batches(one_round(), job, Offline(endpoint), polling=QUICK)
            assert outcome.usage.queries == N
            assert "list" not in server.desk.operations

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
