"""The command line: parse, call, print. Nothing imports this package.

Each command lives in a module of its own name and is imported only when it is run or asked for
help, so that ``blindcal --help`` starts as fast as Python does.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import threading
import warnings

import click

from blindcal.errors import BlindcalError

# The fits are many small products, which a second BLAS thread only slows: on two busy cores the intervals of
# 1,000 items took 2.4 s with one and 10 s with two. numpy reads it when a command first imports it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

INTERRUPTED = 130
AUDITING = "blindcal-audit"  # the thread of an audit under way
COMMANDS = {
    "demo": "Audit a small real model on this machine: no key, no cost.",
    "simulate": "Run a method against known probabilities, as an opaque endpoint would answer.",
    "probe": "Find out whether and how an endpoint can be audited.",
    "plan": "Say what an audit would find out and cost, before paying.",
    "audit": "Audit how well calibrated a model is.",
    "status": "Show where a run is.",
    "threshold": "Choose the threshold to deploy, and print the request that decides by it.",
    "report": "Make the page of a run, its figures and its tables.",
    "check": "Hold finished audits to limits: an exit code for CI, JUnit and GitHub summaries.",
    "compare": "Show how two runs differ, paired where they asked about the same items.",
    "merge": "Put runs on different items of one model together.",
    "items": "Write a set of labelled questions: boolq, mmlu, one of the Hub's, or made by code.",
    "pull": "Fetch the default model for 'serve'.",
    "serve": "Serve a GGUF model, or a recording of one, on this machine.",
    "score": "Read the hidden probabilities where they can be seen, to check an audit against.",
    "reproduce": "Make the published table and figures for any models, with our methods in them.",
}


class LazyGroup(click.Group):
    """A group whose commands are imported on first use: ``blindcal.cli.NAME`` holds ``command``."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"blindcal.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", error.ctx) from None

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="blindcal")
def app() -> None:
    """Audit how well calibrated a black-box LLM is: one query an item, no logprobs."""


def main() -> None:
    """Run the command line; warnings and our own errors print one line each, never a traceback."""
    warnings.showwarning = lambda message, *_, **__: click.echo(f"warning: {message}", err=True)
    try:
        app(standalone_mode=True)
    except BlindcalError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    except SystemExit as end:
        if end.code == INTERRUPTED and any(one.name == AUDITING for one in threading.enumerate()):
            # Interrupted twice: what is computed in threads would be waited for. Answers are on disk.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise
