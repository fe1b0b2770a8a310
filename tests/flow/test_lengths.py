"""A sum of money is never exceeded, whatever the prompts are like and however many are under way."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindcal.asking.ask_design import ask_design
from blindcal.asking.governor import GovernedEndpoint, Governor
from blindcal.asking.job import Job
from blindcal.asking.rate_control import TokenEstimator, bytes_of
from blindcal.asking.run_context import Limits, RunContext
from blindcal.design import SampledDesign
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.errors import EndpointError, InputError, ReplyError, RetryableError
from blindcal.prices import Prices
from blindcal.records import Item, Message, Reply, Request, Targets, Token, Usage
from blindcal.store.run_store import Store
from engine import hurried

PRICES = Prices(1000.0, 3000.0)
QUESTION = TokenQuestion(Targets((Token(1, "Yes"),), (Token(2, "No"),)))
BYTES_PER_TOKEN = {"p": 5.0, "1": 2.0, "是": 1.5, "🦜": 1.0}
#: Texts of very different tokens per byte: English, digits, another script, an emoji; and how long each is.
texts = st.lists(
    st.tuples(st.sampled_from(["plain words ", "1234567", "是吗", "🦜"]), st.integers(1, 60)),
    min_size=1,
    max_size=40,
)
money = st.floats(0.02, 60)
concurrency = st.sampled_from([1, 2, 8, 64])


@dataclass
class Billing:
    """An endpoint that bills tokens of different lengths, at most one per byte."""

    paid: Usage = field(default_factory=Usage)

    async def ask(self, request: Request) -> Reply:
        await asyncio.sleep(0)
        prompt = 7 + round(bytes_of(request) / BYTES_PER_TOKEN[request.messages[0].content[0]])
        answer = request.max_tokens
        self.paid += Usage(queries=1, attempts=1, prompt_tokens=prompt, completion_tokens=answer)
        return Reply("Yes", prompt_tokens=prompt, completion_tokens=answer)

    async def close(self) -> None:
        pass


def messages(text: tuple[str, int]) -> tuple[Message, ...]:
    return (Message("user", text[0] * text[1]),)


@settings(max_examples=40, deadline=None)
@given(texts, money, concurrency)
def test_a_run_never_costs_more(kinds: list[tuple[str, int]], money: float, concurrency: int) -> None:
    """Where the next query might pass the sum none goes out, and what is left is less than it might cost."""
    endpoint = Billing()
    items = [Item(f"q{k}", k % 2, messages(text)) for k, text in enumerate(kinds)]
    context = RunContext(limits=Limits(concurrency=concurrency, max_cost=money), prices=PRICES)
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "run.sqlite") as store:
        store.begin({}, items)
        job = Job(items=items, question=QUESTION, store=store)
        governor = Governor(endpoint, context, store)
        outcome = asyncio.run(ask_design(SampledDesign(len(items), 2, (1.0,), 0), job, governor))
    assert PRICES.cost(endpoint.paid) <= money
    assert outcome.usage.prompt_tokens == endpoint.paid.prompt_tokens
    if outcome.stopped:
        longest = max(bytes_of(Request(item.messages)) for item in items)
        most = Usage(prompt_tokens=max(4 * longest + 28, 2 * (longest + 7)), completion_tokens=1)
        assert money - PRICES.cost(endpoint.paid) < PRICES.cost(most)


@settings(max_examples=40, deadline=None)
@given(texts, money, concurrency)
def test_a_probe_never_costs_more(kinds: list[tuple[str, int]], money: float, concurrency: int) -> None:
    """Queries of any length go out together: either all are answered, or the sum is said to be too low."""
    endpoint, asked = Billing(), [Request(messages(text), max_tokens=3) for text in kinds]
    context = RunContext(limits=Limits(concurrency=concurrency, max_cost=money), prices=PRICES)

    async def ask_all(store: Store) -> bool:
        governor = Governor(endpoint, context, store)
        probe = GovernedEndpoint(governor)
        replies = await asyncio.gather(*map(probe.ask, asked), return_exceptions=True)
        refused = [reply for reply in replies if not isinstance(reply, Reply)]
        assert all(isinstance(error, InputError) for error in refused)
        assert governor.paid == endpoint.paid
        return not refused

    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "run.sqlite") as store:
        answered = asyncio.run(ask_all(store))
    assert PRICES.cost(endpoint.paid) <= money
    assert answered == (endpoint.paid.queries == len(asked))


def test_refusals_in_the_probe_are_kept_and_what_was_served_counts(tmp_path: Path) -> None:
    """An item refused in the probe is not asked again after an interruption; replies in vain are paid for."""
    refused, empty = ReplyError("content filter", status=400), ReplyError("no choices", billed=(9, 1, 0))
    cut_short = RetryableError("cut short", billed=(9, 1, 0))
    replies = [refused, empty, cut_short, Reply("Yes", prompt_tokens=9, completion_tokens=1)]
    asked = [Request((Message("user", text),)) for text in "abc"]

    class Moody:
        calls = 0

        async def ask(self, _: Request) -> Reply:
            self.calls += 1
            reply = replies[self.calls - 1]
            if isinstance(reply, EndpointError):
                raise reply
            assert isinstance(reply, Reply)
            return reply

        async def close(self) -> None:
            pass

    async def probe(store: Store) -> Usage:
        governor = hurried(endpoint, store=store, max_queries=3)
        probe = GovernedEndpoint(governor)
        for request, error in ((asked[0], refused), (asked[1], empty)):
            with pytest.raises(ReplyError, match=str(error)):
                await probe.ask(request)
        assert (await probe.ask(asked[2])).text == "Yes"
        with pytest.raises(InputError, match="max_queries=3 does not pay for the probe"):
            await probe.ask(asked[2])
        return governor.paid

    endpoint = Moody()
    expected = Usage(queries=2, attempts=4, prompt_tokens=27, completion_tokens=3, wasted=1)
    with Store.open(tmp_path / "run.sqlite") as store:
        for _ in range(2):
            assert asyncio.run(probe(store)) == expected == store.usage()
    assert endpoint.calls == len(replies)


@pytest.mark.parametrize("tokens", [0, 30])
def test_what_is_expected_follows_what_was_billed(tokens: int) -> None:
    """Until anything is billed four bytes are taken for a token."""
    lengths = TokenEstimator()
    assert lengths.expected(400) == 100
    lengths.learn(300, tokens)
    assert lengths.expected(400) == (40 if tokens else 100)
