"""Scores of all items of a set: what an audit has to estimate, where it can be read instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from blindcal.atomic_write import atomic_write
from blindcal.auditing.prepare import PILOTS, choose_tokens
from blindcal.endpoints import tokens
from blindcal.endpoints.base import Patient
from blindcal.endpoints.http import HttpEndpoint, keyless
from blindcal.errors import ConfigError
from blindcal.items.catalogue import open_items
from blindcal.items.files import Items
from blindcal.records import Item, Targets
from blindcal.scoring.hf import HfModel, HfSettings
from blindcal.scoring.logprobs import Reader, prefer, read_all
from blindcal.scoring.score_writer import ScoreWriter, coverage, prompt_digests
from blindcal.settings import Settings


async def score_items(
    items: str | Path,
    settings: Settings,
    out: Path,
    *,
    first: int | None = None,
    concurrency: int = 4,
    transformers: HfSettings | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ScoreWriter:
    """Write the probability of the positive answer for each item; a file that exists is continued.

    Parameters
    ----------
    items : path
        A file of labelled questions or the name of a set.
    settings : Settings
        Which model is asked, with which prompt and answer words. Every spelling of the words is scored.
    out : path
        The score file, a CSV.
    first : int, optional
        Score only the first items.
    concurrency : int
        Maximum number of concurrent requests.
    transformers : HfSettings, optional
        Load the model here, with Hugging Face transformers, instead of asking the endpoint.
    progress : callable, optional
        Called with the number of items scored and the number of all items.
    """
    if transformers is None and (missing := keyless(settings.endpoint)) is not None:
        missing.check()
    settings = settings.replace(semantics="max")
    with open_items(items, settings.prompt) as loaded:
        settings = settings.resolved(len(loaded), loaded.words)
        chosen = _FirstItems(loaded, first)
        digests = prompt_digests(chosen, _about(settings, transformers))
        progress = progress or (lambda _done, _total: None)
        if transformers is None:
            writer = await _score_by_endpoint(chosen, settings, out, digests, concurrency, progress)
        else:
            model = HfModel(settings.endpoint.model, transformers)
            writer = await _score_by_model(chosen, model, settings, out, digests, progress)
        writer.finish()
    return writer


def complete_scores(
    items: str | Path,
    settings: Settings,
    out: Path,
    transformers: HfSettings,
    *,
    stage: Callable[[str], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Score a set with a model loaded here, unless the file has all its scores; those of other prompts go."""
    with open_items(items, settings.prompt) as loaded:
        digests = prompt_digests(loaded, _about(settings, transformers))
    if coverage(out, digests) == "all":
        return
    if stage is not None:
        stage(f"scoring {settings.endpoint.model} on {items}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as draft:
        if coverage(draft, digests) == "none":
            draft.unlink(missing_ok=True)
        asyncio.run(score_items(items, settings, draft, transformers=transformers, progress=progress))


def _about(settings: Settings, transformers: HfSettings | None) -> list[object]:
    """What a score depends on beside the prompt."""
    address = settings.endpoint
    if transformers is not None:
        return [address.model, transformers.dtype]
    return [address.model, address.api, dict(address.extra_body)]


class _FirstItems:
    """The items to score; they are read from disk each time they are walked through."""

    def __init__(self, items: Items, first: int | None) -> None:
        self._items = items
        self._count = min(len(items), first or len(items))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Item]:
        return islice(iter(self._items), self._count)

    def pilots(self) -> list[Item]:
        return list(islice(self, PILOTS))

    def without(self, done: set[str]) -> Iterator[Item]:
        return (item for item in self if item.id not in done)


async def _score_by_endpoint(
    items: _FirstItems,
    settings: Settings,
    out: Path,
    digests: Mapping[str, str],
    concurrency: int,
    progress: Callable[[int, int], None],
) -> ScoreWriter:
    pilots = items.pilots()
    async with HttpEndpoint(settings.endpoint) as endpoint:
        patient = Patient(endpoint)
        choice = await choose_tokens(endpoint, patient, pilots, settings)
        reader = await Reader.open(patient, pilots[0], choice.targets)
        writer = ScoreWriter.resume(out, choice.targets, digests)
        if writer is None:
            seen = [await reader.read(item) for item in pilots]
            targets = prefer(choice.targets, [score.logprobs for score in seen])
            writer = ScoreWriter.create(out, targets, digests)
        reader = reader.ordered(writer.targets)
        progress(len(writer.done), len(items))
        async for scores in read_all(reader, items.without(writer.done), concurrency=concurrency):
            writer.add(scores)
            progress(len(writer.done), len(items))
    return writer


async def _score_by_model(
    items: _FirstItems,
    model: HfModel,
    settings: Settings,
    out: Path,
    digests: Mapping[str, str],
    progress: Callable[[int, int], None],
) -> ScoreWriter:
    targets = await _every_spelling(model, settings)
    writer = ScoreWriter.resume(out, targets, digests)
    if writer is None:
        seen = [score for batch in model.scores(items.pilots(), targets) for score in batch]
        targets = prefer(targets, [score.logprobs for score in seen])
        writer = ScoreWriter.create(out, targets, digests)
    progress(len(writer.done), len(items))
    for scores in model.scores(items.without(writer.done), writer.targets):
        writer.add(scores)
        progress(len(writer.done), len(items))
    return writer


async def _every_spelling(model: HfModel, settings: Settings) -> Targets:
    prompt = settings.prompt
    if prompt.tokenizer:
        raise ConfigError(
            "{tokenizer} is for endpoints: a model that is loaded here has its own",
            options={"tokenizer": prompt.tokenizer},
        )
    positive = await tokens.candidates(settings.answer_words[0], model.encode, prompt.positive_ids)
    negative = await tokens.candidates(settings.answer_words[1], model.encode, prompt.negative_ids)
    return Targets(positive, negative, "max")
