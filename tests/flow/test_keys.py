"""API keys: sent as a header, and to be found nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.secrets import Redactor
from blindcal.errors import EndpointError, FatalError, InputError
from blindcal.items.catalogue import open_items
from blindcal.records import Reply
from blindcal.settings import Settings
from blindcal.simulation.http_server import HttpRequest, HttpResponse
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from commanding import blindcal, printed_error
from keys import KEY, leaked, leaking_files
from serving import CHAT_YES, Altered, ask, asking, write_items

SECRET = "Zq7Rw9Lm3Tn5Kd8Vb2Xc6Hj4"


@pytest.mark.parametrize(
    "url",
    [f"https://h/v1?{name}={SECRET}" for name in ("api_key", "api-key", "key", "access_token", "code")]
    + [f"https://h/v1{tail}" for tail in (f"?q=sk-{SECRET}", f"?q=sk%2D{SECRET}", f"#gsk_{SECRET}")]
    + [f"https://h/v1?api-version=1&apikey={SECRET}", f"https://h/v1?X-Amz-Signature={SECRET}"]
    + [f"{user}@h/v1" for user in (f"https://me:{SECRET}", f"https://{SECRET}", f"me:{SECRET}")]
    + [f"https://h/sk-{SECRET}/v1", f"http://me:{SECRET}@[::", f"ftp://me:{SECRET}@h", f"sk-{SECRET}"],
)
def test_secret_in_the_url_is_refused(url: str) -> None:
    """A URL with a key or a password is refused before anything is kept, with a cure, and is not shown."""
    with pytest.raises(InputError, match=r"base URL.*environment variable") as caught:
        Settings(model="m", base_url=url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://h/v1?api-version=2024-10-21",
        "https://gateway.ai.cloudflare.com/v1/0123456789abcdef0123456789abcdef/gateway/openai",
        "https://h/openai/deployments/gpt-4o-mini-2024-07-18",
        "https://h/ai/@cf/meta/llama-3.1-8b-instruct/v1",
        "https://sk-central-1.example.org/v1",
        "https://router.huggingface.co/hf-inference/v1",
        "https://h/v1?region=eu&tier=flex&max_tokens=1",
        "http://[::1]:8000/v1",
    ],
)
def test_ordinary_urls_are_accepted(url: str) -> None:
    """Versions, account numbers, model names and other parameters are no secrets."""
    assert Address(url, "m").base_url == url


@pytest.mark.parametrize(
    ("body", "names"),
    [({name: SECRET}, repr(name)) for name in ("api_key", "apiKey", "vertex_credentials", "client_secret")]
    + [
        ({"provider": {"Authorization": f"Bearer {SECRET}"}}, "'provider.Authorization'"),
        ({"tools": [{"url": f"https://t/?k=hf_{SECRET}"}]}, "'tools.url'"),
        ({"user": f"sk-{SECRET}"}, "'user'"),
        ({"password": "hunter2hunter2"}, "'password'"),
        ({"extra_headers": {"Cookie": f"session={SECRET}"}}, "'extra_headers.Cookie'"),
        ({"session_cookies": [SECRET]}, "'session_cookies'"),
        ({"x": f"Bearer {SECRET}"}, "'x'"),
        ({f"sk-{SECRET}": 1}, "of the request"),
        ({"metadata": {f"sk-{SECRET}": 1}}, "'metadata'"),
    ],
)
def test_secret_in_the_body_is_refused(body: dict[str, Any], names: str) -> None:
    """A field that holds a key is refused; the message names the field and does not show its value."""
    with pytest.raises(InputError, match=r"looks like a secret.*environment variable") as caught:
        Settings(model="m", extra_body=body)
    assert SECRET not in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert names == "of the request" or names in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt_cache_key": "calibration-audit-1"},
        {"skip_special_tokens": True, "stop_token_ids": [1, 2]},
        {"chat_template_kwargs": {"eos_token": "<|endoftext|>", "enable_thinking": False}},
        {"provider": {"require_parameters": True, "order": ["fireworks/fp8"]}},
        {"user": "7f3c2a90-1111-4222-8333-444455556666"},
        {"reasoning_effort": "none", "top_k": None, "key": "", "token": "short"},
        {"metadata": {"purpose": "task-sk-12 of the password reset corpus"}},
    ],
)
def test_ordinary_bodies_are_accepted(body: dict[str, Any]) -> None:
    """Fields of real servers are no secrets, even where their names speak of keys and tokens."""
    assert Address("https://h/v1", "m", extra_body=body).extra_body == body


@pytest.mark.parametrize("given", [f"sk-{SECRET}", SECRET, SECRET.upper(), "a b", "", "1KEY", f"X={SECRET}"])
def test_the_key_in_place_of_its_variable(given: str) -> None:
    """Who gives the key instead of the name of its variable reads which is meant; the key is not shown."""
    done = blindcal("audit", "items.jsonl", "--model", "m", "--api-key-env", given)
    said = printed_error(done) + done.output
    assert "--api-key-env takes the name of an environment variable" in said
    assert "export OPENAI_API_KEY=..." in said
    assert SECRET.lower() not in said.lower()


@pytest.mark.parametrize(
    "wrong",
    ["{}", "--set timeout={}", "--set positive_ids={}", "--extra-body {}", "--api-key={}", "--api {}"],
)
def test_a_key_in_a_wrong_command_line_is_not_quoted(wrong: str) -> None:
    """A key where another argument belongs is a usage error that does not show it."""
    done = blindcal("audit", "items.jsonl", "--model", "m", *wrong.format(f"sk-{SECRET}").split())
    assert done.exit_code == 2
    assert SECRET not in done.output


@pytest.mark.parametrize(
    "where",
    [{"base_url": f"https://h/{SECRET}/v1"}, {"model": SECRET}, {"extra_body": {"user": [f"x{SECRET}x"]}}],
    ids=lambda where: next(iter(where)),
)
def test_the_key_itself_is_refused_anywhere(where: dict[str, Any]) -> None:
    """A key that no rule would recognise is recognised by what the environment holds."""
    address = Address(**{"base_url": "https://h/v1", "model": "m", **where})
    with pytest.raises(InputError, match="holds the API key itself") as caught:
        HttpEndpoint(address, environ={"OPENAI_API_KEY": SECRET})
    assert SECRET not in str(caught.value)
    HttpEndpoint(address, environ={"OPENAI_API_KEY": "other"})


def test_a_refused_secret_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command with a secret in it ends before it keeps or shows anything."""
    items = write_items(tmp_path / "items.jsonl", 2)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for option in (
        ("--base-url", f"http://127.0.0.1:1/v1?api_key={KEY}"),
        ("--extra-body", json.dumps({"user": KEY})),
        ("--model", KEY),
    ):
        done = blindcal("audit", items, "--model", "m", "--out", tmp_path / "run", *option)
        assert "environment variable" in printed_error(done)
        assert not (tmp_path / "run").exists()


