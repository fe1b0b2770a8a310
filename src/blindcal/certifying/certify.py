"""Certify the thresholds of a finished run: exact bounds, from answers at the thresholds themselves.

Part of the run's items choose the candidates; the others certify, and are asked whatever the candidates need.
The queries have a folder of their own in that of the run, so that the run stays as it is. Like an audit, a
certification can be interrupted at any time: the same call goes on with it and asks nothing twice.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from scipy.special import expit

from blindcal.asking.controls import Controls
from blindcal.asking.job import Job
from blindcal.asking.limits import Limits
from blindcal.asking.opened_run import accepted_fields, opened_run
from blindcal.asking.run_context import RunContext, blocking
from blindcal.asking.sender import RunOutcome, ask_design
from blindcal.auditing.steadiness_check import count_controls
from blindcal.certifying.decision_request import decision_request
from blindcal.certifying.design import (
    CertifyDesign,
    CertifyGoal,
    CertifyPlan,
    Reuse,
    SideState,
    check_certifiable,
    plan_certification,
)
from blindcal.endpoints.address import Address
from blindcal.endpoints.base import Endpoint
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.endpoints.refusals import Accepted
from blindcal.errors import InputError, NotCertifiedError, NotIdentifiedError, UnfitError
from blindcal.estimate.certification import (
    CHOOSING,
    CandidateTest,
    KnownRange,
    Side,
    certified_bound,
    items_needed,
)
from blindcal.prices import Prices
from blindcal.records import Item, Progress, level_percent
from blindcal.results.certificate import (
    CERTIFICATE_FILE,
    AskedAs,
    Certificate,
    CertifiedRequest,
    CertifiedSide,
    prompt_digest,
)
from blindcal.results.run import Run, opened
from blindcal.settings import plain
from blindcal.store.run_store import RUN_FILE, ServedModel, Store
from blindcal.text import listed, printable

FOLDER = "certify-"
"""Begins the names of the folders in a run folder that hold the queries of certifications."""
EXPIRES = 90
_IN_VAIN = 0.001  # chance of passing below which nothing is asked
_ALGORITHM = 1  # changes with the choice of items or candidates, so that no certification mixes two


async def certify_async(
    run: Run | str | Path,
    precision: float,
    *,
    negative_precision: float | None = None,
    confidence: float = 0.95,
    expires: int = EXPIRES,
    out: str | Path | None = None,
    limits: Limits | None = None,
    prices: Prices | None = None,
    api_key_env: str = "OPENAI_API_KEY",
    timeout: float = 60.0,
    endpoint: Endpoint | None = None,
    progress: Callable[[Progress], None] | None = None,
    stage: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
) -> Certificate:
    """Certify that positive decisions from some threshold up have a precision of at least ``precision``.

    Parameters
    ----------
    run : Run or path
        A finished audit that used ``logit_bias``. Its endpoint is asked.
    precision : float
        The share of positive decisions that must be right.
    negative_precision : float, optional
        Certify a second threshold, below which decisions are negative and this share of them right. Between
        the two, the rule abstains.
    confidence : float
        The probability, at least, with which a certificate holds; with two thresholds, both bounds.
    expires : int
        Number of days that the certificate is valid.
    out : path, optional
        The file to write; by default ``certificate.json`` in the run folder.
    limits, prices : optional
        How fast to ask and when to stop; dollars per million tokens.
    api_key_env, timeout : optional
        The environment variable that holds the API key, and the seconds to wait for a reply.
    endpoint : Endpoint, optional
        An endpoint to ask instead of the run's. It is closed at the end.
    progress, stage : callable, optional
        Called with the progress, and with a description of each step.
    stop : asyncio.Event, optional
        Set it to stop asking.

    Raises
    ------
    NotCertifiedError
        If no threshold passes; no file is written.
    NotIdentifiedError, InputError
        If this run cannot be certified at all.
    UnfitError
        If the endpoint no longer does what the audit saw.
    """
    goal = CertifyGoal(precision, negative_precision, confidence)
    if expires < 1:
        raise InputError(f"expires: must be a number of days from 1 up, got {expires!r}")
    found, context = opened(run), RunContext.of(limits, prices, progress, stage, stop)
    tell = context.tell
    check_certifiable(found)
    asked = _asked_as(found)
    address = _address(found, api_key_env, timeout)
    folder = found.folder / f"{FOLDER}{_name(found, goal)}"
    async with opened_run(folder, address, context, endpoint, Store, asked.accepted) as (store, governor):
        await asyncio.to_thread(store.begin, _config(found, goal), asked.items, keep_prompts=False)
        if (noted := store.note("plan")) is None:
            tell("choosing the thresholds to test")
            plan = await asyncio.to_thread(plan_certification, found, goal)
            store.set_note("plan", msgspec.to_builtins(plan))
        else:
            plan = msgspec.convert(noted, CertifyPlan)
        _check_chance(plan)
        if plan.why:
            tell(plan.why)
        watching = _Watch(store, found, plan.reuse, asked.served, tell)
        design = CertifyDesign.of(found, plan, watching.reuse)
        question = TokenQuestion(found.result.targets, float(found.settings["offset"]))
        job = Job(items=asked.items, question=question, store=store, max_shift=found.max_shift)
        tell(f"testing {listed([f'{expit(-one.shifts[0]):.4f}' for one in plan.sides])}, and on from there")
        controls = Controls(job, every=plan.control_every)
        outcome = await ask_design(design, job, governor, planned=design.first_queries(), controls=controls)
        watching.check()
        if context.stop.is_set():
            raise _stopped("interrupted", plan, design)
        if outcome.stopped is not None:
            why = printable(outcome.stopped.reason)
            tell(f"{why}: what has passed by now counts, and the same again goes on")
        return _conclude(found, goal, plan, asked, design, watching.reuse(), outcome, store, expires, out)


certify = blocking(certify_async)


class _Watch:
    """Decides while asking which answers may still be reused, by what the replies show of the endpoint."""

    def __init__(
        self, store: Store, run: Run, reuse: Reuse, served: list[ServedModel], tell: Callable[[str], None]
    ) -> None:
        self._store, self._run, self._begun, self._served, self._tell = store, run, reuse, served, tell

    def reuse(self) -> Reuse:
        """Which answers may decide at other thresholds; told when it changes."""
        before: Reuse = self._store.note("reuse") or self._begun
        found, why = before, ""
        if before == "all" and any(one not in self._served for one in self._store.served_names()):
            found = "own"
            names = [name.words for name in self._store.served_names()]
            now = printable(listed(names), 120)
            why = f"the endpoint now calls itself {now}: no answer of the run is reused"
        elif before == "all" and self._contradicted():
            found = "own"
            why = "the endpoint no longer answers as in the run: no answer of the run is reused"
        if before != "none" and self._noisy():
            found = "none"
            why = "repeated queries were answered differently: each item is asked at each threshold itself"
        if found != before:
            self._store.set_note("reuse", found)
            self._tell(why)
        return found

    def _contradicted(self) -> bool:
        """Whether a new answer contradicts one of the run, as it can only if the endpoint has changed."""
        both = self._run.answered.joined(self._store.answered())
        return bool(KnownRange.of(self._run.labels.size, both).contradictory.any())

    def _noisy(self) -> bool:
        counts, _ = count_controls(self._store)
        return bool(counts.disagreed or counts.failed)

    def check(self) -> None:
        """Raise `UnfitError` if another model took over while certifying."""
        _, served = count_controls(self._store)
        models = list(dict.fromkeys(one.model for one in served))
        if len(models) > 1:
            raise UnfitError(
                f"the endpoint answered as {printable(listed(models), 200)} while certifying, and a "
                "certificate can only be about one model",
                remedy=f"name one that does not change; delete {self._store.path.parent} to begin again",
            )


@dataclass(frozen=True, slots=True)
class _StoredRun:
    """What the run file tells beside the answers: the items with their prompts, and how they were asked."""

    items: list[Item]
    ready: dict[str, Any]
    accepted: Accepted
    served: list[ServedModel]


def _asked_as(run: Run) -> _StoredRun:
    with Store.read(run.folder / RUN_FILE) as store:
        items, ready = store.questions(), store.note("ready") or {}
        accepted, served = accepted_fields(store) or Accepted(), store.served_names()
    if items is None:
        raise NotIdentifiedError(
            f"{run.folder}: the run keeps only hashes of its prompts, and certifying has to ask them again",
            remedy="audit with {keep_prompts} left out",
            options={"keep_prompts": True},
        )
    return _StoredRun(items, ready, accepted, served)


def _address(run: Run, api_key_env: str, timeout: float) -> Address:
    names = ("base_url", "model", "api", "api_version", "extra_body")
    return Address(**{name: run.settings[name] for name in names}, api_key_env=api_key_env, timeout=timeout)


def _config(run: Run, goal: CertifyGoal) -> dict[str, Any]:
    """What defines a certification; another one has another folder."""
    answered = run.answered
    digest = hashlib.blake2b(digest_size=8)
    for column in (answered.items, answered.shifts, answered.temperatures, answered.answers):
        digest.update(np.ascontiguousarray(column).tobytes())
    return {
        **msgspec.to_builtins(goal),
        "algorithm": _ALGORITHM,
        "run": run.settings.get("items_digest"),
        "answers": digest.hexdigest(),
    }


def _name(run: Run, goal: CertifyGoal) -> str:
    """The end of the name of a certification's folder."""
    digest = hashlib.blake2b(msgspec.json.encode(_config(run, goal)), digest_size=4).hexdigest()
    return "-".join([*(f"{value:g}" for value in goal.wanted.values()), digest])


