"""Constraints make only the answers possible, and one that does not act is noticed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.local_model import ServerSettings, serve
from blindcal.endpoints.query_format import CONSTRAINTS, ConstraintName, TokenQuestion
from blindcal.errors import FatalError, ReplyError
from blindcal.probing.draw_checks import constraint_acts
from blindcal.records import Item, Message, Reply, Request, Targets, Token
from misbehaving import Behaviour
from serving import PAIR, items, model_or_skip, replayed

ITEMS = [
    Item(str(k), 1, (Message("user", f"{text} Answer Yes or No."),))
    for k, text in enumerate(("Is fire hot?", "Is ice hot?"))
]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("allowed_token_ids", {"allowed_token_ids": [1, 2]}),
        ("structured_outputs", {"structured_outputs": {"choice": [' "Yes"', "Né"]}}),
        ("guided_choice", {"guided_choice": [' "Yes"', "Né"]}),
        ("grammar", {"grammar": r'root ::= " \"Yes\"" | "Né"'}),
    ],
)
def test_each_constraint_has_its_field(name: ConstraintName, fields: dict[str, Any]) -> None:
    """Answers are named by their ids or in the model's own spelling; a grammar quotes them."""
    targets = Targets((Token(1, ' "Yes"'),), (Token(2, "Né"),))
    question = TokenQuestion(targets, biased=False, constraint=name)
    assert question.request((), 0.0, 1.0).fields == fields
    assert question.about_answers == CONSTRAINTS[name].measures


def acts(behaviour: Behaviour, name: ConstraintName) -> tuple[bool, int]:
    """Whether a constraint acts on a replay whose answers differ, and the number of queries."""

    async def check() -> tuple[bool, int]:
        async with replayed([2.0, -2.0, 0.5], behaviour) as (server, endpoint):
            return await constraint_acts(name, endpoint.ask, items(3), PAIR), server.requests

    return asyncio.run(check())


@pytest.mark.parametrize("name", ["allowed_token_ids", "structured_outputs"])
def test_a_replay_shows_whether_a_constraint_acts(name: ConstraintName) -> None:
    """Honoured, each item says what it is allowed to; ignored or rejected, it is known at once."""
    assert acts(Behaviour(constraints="honoured"), name) == (True, 6)
    assert acts(Behaviour(constraints="ignored"), name) == (False, 2)
    assert acts(Behaviour(constraints="rejected"), name) == (False, 1)
    assert acts(Behaviour(constraints="honoured", temperature="fixed"), name)[0]
    # three items say by chance what was demanded both times in one of 64 checks, or less
    drawn = [Behaviour(constraints="ignored", temperature="fixed", seed=seed) for seed in range(5)]
    assert not any(acts(behaviour, name)[0] for behaviour in drawn)


def test_refused_items_show_nothing() -> None:
    """An item that is refused is left out; if all are, or only one side came, nothing is known."""

    def shown(*texts: str | Exception) -> bool:
        replies = iter(texts)

        async def ask(_: Request) -> Reply:
            text = next(replies)
            if isinstance(text, Exception):
                raise text
            return Reply(text, "stop")

        return asyncio.run(constraint_acts("grammar", ask, ITEMS, PAIR))

    refusal = ReplyError("content filter")
    assert shown(refusal, refusal, "Yes", " no")
    assert not shown(refusal, refusal, refusal, refusal)
    assert not shown("Yes", refusal, "Yes", refusal)
    assert not shown(FatalError("no such field"))


def test_what_acts_on_llama_cpp() -> None:
    """llama.cpp has grammars, and ignores what it does not know."""

    async def check(base_url: str, model: str) -> list[str]:
        targets = Targets((Token(0, "Yes"),), (Token(0, "No"),))
        async with HttpEndpoint(Address(base_url, model)) as endpoint:
            return [
                name for name in CONSTRAINTS if await constraint_acts(name, endpoint.ask, ITEMS[:1], targets)
            ]

    with serve(model_or_skip(), ServerSettings(context=256, threads=1)) as served:
        assert asyncio.run(check(served.base_url, served.model)) == ["grammar"]
