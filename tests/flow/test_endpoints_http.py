"""The HTTP client, over real connections on loopback."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import numpy as np
import pyreqwest.exceptions
import pytest
from pyreqwest.exceptions import PyreqwestError

from blindcal.endpoints import http_client, refusals
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint, PlainHttpKeyWarning
from blindcal.errors import (
    EndpointError,
    FatalError,
    InputError,
    ReplyError,
    RetryableError,
)
from blindcal.records import Message, Reply, Request
from blindcal.simulation.http_server import HttpRequest, HttpResponse
from blindcal.simulation.replay import Fault
from misbehaving import Behaviour
from serving import CHAT_YES, Recorder, answering, asking, items, replayed

KEY = "sk-very-secret-0123456789"


def ask(
    recorder: Any, request: Request | None = None, environ: dict[str, str] | None = None, **how: Any
) -> Reply:
    """One request to a handler of the test's own."""

    async def talk() -> Reply:
        async with answering(recorder) as base_url:
            address = Address(base_url, "m", **how)
            async with HttpEndpoint(address, environ=environ or {}) as endpoint:
                return await endpoint.ask(request or asking())

    return asyncio.run(talk())


def ask_replayed(behaviour: Behaviour, **how: Any) -> Reply:
    """One request to a replayed model that behaves so."""

    async def talk() -> Reply:
        async with replayed([0.5], behaviour, **how) as (_, endpoint):
            return await endpoint.ask(Request(items(1)[0].messages))

    return asyncio.run(talk())


def test_chat_request() -> None:
    """A chat request carries the model, the messages, the bias by token id, one token, and no penalties."""
    recorder = Recorder(CHAT_YES)
    reply = ask(recorder, asking("Hi?", logit_bias={9642: 51.5, 2822: np.float64(50)}, seed=7))
    assert reply.text == "Yes"
    assert recorder.requests[0].path == "/v1/chat/completions"
    assert recorder.sent == {
        "model": "m",
        "max_tokens": 1,
        "temperature": 0.0,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "repetition_penalty": 1,
        "repeat_penalty": 1,
        "seed": 7,
        "messages": [{"role": "user", "content": "Hi?"}],
        "logit_bias": {"9642": 51.5, "2822": 50.0},
    }


def test_completions_request() -> None:
    """A plain completion carries the prompt as text and reads the answer from text."""
    recorder = Recorder({"choices": [{"text": " Yes", "finish_reason": "length"}]})
    reply = ask(recorder, Request((Message("prompt", "Sky is"),)), api="completions")
    assert reply.text == " Yes"
    assert recorder.requests[0].path == "/v1/completions"
    assert recorder.sent["prompt"] == "Sky is"


def test_prompt_over_chat_is_a_user_message() -> None:
    """An item that has a prompt alone is asked as the user over chat."""
    recorder = Recorder(CHAT_YES)
    ask(recorder, Request((Message("prompt", "Hi?"),)))
    assert recorder.sent["messages"] == [{"role": "user", "content": "Hi?"}]


def test_azure_form() -> None:
    """Azure gets the deployment in the path, the version in the query and the key in its own header."""
    recorder = Recorder(CHAT_YES)
    ask(recorder, environ={"AZ": KEY}, api_version="2024-10-21", api_key_env="AZ")
    (request,) = recorder.requests
    assert request.path == "/v1/openai/deployments/m/chat/completions?api-version=2024-10-21"
    assert request.headers["api-key"] == KEY
    assert "authorization" not in request.headers


def test_key_comes_from_the_named_variable() -> None:
    """The key is read from the variable that was named and sent as a bearer token."""
    recorder = Recorder(CHAT_YES)
    ask(recorder, environ={"MINE": KEY, "OPENAI_API_KEY": "other"}, api_key_env="MINE")
    assert recorder.requests[0].headers["authorization"] == f"Bearer {KEY}"


def test_extra_body() -> None:
    """Extra fields reach every request, replace ours, and a null takes one out."""
    recorder = Recorder(CHAT_YES)
    extra = {"cache_prompt": False, "provider": {"require_parameters": True}, "temperature": None}
    ask(recorder, extra_body=extra)
    assert recorder.sent["cache_prompt"] is False
    assert recorder.sent["provider"] == {"require_parameters": True}
    assert "temperature" not in recorder.sent


