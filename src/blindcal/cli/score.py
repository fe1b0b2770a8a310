"""``blindcal score``: the probabilities an audit has to guess, where they can be seen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from blindcal.cli import options
from blindcal.endpoints import tokens
from blindcal.endpoints.base import Patient
from blindcal.endpoints.http import HttpEndpoint
from blindcal.errors import ConfigError
from blindcal.items import catalogue, files
from blindcal.records import Item, Targets
from blindcal.scoring.hf import HfModel, HfSettings
from blindcal.scoring.logprobs import Reader, ScoreFile, in_order, marks, prefer, read_all
from blindcal.settings import Settings
from blindcal.text import printable


@click.command("score")
@click.argument("items", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The score file, a CSV; continued if it exists.",
)
@options.endpoint_options
@options.word_options
@options.reading_options
@options.field_options
@click.option("--first", type=click.IntRange(1), help="Score only the first so many items.")
@click.option("--concurrency", type=click.IntRange(1), default=4, show_default=True, help="Queries at once.")
@click.option(
    "--transformers",
    is_flag=True,
    help="Load --model here (a folder, a Hugging Face name, a GGUF file) instead of asking an endpoint.",
)
@click.option(
    "--device", help="With --transformers: cpu, cuda, cuda:1, mps. By default a GPU if there is one."
)
@click.option(
    "--dtype", default="float32", show_default=True, help="With --transformers: or bfloat16, float16."
)
@click.option(
    "--batch-tokens", type=click.IntRange(1), help="With --transformers: a batch's size, in tokens."
)
def command(
    items: Path,
    out: Path,
    first: int | None,
    concurrency: int,
    transformers: bool,
    device: str | None,
    dtype: str,
    batch_tokens: int | None,
    **chosen: Any,
) -> None:
    """Write the hidden probability of the positive answer for each of ITEMS.

    It is read from an endpoint that shows logprobs, such as llama.cpp or vLLM, or from the model itself
    with --transformers. The file is what 'simulate' and 'audit --oracle' read:

    \b
      id, label
      p          one spelling a side, the model's favourite (pair semantics)
      p_max      the likeliest spelling of each side (max semantics)
      p_sum      all spellings of each side added up (sum semantics)
      mass       the share of all probability that is on these spellings
      text|id    the logprob of each spelling, the pair first
      asked      a digest of model and prompt: only what was begun with them is continued
    """
    settings = Settings(semantics="max", **chosen)
    catalogue.check_there(items)
    endpoint = None if transformers else options.open_endpoint(settings.address)
    with options.load_items(items, settings) as questions:
        wanted = _Wanted(questions, first)
        settings = settings.resolved(len(questions), questions.words)
        asked = marks(wanted, about(settings, dtype if transformers else None))
        if endpoint is None:
            loaded = HfModel(settings.model, HfSettings(device, dtype, batch_tokens))
            file = _from_model(wanted, loaded, out, settings, asked)
        else:
            file = asyncio.run(_from_endpoint(endpoint, wanted, out, settings, concurrency, asked))
        file.finish(list(asked))
    pair = " against ".join(f"{printable(token.text)!r} ({token.id})" for token in in_order(file.targets)[:2])
    click.echo(f"{len(file.done)} items in {out}; p is {pair}", err=True)


def about(settings: Settings, dtype: str | None) -> list[object]:
    """What a score depends on beside the prompt; ``dtype`` is that of a model loaded here."""
    if dtype is not None:
        return [settings.model, dtype]
    return [settings.model, settings.api, dict(settings.extra_body)]


class _Wanted:
    """The items to score; they are read from disk each time they are walked through."""

    def __init__(self, items: files.Items, first: int | None) -> None:
        self._items = items
        self._count = min(len(items), first or len(items))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Item]:
        return islice(iter(self._items), self._count)

    def pilots(self) -> list[Item]:
        return list(islice(self, options.PILOTS))

    def but(self, done: set[str]) -> Iterator[Item]:
        return (item for item in self if item.id not in done)


async def _from_endpoint(
    endpoint: HttpEndpoint,
    wanted: _Wanted,
    out: Path,
    settings: Settings,
    concurrency: int,
    asked: Mapping[str, str],
) -> ScoreFile:
    pilots = wanted.pilots()
    async with endpoint:
        patient = Patient(endpoint)
        choice = await options.choose_tokens(endpoint, patient, pilots, settings)
        reader = await Reader.open(patient, pilots[0], choice.targets)
        file = ScoreFile.resume(out, choice.targets, asked)
        if file is None:
            seen = [await reader.read(item) for item in pilots]
            file = ScoreFile.create(out, prefer(choice.targets, [score.logprobs for score in seen]), asked)
        reader = reader.ordered(file.targets)
        with _progress(wanted, file) as bar:
            async for scores in read_all(reader, wanted.but(file.done), concurrency=concurrency):
                file.add(scores)
                bar.update(len(scores))
    return file


def _from_model(
    wanted: _Wanted, model: HfModel, out: Path, settings: Settings, asked: Mapping[str, str]
) -> ScoreFile:
    targets = asyncio.run(_targets(model, settings))
    file = ScoreFile.resume(out, targets, asked)
    if file is None:
        seen = [score for batch in model.scores(wanted.pilots(), targets) for score in batch]
        file = ScoreFile.create(out, prefer(targets, [score.logprobs for score in seen]), asked)
    with _progress(wanted, file) as bar:
        for scores in model.scores(wanted.but(file.done), file.targets):
            file.add(scores)
            bar.update(len(scores))
    return file


async def _targets(model: HfModel, settings: Settings) -> Targets:
    if settings.tokenizer:
        raise ConfigError("--tokenizer is for endpoints: with --transformers the model brings its own")
    sides = [
        tokens.by_hand(word, ids) if ids else await tokens.candidates(word, model.encode)
        for word, ids in (
            (settings.words[0], settings.positive_ids),
            (settings.words[1], settings.negative_ids),
        )
    ]
    return Targets(sides[0], sides[1], "max")


def _progress(wanted: _Wanted, file: ScoreFile) -> tqdm[Any]:
    return tqdm(total=len(wanted), initial=len(file.done), unit="item", leave=False, disable=None)
