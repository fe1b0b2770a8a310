"""The embedded model drawn from with and without a grammar that allows only the two answers.

    python bench/constrained.py [--items 12] [--draws 12]

Built-in questions are drawn from at temperature 1. With the grammar, the share of Yes should be what the
model's own logprobs say, summed over the tokens that can begin each word: the last column is Pearson's
chi-squared statistic of the counts, whose expectation is the number of questions.
"""

from __future__ import annotations

from record import Cell, options, record, table

import asyncio
import math

import numpy as np

from blindcal.endpoints.address import Address
from blindcal.endpoints.constraints import CONSTRAINTS, ConstraintName
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.local_server import Served, ServerSettings, serve
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.items.catalogue import open_items
from blindcal.records import INVALID, POSITIVE, Item, Request, Targets, Token
from blindcal.settings import Settings

WORDS = ("Yes", "No")
PAIR = Targets((Token(0, WORDS[0]),), (Token(1, WORDS[1]),))
MOST_LOGPROBS = 200
EVERY = 7  # neighbouring built-in questions are alike


async def drawn(served: Served, items: list[Item], draws: int) -> list[list[Cell]]:
    """A row without and one with the grammar."""
    async with HttpEndpoint(Address(served.base_url, served.model, timeout=300)) as endpoint:
        p = np.array([await _probability(endpoint, item) for item in items])
        rows: list[list[Cell]] = []
        names: tuple[ConstraintName | None, ...] = (None, "grammar")
        for name in names:
            most = 1 if name is None else CONSTRAINTS[name].max_tokens
            question = TokenQuestion(PAIR, biased=False, seed=0, max_tokens=most, constraint=name)
            replies = [
                await endpoint.ask(question.request(item.messages, 0.0, 1.0, number * draws + k))
                for number, item in enumerate(items)
                for k in range(draws)
            ]
            answers = np.array([question.parse(reply).answer for reply in replies]).reshape(-1, draws)
            valid, yes = (answers != INVALID).sum(axis=1), (answers == POSITIVE).sum(axis=1)
            off = (yes - valid * p) ** 2 / np.maximum(valid * p * (1 - p), 1e-9)
            rows.append([name or "none", answers.size, int((answers == INVALID).sum()), float(off.sum())])
        return rows


async def _probability(endpoint: HttpEndpoint, item: Item) -> float:
    """The probability of the positive word against the negative one, by the tokens that can begin them."""
    reply = await endpoint.ask(Request(item.messages, top_logprobs=MOST_LOGPROBS))
    shown = reply.logprobs or {}
    positive, negative = (
        sum(math.exp(logprob) for text, logprob in shown.items() if text and word.startswith(text))
        for word in WORDS
    )
    return positive / (positive + negative)


def main() -> None:
    """Draw, and record the table."""
    arguments = options(__doc__, items=12, draws=12)
    loaded = open_items("builtin", Settings(model="embedded").prompt)
    items = [loaded[EVERY * k] for k in range(arguments.items)]
    with serve(settings=ServerSettings(context=512, threads=1)) as served:
        rows = asyncio.run(drawn(served, items, arguments.draws))
    heads = {"constraint": "{}", "draws": "{:,}", "neither word": "{:,}", "chi-squared": "{:.1f}"}
    record("constrained", {"draws": table(heads, rows)}, arguments, repeats=arguments.draws, seeds="seed 0")


if __name__ == "__main__":
    main()