FAULTS: list[tuple[Fault, type[EndpointError], str]] = [
    ("429", RetryableError, "too many requests"),
    ("500", RetryableError, "server failed"),
    ("reset", RetryableError, "connection failed"),
    ("truncated", RetryableError, "cut short"),
    ("html", ReplyError, "web page.*ends in /v1"),
    ("schema", ReplyError, "not a completion"),
    ("empty", ReplyError, "no choices"),
    ("401", FatalError, "wants an API key, and OPENAI_API_KEY is not set"),
    ("404", FatalError, "no model 'replay'.*check the model's name"),
    ("reasoning", ReplyError, "turn reasoning off"),
]


@pytest.mark.parametrize(("fault", "kind", "says"), FAULTS, ids=[fault for fault, *_ in FAULTS])
def test_fault_becomes_our_error(fault: Fault, kind: type[EndpointError], says: str) -> None:
    """Each way a service fails becomes the right one of our errors, and the message says what to do."""
    with pytest.raises(kind, match=says):
        ask_replayed(Behaviour(fault=fault))


def test_hang_times_out() -> None:
    """A service that never answers is given up after the time-out, to be asked again."""
    with pytest.raises(RetryableError, match="in time"):
        ask_replayed(Behaviour(fault="hang"), timeout=0.05)


@pytest.mark.parametrize("wait", ["7", "7.5", None, "soon", "-3", "inf", "nan"])
def test_retry_after(wait: str | None) -> None:
    """A 429 is marked as throttling and carries the seconds the server asks for, if it makes sense."""
    with pytest.raises(RetryableError) as caught:
        ask_replayed(Behaviour(fault="429", retry_after=wait))
    assert caught.value.throttled
    assert caught.value.retry_after == ({"7": 7.0, "7.5": 7.5}.get(wait) if wait else None)


def test_retry_after_as_a_date() -> None:
    """Retry-After may be a date, and one in the past means now."""
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    past = format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True)
    assert 25 < (refusals.retry_after({"Retry-After": soon}) or 0) <= 30
    assert refusals.retry_after({"Retry-After": past}) == 0


@pytest.mark.parametrize(
    ("status", "body", "kind", "says"),
    [
        (400, {"error": {"message": "Unsupported parameter: 'logit_bias'"}}, FatalError, "logit_bias"),
        (400, {"error": {"code": "context_length_exceeded"}}, ReplyError, "this item"),
        (400, {"error": {"code": "content_filter", "message": "no"}}, ReplyError, "this item"),
        (400, {"error": {"code": "invalid_prompt", "message": "it was flagged"}}, ReplyError, "this item"),
        (403, {"error": {"message": "this model requires moderation"}}, ReplyError, "this item"),
        (402, {"error": {"message": "no credits"}}, FatalError, "payment"),
        (403, {"error": "not for you"}, FatalError, "may not use model 'm'"),
        (429, {"error": {"code": "insufficient_quota"}}, FatalError, "no quota left"),
        (307, {}, FatalError, "redirects"),
        (418, b"\xff\x00tea", FatalError, "refuses"),
        (200, {"error": {"code": 429, "message": "slow down"}}, RetryableError, "slow down"),
        (200, {"error": "backend died"}, RetryableError, "backend died"),
        (200, b"", ReplyError, "JSON"),
        (200, b"null", ReplyError, "not a completion"),
        (200, b'{"choices": [{"message": {"content": "\\ud800"}}]}', ReplyError, "JSON"),
        (200, {"choices": [{"message": {"content": ["a", "b"]}}]}, ReplyError, "not a completion"),
    ],
)
def test_status_and_body(status: int, body: object, kind: type[EndpointError], says: str) -> None:
    """Statuses and bodies seen at real services become the error that fits."""
    with pytest.raises(kind, match=says):
        ask(Recorder(body, status))