def _conclude(
    run: Run,
    goal: CertifyGoal,
    plan: CertifyPlan,
    asked: _StoredRun,
    design: CertifyDesign,
    reuse: Reuse,
    outcome: RunOutcome,
    store: Store,
    expires: int,
    out: str | Path | None,
) -> Certificate:
    """Write the certificate, or raise an error that says what was seen instead."""
    states = design.states(outcome.answered, reuse)
    sides = {state.side.name: _certified(state) for state in states}
    if any(one is None for one in sides.values()):
        raise _not_certified(
            states, plan, design, None if outcome.stopped is None else outcome.stopped.reason
        )
    accept, reject = sides["accept"], sides.get("reject")
    assert accept is not None
    made = _date(store, accept, reject)
    _, served = count_controls(store)
    request = decision_request(run, accept.shift, asked.accepted)
    second = None if reject is None else decision_request(run, reject.shift, asked.accepted)
    certificate = Certificate(
        blindcal=version("blindcal"),
        accept=accept,
        reject=reject,
        level=goal.confidence,
        candidates=sum(len(state.tests) for state in states),
        items=len(plan.items),
        queries=store.usage().served,
        reused=design.reused(outcome.answered, reuse),
        model=run.result.model,
        served=tuple(ServedModel(one.model, one.fingerprint) for one in served) or tuple(asked.served),
        prompt_digest=prompt_digest(run.settings, run.result.targets),
        made=made,
        expires=made + timedelta(days=expires),
        request=CertifiedRequest(
            url=request.url,
            accept=request.body,
            reject=None if second is None else second.body,
            positive=request.tokens[0],
            negative=request.tokens[1],
        ),
        settings=AskedAs(run.settings, asked.ready, plain(msgspec.to_builtins(asked.accepted))),
    )
    certificate.save(Path(out) if out is not None else run.folder / CERTIFICATE_FILE)
    return certificate


