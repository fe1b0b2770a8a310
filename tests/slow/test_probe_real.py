"""The probe of a real llama.cpp server with a real model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from blindcal.endpoints import tokens
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.local_model import Served, serve
from blindcal.errors import UnfitError
from blindcal.items.catalogue import open_items
from blindcal.probing.client import ProbeClient
from blindcal.probing.findings import Probe
from blindcal.probing.probe import probe
from blindcal.records import NEGATIVE, POSITIVE, Request, Targets, Token
from governed import governed
from serving import model_or_skip


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve(model_or_skip()) as served:
        yield served


def test_real_server_under_a_name_of_openai(served: Served) -> None:
    """Its own ids are taken whatever its model is called, and those of the name are found to be wrong."""
    pilot = next(iter(open_items("builtin")))

    async def chosen(tokenizer: str | None) -> tokens.Choice:
        async with HttpEndpoint(Address(served.base_url + "/", "gpt-4o-mini"), environ={}) as endpoint:
            found = await tokens.find_vocabulary(endpoint, endpoint, pilot, tokenizer)
            answers = await tokens.candidates_of(("Yes", "No"), found.encode)
            return await tokens.choose(endpoint, [pilot], answers, unsure=found.unsure)

    assert asyncio.run(chosen(None)).targets == Targets((Token(10539, "Yes"),), (Token(5230, "No"),))
    with pytest.raises(UnfitError, match="are not those of this model"):
        asyncio.run(chosen("gpt-4o-mini"))


def test_real_server(served: Served) -> None:
    """A real llama.cpp server with a real model: its verdict, and the flip at the logprob gap."""
    question = min(open_items("builtin"), key=lambda one: len(one.messages[0].content))
    targets = Targets((Token(10539, "Yes"),), (Token(5230, "No"),))

    async def talk() -> tuple[Probe, list[int]]:
        async with HttpEndpoint(Address(served.base_url, served.model), environ={}) as endpoint:
            found = await probe(governed(endpoint), [question], targets)
            reply = await endpoint.ask(Request(question.messages, top_logprobs=100))
            assert reply.logprobs is not None
            gap = reply.logprobs["Yes"] - reply.logprobs["No"]
            client = ProbeClient(endpoint, targets)
            return found, [await client.at(question, b - gap, 50.0) for b in (-1e-4, 1e-4)]

    found, around_the_gap = asyncio.run(talk())
    assert found.verdict == "thresholds"
    assert found.top_logprobs
    assert ("acts by the right amount", "good") in [(one.question, one.outcome) for one in found.findings]
    assert around_the_gap == [NEGATIVE, POSITIVE]