def test_redirects_are_not_followed() -> None:
    """A redirect never takes the key elsewhere: it is an error that asks for the final address."""
    elsewhere = Recorder(CHAT_YES)

    async def talk() -> None:
        async with answering(elsewhere) as target:
            moved = HttpResponse(b"{}", 308, headers={"Location": target + "/chat/completions"})
            async with (
                answering(lambda _: moved) as base_url,
                HttpEndpoint(Address(base_url, "m"), environ={"OPENAI_API_KEY": KEY}) as endpoint,
            ):
                await endpoint.ask(asking())

    with pytest.raises(FatalError, match="redirects"):
        asyncio.run(talk())
    assert not elsewhere.requests


def client_errors() -> list[type[Exception]]:
    """Every error that pyreqwest has."""
    public = vars(pyreqwest.exceptions).values()
    return [kind for kind in public if inspect.isclass(kind) and issubclass(kind, PyreqwestError)]


@pytest.mark.parametrize("kind", client_errors(), ids=lambda kind: kind.__name__)
def test_every_client_error_is_mapped(kind: type[Exception]) -> None:
    """No error of the client is left to the catch-all, and each becomes one of ours."""
    names = [parent.__name__ for parent in kind.__mro__]
    bases = ("PyreqwestError", "DetailedPyreqwestError", "RequestError", "TransportError")
    assert any(name in http_client.FATES for name in names if name not in bases) or kind.__name__ in bases
    wordless = type(kind.__name__, (kind,), {"__init__": lambda _: None, "__str__": lambda _: "x"})
    assert isinstance(http_client.from_exception(wordless(), "h:80", reached=True), EndpointError)


def test_key_is_nowhere() -> None:
    """The key is in no repr and in no error, even when a server repeats it."""

    def echo(request: HttpRequest) -> HttpResponse:
        return HttpResponse(f'{{"error": "bad {request.headers["authorization"]}"}}'.encode(), 400)

    with pytest.raises(FatalError) as caught:
        ask(echo, environ={"OPENAI_API_KEY": KEY})
    assert KEY not in str(caught.value)
    assert "[key]" in str(caught.value)
    endpoint = HttpEndpoint(Address("http://127.0.0.1:1/v1", "m"), environ={"OPENAI_API_KEY": KEY})
    assert KEY not in repr(endpoint)
    assert KEY not in repr(endpoint.address)


