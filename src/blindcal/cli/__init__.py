"""The command line: parse, call, print. Nothing imports this package."""

from __future__ import annotations

import difflib
import importlib
import io
import os
import signal
import sys
import warnings

import click

from blindcal.cli.console import print_error, print_warning
from blindcal.endpoints.secrets import without_keys
from blindcal.errors import BlindcalError, FileError, InputError
from blindcal.text import encodable, printable

# Fits are many small products, which a second BLAS thread only slows down: on two busy cores the intervals
# of 1,000 items took 2.4 s with one thread and 10 s with two. numpy reads the variable on import.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

INTERRUPTED = 130
CONTINUED = ("audit", "certify", "decide", "watch")
"""Commands whose runs can be continued."""
COMMANDS = {
    "demo": "Audit a small model on this machine: no key, no cost.",
    "simulate": "Run methods against known probabilities.",
    "probe": "Check whether and how an endpoint can be audited.",
    "plan": "Predict the cost and the precision of an audit.",
    "audit": "Audit how well calibrated a model is.",
    "status": "Show the state of a run.",
    "threshold": "Choose a decision threshold and print the request that applies it.",
    "recalibrate": "Write the probability to show instead of each confidence.",
    "certify": "Certify a decision threshold with an exact bound.",
    "decide": "Decide about unlabelled items by a certificate.",
    "watch": "Watch a model in production, with alarms that may be looked at any time.",
    "report": "Write the report of a run and its figures.",
    "check": "Check finished audits and certificates against limits, for CI.",
    "compare": "Compare two runs, paired where they share items.",
    "merge": "Merge runs of one model on different items.",
    "items": "Write a named set of labelled questions to a file.",
    "pull": "Download the default model of 'serve' and 'demo'.",
    "serve": "Serve a GGUF model, or a recording of one, on this machine.",
    "score": "Read the hidden probabilities of a model that is loaded here.",
    "reproduce": "Reproduce the published table and figures for any models.",
}
#: Commands that share a module; every other one is ``command`` in the module of its name.
_MODULES = {**dict.fromkeys(("status", "report", "compare", "merge"), "runs"), "pull": "demo"}


class LazyGroup(click.Group):
    """Imports each command on first use, so that ``--help`` starts fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"blindcal.cli.{_MODULES.get(cmd_name, cmd_name)}")
        command = getattr(module, cmd_name if cmd_name in _MODULES else "command")
        assert isinstance(command, click.Command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for argument in args:
            if encodable(argument) != argument:  # no result could name it
                raise click.UsageError(
                    f"'{printable(argument)}' is not UTF-8 text; if it is a path, rename it", ctx
                )
        return super().parse_args(ctx, args)

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
        except click.UsageError as error:  # click quotes arguments, and one may be a key in the wrong place
            safe = without_keys(message := error.format_message())
            if safe == message:
                raise
            raise click.UsageError(safe, error.ctx) from None
        except KeyboardInterrupt:
            kept = "; everything answered is kept: the same command goes on with it"
            click.echo(f"interrupted{kept if ctx.invoked_subcommand in CONTINUED else ''}", err=True)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:  # such as of `| head`: click exits silently
            raise
        except OSError as error:
            raise FileError.of(error) from error
        except MemoryError:
            raise InputError("there is not enough memory: use a smaller file, or fewer items") from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="blindcal")
def app() -> None:
    """Audit how well calibrated a black-box LLM is: one query per item, no logprobs."""


def main() -> None:
    """Run the command line; warnings and expected errors print one line each, never a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # the terminal may not encode all names
        sys.stdout.reconfigure(errors="backslashreplace")
    for name in ("SIGTERM", "SIGHUP"):  # docker stop, systemd, CI and a closed terminal act as Ctrl-C
        if signal.getsignal(number := getattr(signal, name, signal.SIGINT)) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    warnings.showwarning = lambda message, *_, **__: print_warning(str(message))
    try:
        app(standalone_mode=True)
    except BlindcalError as error:
        print_error(error)
        sys.exit(1)
    except SystemExit as end:
        if end.code == INTERRUPTED:  # do not wait for threads that still compute: answers are on disk
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise
