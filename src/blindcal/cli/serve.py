"""``blindcal serve``: a model, or a recording of one, on a port of this machine."""

from __future__ import annotations

import contextlib
import shlex
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import click

from blindcal.cli import options
from blindcal.cli.param_types import FiniteRange
from blindcal.endpoints import local_server as local
from blindcal.errors import ConfigError
from blindcal.items import catalogue, files
from blindcal.simulation import replay
from blindcal.simulation.recording import RecordedTexts, Recording
from blindcal.text import printable

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("serve")
@click.argument("model", required=False, type=click.Path(path_type=Path))
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0: any free one."
)
@click.option(
    "--context", type=click.IntRange(64), default=4096, show_default=True, help="Longest prompt, in tokens."
)
@click.option(
    "--threads", type=click.IntRange(0), default=0, help="Threads for the model; 0, the default: all cores."
)
@click.option(
    "--scores", type=FILE, help="Replay this file of scores (id, label, p) or logits instead of a model."
)
@click.option(
    "--items",
    type=click.Path(path_type=Path),
    help="The questions that --scores answers, with the same ids: a file, or a set such as boolq.",
)
@click.option(
    "--data-dir", metavar="FOLDER", help="Replay: where the files of --items are, if it names a set."
)
@click.option(
    "--template",
    callback=options.with_line_breaks,
    help="Make the prompts of --items from their fields, as audit does: 'Question: {question}'.",
)
@click.option(
    "--positive", help="Replay: the positive answer, for a file of p.  [default: the items' own, else Yes]"
)
@click.option(
    "--negative", help="Replay: the negative answer, for a file of p.  [default: the items' own, else No]"
)
@click.option(
    "--texts", type=FILE, help="Replay: what the model says when asked for its confidence (id, text)."
)
@click.option("--logprobs", is_flag=True, help="Replay: show logprobs to clients that ask, as few APIs do.")
@click.option(
    "--jitter", type=FiniteRange(0), default=0.0, help="Replay: noise on each logit, its deviation."
)
@click.option("--clamp", type=FiniteRange(0), help="Replay: cut logit_bias to this size.")
@click.option("--ignore-bias", is_flag=True, help="Replay: accept logit_bias and do nothing with it.")
@click.option("--latency", type=FiniteRange(0), default=0.0, help="Replay: seconds before each answer.")
@click.option("--fault", type=click.Choice(get_args(replay.Fault)), help="Replay: how some requests fail.")
@click.option(
    "--fault-share", type=FiniteRange(0, 1), default=0.1, show_default=True, help="Replay: how many do."
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Replay: of the randomness above."
)
@click.pass_context
def command(
    ctx: click.Context,
    model: Path | None,
    port: int,
    context: int,
    threads: int,
    scores: Path | None,
    items: Path | None,
    data_dir: str | None,
    template: str | None,
    positive: str | None,
    negative: str | None,
    texts: Path | None,
    logprobs: bool,
    jitter: float,
    clamp: float | None,
    ignore_bias: bool,
    latency: float,
    fault: replay.Fault | None,
    fault_share: float,
    seed: int,
) -> None:
    """Serve MODEL, a GGUF file, as an OpenAI-compatible API on 127.0.0.1 until Ctrl-C.

    Without MODEL the default one is served ('blindcal pull' fetches it). With --scores and --items no
    model runs: a recording answers over real HTTP as an opaque API would, with the faults asked for.
    """
    if (scores is None) != (items is None) or (scores is not None and model is not None):
        raise ConfigError("a replay needs --scores and --items together, and no MODEL")
    if scores is None or items is None:
        _refuse_replay_options(ctx)
        with local.serve(model, local.ServerSettings(port, context, threads)) as served:
            _announce(served.base_url, served.model, lambda: served.alive)
        return
    behaviour = replay.Behaviour(
        bias="ignored" if ignore_bias else "honoured",
        clamp=clamp,
        jitter=jitter,
        logprobs=logprobs,
        latency=latency,
        fault=fault,
        fault_share=fault_share,
        seed=seed,
    )
    with catalogue.open_items(items, files.RecordFormat(template=template), data_dir=data_dir) as questions:
        yes, no = options.answer_words(questions, positive, negative)
        recording = Recording.load(scores, positive=yes, negative=no)
        spoken = None if texts is None else RecordedTexts.load(texts, (yes, no))
        with replay.running(recording, questions, behaviour, port=port, spoken=spoken) as server:
            _announce(server.base_url, recording.name, lambda: True)


def _refuse_replay_options(ctx: click.Context) -> None:
    for option in ctx.command.params:
        given = option.name and ctx.get_parameter_source(option.name)
        text = getattr(option, "help", None) or ""
        if text.startswith("Replay:") and given is click.core.ParameterSource.COMMANDLINE:
            raise ConfigError(f"{option.opts[0]} is for a replay: give --scores and --items too")


def _announce(base_url: str, name: str, alive: Callable[[], bool]) -> None:
    """Say where, then wait for Ctrl-C or a polite kill, as long as the server lives."""
    with _stopped() as stopped:
        name = printable(name)
        click.echo(
            f"serving model {name!r} at {base_url} "
            f"(audit it with --model {shlex.quote(name)} --base-url {base_url}; Ctrl-C stops it)"
        )
        while not stopped.wait(1.0):
            if not alive():
                raise local.ServerError("the model server died, probably for want of memory: serve it again")
    click.echo("stopped", err=True)


@contextlib.contextmanager
def _stopped() -> Iterator[threading.Event]:
    event = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, lambda *_: event.set())
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
