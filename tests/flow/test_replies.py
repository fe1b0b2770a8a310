"""Replies that follow the protocol only loosely: odd bills, empty errors, and JSON nested beyond sense."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from blindcal.asking.run_context import Limits
from blindcal.auditing.audit import audit
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.errors import EndpointError, FatalError, InputError, ReplyError, RetryableError
from blindcal.items.question_files import load
from blindcal.json_form import DEEPEST, JsonError, read_json
from blindcal.prices import Prices
from blindcal.records import Reply
from blindcal.results.result import RESULT_FILE, AuditResult
from blindcal.settings import Settings
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from blindcal.store.run_store import RUN_FILE, Store
from commanding import blindcal, printed_error
from serving import CHAT_YES, Altered, Recorder, answering, asking

pytestmark = pytest.mark.usefixtures("no_page")

N = 60
DEPTHS = [DEEPEST + 1, 20_000]


def nested(depth: int, kind: str = "[]") -> bytes:
    """JSON of so many levels."""
    opening = b"[" if kind == "[]" else b'{"a":'
    return opening * depth + b"1" + (b"]" if kind == "[]" else b"}") * depth


def ask(body: object, status: int = 200) -> Reply:
    """The reply of a server that answers the same to everything."""

    async def talk() -> Reply:
        async with answering(Recorder(body, status)) as url, HttpEndpoint(Address(url, "m")) as endpoint:
            return await endpoint.ask(asking())

    return asyncio.run(talk())


@pytest.fixture
def items(tmp_path: Path) -> Path:
    path = tmp_path / "items.jsonl"
    lines = ({"id": f"i{k}", "prompt": f"Is number {k} even?", "label": k % 2} for k in range(N))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def audited(items: Path, alter: Callable[[bytes, bytes], bytes], **how: Any) -> AuditResult:
    """An audit over HTTP of a model whose replies are altered, with the folder ``run`` beside the items."""
    loaded = load(items)
    known = Recording.from_probabilities([one.id for one in loaded], np.linspace(0.05, 0.95, N))
    server = Altered(known, list(loaded))
    server.alter = alter
    with running(server):
        settings = Settings(
            model="replay", base_url=server.base_url, resamples=20, method="blind", bins=3, send_seed=True
        )
        return audit(items, settings, out=items.with_name("run"), **how)


# Nested JSON


@pytest.mark.parametrize("kind", ["[]", "{}"])
@pytest.mark.parametrize("depth", DEPTHS)
def test_nesting_is_one_error(depth: int, kind: str) -> None:
    """JSON that is nested too deeply is one error at any depth, also from deep inside the program."""

    def at(level: int) -> None:
        if level:
            at(level - 1)
        else:
            read_json(nested(depth, kind))

    for level in (0, 900):
        with pytest.raises(JsonError, match="nested") as caught:
            at(level)
        assert not caught.value.malformed
    # brackets in texts do not count, nor do many shallow ones
    value = {"text": "[" * 500 + '\\"{' * 500, "many": [[1]] * 500, "deep": msgspec.Raw(nested(DEEPEST - 1))}
    assert read_json(msgspec.json.encode(value))["text"] == value["text"]


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("place", [b"%b", b'{"choices": %b}', b'{"error": %b}', b'{"x": %b, "choices": []}'])
def test_nested_reply_is_an_error_of_its_item(place: bytes, depth: int) -> None:
    """A reply that is nested beyond sense concerns its item only, wherever the nesting is."""
    with pytest.raises(ReplyError, match="not a completion"):
        ask(place % nested(depth))


@pytest.mark.parametrize("depth", DEPTHS)
def test_nested_error_body(depth: int) -> None:
    """An error whose body is nested is still the error of its status."""
    with pytest.raises(FatalError, match="400"):
        ask(nested(depth), 400)
    with pytest.raises(RetryableError, match="500"):
        ask(b'{"error": {"message": %b}}' % nested(depth), 500)


def test_nested_replies_do_not_end_a_run(items: Path) -> None:
    """A run in which one item's replies are nested beyond sense finishes, with that item as invalid."""

    def alter(asked: bytes, body: bytes) -> bytes:
        return b'{"x": %b}' % nested(5_000) if b"number 34 " in asked else body

    result = audited(items, alter, limits=Limits(backoff=0.001))
    assert result.complete
    assert result.counts.answers == N * 2 // 3
    assert result.counts.invalid == 1


