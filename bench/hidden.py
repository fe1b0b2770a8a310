"""The hidden probabilities of a model that llama.cpp serves: it shows as many logprobs as are asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from blindcal.endpoints import Endpoint, tokens
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.items.catalogue import open_items
from blindcal.records import Item, Request, Targets
from blindcal.scoring.hf import Score, in_order
from blindcal.scoring.score_items import ScoreWriter, prefer, prompt_digests
from blindcal.settings import Settings

SHOWN = 20_000  # tokens, of 49,152: their logprobs fit into the largest reply that is read


async def shown(endpoint: Endpoint, item: Item, targets: Targets) -> Score:
    """The logprobs of the targets for one item."""
    reply = await endpoint.ask(Request(item.messages, top_logprobs=SHOWN))
    assert reply.logprobs is not None
    values = tuple(reply.logprobs[token.text] for token in in_order(targets))
    return Score(item, values, float(np.exp(values).sum()))


def score(items: Path, base_url: str, model: str, out: Path, template: str | None = None) -> None:
    """Write a score file like that of `blindcal score`."""
    settings = Settings(model=model, base_url=base_url, template=template)
    loaded = open_items(items, settings.prompt)
    words = settings.resolved(len(loaded), loaded.words).answer_words

    async def read() -> tuple[Targets, list[Score]]:
        async with HttpEndpoint(Address(base_url, model, timeout=300)) as endpoint:
            answers = await tokens.candidates_of(words, tokens.served_vocabulary(endpoint, model))
            every = tokens.targets_of(answers, "max")
            return every, [await shown(endpoint, item, every) for item in loaded]

    every, scores = asyncio.run(read())
    targets = prefer(every, [each.logprobs for each in scores])
    place = [in_order(every).index(token) for token in in_order(targets)]
    writer = ScoreWriter(out, targets, prompt_digests(loaded, model), words)
    writer.add(Score(each.item, tuple(each.logprobs[k] for k in place), each.mass) for each in scores)