def test_impossible_key() -> None:
    """A key that cannot be a header is refused without showing it."""
    with pytest.raises(InputError, match="OPENAI_API_KEY") as caught:
        HttpEndpoint(Address("https://h/v1", "m"), environ={"OPENAI_API_KEY": "sk-a\r\nX: b"})
    assert "sk-a" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("http://example.org/v1", True),
        ("http://192.168.0.7:8000/v1", True),
        ("https://example.org/v1", False),
        ("http://localhost:8000/v1", False),
        ("http://127.0.0.1:8000/v1", False),
        ("http://[::1]:8000/v1", False),
    ],
)
def test_plain_http_warning(url: str, warned: bool) -> None:
    """A key about to travel unencrypted to another machine is warned about, and nothing else is."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        HttpEndpoint(Address(url, "m"), environ={"OPENAI_API_KEY": KEY})
        HttpEndpoint(Address(url, "m"), environ={})
    assert [warning.category for warning in caught] == ([PlainHttpKeyWarning] if warned else [])
    assert KEY not in str([warning.message for warning in caught])


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://h/v1", "http://", "http://u:p@h/v1", "http://[::"]
)
def test_bad_base_url(url: str) -> None:
    """A base URL that cannot be one is refused at once, and one with a password without showing it."""
    with pytest.raises(InputError, match="base URL") as caught:
        HttpEndpoint(Address(url, "m"), environ={})
    assert "u:p" not in str(caught.value)


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/chat/completions"])
def test_base_url_spellings(path: str) -> None:
    """A trailing slash, or the whole path, is as good as the usual form."""
    recorder = Recorder(CHAT_YES)

    async def talk() -> None:
        async with answering(recorder) as base_url:
            address = Address(base_url.removesuffix("/v1") + path, "m")
            async with HttpEndpoint(address, environ={}) as endpoint:
                await endpoint.ask(asking())

    asyncio.run(talk())
    assert recorder.requests[0].path == "/v1/chat/completions"


@pytest.mark.parametrize(
    "text", ["\x1b[31mred\x00", "lone \ud800 surrogate", "{braces} {0}", "é" * 700_000, "x" * 1_500_000]
)
def test_untrusted_prompts_travel(text: str) -> None:
    """Control characters, lone surrogates, braces and megabytes reach the server as valid JSON."""
    recorder = Recorder(CHAT_YES)
    assert ask(recorder, asking(text)).text == "Yes"
    assert recorder.sent["messages"][0]["content"] == text.replace("\ud800", "\ufffd")


def test_errors_are_safe_to_print() -> None:
    """What a server says is shown on one short line without escape sequences."""
    body = {"error": {"message": "\x1b]0;owned\x07 \u202e" + "long " * 1000}}
    with pytest.raises(FatalError) as caught:
        ask(Recorder(body, 400))
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 400


def test_real_replies() -> None:
    """Replies as OpenAI, vLLM and llama.cpp write them give the text, the usage and the logprobs."""
    top = [{"token": "Yes", "logprob": -0.1, "bytes": [89]}, {"token": "No", "logprob": -2.5, "bytes": None}]
    chat = {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4o-2024-08-06",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Yes", "refusal": None, "annotations": []},
                "logprobs": {"content": [{"token": "Yes", "logprob": -0.1, "top_logprobs": top}]},
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": 50,
            "completion_tokens": 1,
            "total_tokens": 51,
            "prompt_tokens_details": {"cached_tokens": 32, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
        "service_tier": "default",
    }
    reply = ask(Recorder(chat), asking(top_logprobs=2))
    assert reply == Reply(
        "Yes",
        "length",
        prompt_tokens=50,
        completion_tokens=1,
        cached_tokens=32,
        model="gpt-4o-2024-08-06",
        logprobs={"Yes": -0.1, "No": -2.5},
        logprob=reply.logprob,
    )
    text = {
        "choices": [{"text": " No", "logprobs": {"top_logprobs": [{" No": -0.5, " Yes": -1.0}]}}],
        "usage": None,
    }
    reply = ask(Recorder(text), asking(top_logprobs=2), api="completions")
    assert (reply.text, reply.logprobs) == (" No", {" No": -0.5, " Yes": -1.0})


def test_logprobs_are_read_in_either_form_from_either_kind_of_reply() -> None:
    """Some servers write the dictionaries of plain completions in chats, or the lists of chats in text."""
    dictionaries = {"tokens": ["Yes"], "token_logprobs": [-0.1], "top_logprobs": [{"Yes": -0.1, "No": -2.5}]}
    top = [{"token": "Yes", "logprob": -0.1}, {"token": "No", "logprob": -2.5}]
    positions = {"content": [{"token": "Yes", "logprob": -0.1, "top_logprobs": top}]}
    for shown in (dictionaries, positions):
        chat = {"choices": [{"message": {"content": "Yes"}, "logprobs": shown}]}
        text = {"choices": [{"text": "Yes", "logprobs": shown}]}
        for api, body in (("chat", chat), ("completions", text)):
            reply = ask(Recorder(body), asking(top_logprobs=2), api=api)
            assert (reply.logprobs, reply.logprob) == ({"Yes": -0.1, "No": -2.5}, -0.1)
    nothing = {"choices": [{"message": {"content": "Yes"}, "logprobs": {"top_logprobs": [None]}}]}
    assert ask(Recorder(nothing), asking(top_logprobs=2)).logprobs is None


def test_empty_answer_is_an_answer() -> None:
    """An empty text without any sign of reasoning is a reply like any other, and not an error."""
    assert ask(Recorder({"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]})).text == ""


def test_hidden_reasoning_is_told() -> None:
    """A model that bills reasoning tokens and returns nothing is recognised without its reasoning."""
    reply = {
        "choices": [{"message": {"content": ""}, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 1,
            "completion_tokens_details": {"reasoning_tokens": 1},
        },
    }
    with pytest.raises(ReplyError, match="turn reasoning off"):
        ask(Recorder(reply))
