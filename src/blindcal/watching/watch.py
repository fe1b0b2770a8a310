"""Watch a model in production: one query per item of a stream, and an alarm when something has changed.

At each look, a watch reads the items and labels that have arrived, asks a few anchors and then one query per
new item, and evaluates the alarms. If probabilities are hidden, the id of an item determines the threshold of
its query, so duplicates and the order of records do not matter. The run folder holds all state: after a
crash, the same call resumes and gives the same numbers to the last digit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Unpack

from blindcal.asking.job import opened_run
from blindcal.asking.run_context import RunContext, RunOptions, blocking
from blindcal.auditing.audit import default_folder
from blindcal.auditing.prepared import AskedSettings
from blindcal.errors import InputError, UnfitError
from blindcal.estimate.shown import exact_readings
from blindcal.items.stream import STANDARD_INPUT, ArrivalReader, LineStream, open_stream
from blindcal.methods import METHODS
from blindcal.results.run import Run, opened
from blindcal.results.watch_result import WatchResult
from blindcal.store.watch_store import WatchStore
from blindcal.text import printable
from blindcal.watching.intake import Intake
from blindcal.watching.looks import Watch, WatchFeed
from blindcal.watching.monitor import Monitor

FOLDER = Path("watches")
EVERY = 100
"""New items per look."""
MOST_EVERY = 1_000_000
INTERVAL = 300.0
"""Seconds after which a look takes the records that have arrived, however few."""


async def watch_async(
    stream: str | Path,
    reference: Run | str | Path,
    *,
    labels: str | Path | None = None,
    out: str | Path | None = None,
    rate: float = 1.0,
    level: float = 0.05,
    max_ece: float | None = None,
    follow: bool = False,
    every: int = EVERY,
    interval: float = INTERVAL,
    force: bool = False,
    on_look: Callable[[WatchResult], None] | None = None,
    on_alarm: Callable[[WatchResult], Awaitable[bool]] | None = None,
    **options: Unpack[RunOptions],
) -> WatchResult:
    """Watch a stream of questions, each asked once, with alarms that are valid at any time.

    Parameters
    ----------
    stream : path
        A growing JSON Lines file, a folder of files, a CSV or Parquet file, or ``-`` for standard input, with
        records like those of the reference audit; labels are optional.
    reference : Run or path
        Finished audit to compare with. It also determines how the endpoint is asked.
    labels : path, optional
        File or folder of further records with the id and label of items. A label may come before its item.
    out : path, optional
        Folder of the watch; ``watches/STREAM-MODEL`` by default. A watch begun there is continued.
    rate : float
        Share of the items to ask, chosen by their ids.
    level : float
        Highest probability, for each alarm, that it is ever raised falsely.
    max_ece : float, optional
        Raise the calibration alarm if the expected calibration error exceeds this limit, instead of comparing
        with the reference; 0 tests for perfect calibration.
    follow : bool
        At the end of the stream, wait for more until stopped.
    every : int
        Number of new items per look.
    interval : float
        With ``follow``, seconds after which a look takes the records that have arrived, however few.
    force : bool
        Go on even if the reference is doubtful, or the endpoint no longer follows the bias.
    on_look : callable, optional
        Called with the result of each look.
    on_alarm : coroutine function, optional
        Called with the result of a look if an alarm is raised that was not reported before. If it returns
        False, the next look calls it again.
    **options : optional
        Limits, prices, API key, endpoint and callbacks, as in `RunOptions`.

    Raises
    ------
    InputError
        If the reference cannot be watched against, the folder holds another watch, a limit on the cost has
        no prices, or no record of the stream can be read.
    UnfitError
        If the reference is doubtful and ``force`` is not set.
    EndpointError
        If the endpoint cannot be asked any further; every answer so far is kept.
    """
    _check_numbers(rate, every, interval)
    context = RunContext.of(**options)
    context.tell("reading the reference")
    run = await asyncio.to_thread(open_reference, reference, force=force)
    asked = AskedSettings.of_run(run, **context.address)
    address, prompt = asked.settings.endpoint, asked.settings.prompt
    source = open_stream(stream)
    labelling = None if labels is None else open_stream(labels)
    folder = Path(out) if out is not None else watch_folder(stream, address.model)
    monitor = await asyncio.to_thread(Monitor, run, level=level, max_ece=max_ece)
    opening = opened_run(folder, address, context, WatchStore, asked.accepted)
    async with opening as (store, governor):
        fixed = {"rate": rate, "level": level, "max_ece": max_ece}
        named = {name: run.settings.get(name) for name in ("model", "base_url")}
        store.begin({**named, "watch": "stream", "reference": run.digest, **fixed}, ())
        intake = Intake(
            store=store,
            reader=ArrivalReader(prompt, asked.settings.answer_words),
            stream=source,
            labels=labelling,
            every=max(1, round(every / rate)),
            waits=follow or isinstance(source, LineStream),
            interval=interval,
            context=context,
        )
        return await Watch(
            store=store,
            reference=run,
            asked=asked,
            governor=governor,
            context=context,
            feed=WatchFeed(monitor, store, asked.settings.design.seed, several=run.choices is not None),
            rate=rate,
            folder=folder,
            intake=intake,
            follow=follow,
            force=force,
            on_look=on_look,
            on_alarm=on_alarm,
        ).run()


watch = blocking(watch_async)


def watch_folder(stream: str | Path, model: str) -> Path:
    """Default folder, the same for the same stream and model."""
    name = "stdin" if str(stream) == STANDARD_INPUT else stream
    return FOLDER / default_folder(name, model).name


def open_reference(reference: Run | str | Path, *, force: bool = False) -> Run:
    """Read a finished run to watch against; raises an error if it is unsuitable."""
    run = opened(reference)
    result, method = run.result, METHODS[run.result.method]
    several = run.choices is not None
    exact = method.biased and not method.sampled and result.semantics in ("pair", "max") and not several
    if not exact and not (run.shown and exact_readings(run.problem) is not None):
        raise InputError(
            f"{run.folder}: a watch reads exact probabilities, or asks at exact thresholds between two "
            f"answers by logit_bias; this audit (method {result.method}, {result.semantics}) did neither",
            remedy="audit with {method} where the endpoint "
            + ("shows them" if several else "takes logit_bias"),
            options={"method": "logprobs" if several else "latent"},
        )
    doubt = result.objection or next(iter(result.warnings), None)
    if doubt is not None and not force:
        raise UnfitError(
            f"{run.folder}: the audit is no sound reference: {printable(doubt, 400)}",
            remedy="audit again in another folder; or {force} goes on",
            options={"force": True},
        )
    return run


def _check_numbers(rate: float, every: int, interval: float) -> None:
    if not 0 < rate <= 1:
        raise InputError(f"rate: must be above 0 and at most 1, got {rate!r}")
    if not 1 <= every <= MOST_EVERY:
        raise InputError(f"every: must be a number of records from 1 to {MOST_EVERY:,}, got {every!r}")
    if not interval > 0:
        raise InputError(f"interval: must be a number of seconds above 0, got {interval!r}")
