"""``blindcal serve``: a model, or a recording of one, on a port of this machine."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from blindcal.cli import options
from blindcal.endpoints import local_model as local
from blindcal.endpoints.decision_model import BATCH, decision_model
from blindcal.errors import InputError
from blindcal.field_rules import rules_of
from blindcal.items import catalogue
from blindcal.settings import PromptSettings
from blindcal.simulation import replay
from blindcal.simulation.recording import RecordedTexts, Recording
from blindcal.text import printable

EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OF_MODELS = {"model", "port", "context", "threads", "decisions"}  # all other options are for replays


@options.command("serve")
@click.argument("model", required=False, type=options.PATH)
@options.field("port", local.ServerSettings, default=8080)
@options.field("context", local.ServerSettings)
@options.field("threads", local.ServerSettings)
@click.option(
    "--decisions", is_flag=True, help="Serve the default model as a decision API too, at /v1/systemone."
)
@click.option(
    "--scores", type=EXISTING_FILE, help="File of scores (id,label,p), logits or choices (logit_A) to replay."
)
@click.option(
    "--items",
    type=options.PATH,
    help="Questions that --scores answers, with the same ids: a file, or a named set such as boolq.",
)
@options.fields("template", "answers")
@options.set_option("template", "answers", accepted=rules_of(PromptSettings))
@click.option(
    "--texts", type=EXISTING_FILE, help="File of answers (id,text) to requests for a confidence in words."
)
@options.record_fields(replay.Behaviour)
def command(
    model: Path | None,
    decisions: bool,
    scores: Path | None,
    items: Path | None,
    texts: Path | None,
    **chosen: Any,
) -> None:
    """Serve MODEL, a GGUF file, as an OpenAI-compatible API on 127.0.0.1 until Ctrl-C.

    Without MODEL, the default model is served, which 'blindcal pull' downloads.

    With --scores and --items no model runs: a recording answers over HTTP as an opaque API would. The options
    after --decisions are for such a replay.

    \b
    Examples:
      blindcal serve model.gguf --port 8080
      blindcal serve --scores scores.csv --items questions.jsonl --jitter 0.1
    """
    if (scores is None) != (items is None) or (scores is not None and model is not None):
        raise InputError("a replay needs --scores and --items together, and no MODEL")
    if decisions and (scores is not None or model is not None):
        raise InputError("--decisions serves the default model: leave out MODEL and --scores")
    server_settings = options.taken(local.ServerSettings, chosen)
    if scores is None or items is None:
        _refuse_replay_options()
        api = ""
        if decisions:
            model, server_settings = (
                decision_model(local.default_model()),
                replace(server_settings, batch=BATCH),
            )
            api = " --api systemone"
        with local.serve(model, server_settings) as served:
            _wait(served.base_url, served.model, lambda: served.alive, api)
        return
    behaviour = options.taken(replay.Behaviour, chosen)
    settings = options.chosen_settings(chosen, model="replay")
    questions = catalogue.open_items(items, settings.prompt)
    words = settings.resolved(len(questions), questions.words).answer_words
    recording = Recording.load(scores, positive=words[0], negative=words[1])
    spoken = None if texts is None else RecordedTexts.load(texts, words)
    with replay.running(
        replay.Server(recording, questions, behaviour, port=server_settings.port, spoken=spoken)
    ) as server:
        _wait(server.base_url, recording.name, lambda: True)


def _refuse_replay_options() -> None:
    ctx = click.get_current_context()
    for option in ctx.command.params:
        if option.name is None or option.name in _OF_MODELS:
            continue
        if ctx.get_parameter_source(option.name) is click.core.ParameterSource.COMMANDLINE:
            raise InputError(f"{option.opts[0]} is for a replay: give --scores and --items too")


def _wait(base_url: str, name: str, alive: Callable[[], bool], api: str = "") -> None:
    name = printable(name)
    try:
        click.echo(
            f"serving model {name!r} at {base_url} "
            f"(audit it with --model {shlex.quote(name)} --base-url {base_url}{api}; Ctrl-C stops it)"
        )
        while alive():
            time.sleep(1.0)
    except KeyboardInterrupt:
        click.echo("stopped", err=True)
        return
    raise local.ServerError(
        "the model server stopped unexpectedly, probably because it ran out of memory",
        remedy="serve it again",
    )
