"""``blindcal demo``: a true audit of a true model, without an API key."""

from __future__ import annotations

from pathlib import Path

import click

from blindcal.auditing.audit import audit
from blindcal.cli.audit import show
from blindcal.cli.pull import pull_with_progress
from blindcal.endpoints import local_server as local
from blindcal.endpoints import model_file as models
from blindcal.items import catalogue
from blindcal.items.record_files import as_line
from blindcal.progress_bar import ProgressBar
from blindcal.report.page import PAGE_FILE, write
from blindcal.settings import Settings


@click.command("demo")
@click.option(
    "--n", type=click.IntRange(20), default=600, show_default=True, help="How many built-in questions."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of questions and design.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/demo"),
    show_default=True,
    help="The run's folder. The same command again goes on with it.",
)
@click.option(
    "--port", type=int, default=8177, show_default=True, help="Where the model answers on loopback."
)
def command(n: int, seed: int, out: Path, port: int) -> None:
    """Audit a small real model on this machine: no key, no cost, a few minutes.

    Fetches SmolLM2-135M-Instruct once (98 MB), serves it with llama.cpp on loopback, writes built-in
    questions with sure labels, and audits the model over HTTP, one query a question, exactly as
    'blindcal audit' does with any other endpoint. Needs the extra 'local'.
    """
    local.check_ready(port)  # before anything is fetched or written
    with local.serve(
        models.installed_model() or pull_with_progress(), local.ServerSettings(port=port)
    ) as served:
        out.mkdir(parents=True, exist_ok=True)
        items = out / "questions.jsonl"
        items.write_bytes(b"".join(as_line(record) for record in catalogue.builtin(n, seed)))
        click.echo(f"{served.model} answers at {served.base_url}", err=True)
        settings = Settings(model=served.model, base_url=served.base_url, seed=seed)
        with ProgressBar(disable=None) as bar:
            result = audit(
                items,
                settings,
                out=out,
                progress=bar,
                stage=bar.giving_way(lambda what: click.echo(f"{what} ...", err=True)),
            )
    write(result, out / PAGE_FILE)
    show(result, out)
    click.echo(
        "\nYour own model:\n"
        "  export OPENAI_API_KEY=...\n"
        "  blindcal audit questions.csv --model MODEL --base-url https://HOST/v1 \\\n"
        '    --template "{question} Answer Yes or No."'
    )