@pytest.mark.parametrize(
    "command",
    [
        ("check", "--max-ece", "0.1"),
        ("report",),
        ("compare",),
        ("status",),
        ("threshold", "--precision", "0.9"),
    ],
    ids=lambda command: command[0],
)
def test_nested_files_are_refused(command: tuple[str, ...], tmp_path: Path) -> None:
    """Every command that reads a result refuses one that is nested beyond sense, in one line."""
    with Store.open(tmp_path / RUN_FILE) as store:
        store.set_note("seconds", 1)
    for content in (nested(20_000), b'{"schema_version": 1, "probe": %b}' % nested(DEEPEST + 1)):
        (tmp_path / RESULT_FILE).write_bytes(content)
        name, *options = command
        runs = [tmp_path, tmp_path] if name == "compare" else [tmp_path]
        said = printed_error(blindcal(name, *runs, *options))
        assert "not a result of blindcal" in said
        assert "\n" not in said


def test_nested_items_are_refused_where_they_are(tmp_path: Path) -> None:
    """A nested record, list of messages or option is an error that says where it is."""
    record = b'{"prompt": "?", "label": 1, "more": %b}\n' % nested(900)
    cell = b'messages,label\n"%b",1\n' % nested(20_000)
    for name, content, line in (("a.jsonl", record, "line 1"), ("a.csv", cell, "line 2")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=line):
            load(tmp_path / name)
    body = '{"a": ' + nested(20_000).decode() + "}"
    done = blindcal("audit", "items.jsonl", "--model", "m", "--extra-body", body)
    assert (done.exit_code, "extra_body must be a JSON object" in done.output) == (2, True)


# Errors that are none


@pytest.mark.parametrize("empty", [{}, "", [], None, False, 0])
def test_an_empty_error_is_none(empty: object) -> None:
    """A gateway that adds an empty error to every completion is understood."""
    assert ask({**CHAT_YES, "error": empty}).text == "Yes"


@pytest.mark.parametrize("empty", [{}, "", []])
def test_an_empty_error_without_an_answer_is_said(empty: object) -> None:
    """An empty error in place of an answer becomes words of ours."""
    with pytest.raises(ReplyError, match="the reply has no choices"):
        ask({"error": empty})
    with pytest.raises(EndpointError, match=r"refuses the request \(400\): no such thing"):
        ask({"error": empty, "message": "no such thing"}, 400)


# Token counts


@pytest.mark.parametrize(
    "usage",
    [
        *(None, {}, [], "many", {"prompt_tokens": None, "completion_tokens": None}),
        *({"prompt_tokens": odd, "completion_tokens": 1} for odd in (-50, "12", 12.5, 10**30, 1e300, True)),
        *({"prompt_tokens": 12, "completion_tokens": odd} for odd in (-1, "1")),
    ],
    ids=str,
)
def test_an_answer_is_not_lost_over_its_bill(usage: object) -> None:
    """Token counts that are missing or impossible count as not reported, and the answer is read."""
    reply = ask({**CHAT_YES, "usage": usage})
    assert reply.text == "Yes"
    assert (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens) == (0, 0, 0)


def test_true_counts_are_kept() -> None:
    """Whole numbers written as floats count; a cache that exceeds the prompt is its whole prompt at most."""
    usage: dict[str, Any] = {"prompt_tokens": 12.0, "completion_tokens": 1}
    usage["prompt_tokens_details"] = {"cached_tokens": 99}
    reply = ask({**CHAT_YES, "usage": usage})
    assert (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens) == (12, 1, 12)
    odd: list[Any] = [None, [], {"cached_tokens": -5}, {"cached_tokens": None}]
    for usage["prompt_tokens_details"] in odd:
        reply = ask({**CHAT_YES, "usage": usage})
        assert (reply.prompt_tokens, reply.cached_tokens) == (12, 0)


def test_unreported_tokens_are_estimated_and_limited(items: Path) -> None:
    """Without counts, tokens and cost are estimates: the result says so, and a limit on the cost holds."""

    def alter(_: bytes, body: bytes) -> bytes:
        return body[: body.index(b'"usage":')] + b'"usage":{"prompt_tokens":-1000000,"completion_tokens":-9}}'

    prices = Prices(1000.0, 1000.0)
    spend = audited(items, alter, prices=prices).spend
    assert spend.tokens_estimated
    assert spend.completion_tokens == spend.queries
    assert 4 * spend.queries <= spend.prompt_tokens <= 6 * spend.queries  # prompts of some 20 characters
    assert spend.cost == pytest.approx((spend.prompt_tokens + spend.completion_tokens) / 1000)
    items.with_name("run").rename(items.with_name("free"))
    limit = 0.97 * (spend.cost or 0)
    limited = audited(items, alter, prices=prices, limits=Limits(max_cost=limit)).spend
    assert (limited.cost or 0) <= limit
    assert limited.queries < spend.queries
