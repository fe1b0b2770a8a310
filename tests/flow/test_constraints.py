"""Constraints make only the two answers possible, and one that does not act is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from blindcal.endpoints.address import Address
from blindcal.endpoints.constraints import CONSTRAINTS, ConstraintName, effect
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.local_server import Served, ServerSettings, serve
from blindcal.endpoints.query_format import FreeTextQuestion, TokenQuestion
from blindcal.errors import FatalError, InputError, ReplyError
from blindcal.records import Item, Message, Reply, Request, Targets, Token
from misbehaving import Behaviour
from serving import PAIR, items, model_or_skip, replayed

ITEMS = [
    Item(str(k), 1, (Message("user", f"{text} Answer Yes or No."),))
    for k, text in enumerate(("Is fire hot?", "Is ice hot?"))
]


# The fields


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("allowed_token_ids", {"allowed_token_ids": [1, 2]}),
        ("structured_outputs", {"structured_outputs": {"choice": [" Yes", "No"]}}),
        ("guided_choice", {"guided_choice": [" Yes", "No"]}),
        ("grammar", {"grammar": 'root ::= " Yes" | "No"'}),
    ],
)
def test_each_constraint_has_its_field(name: ConstraintName, fields: dict[str, Any]) -> None:
    """Answers are named by their ids or in the model's own spelling."""
    assert CONSTRAINTS[name].fields([" Yes", "No"], [1, 2]) == fields


def test_a_response_format_is_a_strict_schema() -> None:
    """OpenAI's strict schemas list every field as required, and allow no others."""
    (made,) = CONSTRAINTS["response_format"].fields([" Yes", "No"]).values()
    assert made["type"] == "json_schema"
    assert made["json_schema"]["strict"] is True
    assert made["json_schema"]["schema"] == {
        "type": "object",
        "properties": {"answer": {"type": "string", "enum": ["Yes", "No"]}},
        "required": ["answer"],
        "additionalProperties": False,
    }


def test_a_grammar_quotes_its_words() -> None:
    """A word with a quote in it does not end the string."""
    assert CONSTRAINTS["grammar"].fields(['"A"', "é"]) == {"grammar": r'root ::= "\"A\"" | "é"'}


def test_questions_send_their_constraint() -> None:
    """A question of one token names its tokens; one in free text keeps its other fields too."""
    question = TokenQuestion(PAIR, biased=False, constraint="allowed_token_ids")
    assert question.request((), 0.0, 1.0).fields == {"allowed_token_ids": [1, 2]}
    assert "only these tokens" in question.about_answers
    with pytest.raises(InputError, match="token ids"):  # free text knows none
        FreeTextQuestion(("Yes", "No"), constraint="allowed_token_ids").request((), 0.0, 1.0)
    free = FreeTextQuestion(("Ja", "Nein"), fields={"x": 1}, constraint="guided_choice")
    assert free.request((), 0.0, 1.0).fields == {"x": 1, "guided_choice": ["Ja", "Nein"]}


# Whether they act


def found(behaviour: Behaviour, name: ConstraintName, **how: Any) -> tuple[str, int]:
    """The effect of a constraint on a replay whose answers differ, and the number of queries."""

    async def check() -> tuple[str, int]:
        async with replayed([2.0, -2.0, 0.5], behaviour) as (server, endpoint):
            return await effect(name, endpoint.ask, items(3), PAIR, **how), server.requests

    return asyncio.run(check())


@pytest.mark.parametrize("name", ["allowed_token_ids", "structured_outputs"])
def test_a_replay_shows_whether_a_constraint_acts(name: ConstraintName) -> None:
    """Honoured, each item says what it is allowed to; ignored or rejected, it is known at once."""
    assert found(Behaviour(constraints="honoured"), name) == ("acts", 6)
    assert found(Behaviour(constraints="ignored"), name) == ("ignored", 2)
    assert found(Behaviour(constraints="rejected"), name) == ("rejected", 1)
    assert found(Behaviour(constraints="honoured", temperature="fixed"), name, temperature=None)[0] == "acts"
    # three items say by chance what was demanded both times in one of 64 checks, or less
    drawn = [Behaviour(constraints="ignored", temperature="fixed", seed=seed) for seed in range(5)]
    assert {found(one, name, temperature=None)[0] for one in drawn} == {"ignored"}


def said(*texts: str | Exception) -> str:
    """The effect that these replies, one after the other, show."""
    replies = iter(texts)

    async def ask(_: Request) -> Reply:
        text = next(replies)
        if isinstance(text, Exception):
            raise text
        return Reply(text, "stop")

    return asyncio.run(effect("response_format", ask, ITEMS, PAIR))


def test_an_answer_may_come_as_json_and_after_reasoning() -> None:
    """What a constraint allows is read in every form in which servers give it."""
    thought = '<think>Yes or No?</think>{"answer": "No"}'
    assert said('{"answer": "Yes"}', thought, '{\n "answer": "Yes"}', '{"answer":"No"}') == "acts"
    assert said('{"answer": "Yes"}', "The answer is Yes, not No.") == "ignored"
    assert said("Sure!") == "ignored"


def test_refused_items_show_nothing() -> None:
    """An item that is refused is left out; if all are, or only one side came, nothing is known."""
    refusal = ReplyError("content filter")
    assert said(refusal, refusal, '{"answer": "Yes"}', '{"answer": "No"}') == "acts"
    assert said(refusal, refusal, refusal, refusal) == "unknown"
    assert said('{"answer": "Yes"}', refusal, '{"answer": "Yes"}', refusal) == "unknown"
    assert said(FatalError("no such field")) == "rejected"


# A real server


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve(model_or_skip(), ServerSettings(context=256, threads=1)) as served:
        yield served


@pytest.mark.parametrize(
    ("name", "api", "wanted"),
    [
        ("grammar", "chat", "acts"),
        ("response_format", "chat", "acts"),
        ("structured_outputs", "chat", "ignored"),
        ("allowed_token_ids", "chat", "ignored"),
    ],
)
def test_what_acts_on_llama_cpp(served: Served, name: ConstraintName, api: Any, wanted: str) -> None:
    """llama.cpp has grammars, and JSON schemas for chats; it ignores what it does not know."""

    async def check() -> str:
        async with HttpEndpoint(Address(served.base_url, served.model, api)) as endpoint:
            return await effect(name, endpoint.ask, ITEMS[:1], Targets((Token(0, "Yes"),), (Token(0, "No"),)))

    assert asyncio.run(check()) == wanted