def _certified(state: SideState) -> CertifiedSide | None:
    """The last candidate of a side that passed; a stopped run may not have decided every item at it."""
    test = state.certified or state.passed
    if test is None:
        return None
    return CertifiedSide(
        threshold=test.threshold,
        shift=test.shift,
        bound=certified_bound(state.side, state.tests),
        wanted=state.side.wanted,
        right=test.right,
        decided=test.decided,
        items=test.items,
        share=test.decided / test.items,
        level=state.side.level,
    )


def _date(store: Store, accept: CertifiedSide, reject: CertifiedSide | None) -> date:
    """The day on which these thresholds were certified: the same again does not renew a certificate."""
    shifts = [accept.shift, None if reject is None else reject.shift]
    noted = store.note("made")
    if noted is None or noted["shifts"] != shifts:
        noted = {"shifts": shifts, "date": datetime.now(UTC).date().isoformat()}
        store.set_note("made", noted)
    return date.fromisoformat(noted["date"])


def _not_certified(
    states: tuple[SideState, ...], plan: CertifyPlan, design: CertifyDesign, stopped: str | None
) -> NotCertifiedError:
    failed = [state for state in states if state.tests and not state.tests[0].passed]
    if not failed:
        return _stopped(stopped or "the queries ended", plan, design)
    state = failed[0]
    test, name = state.tests[0], "precision" if state.side.name == "accept" else "negative_precision"
    needed = items_needed(test)
    if needed is None:
        return NotCertifiedError(
            _seen(test, state.side, alone=len(states) == 1),
            remedy=f"the share itself is not above what is wanted: lower {{{name}}}",
            options={name: ...},
        )
    total = _rounded(int(np.ceil(needed / (1 - CHOOSING))))
    return NotCertifiedError(
        _seen(test, state.side, alone=len(states) == 1),
        remedy=f"an audit of about {total} items would probably do; or lower {{{name}}} or {{confidence}}",
        options={name: ..., "confidence": ...},
    )


