"""An audit from a file of questions to a result: items, tokens, probe, run, estimate.

Everything paid for is kept in the run's folder, so that the same call again goes on where the last one
ended, and costs nothing once it has finished. :func:`audit` is for scripts and notebooks,
:func:`audit_async` for programs that have an event loop of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from blindcal import design
from blindcal.auditing import budget
from blindcal.auditing.batch_sender import Polling, run_batched
from blindcal.auditing.canaries import Canaries
from blindcal.auditing.conclude import conclude
from blindcal.auditing.job import Job, Limits, Progress, RunOutcome
from blindcal.auditing.live_sender import run
from blindcal.auditing.prepare import prepare
from blindcal.auditing.stages import taken
from blindcal.confidence_prompt import INSTRUCTION
from blindcal.endpoints.base import Endpoint
from blindcal.endpoints.batches import Batches
from blindcal.endpoints.http import HttpEndpoint, keyless
from blindcal.endpoints.query_format import ConfidenceQuestion, TokenQuestion
from blindcal.errors import ConfigError, NotIdentifiedError
from blindcal.items.catalogue import open_items
from blindcal.items.files import Items
from blindcal.items.score_files import stem
from blindcal.prices import Prices
from blindcal.records import IntArray, Targets
from blindcal.results.oracle import read_truth
from blindcal.results.result import ANSWERS_FILE, RESULT_FILE, AuditResult, write_answers
from blindcal.settings import Settings
from blindcal.store.run_store import RUN_FILE, Store
from blindcal.text import printable

T = TypeVar("T")


def audit(
    items: str | Path,
    settings: Settings,
    *,
    out: str | Path | None = None,
    limits: Limits | None = None,
    prices: Prices | None = None,
    oracle: str | Path | None = None,
    force: bool = False,
    endpoint: Endpoint | None = None,
    targets: Targets | None = None,
    polling: Polling | None = None,
    progress: Callable[[Progress], None] | None = None,
    stage: Callable[[str], None] | None = None,
) -> AuditResult:
    """Audit a model, and wait for it; works in a notebook too, where an event loop is already running.

    The parameters are those of :func:`audit_async`. Ctrl-C stops asking, keeps every answer under way
    and then raises `KeyboardInterrupt`; a second one does not wait.
    """
    return _wait_for(
        lambda stop: audit_async(
            items,
            settings,
            out=out,
            limits=limits,
            prices=prices,
            oracle=oracle,
            force=force,
            endpoint=endpoint,
            targets=targets,
            polling=polling,
            progress=progress,
            stage=stage,
            stop=stop,
        ),
        stage,
    )


async def audit_async(
    items: str | Path,
    settings: Settings,
    *,
    out: str | Path | None = None,
    limits: Limits | None = None,
    prices: Prices | None = None,
    oracle: str | Path | None = None,
    force: bool = False,
    endpoint: Endpoint | None = None,
    targets: Targets | None = None,
    polling: Polling | None = None,
    progress: Callable[[Progress], None] | None = None,
    stage: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
) -> AuditResult:
    """Audit a model on the items of a file.

    Parameters
    ----------
    items : path
        A file of labelled questions or the name of a set; see :func:`blindcal.items.catalogue.open_items`.
    settings : Settings
        Who is asked what, and how.
    out : path, optional
        The run's folder; by default ``runs/ITEMS-MODEL``. A run begun there is taken up again.
    limits, prices : optional
        How hard to ask and when to stop; dollars per million tokens.
    oracle : path, optional
        A score file (``id``, ``label``, ``p``) or a logit file with the true probabilities, to compare with.
    force : bool
        Go on although the probe found the endpoint unfit.
    endpoint, targets : optional
        Something else to ask than the address in the settings, with the tokens to bias. It is closed
        at the end.
    polling : Polling, optional
        How to wait for batches, if the settings ask for them or the run was begun with them.
    progress, stage : callable, optional
        Told how far the run is, and what is being done.
    stop : asyncio.Event, optional
        Set it to stop asking; the result then says so.

    Raises
    ------
    UnfitError
        If the probe's verdict is bad and nothing is forced.
    ConfigError
        If the folder holds a run with other settings.
        Or if a limit is too low even for the probe.
    NotIdentifiedError
        If it is stopped before the first answer.
    EndpointError
        If asking is useless; every answer until then is kept.
    PendingError
        If batches are under way and ``polling`` does not wait for them.
    """
    tell = stage or (lambda _: None)
    limits = limits or Limits()
    folder = Path(out) if out is not None else default_folder(items, settings.model)
    missing = None if endpoint is not None or (folder / RUN_FILE).exists() else keyless(settings.address)
    if missing is not None:
        missing.check()
    tell("reading items")
    loaded = await asyncio.to_thread(
        open_items, items, settings.reading, data_dir=settings.data_dir, scratch=_there(folder)
    )
    with loaded, Store.open(folder / RUN_FILE) as store:
        if polling is not None and polling.cancel and all(batch.ended for batch in store.batches()):
            raise ConfigError("no batch of this run is with the provider: there is nothing to cancel")
        budgeted = _budgeted(settings, limits, store)
        settings = settings.resolved(len(loaded), loaded.words, budgeted=budgeted)
        if (store.note("config") or {}).get("batch"):  # begun through batches, it goes on through them
            settings = replace(settings, batch=True)
        await asyncio.to_thread(
            store.begin, settings.fixed(loaded), loaded, keep_prompts=settings.keep_prompts
        )
        await asyncio.to_thread(store.set_parts, settings.by_field, loaded.parts)
        if limits.max_cost is not None and prices is not None and store.note("ready") is None:
            budget.check(limits.max_cost, prices, loaded.characters / len(loaded))
        by_money = budget.shares(settings, limits, store)
        limits = budget.kept(limits, store) if budgeted or by_money else limits
        stages = None if by_money else await asyncio.to_thread(taken, loaded, settings, store)
        truth = (
            None
            if oracle is None
            else await asyncio.to_thread(read_truth, Path(oracle), loaded, settings.measured, settings.words)
        )
        begun, known = time.monotonic(), store.usage().queries
        async with _opened(endpoint, settings) as asked:
            batches = await _batches(asked, store) if settings.batch else None
            ready = await _unless(
                stop, prepare(asked, loaded, settings, store, targets, limits, prices, force, tell, progress)
            )
            tell("asking")
            question = _question(settings, ready.targets)
            job = Job(
                loaded,
                question,
                store,
                limits,
                prices,
                ready.spent,
                ready.size,
                ready.max_shift,
                progress,
                stop or asyncio.Event(),
            )

            async def ask(asking: design.Design, planned: int) -> RunOutcome:
                if batches is None:
                    return await run(asking, job, asked, planned=planned)
                biased = design.METHODS[settings.method].biased
                sure = biased and ready.probe is not None and not ready.probe["forced"]
                return await run_batched(
                    asking,
                    job,
                    batches,
                    planned=planned,
                    canaries=Canaries.among(len(loaded), ready.max_shift) if sure else None,
                    polling=polling,
                    stage=tell,
                )

            n = len(loaded) if stages is None else sum(stage.size for stage in stages)
            length = loaded.characters / len(loaded)
            purse = budget.Budget(
                store, prices, settings.batch, limits.max_cost, ready.spent, n, length, ready.size
            )
            if by_money:
                part = purse.items(_planned(n, settings, None) / n)
                stages = await asyncio.to_thread(taken, loaded, replace(settings, subset=part), store)
            if budgeted:
                outcome, settings, asking = await _within(purse, loaded, settings, stages, ask)
            else:
                asking = _design(loaded, settings, stages)
                outcome = await ask(asking, _planned(len(loaded), settings, stages))
            if (budgeted or by_money) and (outcome.stopped or "").startswith("max_cost"):
                outcome = replace(outcome, stopped=None)  # the money is spent, as it was meant to be
        if outcome.stopped is not None and not len(outcome.answered.answers):
            raise NotIdentifiedError(
                f"{printable(outcome.stopped)} before the first answer: the probe alone took "
                f"{ready.spent.queries} queries and {len(loaded)} items are to be asked; nothing is lost, "
                "the same again goes on, with a higher limit if one was reached"
            )
        if outcome.usage.queries > known:
            store.set_note("seconds", (store.note("seconds") or 0.0) + time.monotonic() - begun)
        parts = len(set(loaded.parts or ()))
        tell(f"estimating, also each of {parts} parts" if parts else "estimating")
        result = await asyncio.to_thread(
            conclude, loaded, settings, stages, ready, job, asking, outcome, truth
        )
        tell("writing")
        await asyncio.to_thread(write_answers, store, folder / ANSWERS_FILE)
        result.save(folder / RESULT_FILE)
    return result


def default_folder(items: str | Path, model: str) -> Path:
    """Where a run goes if nothing is said: the same for the same items and model."""
    names = stem(Path(items)), model
    return Path("runs") / "-".join(re.sub(r"[^\w.]+", "-", one).strip("-.") for one in names)


def _there(folder: Path) -> Path:
    """The folder, or as much of it as there is before it is made."""
    return next(one for one in (folder, *folder.parents) if one.exists())


def _budgeted(settings: Settings, limits: Limits, store: Store) -> bool:
    """Whether the money decides how much is asked: it was so when the run began, or is now if it begins."""
    begun = store.note("config")
    if settings.method != "latent" or settings.queries is not None:
        return False
    return limits.max_cost is not None if begun is None else begun.get("queries") is None


async def _within(
    purse: budget.Budget,
    items: Items,
    settings: Settings,
    stages: list[IntArray] | None,
    ask: Callable[[design.Design, int], Awaitable[RunOutcome]],
) -> tuple[RunOutcome, Settings, design.Design]:
    """Ask as much as a budget pays for: a pilot, what it shows can be paid for, and what is left over."""
    pilot = purse.decided().pilot
    outcome = await budget.pilot(purse, _design(items, replace(settings, queries=1.0), stages, pilot), ask)
    while True:
        settings = replace(settings, queries=purse.decided().mean(purse.n))
        asking = _design(items, settings, stages, pilot)
        if outcome is None or outcome.stopped is None:
            outcome = await ask(asking, _planned(len(items), settings, stages))
        if outcome.stopped is not None or not purse.top_up():
            return outcome, settings, asking


def _design(
    items: Items, settings: Settings, stages: list[IntArray] | None, pilot: int | None = None
) -> design.Design:
    assert settings.queries is not None
    assert settings.bins is not None
    return design.make(
        settings.method,
        items.labels,
        queries=settings.queries,
        bins=settings.bins,
        seed=settings.seed,
        adaptive=not settings.batch,
        stages=stages,
        pilot=None if settings.batch else pilot,
    )


def _planned(n: int, settings: Settings, stages: list[IntArray] | None) -> int:
    assert settings.queries is not None
    assert settings.bins is not None
    sizes = [n] if stages is None else [stage.size for stage in stages]
    return sum(design.count(settings.method, size, settings.queries, settings.bins) for size in sizes)


async def _batches(endpoint: Endpoint, store: Store) -> Batches:
    """A way to the endpoint's batches; if it has none, that is said before anything is spent."""
    if not isinstance(endpoint, HttpEndpoint):
        raise ConfigError("batches need an endpoint over HTTP: this one can only be asked live")
    batches = Batches(endpoint)
    if not store.batches():
        await batches.check()
    return batches


