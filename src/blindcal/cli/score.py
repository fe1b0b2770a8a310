"""``blindcal score``: read the hidden probabilities of a model that is loaded here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from blindcal.cli import options
from blindcal.field_rules import rules_of
from blindcal.items import catalogue
from blindcal.items.record_format import RecordFormat
from blindcal.progress_bar import count_bar
from blindcal.scoring.hf import HfSettings, in_order
from blindcal.scoring.score_items import score_items
from blindcal.text import listed, printable

_SETTINGS = ("template", "system", "answers", "label_field", "label_map")
_OTHERS = (*rules_of(RecordFormat), "positive", "negative", "positive_ids", "negative_ids")


@options.command("score")
@click.argument("items", type=options.PATH)
@click.option(
    "--out", type=options.FILE, required=True, help="Score file to write, a CSV; continued if it exists."
)
@options.field("model", help="Model to load: a folder, a Hugging Face name or a GGUF file.")
@options.field(
    "api",
    type=click.Choice(["chat", "completions"]),
    default="chat",
    help="Prompts in the chat template of the model, or plain ones for base models.",
)
@options.fields(*_SETTINGS)
@options.set_option(*_SETTINGS, accepted=_OTHERS)
@click.option("--first", type=click.IntRange(1), metavar="N", help="Score only the first N items.")
@options.record_fields(HfSettings)
def command(items: Path, out: Path, first: int | None, **chosen: Any) -> None:
    """Write the hidden probability of the positive answer, or of every answer, for each of ITEMS.

    The model is loaded here, with Hugging Face transformers. 'blindcal simulate' and 'blindcal audit
    --oracle' read the file, which has these columns:

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
      blindcal score boolq --out boolq-scores.csv --model HuggingFaceTB/SmolLM2-135M-Instruct
    """
    how, settings = options.taken(HfSettings, chosen), options.chosen_settings(chosen)
    catalogue.check_there(items)
    with count_bar(unit="item", disable=None) as progress:
        scored = score_items(items, settings, out, how, first=first, progress=progress)
    names = [f"{printable(token.text)!r} ({token.id})" for token in in_order(scored.targets)]
    what = (
        f"the answers are {listed(names)}"
        if scored.targets.answers
        else f"p compares {names[0]} with {names[1]}"
    )
    click.echo(f"{len(scored.done)} items in {out}; {what}", err=True)