def _stopped(why: str, plan: CertifyPlan, design: CertifyDesign) -> NotCertifiedError:
    most = plan.with_controls(design.most_queries(plan.reuse))
    return NotCertifiedError(
        f"{printable(why)} before a threshold was tested to the end: up to {most:,} queries may be needed",
        remedy="run the same again, with a higher limit if one was reached; what was asked is kept",
        stopped=True,
    )


def _check_chance(plan: CertifyPlan) -> None:
    """Raise `NotCertifiedError` before anything is asked if it would be in vain."""
    if plan.chance < _IN_VAIN:
        raise NotCertifiedError(
            f"by the {plan.choosing:,} items that choose, no threshold has a chance to pass on the other "
            f"{len(plan.items):,}; nothing was asked",
            remedy="audit more items, or lower {precision} or {confidence}",
            options={"precision": ..., "confidence": ...},
        )


def _seen(test: CandidateTest, side: Side, *, alone: bool) -> str:
    """What the test of a first candidate saw, in a sentence."""
    decisions = "positive" if side.name == "accept" else "negative"
    share = f" ({test.right / test.decided:.1%})" if test.decided else ""
    unknown = f", counting {test.unknown:,} without a valid answer as wrong" if test.unknown else ""
    beyond = "from" if side.name == "accept" else "below"
    which = "no threshold" if alone else f"no threshold for {decisions} decisions"
    return (
        f"{which} passes: of {test.items:,} items, {test.decided:,} are decided {decisions} {beyond} "
        f"{test.threshold:.4f}, the likeliest one to pass, and {test.right:,} of them rightly{share}"
        f"{unknown}. That makes a precision of {test.bound:.4f} at least, {level_percent(test.level)} sure, "
        f"and {test.wanted:g} is wanted"
    )


def _rounded(number: int) -> str:
    """A number with two digits that matter."""
    step = 10 ** max(0, len(str(number)) - 2)
    return f"{-(-number // step) * step:,}"
