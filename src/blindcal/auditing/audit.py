"""An audit from a file of questions to a result: prepare, ask, conclude.

Everything that was paid for is kept in the run folder: the same call continues an interrupted run, and costs
nothing once the run has finished. ``audit`` is for scripts and notebooks, ``audit_async`` for
programs with their own event loop.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from blindcal.asking.context import answers_kept, ignore, opened_endpoint, unless_stopped, wait_for
from blindcal.asking.controls import Controls
from blindcal.asking.job import RunOutcome
from blindcal.asking.limits import Limits, check_cost_known
from blindcal.asking.sender import ask_live
from blindcal.atomic_write import writing
from blindcal.auditing.audit_design import AuditDesign, audit_design
from blindcal.auditing.conclude import conclude, write_files
from blindcal.auditing.prepare import Prepared, job_of, prepare
from blindcal.auditing.session import Session, begin, check_affords_probe, control_every, settle
from blindcal.endpoints.base import Endpoint
from blindcal.errors import NotIdentifiedError
from blindcal.items.catalogue import open_items
from blindcal.items.score_files import stem
from blindcal.methods import METHODS
from blindcal.prices import Prices
from blindcal.records import Progress, Targets
from blindcal.results.oracle import Truth, read_truth
from blindcal.results.result import AuditResult
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
    progress: Callable[[Progress], None] | None = None,
    stage: Callable[[str], None] | None = None,
) -> AuditResult:
    """Audit a model and wait for the result; also works in notebooks, which already run an event loop.

    The parameters are those of ``audit_async``. Ctrl-C stops asking, keeps the answers under way
    and then raises `KeyboardInterrupt`; a second Ctrl-C does not wait.
    """
    return wait_for(
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
    progress: Callable[[Progress], None] | None = None,
    stage: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
) -> AuditResult:
    """Audit a model on the items of a file.

    Parameters
    ----------
    items : path
        A file of labelled questions or the name of a set, such as ``boolq``.
    settings : Settings
        Which endpoint is asked what, and how.
    out : path, optional
        The run folder; by default ``runs/ITEMS-MODEL``. A run that was begun there is continued. The report,
        the result and the answers are written into it.
    limits, prices : optional
        How fast to ask and when to stop; dollars per million tokens.
    oracle : path, optional
        A score file (``id``, ``label``, ``p``) or a logit file with the true probabilities, to compare with.
    force : bool
        Continue even if the probe or the control queries of the run find the endpoint unfit.
    endpoint, targets : optional
        An endpoint to ask instead of the address in the settings, and the tokens to bias. It is closed
        at the end.
    progress, stage : callable, optional
        Called with the progress of the run, and with a description of each step.
    stop : asyncio.Event, optional
        Set it to stop asking; the result then says that the run was stopped.

    Raises
    ------
    UnfitError
        If the probe or the run finds the endpoint unfit and ``force`` is not set.
    InputError
        If the folder holds a run with other settings, a limit is too low even for the probe, or the cost is
        limited and no prices are given.
    NotIdentifiedError
        If the run is stopped before the first answer.
    EndpointError
        If asking on is useless; every answer so far is kept.
    """
    folder = Path(out) if out is not None else default_folder(items, settings.endpoint.model)
    tell = stage or ignore
    check_cost_known(limits, prices)
    with writing(folder):
        begun = (folder / RUN_FILE).exists()
    if endpoint is None:
        settings.endpoint.check_key(begun=begun)
    limits = (limits or Limits()).within_open_files()
    tell("reading items")
    loaded = await asyncio.to_thread(open_items, items, settings.prompt)
    with Store.open(folder / RUN_FILE) as store:
        stop = stop or asyncio.Event()
        session = Session(loaded, settings, store, limits, prices, progress, tell, stop)
        session = await asyncio.to_thread(begin, session)
        check_affords_probe(session)
        wanted = None if session.settings.auto else await asyncio.to_thread(audit_design, session)
        truth = await asyncio.to_thread(_read_oracle, session, oracle)
        started, known = time.monotonic(), store.usage().queries
        async with opened_endpoint(endpoint, settings.endpoint) as model:
            prepared = await unless_stopped(stop, prepare(session, model, targets=targets, force=force))
            if wanted is None:
                session = settle(session, prepared.method)
                wanted = await asyncio.to_thread(audit_design, session)
                truth = await asyncio.to_thread(_read_oracle, session, oracle)
            tell("asking")
            outcome = await _ask(session, prepared, wanted, model, force)
        if outcome.stopped is not None and not len(outcome.answered):
            raise _stopped_early(session, prepared, outcome.stopped)
        seconds = store.note("seconds") or 0.0
        if outcome.usage.queries > known:
            seconds += time.monotonic() - started
            store.set_note("seconds", seconds)
        parts = len(set(loaded.parts or ()))
        tell(f"estimating, also each of {parts} parts" if parts else "estimating")
        result = await asyncio.to_thread(conclude, session, prepared, wanted, outcome, seconds, truth)
        tell("writing the report")
        with answers_kept():
            await asyncio.to_thread(write_files, session, result, folder)
    return result


def _read_oracle(session: Session, oracle: str | Path | None) -> Truth | None:
    """The truth to compare with, under the semantics of the method."""
    settings = session.settings
    if oracle is None:
        return None
    about = settings.endpoint.model, settings.semantics, settings.answer_words
    drawn = not METHODS[settings.assumed_method].tempered
    return read_truth(Path(oracle), session.items, *about, drawn=drawn)


def default_folder(items: str | Path, model: str) -> Path:
    """The default run folder: the same for the same items and model."""
    names = stem(Path(items)), model
    return Path("runs") / "-".join(re.sub(r"[^\w.]+", "-", one).strip("-.") for one in names)


async def _ask(
    session: Session, prepared: Prepared, wanted: AuditDesign, endpoint: Endpoint, force: bool
) -> RunOutcome:
    """Get the queries of a design answered, with controls among them."""
    job = job_of(session, prepared)
    seen = prepared.probe is not None and prepared.objection is None  # the probe saw the bias act
    controls = Controls(job, every=control_every(session) if seen else None, force=force)
    return await ask_live(wanted.design, job, endpoint, planned=wanted.planned, controls=controls)


def _stopped_early(session: Session, prepared: Prepared, why: str) -> NotIdentifiedError:
    return NotIdentifiedError(
        f"{printable(why)} before the first answer: the probe alone took {prepared.spent.queries} queries, "
        f"and {len(session.items)} items are to be asked; nothing is lost: run the same again, with a higher "
        "limit if one was reached"
    )