# What a server says


#: The key as servers repeat it.
REPEATED = {
    "as it is": KEY,
    "escaped": KEY.replace("/", "\\/").replace("+", "\\u002B").replace("=", "\\u003d"),
    "escaped throughout": "".join(f"\\u{ord(one):04x}" for one in KEY),
    "as in a URL": "".join(one if one.isalnum() else f"%{ord(one):02X}" for one in KEY),
}


def replied(response: HttpResponse) -> Reply:
    """The reply of a server that answers the same to everything, with the key of the environment."""

    def respond(request: HttpRequest) -> HttpResponse:
        assert request.headers["authorization"] == f"Bearer {KEY}"
        return response

    return ask(respond, environ=os.environ)


@pytest.mark.parametrize("said", REPEATED.values(), ids=REPEATED)
@pytest.mark.parametrize("before", [0, 195])
def test_error_messages_are_redacted_before_they_are_cut(said: str, before: int) -> None:
    """However a server repeats the key, escaped or where we cut, none of it is quoted."""
    body = b'{"error": {"message": "%b%b"}}' % (b"y" * before, said.encode())
    with pytest.raises(FatalError) as caught:
        replied(HttpResponse(body, 400))
    assert not leaked(str(caught.value))
    assert "[key]"[: 200 - before] in str(caught.value)


@pytest.mark.parametrize("said", REPEATED.values(), ids=REPEATED)
def test_replies_are_redacted(said: str) -> None:
    """A model that repeats the key answers with a placeholder, in its text and in its name."""
    body = json.dumps({**CHAT_YES, "model": "SAID"}).replace("SAID", said).replace("Yes", f"It is {said}")
    reply = replied(HttpResponse(body.encode()))
    assert not leaked(repr(reply))
    assert reply.text == "It is [key]"


