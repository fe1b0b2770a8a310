"""Files and batches over HTTP: the server speaks the protocol of the real SDK, and so does our client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import openai
import pytest

from blindcal.endpoints.batches import Batches, BatchLine
from blindcal.endpoints.http import Address, HttpEndpoint
from blindcal.errors import (
    ConfigError,
    EndpointError,
    FatalError,
    ReplyError,
    RetryableError,
)
from blindcal.simulation.http_server import HttpResponse
from blindcal.simulation.replay import running
from hostile_batches import HostileServer
from misbehaving import Behaviour, Server
from serving import answering, asking, items, recording

ODDS = [-6.0, -1.0, 0.5, 0.7, 5.0]


@pytest.fixture
def server() -> Iterator[Server]:
    with running(Server(recording(ODDS), items(len(ODDS)))) as one:
        one.desk.looks = None
        yield one


def wishes(n: int = len(ODDS), **more: Any) -> bytes:
    """An input file that asks about so many items."""
    lines = (
        {
            "custom_id": f"q{k}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": "replay",
                "messages": [{"role": "user", "content": f"Is {k} odd? Yes or No."}],
                "temperature": 0,
            }
            | more,
        }
        for k in range(n)
    )
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


# The server, driven by the real SDK


def test_the_real_sdk_takes_a_batch_from_file_to_answers(server: Server) -> None:
    """openai's own client uploads, submits, watches, lists and reads a batch, and every type fits."""
    with openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        file = client.files.create(file=("wishes.jsonl", wishes()), purpose="batch")
        assert (file.filename, file.purpose, file.bytes) == ("wishes.jsonl", "batch", len(wishes()))
        batch = client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"name": "mine"},
        )
        statuses = [batch.status]
        while client.batches.retrieve(batch.id).status != "completed":
            server.desk.step()
            statuses.append(client.batches.retrieve(batch.id).status)
        assert statuses == ["validating", "in_progress", "finalizing", "completed"]
        done = client.batches.retrieve(batch.id)
        assert done.request_counts is not None
        assert (done.request_counts.total, done.request_counts.completed) == (len(ODDS), len(ODDS))
        assert done.metadata == {"name": "mine"}
        assert done.output_file_id is not None
        assert done.error_file_id is None
        lines = [json.loads(line) for line in client.files.content(done.output_file_id).text.splitlines()]
        said = {
            line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"] for line in lines
        }
        assert said == {f"q{k}": "Yes" if odds >= 0 else "No" for k, odds in enumerate(ODDS)}
        assert {line["response"]["status_code"] for line in lines} == {200}
        assert {file.id for file in client.files.list(purpose="batch")} == {file.id}


def test_the_real_sdk_pages_and_cancels(server: Server) -> None:
    """Lists come in pages, the newest first; a cancelled batch keeps what it had answered."""
    with openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        file = client.files.create(file=("w.jsonl", wishes(4)), purpose="batch")
        made = [
            client.batches.create(
                input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
            ).id
            for _ in range(5)
        ]
        assert [batch.id for batch in client.batches.list(limit=2)] == made[::-1]
        assert client.batches.cancel(made[0]).status == "cancelling"
        server.desk.step()
        cancelled = client.batches.retrieve(made[0])
        assert cancelled.status == "cancelled"
        assert cancelled.output_file_id is not None
        assert cancelled.error_file_id is not None
        refused = [
            json.loads(line) for line in client.files.content(cancelled.error_file_id).text.splitlines()
        ]
        assert {line["error"]["code"] for line in refused} == {"batch_cancelled"}
        assert len(client.files.content(cancelled.output_file_id).text.splitlines()) == 2
        with pytest.raises(openai.ConflictError):
            client.batches.cancel(made[0])


