"""The replay server: a recorded model must answer as METHOD 2 says a real one does."""

from __future__ import annotations

import asyncio
import gzip
import math
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blindcal.endpoints.http import HttpEndpoint
from blindcal.errors import FatalError, InputError
from blindcal.records import Item, Message, Reply, Request
from blindcal.simulation.http_server import HttpRequest, HttpResponse, Listener
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from misbehaving import Behaviour, Server
from serving import OWN_LOGITS, items, recording, replayed, replies_of

ODDS = [-6.0, -1.0, 0.0, 0.7, 5.0]
LOGITS = "id,label,Yes|11, Yes|12,No|21, No|22,lse,argmax\na,1,2.0,1.5,1.8,1.9,3.3,11\nb,0,0,0,0,0,9.0,77\n"


def asked(talk: Callable[[Server, HttpEndpoint], Awaitable[Any]], behaviour: Behaviour | None = None) -> Any:
    """What a conversation with a replayed model of the usual log-odds returns."""

    async def start() -> Any:
        async with replayed(ODDS, behaviour) as (server, endpoint):
            return await talk(server, endpoint)

    return asyncio.run(start())


def logits_file(tmp_path: Path, text: str = LOGITS) -> Path:
    """A file of logits."""
    path = tmp_path / "m__set__logits.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    return path


def asked_logits(tmp_path: Path, item: str, bias: dict[int, float], **how: Any) -> Reply:
    """What the model in LOGITS answers."""
    questions = [Item(name, 0, (Message("prompt", name),)) for name in ("a", "b")]
    request = Request((Message("prompt", item),), bias, **how)
    known, shown = Recording.load(logits_file(tmp_path)), Behaviour(logprobs=True)
    return replies_of(known, questions, [request], shown, api="completions")[0]


@pytest.mark.parametrize("shift", [-5.5, -0.71, -0.69, 0.0, 0.99, 1.01, 6.5])
def test_greedy_answer_is_a_threshold(shift: float) -> None:
    """At temperature zero the answer is positive exactly where s >= -b, ties included."""
    questions = items(len(ODDS))
    requests = [Request(item.messages, {1: 50 + shift, 2: 50.0}) for item in questions]
    texts = [reply.text for reply in replies_of(recording(ODDS), questions, requests)]
    assert texts == ["Yes" if s >= -shift else "No" for s in ODDS]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sampled_answer_follows_the_curve(temperature: float) -> None:
    """Above zero the share of positive answers is sigmoid((s + b) / T), within binomial error."""
    n, shift, s = 800, 0.4, 0.7
    request = Request(items(4)[3].messages, {1: 50 + shift, 2: 50.0}, temperature)
    replies = replies_of(recording(ODDS), items(len(ODDS)), [request] * n)
    p = 1 / (1 + math.exp(-(s + shift) / temperature))
    assert abs(sum(reply.text == "Yes" for reply in replies) - n * p) < 5 * math.sqrt(n * p * (1 - p))


def test_certain_probabilities() -> None:
    """Probabilities of exactly zero and one are beyond any other's threshold, and in reach of the bias."""
    never, always = items(2)
    known = Recording.from_probabilities([never.id, always.id], np.array([0.0, 1.0]))
    nearest = 1 - np.finfo(float).epsneg  # the last double below one
    for shift, texts in ((math.log(nearest / (1 - nearest)), ["No", "Yes"]), (50.0, ["Yes", "No"])):
        raised = Request(never.messages, {1: 50 + shift, 2: 50.0})
        lowered = Request(always.messages, {1: 50 - shift, 2: 50.0})
        assert [reply.text for reply in replies_of(known, items(2), [raised, lowered])] == texts


def test_token_variants(tmp_path: Path) -> None:
    """With all spellings raised the largest single token is said: max semantics, not the sum."""
    every = {11: 50.0, 12: 50.0, 21: 50.0, 22: 50.0}
    assert asked_logits(tmp_path, "a", every).text == "Yes"
    gap = 2.0 - 1.9  # the likeliest of each side; the sums differ by -0.1 instead
    for shift, answer in ((-gap + 0.01, "Yes"), (-gap - 0.01, " No")):
        assert asked_logits(tmp_path, "a", every | {11: 50 + shift, 12: 50 + shift}).text == answer


def test_unrecorded_tokens(tmp_path: Path) -> None:
    """Where an unrecorded token is the likeliest it is said, and one that is forced is said too."""
    assert asked_logits(tmp_path, "b", {}).text not in ("Yes", "No", " Yes", " No")
    assert asked_logits(tmp_path, "a", {999: 100.0}).text == "token999"
    assert asked_logits(tmp_path, "a", {}).text == "Yes"