MALFORMED = {
    "status": b"HTTP/1.1 KEY\r\n\r\n",
    "no status": b"Authorization: Bearer KEY\r\n\r\n",
    "header": b"HTTP/1.1 200 OK\r\nBearer KEY\r\nContent-Length: 0\r\n\r\n",
    "control": b"HTTP/1.1 200 OK\r\nX: \x00KEY\r\nContent-Length: 0\r\n\r\n",
    "long": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 85 + b"KEY" + b"x" * 90_000 + b"\r\n\r\n",
    "chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nKEY\r\n\r\n",
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: KEY\r\n\r\n",
    "reason": b"HTTP/1.1 418 KEY\r\nContent-Length: 2\r\n\r\nno",
    "location": b"HTTP/1.1 302 x\r\nLocation: http://KEY/\r\nContent-Length: 2\r\n\r\nno",
    "packed": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 40\r\n\r\nKEYxxxxxxxxxxx",
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
def test_malformed_http_is_not_quoted(raw: bytes) -> None:
    """What is no HTTP at all becomes an error in our own words, without a piece of the key."""

    async def talk() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(raw.replace(b"KEY", KEY.encode()))
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        try:
            async with HttpEndpoint(Address(url, "m", timeout=5)) as endpoint:
                await endpoint.ask(asking())
        finally:
            server.close()

    with pytest.raises(EndpointError) as caught:
        asyncio.run(talk())
    assert not leaked(str(caught.value))


@pytest.mark.parametrize(
    "proxy", ["me:{}@h:3", "socks5://me:{}@h:3", "http://me:{}@h:99999", "foo://me:{}@h"]
)
def test_proxy_passwords_are_not_shown(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that cannot be used is named by its variable, not by its URL with the password."""
    monkeypatch.setenv("https_proxy", proxy.format(SECRET))

    async def talk() -> None:
        async with HttpEndpoint(Address("https://example.invalid/v1", "m")) as endpoint:
            await endpoint.ask(asking())

    with pytest.raises(FatalError, match="https_proxy in the environment") as caught:
        asyncio.run(talk())
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("key", ["", "x", "No", "none", "EMPTY", "sk-test"])
def test_placeholders_are_not_looked_for(key: str) -> None:
    """What stands for a key where none is needed does not wreck the answers that hold the same letters."""
    raw = b"No: none, EMPTY, x and sk-test are words"
    assert Redactor(key)(raw) == raw


def test_redaction_leaves_valid_json() -> None:
    """Whatever stands beside the key, what is left is JSON and says the same without the key."""
    rng, alphabet = random.Random(0), string.ascii_letters + string.digits + "-_+/="
    pieces = ["a", " ", '"', "\\", "\n", "é", "%", "/", "sk-", "{", "[key"]
    for _ in range(50):
        key = "k" + "".join(rng.choices(alphabet, k=rng.choice([8, 16, 32, 51, 164])))
        before, after = ("".join(rng.choices(pieces, k=rng.randrange(8))) for _ in range(2))
        text, redact = f"{before}{key} {after}", Redactor(key)
        escaped = "".join(f"\\u{ord(one):04x}" for one in text)
        for raw in (json.dumps(text), json.dumps(text, ensure_ascii=False), f'"{escaped}"'):
            assert json.loads(redact(raw.encode())) == f"{before}[key] {after}"


def test_an_audit_keeps_no_key_that_a_model_says(tmp_path: Path) -> None:
    """A model that answers with the key leaves a placeholder in the files of the run, and nothing else."""
    path = write_items(tmp_path / "items.jsonl", 60)
    loaded = open_items(path)
    known = Recording.from_probabilities([item.id for item in loaded], np.linspace(0.05, 0.95, 60))
    server = Altered(known, list(loaded))
    said = b'"content":"%b"' % KEY.encode()
    server.alter = lambda asked, body: (
        re.sub(b'"content":"[^"]*"', said, body) if b"Is 34 so" in asked else body
    )
    with running(server):
        endpoint = ("--model", "replay", "--base-url", server.base_url, "--method", "blind")
        done = blindcal("audit", path, *endpoint, "--out", tmp_path / "run", "--quiet")
    assert done.exit_code == 0, done.output
    answers = (tmp_path / "run" / "answers.csv").read_text()
    assert "[key]" in answers
    assert not leaking_files(tmp_path)
    assert not leaked(done.output)