def _question(settings: Settings, targets: Targets) -> TokenQuestion | ConfidenceQuestion:
    if settings.reads == "stated":
        return ConfidenceQuestion(settings.words, settings.instruction or INSTRUCTION)
    biased = design.METHODS[settings.method].biased
    return TokenQuestion(targets, settings.offset, biased, settings.seed if settings.send_seed else None)


@contextlib.asynccontextmanager
async def _opened(endpoint: Endpoint | None, settings: Settings) -> AsyncIterator[Endpoint]:
    asked = HttpEndpoint(settings.address) if endpoint is None else endpoint
    try:
        yield asked
    finally:
        await asked.close()


async def _unless(stop: asyncio.Event | None, preparing: Coroutine[Any, Any, T]) -> T:
    """What is being prepared, unless it is stopped first; replies that came until then are kept."""
    task = asyncio.ensure_future(preparing)
    stopped = asyncio.ensure_future((stop or asyncio.Event()).wait())
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not task.done():
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        raise NotIdentifiedError("stopped while probing; nothing is lost, the same again goes on")
    return await task


def _wait_for(
    begin: Callable[[asyncio.Event], Coroutine[Any, Any, T]], stage: Callable[[str], None] | None
) -> T:
    """Run in a thread with a loop of its own; Ctrl-C asks it to stop, and is raised when it has."""
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    finished: Future[T] = Future()

    async def main() -> T:
        stop = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), stop))
        return await begin(stop)

    def work() -> None:
        try:
            finished.set_result(asyncio.run(main()))
        except BaseException as error:
            finished.set_exception(error)

    threading.Thread(target=work, name="blindcal-audit", daemon=True).start()
    try:
        return finished.result()
    except KeyboardInterrupt:
        loop, stop = started.result()
        with contextlib.suppress(RuntimeError):  # it may just have ended
            loop.call_soon_threadsafe(stop.set)
        if stage is not None and not finished.done():
            stage("stopping, and keeping what is under way; Ctrl-C again does not wait")
        finished.exception()  # wait; a second Ctrl-C is raised here
        raise