def test_logprobs_only_if_exposed(tmp_path: Path) -> None:
    """Logprobs are the recorded ones where exposed, and asking is refused where hidden."""
    reply = asked_logits(tmp_path, "a", {}, top_logprobs=5)
    assert reply.logprobs is not None
    assert reply.logprobs["Yes"] == pytest.approx(2.0 - 3.3, abs=1e-9)

    async def talk(_: Server, endpoint: HttpEndpoint) -> None:
        await endpoint.ask(Request(items(1)[0].messages, top_logprobs=5))

    with pytest.raises(FatalError, match="logprobs"):
        asked(talk)


def test_counts_and_usage() -> None:
    """The server counts what was asked and what was paid for, by item, and bills tokens."""

    async def talk(server: Server, endpoint: HttpEndpoint) -> tuple[Server, Reply]:
        question = Request(items(1)[0].messages)
        for _ in range(3):
            reply = await endpoint.ask(question)
        with pytest.raises(FatalError, match="not recorded"):
            await endpoint.ask(Request((Message("user", "something else"),)))
        return server, reply

    server, reply = asked(talk)
    assert (server.requests, server.answered, server.paid) == (4, 3, {"item-0": 3})
    assert (reply.prompt_tokens, reply.completion_tokens) == (1 + len("Is 0 odd? Yes or No.") // 4, 1)


def test_what_cannot_be_served_is_refused() -> None:
    """An item that was not recorded, and a port in use, are refused before anything is served."""
    with pytest.raises(InputError, match="item-2"):
        Server(recording([0.0, 1.0]), items(3))
    with running(Server(recording(ODDS), items(5))) as server:
        port = int(server.base_url.split(":")[2].split("/")[0])
        second = Server(recording(ODDS), items(5), port=port)
        with pytest.raises(InputError, match="cannot listen"), running(second):
            pass


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("id,label,p\na,1,high\n", "row 1, p: must be a number"),
        ("id,label,Yes|x,lse,argmax\na,1,0,0,0\n", "text|token id"),
        ("id,label,Yes|1\na,1,0.5\n", "no column 'lse'"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, says: str) -> None:
    """A file that is no recording is refused in words that name what is wrong."""
    with pytest.raises(InputError, match=says.replace("|", r"\|")):
        Recording.load(logits_file(tmp_path, text))


def test_real_logits() -> None:
    """Real recorded logits load, and their unbiased greedy answers are the recorded argmax."""
    known = Recording.load(OWN_LOGITS)
    assert known.logits.shape[0] == len(known.ids) == 240
    texts = {token.id: token.text for token in known.tokens}
    with gzip.open(OWN_LOGITS, "rt") as lines:
        argmax = [int(line.rsplit(",", 1)[1]) for line in list(lines)[1:]]
    questions = [Item(name, 0, (Message("user", name),)) for name in known.ids]
    replies = replies_of(known, questions, [Request(item.messages) for item in questions])
    assert [reply.text for reply in replies] == [texts.get(best, "The") for best in argmax]


# The server itself, in raw bytes


POST = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n"


def echo(request: HttpRequest) -> HttpResponse:
    """Say what was asked."""
    return HttpResponse(
        f"{request.method} {request.path} ".encode() + request.body, content_type="text/plain"
    )


def exchange(pieces: Sequence[bytes], handler: object = echo) -> bytes:
    """What comes back for bytes sent in these pieces, until the server closes or we do."""

    async def talk() -> bytes:
        assert callable(handler)
        listener = Listener(handler)
        port = await listener.open("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.write_eof()
        received = await reader.read()
        writer.close()
        await writer.wait_closed()
        await listener.close()
        return received

    return asyncio.run(talk())


@pytest.mark.parametrize("size", [1, 7, 50, 1000])
def test_pieces_do_not_matter(size: int) -> None:
    """Two requests on one connection are answered in order, however the bytes are cut up."""
    whole = POST + b"one" + POST.replace(b"/a", b"/b") + b"two"
    received = exchange([whole[at : at + size] for at in range(0, len(whole), size)])
    assert received.count(b"HTTP/1.1 200 OK") == 2
    assert 0 < received.index(b"POST /a one") < received.index(b"POST /b two")


@pytest.mark.parametrize(
    "raw",
    [
        b"hello\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000,
    ],
)
def test_what_is_not_understood_is_refused(raw: bytes) -> None:
    """Requests it does not understand get a 400 and the connection ends."""
    assert exchange([raw]).startswith(b"HTTP/1.1 400 ")


def test_expect_continue() -> None:
    """A client that asks before sending a large body is told to go on."""
    received = exchange([POST.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"), b"one"])
    assert received.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")
