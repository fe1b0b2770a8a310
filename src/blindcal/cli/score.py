"""``blindcal score``: read the hidden probabilities of a model that exposes them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from blindcal.cli import options
from blindcal.cli.console import QUESTION_SETTINGS, print_stage
from blindcal.items import catalogue
from blindcal.progress_bar import count_bar
from blindcal.scoring.hf import HfSettings
from blindcal.scoring.logprobs import in_order
from blindcal.scoring.score_items import score_items
from blindcal.text import listed, printable


@click.command("score")
@click.argument("items", type=options.PATH)
@click.option(
    "--out", type=options.FILE, required=True, help="Score file to write, a CSV; continued if it exists."
)
@options.settings(
    *QUESTION_SETTINGS,
)
@click.option("--first", type=click.IntRange(1), metavar="N", help="Score only the first N items.")
@options.field("concurrency", default=4)
@click.option(
    "--transformers",
    is_flag=True,
    help="Load --model here (a folder, a Hugging Face name, a GGUF file) instead of asking an endpoint.",
)
@options.record_fields(HfSettings)
def command(
    items: Path, out: Path, first: int | None, concurrency: int, transformers: bool, **chosen: Any
) -> None:
    """Write the hidden probability of the positive answer, or of every answer, for each of ITEMS.

    It is read from an endpoint that exposes logprobs, such as llama.cpp or vLLM, or from the model itself
    with --transformers. 'blindcal simulate' and 'blindcal audit --oracle' read the file, which has these
    columns:

    \b
      id, label
      p          one spelling per answer, the model's favourite (pair semantics)
      p_max      the likeliest spelling of each answer (max semantics)
      p_sum      the sum of all spellings of each answer (sum semantics)
      mass       the share of all probability that is on these spellings
      text|id    the logprob of each spelling, the pair first
      asked      a digest of the prompt, and the model: the file is continued only with the same ones

    If there are more than two answers, it has these:

    \b
      id, label  the number of the right answer, from 0 up
      logit_A    the logprob of each answer, by its word: one token, the model's favourite spelling
      mass       the share of all probability that is on these tokens
      tokens     the ids of the tokens
      asked      as above

    \b
    Example:
      blindcal score boolq --out boolq-scores.csv --model llama --base-url http://127.0.0.1:8080/v1
    """
    hf_settings = options.taken(HfSettings, chosen)
    settings = options.chosen_settings(chosen)
    catalogue.check_there(items)
    if not transformers:
        options.check_key(settings.endpoint)
    with count_bar(unit="item", disable=None) as progress:
        scored = asyncio.run(
            score_items(
                items,
                settings,
                out,
                first=first,
                concurrency=concurrency,
                transformers=hf_settings if transformers else None,
                progress=progress,
                stage=print_stage,
            )
        )
    names = [f"{printable(token.text)!r} ({token.id})" for token in in_order(scored.targets)]
    what = (
        f"the answers are {listed(names)}"
        if scored.targets.answers
        else f"p compares {names[0]} with {names[1]}"
    )
    click.echo(f"{len(scored.done)} items in {out}; {what}", err=True)
