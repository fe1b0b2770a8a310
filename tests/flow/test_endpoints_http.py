"""The HTTP client, over real connections on loopback."""

from __future__ import annotations

import asyncio
import inspect
import json
import warnings
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import numpy as np
import pyreqwest.exceptions
import pytest
from pyreqwest.exceptions import PyreqwestError

from blindcal.endpoints import http_client, refusals
from blindcal.endpoints.address import Address, Api
from blindcal.endpoints.completion_form import CompletionForm
from blindcal.endpoints.http import HttpEndpoint, PlainHttpKeyWarning
from blindcal.endpoints.query_format import CONSTRAINTS
from blindcal.endpoints.refusals import SAMPLERS, Accepted
from blindcal.errors import EndpointError, FatalError, InputError, ReplyError, RetryableError
from blindcal.records import Message, Reply, Request, Token
from blindcal.simulation.http_server import HttpRequest, HttpResponse
from misbehaving import Behaviour
from serving import CHAT_YES, Recorder, ask, asking, items, replayed

KEY = "sk-very-secret-0123456789"


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
    chat = Recorder(CHAT_YES)
    ask(chat, Request((Message("prompt", "Hi?"),)))  # over chat, it is asked as the user
    assert chat.sent["messages"] == [{"role": "user", "content": "Hi?"}]


def test_the_key_is_that_of_the_named_variable() -> None:
    """It is sent as a bearer token, to Azure in its own header; Azure has the deployment in the path."""
    recorder, environ = Recorder(CHAT_YES), {"MINE": KEY, "OPENAI_API_KEY": "other"}
    ask(recorder, environ=environ, api_key_env="MINE")
    assert recorder.requests[0].headers["authorization"] == f"Bearer {KEY}"
    ask(recorder, environ=environ, api_version="2024-10-21", api_key_env="MINE")
    request = recorder.requests[1]
    assert request.path == "/v1/openai/deployments/m/chat/completions?api-version=2024-10-21"
    assert request.headers["api-key"] == KEY
    assert "authorization" not in request.headers
    endpoint = HttpEndpoint(Address("http://127.0.0.1:1/v1", "m"), environ={"OPENAI_API_KEY": KEY})
    assert KEY not in f"{endpoint!r} {endpoint.address!r}"


def test_extra_body() -> None:
    """Extra fields reach every request, replace samplers that are off, and a null takes one out."""
    recorder = Recorder(CHAT_YES)
    extra = {"provider": {"require_parameters": True}, "presence_penalty": 1, "frequency_penalty": None}
    ask(recorder, extra_body=extra)
    assert recorder.sent["provider"] == {"require_parameters": True}
    assert recorder.sent["presence_penalty"] == 1
    assert "frequency_penalty" not in recorder.sent


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_what_decides_a_query_is_no_extra_field(api: Api) -> None:
    """Every field that a request may set, other than a sampler that is off, is refused in the extra body."""
    tokens = (Token(1, "Yes"), Token(2, "No"))
    fields = {name: value for each in CONSTRAINTS.values() for name, value in each.fields(tokens).items()}
    request = asking(
        logit_bias={1: 5.0}, temperature=1.0, top_logprobs=5, n=2, max_tokens=4, seed=1, fields=fields
    )
    for accepted in (Accepted(texts=True), Accepted(limit_name="max_completion_tokens")):
        body = CompletionForm(Address("http://h/v1", "m", api)).body(request, accepted)
        for name, value in json.loads(body).items():
            if name not in SAMPLERS:
                with pytest.raises(InputError, match=f"extra_body=... holds '{name}', which.*leave it out"):
                    Address("http://h/v1", "m", api, extra_body={name: value})
    for name in ("stream", "best_of"):
        with pytest.raises(InputError, match="leave it out"):
            Address("http://h/v1", "m", api, extra_body={name: None})


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        ("429", RetryableError, "too many requests"),
        ("reset", RetryableError, "connection failed"),
        ("hang", RetryableError, "in time"),
        ("404", FatalError, "no model 'replay'.*check the model's name"),
    ],
)
def test_fault_becomes_our_error(fault: Any, kind: type[EndpointError], says: str) -> None:
    """Each way a service fails becomes the right one of our errors, and the message says what to do."""
    with pytest.raises(kind, match=says):
        ask_replayed(Behaviour(fault=fault), **({"timeout": 0.05} if fault == "hang" else {}))


