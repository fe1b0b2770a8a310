"""Replies as servers write them: read, or an error of their item, without losing an answer over its bill."""

from __future__ import annotations

import json
from typing import Any

import pytest

from blindcal.endpoints.replies import read
from blindcal.errors import EndpointError, ReplyError, RetryableError
from blindcal.json_form import DEEPEST
from blindcal.records import Reply

TOP = [{"token": "Yes", "logprob": -0.1, "bytes": [89]}, {"token": "No", "logprob": -2.5, "bytes": None}]
POSITIONS = {"content": [{"token": "Yes", "logprob": -0.1, "top_logprobs": TOP}]}
DICTIONARIES = {"tokens": ["Yes"], "token_logprobs": [-0.1], "top_logprobs": [{"Yes": -0.1, "No": -2.5}]}


def choice(content: str | None = "Yes", finish: str = "length", **message: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": content, **message}, "finish_reason": finish}]}


def read_body(body: object, *, free_text: bool = False) -> Reply:
    """The reply in a body; a refusal is no reply."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = read(200, raw, free_text=free_text)
    assert isinstance(reply, Reply)
    return reply


def test_a_real_reply() -> None:
    """A reply as OpenAI writes it gives the text, the usage and the logprobs."""
    message = {"role": "assistant", "content": "Yes", "refusal": None}
    usage = {"prompt_tokens": 50, "completion_tokens": 1, "total_tokens": 51}
    details = {"cached_tokens": 32, "audio_tokens": 0}
    body = {
        "object": "chat.completion",
        "model": "gpt-4o-2024-08-06",
        "choices": [{"index": 0, "message": message, "logprobs": POSITIONS, "finish_reason": "length"}],
        "usage": {**usage, "prompt_tokens_details": details, "completion_tokens_details": {}},
        "service_tier": "default",
    }
    assert read_body(body) == Reply(
        "Yes",
        "length",
        prompt_tokens=50,
        completion_tokens=1,
        cached_tokens=32,
        model="gpt-4o-2024-08-06",
        logprobs={"Yes": -0.1, "No": -2.5},
        logprob=-0.1,
    )


@pytest.mark.parametrize("shown", [DICTIONARIES, POSITIONS], ids=["dictionaries", "positions"])
def test_logprobs_are_read_in_either_form_from_either_kind_of_reply(shown: dict[str, Any]) -> None:
    """Some servers write the dictionaries of plain completions in chats, or the lists of chats in text."""
    for answer in ({"message": {"content": "Yes"}}, {"text": "Yes"}):
        reply = read_body({"choices": [{**answer, "logprobs": shown}], "usage": None})
        assert (reply.logprobs, reply.logprob) == ({"Yes": -0.1, "No": -2.5}, -0.1)
        assert read_body({"choices": [{**answer, "logprobs": {"top_logprobs": [None]}}]}).logprobs is None


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        (b"", ReplyError, "JSON"),
        (b"<html>", ReplyError, "web page.*ends in /v1"),
        (b'{"choices": [', RetryableError, "cut short"),
        (b"null", ReplyError, "not a completion"),
        (choice(["a", "b"]), ReplyError, "not a completion"),  # type: ignore[arg-type]  # a list of parts
        (b'{"choices": [{"message": {"content": "\\ud800"}}]}', ReplyError, "JSON"),
        ({"error": {}}, ReplyError, "the reply has no choices"),
        ({"error": ""}, ReplyError, "the reply has no choices"),
    ],
)
def test_what_is_no_completion_is_an_error(body: object, kind: type[EndpointError], says: str) -> None:
    """The message says what came instead, and what to do."""
    with pytest.raises(kind, match=says):
        read_body(body)


@pytest.mark.parametrize("depth", [DEEPEST + 1, 20_000])
@pytest.mark.parametrize("place", [b"%b", b'{"choices": %b}', b'{"error": %b}', b'{"x": %b, "choices": []}'])
def test_nested_reply_is_an_error_of_its_item(place: bytes, depth: int) -> None:
    """A reply that is nested beyond sense concerns its item only, wherever the nesting is."""
    with pytest.raises(ReplyError, match="not a completion"):
        read_body(place % (b"[" * depth + b"]" * depth))


@pytest.mark.parametrize("empty", [{}, "", [], None, False, 0])
def test_an_empty_error_is_none(empty: object) -> None:
    """A gateway that adds an empty error to every completion is understood."""
    assert read_body({**choice(), "error": empty}).text == "Yes"


def test_an_error_inside_a_reply_has_its_status() -> None:
    """Gateways send the error of another service with status 200."""
    assert read(200, b'{"error": {"code": 429, "message": "slow down"}}') == 429
    assert read(200, b'{"error": "backend died"}') == 502


@pytest.mark.parametrize(
    "body",
    [
        choice(None, reasoning_content="Let me see"),
        choice("", reasoning="Let me see"),
        choice(None),
        {**choice(""), "usage": {"completion_tokens_details": {"reasoning_tokens": 64}}},
    ],
)
def test_reasoning_without_an_answer(body: dict[str, Any]) -> None:
    """Where there was room for a text, it is an empty one; where one word was asked for, an error."""
    assert read_body(body, free_text=True).text == ""
    with pytest.raises(ReplyError, match="turn reasoning off"):
        read_body(body)
    assert read_body(choice("", "stop")).text == ""  # without any sign of reasoning, it is a reply


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
    reply = read_body({**choice(), "usage": usage})
    assert (reply.text, reply.usage.tokens) == ("Yes", (0, 0, 0))


@pytest.mark.parametrize(
    ("more", "tokens"),
    [
        ({"completion_tokens": 300, "total_tokens": 312}, (12, 300, 0)),
        ({"total_tokens": 312}, (12, 300, 0)),  # hidden reasoning that only the total counts
        ({"total_tokens": 5}, (12, 1, 0)),
        ({"total_tokens": None}, (12, 1, 0)),
        ({"total_tokens": 10**12}, (12, 1, 0)),
        ({"prompt_tokens_details": {"cached_tokens": 99}}, (12, 1, 12)),
        ({"prompt_tokens_details": None}, (12, 1, 0)),
        ({"prompt_tokens_details": []}, (12, 1, 0)),
        ({"prompt_tokens_details": {"cached_tokens": -5}}, (12, 1, 0)),
    ],
)
def test_true_counts_are_kept(more: dict[str, Any], tokens: tuple[int, int, int]) -> None:
    """Whole numbers written as floats count, hidden tokens are paid for, and no cache exceeds the prompt."""
    usage = {"prompt_tokens": 12.0, "completion_tokens": 1, **more}
    assert read_body({**choice(), "usage": usage}).usage.tokens == tokens
