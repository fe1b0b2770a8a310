"""The probe of the embedded model, for real, and its tokens whatever it is called."""

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
from blindcal.probing.findings import Probe
from blindcal.probing.probe import probe_endpoint
from blindcal.records import Targets, Token
from engine import governed
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
    """A real llama.cpp server with a real model may be audited by thresholds."""
    question = min(open_items("builtin"), key=lambda one: len(one.messages[0].content))
    targets = Targets((Token(10539, "Yes"),), (Token(5230, "No"),))

    async def talk() -> Probe:
        async with HttpEndpoint(Address(served.base_url, served.model), environ={}) as endpoint:
            return await probe_endpoint(governed(endpoint), [question], targets)

    found = asyncio.run(talk())
    assert found.verdict == "thresholds"
    assert found.top_logprobs
    assert ("acts by the right amount", "good") in [(one.question, one.outcome) for one in found.findings]