def test_retry_after() -> None:
    """A 429 is throttling; the wait that the server asks for is in seconds or a date, if it makes sense."""
    with pytest.raises(RetryableError) as caught:
        ask_replayed(Behaviour(fault="429", retry_after="7.5"))
    assert (caught.value.throttled, caught.value.retry_after) == (True, 7.5)
    for senseless in ("soon", "-3", "inf", "nan"):
        assert refusals.retry_after({"Retry-After": senseless}) is None
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    past = format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True)
    assert 25 < (refusals.retry_after({"Retry-After": soon}) or 0) <= 30
    assert refusals.retry_after({"Retry-After": past}) == 0


def test_every_client_error_is_mapped() -> None:
    """No error of the client is new to us; only those of the address cannot pass."""
    bases = ("PyreqwestError", "DetailedPyreqwestError", "RequestError", "TransportError")
    passing = {"RequestTimeoutError", "NetworkError", "DecodeError", "ClientClosedError", "RequestPanicError"}
    public = [kind for kind in vars(pyreqwest.exceptions).values() if inspect.isclass(kind)]
    for kind in (kind for kind in public if issubclass(kind, PyreqwestError)):
        names = {parent.__name__ for parent in kind.__mro__}
        fatal = not names.isdisjoint({"RedirectError", "BuilderError"})
        assert fatal or names & (passing | {"StatusError"}) or kind.__name__ in bases, kind
        wordless = type(kind.__name__, (kind,), {"__init__": lambda _: None, "__str__": lambda _: "x"})
        error = http_client.from_exception(wordless(), "h:80", reached=True)
        assert isinstance(error, FatalError if fatal else RetryableError), kind


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
        (400, {"error": {}, "message": "no such thing"}, FatalError, r"refuses the request \(400\): no such"),
        (200, {"error": {"code": 429, "message": "slow down"}}, RetryableError, "slow down"),
    ],
)
def test_status_and_body(status: int, body: object, kind: type[EndpointError], says: str) -> None:
    """Statuses and bodies seen at real services become the error that fits."""
    with pytest.raises(kind, match=says):
        ask(Recorder(body, status))


def test_redirects_are_not_followed() -> None:
    """A redirect never takes the key elsewhere: it is an error that asks for the final address."""

    def move(request: HttpRequest) -> HttpResponse:
        assert "elsewhere" not in request.path
        return HttpResponse(b"{}", 308, headers={"Location": f"http://{request.headers['host']}/elsewhere"})

    with pytest.raises(FatalError, match="redirects"):
        ask(move, environ={"OPENAI_API_KEY": KEY})


def test_impossible_key() -> None:
    """A key that cannot be a header is refused without showing it."""
    with pytest.raises(InputError, match="OPENAI_API_KEY") as caught:
        HttpEndpoint(Address("https://h/v1", "m"), environ={"OPENAI_API_KEY": "sk-a\r\nX: b"})
    assert "sk-a" not in str(caught.value)


def test_plain_http_warning() -> None:
    """A key about to travel unencrypted to another machine is warned about, and nothing else is."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for host in ("https://example.org", "http://localhost:8", "http://127.0.0.1:8", "http://[::1]:8"):
            HttpEndpoint(Address(f"{host}/v1", "m"), environ={"OPENAI_API_KEY": KEY})
        HttpEndpoint(Address("http://example.org/v1", "m"), environ={})
        assert not caught
        for host in ("http://example.org", "http://192.168.0.7:8000"):
            HttpEndpoint(Address(f"{host}/v1", "m"), environ={"OPENAI_API_KEY": KEY})
    assert [warning.category for warning in caught] == [PlainHttpKeyWarning] * 2
    assert KEY not in str([warning.message for warning in caught])


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://h/v1", "http://", "http://u:p@h/v1", "http://[::"]
)
def test_bad_base_url(url: str) -> None:
    """A base URL that cannot be one is refused at once, and one with a password without showing it."""
    with pytest.raises(InputError, match="base URL") as caught:
        HttpEndpoint(Address(url, "m"), environ={})
    assert "u:p" not in str(caught.value)


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
