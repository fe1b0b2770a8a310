"""Watch a model in production: one query per item of a stream, and an alarm if something has changed.

Items arrive over time, and labels when they are known. A watch goes from look to look: it takes what has
arrived, asks a few anchors whose answers are known and then one query per new item, and looks at the alarms.
The threshold of an item's query follows from its id alone, so neither duplicates nor the order of the records
matter. Everything is in the run folder: the same call goes on with a watch, and after a crash the numbers are
the same to the last digit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from blindcal.asking.limits import Limits
from blindcal.asking.opened_run import opened_run
from blindcal.asking.run_context import RunContext, blocking
from blindcal.auditing.asked_settings import AskedSettings
from blindcal.auditing.audit import default_folder
from blindcal.endpoints.base import Endpoint
from blindcal.errors import InputError, UnfitError
from blindcal.items.stream import STANDARD_INPUT, ArrivalReader, LineStream, open_stream
from blindcal.methods import METHODS
from blindcal.prices import Prices
from blindcal.records import Progress
from blindcal.results.monitor import Monitor
from blindcal.results.run import Run, opened
from blindcal.results.watch_result import WatchResult
from blindcal.store.watch_store import WatchStore
from blindcal.text import printable
from blindcal.watching.budget import Clock, DayBudget, check_budget, utc_now
from blindcal.watching.feed import WatchFeed
from blindcal.watching.intake import Intake
from blindcal.watching.looks import Watch

FOLDER = Path("watches")
EVERY = 100
"""New items to ask per look."""
INTERVAL = 300.0
"""Seconds after which records that have come are looked at, even if they are few."""


async def watch_async(
    stream: str | Path,
    reference: Run | str | Path,
    *,
    labels: str | Path | None = None,
    out: str | Path | None = None,
    rate: float = 1.0,
    level: float = 0.05,
    max_ece: float | None = None,
    by_field: str | None = None,
    limits: Limits | None = None,
    prices: Prices | None = None,
    max_cost_per_day: float | None = None,
    follow: bool = False,
    every: int = EVERY,
    interval: float = INTERVAL,
    force: bool = False,
    api_key_env: str = "OPENAI_API_KEY",
    timeout: float = 60.0,
    endpoint: Endpoint | None = None,
    progress: Callable[[Progress], None] | None = None,
    stage: Callable[[str], None] | None = None,
    on_look: Callable[[WatchResult], None] | None = None,
    on_alarm: Callable[[WatchResult], Awaitable[bool]] | None = None,
    clock: Clock = utc_now,
    stop: asyncio.Event | None = None,
) -> WatchResult:
    """Watch a stream of questions, each asked once, with alarms that may be looked at any time.

    Parameters
    ----------
    stream : path
        A file of JSON lines that grows, a folder of files, a CSV or Parquet file, or ``-`` for standard
        input. Records are those of the reference audit, with or without a label.
    reference : Run or path
        The finished audit that the stream is held against. It also says how the endpoint is asked.
    labels : path, optional
        A file or folder of further records with the id and the label of items. A label may come before its
        item.
    out : path, optional
        The folder of the watch; by default ``watches/STREAM-MODEL``. A watch that was begun there goes on.
    rate : float
        The share of the items that is asked, chosen by their ids.
    level : float
        The highest chance of each alarm ever to be raised for nothing.
    max_ece : float, optional
        Raise the calibration alarm if the expected calibration error is above this limit, instead of
        comparing with the reference; 0 tests for perfect calibration.
    by_field : str, optional
        The field whose values are the slices, each with an alarm of its own.
    limits, prices : optional
        How fast to ask and when to stop; dollars per million tokens.
    max_cost_per_day : float, optional
        The most to spend in a day (UTC), in dollars. Once it is spent, items wait for the next day.
    follow : bool
        Go on when everything was read, and wait for more until stopped.
    every : int
        Number of new items to ask per look.
    interval : float
        If it follows the stream, seconds after which fewer records are looked at too.
    force : bool
        Go on even if the reference is doubtful, or the endpoint no longer follows the bias.
    api_key_env, timeout : optional
        The environment variable with the API key, and the seconds to wait for one reply.
    endpoint : optional
        An endpoint to ask instead of that of the reference. It is closed at the end.
    progress, stage, on_look : callable, optional
        Called with the progress of the queries, with a description of each step, and with what each look
        shows.
    on_alarm : coroutine function, optional
        Called with what a look shows if an alarm or a slice is raised that no call has been about. If it
        returns False, the next look calls it again.
    clock : callable, optional
        The time now, in UTC.
    stop : asyncio.Event, optional
        Set it to stop asking; what is known by then is looked at once more.

    Raises
    ------
    InputError
        If the reference cannot be watched against, the folder holds another watch, a budget has no prices, or
        no record of the stream can be read.
    UnfitError
        If the reference is doubtful, and ``force`` is not set.
    EndpointError
        If asking on is useless; every answer so far is kept.
    """
    _check_numbers(rate, every, interval)
    check_budget(max_cost_per_day, prices)
    context = RunContext.of(limits, prices, progress, stage, stop)
    context.tell("reading the reference")
    run = await asyncio.to_thread(open_reference, reference, force=force)
    asked = AskedSettings.of_run(run, api_key_env=api_key_env, timeout=timeout)
    address, prompt = asked.settings.endpoint, asked.settings.prompt
    source = open_stream(stream)
    labelling = None if labels is None else open_stream(labels)
    folder = Path(out) if out is not None else watch_folder(stream, address.model)
    monitor = await asyncio.to_thread(Monitor, run, level=level, max_ece=max_ece)
    opening = opened_run(folder, address, context, endpoint, WatchStore, asked.accepted)
    async with opening as (store, governor):
        fixed = {"rate": rate, "level": level, "max_ece": max_ece, "by_field": by_field}
        named = {name: run.settings.get(name) for name in ("model", "base_url")}
        store.begin({**named, "watch": "stream", "reference": run.digest, **fixed}, ())
        intake = Intake(
            store,
            ArrivalReader(prompt, asked.settings.answer_words, by_field),
            source,
            labelling,
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
            feed=WatchFeed(monitor, store, asked.settings.design.seed, sliced=by_field is not None),
            budget=DayBudget(store, prices, max_cost_per_day, clock),
            rate=rate,
            folder=folder,
            stream=source.name,
            follow=follow,
            force=force,
            interval=interval,
            on_look=on_look,
            on_alarm=on_alarm,
        ).run(intake)


watch = blocking(watch_async)


def watch_folder(stream: str | Path, model: str) -> Path:
    """The default folder: the same for the same stream and model."""
    name = "stdin" if str(stream) == STANDARD_INPUT else stream
    return FOLDER / default_folder(name, model).name


def open_reference(reference: Run | str | Path, *, force: bool = False) -> Run:
    """Read a finished run that a watch can be held against; an error says why it cannot."""
    run = opened(reference)
    result, method = run.result, METHODS[run.result.method]
    if result.answers or run.choices is not None:
        raise InputError(
            f"{run.folder}: its items have more than two answers, and only questions with two can be watched"
        )
    if not method.biased or method.sampled or result.semantics not in ("pair", "max"):
        raise InputError(
            f"{run.folder}: a watch asks at exact thresholds, by logit_bias, and this audit (method "
            f"{result.method}, {result.semantics}) did not",
            remedy="audit with {method} where the endpoint takes logit_bias",
            options={"method": "latent"},
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
    if every < 1:
        raise InputError(f"every: must be a number of records from 1 up, got {every!r}")
    if not interval > 0:
        raise InputError(f"interval: must be a number of seconds above 0, got {interval!r}")
