"""The command line as a user has it."""

from __future__ import annotations

from click.testing import CliRunner, Result

from blindcal.cli import app


def blindcal(*arguments: object) -> Result:
    """A command as a user types it, without a terminal."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])
