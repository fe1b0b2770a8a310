"""The command line as a user has it."""

from __future__ import annotations

from click.testing import CliRunner, Result

from blindcal.cli import app
from blindcal.cli.console import error_text
from blindcal.errors import BlindcalError


def blindcal(*arguments: object) -> Result:
    """A command as a user types it, without a terminal."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="blindcal")


def printed_error(result: Result) -> str:
    """The error of a command as its user reads it, with flags."""
    assert isinstance(result.exception, BlindcalError), result.output
    return error_text(result.exception)


def refusal(result: Result) -> str:
    """The one line with which a command ends that cannot do what it was asked."""
    assert result.exit_code != 0, result.output
    if isinstance(result.exception, SystemExit):  # click's own: usage, then the error
        return result.stderr.strip().splitlines()[-1]
    text = printed_error(result)
    assert "\n" not in text
    return text