def test_the_real_sdk_sees_what_is_refused(server: Server) -> None:
    """A batch of a bad file fails with its problems; unknown files and batches are errors of the SDK."""
    with openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        file = client.files.create(file=("w.jsonl", wishes(1) + wishes(1) + b"no json\n"), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        server.desk.step()
        failed = client.batches.retrieve(batch.id)
        assert failed.status == "failed"
        assert failed.errors is not None
        assert {problem.code for problem in failed.errors.data or []} == {
            "duplicate_custom_id",
            "invalid_json_line",
        }
        with pytest.raises(openai.BadRequestError):
            client.batches.create(
                input_file_id="file-x", endpoint="/v1/chat/completions", completion_window="24h"
            )
        with pytest.raises(openai.NotFoundError):
            client.batches.retrieve("batch_x")
        with pytest.raises(openai.NotFoundError):
            client.files.content("file-x")


# Our client


def talked(server: Server, talk: Callable[[Batches], Awaitable[Any]]) -> Any:
    async def start() -> Any:
        async with HttpEndpoint(Address(server.base_url, "replay"), environ={}) as endpoint:
            return await talk(Batches(endpoint))

    return asyncio.run(start())


def test_our_client_does_what_the_sdk_does(server: Server) -> None:
    """Uploaded, found by name, submitted, found by token, watched and read."""

    async def talk(batches: Batches) -> list[BatchLine]:
        await batches.check()
        content = b"".join(
            batches.line(f"q{k}", asking(f"Is {k} odd? Yes or No.", logit_bias={1: 50.0, 2: 50.0}))
            for k in range(len(ODDS))
        )
        assert await batches.find_file("mine.jsonl", len(content)) is None
        file_id = await batches.upload("mine.jsonl", content)
        assert await batches.find_file("mine.jsonl", len(content)) == file_id
        assert await batches.find_file("mine.jsonl", len(content) + 1) is None
        assert await batches.find("token", file_id) is None
        made = await batches.create(file_id, "token")
        assert await batches.find("token", "other") == await batches.find("other", file_id) == made
        while not (seen := await batches.look(made.id)).ended:
            server.desk.step()
        assert seen.output_file_id is not None
        return [line async for line in batches.lines(seen.output_file_id)]

    found = {line.custom_id: line.reply.text for line in talked(server, talk) if line.reply is not None}
    assert found == {f"q{k}": "Yes" if odds >= 0 else "No" for k, odds in enumerate(ODDS)}


def test_a_batch_is_found_on_any_page(server: Server) -> None:
    """The look for a token goes through a list of more than a hundred batches."""

    async def talk(batches: Batches) -> None:
        file_id = await batches.upload("a.jsonl", wishes(1))
        first = await batches.create(file_id, "first")
        other = await batches.upload("b.jsonl", wishes(1))
        for k in range(120):
            await batches.create(other, f"token-{k}")
        assert await batches.find("first", "") == first

    talked(server, talk)


@pytest.mark.parametrize(
    ("written", "kind", "says"),
    [
        ({"error": {"code": "batch_expired", "message": "too late"}}, RetryableError, "too late"),
        ({"response": None, "error": None}, RetryableError, "no reason given"),
        ({"response": {"status_code": 429, "body": {"error": {"message": "slow"}}}}, RetryableError, "slow"),
        ({"response": {"status_code": 500, "body": None}}, RetryableError, "500"),
        ({"response": {"status_code": 401, "body": {}}}, FatalError, "API key"),
        (
            {"response": {"status_code": 400, "body": {"error": {"message": "content filter"}}}},
            ReplyError,
            "content filter",
        ),
        ({"response": {"status_code": 200, "body": {"choices": []}}}, ReplyError, "no choices"),
        ({"response": {"status_code": 200, "body": {"error": {"code": 503}}}}, RetryableError, "503"),
        ({"response": {"status_code": 200, "body": "?"}}, ReplyError, "not a completion"),
    ],
)
def test_lines_without_an_answer_become_errors_of_ours(
    written: dict[str, Any], kind: type[EndpointError], says: str
) -> None:
    """Each kind of failed line is one that may be sent again, concerns its item, or concerns all."""
    raw = b"no json\n\n" + json.dumps({"custom_id": "q1", **written}).encode()

    async def talk() -> list[BatchLine]:
        async with (
            answering(lambda _: HttpResponse(raw)) as url,
            HttpEndpoint(Address(url, "m"), environ={}) as endpoint,
        ):
            return [line async for line in Batches(endpoint).lines("file-1")]

    (line,) = asyncio.run(talk())
    assert line.custom_id == "q1"
    assert type(line.error) is kind
    assert says in str(line.error)


@pytest.mark.parametrize("status", [404, 405, 501])
def test_an_endpoint_without_batches_is_named_as_such(status: int) -> None:
    """Before anything is spent, a service that knows no files is told apart from a wrong model."""

    async def talk() -> None:
        async with (
            answering(lambda _: HttpResponse(b"{}", status)) as url,
            HttpEndpoint(Address(url, "m"), environ={}) as endpoint,
        ):
            await Batches(endpoint).check()

    with pytest.raises(FatalError, match=rf"has no batches \({status} at /files\): leave batch=True out"):
        asyncio.run(talk())


def test_azures_form_is_refused_with_the_reason() -> None:
    """Azure's batch deployments cannot be probed; that is said before anything is asked."""
    endpoint = HttpEndpoint(Address("http://127.0.0.1:1", "m", api_version="2024-10-21"), environ={})
    with pytest.raises(ConfigError, match="Azure's batch deployments answer nothing live"):
        Batches(endpoint)


def test_a_wrong_key_and_an_unknown_batch_are_said(server: Server) -> None:
    """A batch of another project's key and a key nobody knows name their cures."""
    with pytest.raises(FatalError, match=r"knows no batch batch_9 \(404\): is the API key"):
        talked(server, lambda batches: batches.look("batch_9"))
    with (
        running(Server(recording(ODDS), items(len(ODDS)), Behaviour(api_key="right"))) as locked,
        pytest.raises(FatalError, match="OPENAI_API_KEY is not set"),
    ):
        talked(locked, lambda batches: batches.check())


def test_a_lost_response_is_worth_another_try() -> None:
    """What was done and not heard of is retryable, and can be found."""

    async def talk(batches: Batches) -> None:
        file_id = await batches.upload("a.jsonl", wishes(1))
        with pytest.raises(RetryableError):
            await batches.create(file_id, "token")
        found = await batches.find("token", file_id)
        assert found is not None
        assert found.status == "validating"

    with running(HostileServer(recording(ODDS), items(len(ODDS)))) as server:
        server.desk.trouble = lambda name: "lost" if name == "create" else None
        talked(server, talk)


def test_a_line_is_one_request_of_the_live_kind() -> None:
    """The body in a batch is byte for byte what would have been asked live."""
    endpoint = HttpEndpoint(Address("http://127.0.0.1:1/v1", "m", extra_body={"user": "me"}), environ={})
    request = asking(logit_bias={1: 51.5, 2: 50.0})
    line = msgspec.json.decode(Batches(endpoint).line("q7", request), type=dict[str, msgspec.Raw])
    assert bytes(line["custom_id"]) == b'"q7"'
    assert bytes(line["body"]) == endpoint.body(request)
