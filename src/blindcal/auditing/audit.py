"""An audit from a file of questions to a result: prepare, ask, conclude.

Every paid reply is kept in the run folder: the same call continues an interrupted run, and costs nothing once
the run has finished.
"""

from __future__ import annotations

import asyncio
import re
import time
from itertools import count
from pathlib import Path
from typing import Any, Unpack

from blindcal.asking.ask_design import ask_design
from blindcal.asking.controls import Controls
from blindcal.asking.job import Job, opened_run
from blindcal.asking.run_context import RunContext, RunOptions, blocking
from blindcal.auditing.conclude import conclude
from blindcal.auditing.given import audit_given
from blindcal.auditing.prepare import ReadyAudit, prepare
from blindcal.auditing.prepared import Session
from blindcal.errors import NotIdentifiedError
from blindcal.items.catalogue import open_items
from blindcal.items.score_files import stem
from blindcal.methods import METHODS, control_spacing
from blindcal.records import Targets
from blindcal.results.result import AuditResult
from blindcal.settings import PromptSettings, Settings
from blindcal.store.run_store import RUN_FILE, Store
from blindcal.text import file_name, printable

# what makes another prompt
_PROMPT = ("template", "system", "instructions", "confidence_wording", "self_check")


async def audit_async(
    items: str | Path,
    settings: Settings,
    *,
    out: str | Path | None = None,
    oracle: str | Path | None = None,
    force: bool = False,
    targets: Targets | None = None,
    **options: Unpack[RunOptions],
) -> AuditResult:
    """Audit a model on the items of a file.

    Parameters
    ----------
    items : path
        A file of labelled questions or the name of a set, such as ``boolq``.
    settings : Settings
        Which endpoint is asked what, and how.
    out : path, optional
        The folder for the run, its result and its report; ``runs/ITEMS-MODEL`` by default, and with another
        prompt ``runs/ITEMS-MODEL-2``. A run begun there is continued.
    oracle : path, optional
        A score file (``id``, ``label``, ``p``) or a logit file with the true probabilities, to compare with.
    force : bool
        Continue even if the probe or the control queries find the endpoint unfit.
    targets : Targets, optional
        The tokens to bias, which an endpoint of your own needs.
    **options : optional
        Limits, prices, API key, endpoint and callbacks, as in `RunOptions`.

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
    folder = Path(out) if out is not None else run_folder(items, settings)
    run = RunContext.of(**options)
    if settings.given:
        return await asyncio.to_thread(audit_given, Path(items), settings, folder, run)
    settings = settings.replace(**run.address)
    async with opened_run(folder, settings.endpoint, run, Store) as (store, governor):
        run.tell("reading items")
        loaded = await asyncio.to_thread(open_items, items, settings.prompt)
        begun, known = time.monotonic(), store.usage("design").queries
        session = Session(loaded, settings, store, run)
        truth = None if oracle is None else Path(oracle)
        ready = await prepare(session, governor, oracle=truth, targets=targets, force=force)
        run.tell("asking")
        settings, prepared = ready.settings, ready.prepared
        job = Job(
            items=loaded,
            question=prepared.question(settings),
            store=store,
            max_shift=prepared.max_shift,
            at_once=prepared.at_once,
            answers=len(loaded.answers) or 2,
        )
        controls = Controls(job, every=_control_every(ready), force=force, anchors=prepared.anchors)
        outcome = await ask_design(ready.design, job, governor, planned=ready.planned, controls=controls)
        if outcome.stopped is not None and not len(outcome.answered):
            raise NotIdentifiedError(
                f"{printable(str(outcome.stopped))} before the first answer: the probe alone took "
                f"{store.usage('probe').queries} queries, and {len(loaded)} items are to be asked",
                remedy="nothing is lost: run the same again, with a higher limit if one was reached",
            )
        seconds = store.note("seconds") or 0.0
        if outcome.usage.queries > known:
            seconds += time.monotonic() - begun
            store.set_note("seconds", seconds)
        parts = len(set(loaded.parts or ()))
        run.tell(f"estimating, also each of {parts} parts" if parts else "estimating")
        return await asyncio.to_thread(conclude, ready, outcome, seconds, folder)


audit = blocking(audit_async)


def default_folder(items: str | Path, model: str) -> Path:
    """The default run folder: the same for the same items and model."""
    names = stem(Path(items)), model
    return Path("runs") / "-".join(re.sub(r"[^\w.]+", "-", name).strip("-.") for name in names)


def run_folder(items: str | Path, settings: Settings, name: str | None = None) -> Path:
    """The default folder of an audit; ``name`` is added, or a number where another prompt was audited."""
    base = default_folder(items, settings.endpoint.model)
    if name is not None:
        return base.with_name(f"{base.name}-{file_name(name)}")
    numbered = (base if number == 1 else base.with_name(f"{base.name}-{number}") for number in count(1))
    return next(folder for folder in numbered if not _asks_otherwise(folder / RUN_FILE, settings.prompt))


def _asks_otherwise(run: Path, prompt: PromptSettings) -> bool:
    if not run.exists():
        return False
    with Store.read(run) as store:
        asked: dict[str, Any] = store.note("config") or {}
    return any(asked[name] != getattr(prompt, name) for name in _PROMPT if name in asked)


def _control_every(ready: ReadyAudit) -> int | None:
    """The spacing of control queries, decided once even if the sample grows; ``None`` without a seen bias."""
    design, prepared = ready.settings.design, ready.prepared
    if not METHODS[design.method].controlled or prepared.probe is None or prepared.objection is not None:
        return None
    every = ready.store.note("control_every")
    if every is None:
        every = control_spacing(design.sample or len(ready.items))
        ready.store.set_note("control_every", every)
    return int(every)
