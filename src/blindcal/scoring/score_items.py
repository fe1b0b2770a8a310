"""Score the items of a set: read the probabilities that an audit has to estimate."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from blindcal.asking.governor import GovernedEndpoint, Governor
from blindcal.asking.run_context import Limits, RunContext
from blindcal.auditing.prepare import PILOTS, choose_tokens
from blindcal.endpoints import tokens
from blindcal.endpoints.http import HttpEndpoint
from blindcal.errors import InputError
from blindcal.items.catalogue import open_items
from blindcal.records import Item, Targets
from blindcal.scoring.hf import HfModel, HfSettings
from blindcal.scoring.logprobs import Reader, Score, prefer, read_all
from blindcal.scoring.score_writer import ScoreWriter, prompt_digests
from blindcal.settings import Settings

Scorer: TypeAlias = Callable[[Iterable[Item], Targets], AsyncIterator[list[Score]]]


async def score_items(
    items: str | Path,
    settings: Settings,
    out: Path,
    *,
    first: int | None = None,
    concurrency: int = 4,
    transformers: HfSettings | None = None,
    progress: Callable[[int, int], None] | None = None,
    stage: Callable[[str], None] | None = None,
) -> ScoreWriter:
    """Write the probability of the positive answer of each item; an existing file is continued.

    More than two answers make it a choice file, with the logprob of each. ``first`` limits the number of
    items. With ``transformers``, the model is loaded in this process instead of asking the endpoint.
    ``progress`` is called with the number of items scored so far and the total.
    """
    if settings.free_text:
        raise InputError("answer_format: scores are read at the first token, and a sentence has more")
    if transformers is None:
        settings.endpoint.check_key()
    settings = settings.replace(semantics="max")
    loaded = open_items(items, settings.prompt)
    settings = settings.resolved(len(loaded), loaded.words)
    digests = prompt_digests(islice(loaded, first), _about(settings, transformers))
    pilots = list(islice(loaded, min(PILOTS, len(digests))))
    progress = progress or (lambda _done, _total: None)
    async with (
        _endpoint_scorer(settings, pilots, concurrency, stage)
        if transformers is None
        else _model_scorer(settings, transformers)
    ) as (targets, score):
        words = settings.answer_words
        writer = ScoreWriter.resume(out, targets, digests, words)
        if writer is None:
            seen = [each.logprobs async for batch in score(pilots, targets) for each in batch]
            writer = ScoreWriter.create(out, prefer(targets, seen), digests, words)
        done = writer.done
        progress(len(done), len(digests))
        todo = (item for item in islice(loaded, first) if item.id not in done)
        async for scores in score(todo, writer.targets):
            writer.add(scores)
            progress(len(done), len(digests))
    writer.finish()
    return writer


def _about(settings: Settings, transformers: HfSettings | None) -> str:
    # What a score depends on besides the prompt: the model and, after a space, its settings.
    model, extra = settings.endpoint.model, settings.endpoint.extra_body
    if transformers is not None:
        return f"{model} {transformers.dtype}"
    return f"{model} {json.dumps(dict(extra), sort_keys=True)}" if extra else model


@asynccontextmanager
async def _endpoint_scorer(
    settings: Settings,
    pilots: Sequence[Item],
    concurrency: int,
    stage: Callable[[str], None] | None,
) -> AsyncIterator[tuple[Targets, Scorer]]:
    async with HttpEndpoint(settings.endpoint) as endpoint:
        kept = "the scores so far are kept; run the same again to continue"
        run = RunContext.of(limits=Limits(concurrency=concurrency), stage=stage)
        patient = GovernedEndpoint(Governor(endpoint, run, kept=kept), quiet=True)
        choice = await choose_tokens(endpoint, patient, pilots, settings)
        reader = await Reader.open(patient, pilots[0], choice.targets)

        def score(items: Iterable[Item], targets: Targets) -> AsyncIterator[list[Score]]:
            return read_all(replace(reader, targets=targets), items, concurrency=concurrency)

        yield choice.targets, score


@asynccontextmanager
async def _model_scorer(
    settings: Settings, transformers: HfSettings
) -> AsyncIterator[tuple[Targets, Scorer]]:
    model = HfModel(settings.endpoint.model, transformers)
    prompt = settings.prompt
    if prompt.tokenizer:
        raise InputError(
            "{tokenizer} is for endpoints: a model that is loaded here has its own",
            options={"tokenizer": prompt.tokenizer},
        )
    ids = prompt.positive_ids, prompt.negative_ids
    answers = await tokens.candidates_of(settings.answer_words, model.encode, ids)
    tokens.check_clashes(answers)

    async def score(items: Iterable[Item], targets: Targets) -> AsyncIterator[list[Score]]:
        for batch in model.scores(items, targets):
            yield batch

    yield tokens.targets_of(answers, "max"), score
