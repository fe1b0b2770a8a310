"""Certify the thresholds of a finished run with exact bounds.

Some of the run's items choose candidate thresholds. The others certify: they are asked at the candidates
themselves. These queries go to a folder inside the run folder, and an interrupted certification resumes
without asking anything twice. Where the run read probabilities that the endpoint shows, these decide each
item at every threshold, and nothing is asked.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, Unpack

import msgspec
import numpy as np

from blindcal.asking.ask_design import RunOutcome, ask_design
from blindcal.asking.controls import Controls
from blindcal.asking.governor import Governor
from blindcal.asking.job import Job, opened_run
from blindcal.asking.run_context import INTERRUPTED, RunContext, RunOptions, Stopped, blocking
from blindcal.auditing.conclude import observed_controls
from blindcal.auditing.prepared import AskedSettings
from blindcal.certifying.decision_request import decision_request
from blindcal.certifying.design import (
    CertifyDesign,
    CertifyGoal,
    CertifyPlan,
    Reuse,
    SideState,
    plan_certification,
)
from blindcal.errors import InputError, NotCertifiedError, NotIdentifiedError, UnfitError
from blindcal.estimate.certification import (
    CHOOSING,
    KnownRange,
    certified_bound,
    items_needed,
    level_of_attempt,
)
from blindcal.estimate.noise import ControlCounts
from blindcal.records import AnswerTable, Usage
from blindcal.results.certificate import (
    CERTIFICATE_FILE,
    PREFIX,
    Certificate,
    CertifiedRequest,
    CertifiedSide,
    prompt_digest,
)
from blindcal.results.run import Run, opened
from blindcal.store.run_file import ServedModel
from blindcal.store.run_store import RUN_FILE, Store
from blindcal.text import listed, printable

FOLDER = "certify"
"""Prefix of the folders in a run folder that hold the queries of certifications."""
EXPIRES = 90
_IN_VAIN = 0.001  # nothing is asked if the chance of passing is lower
_ALGORITHM = 2  # raised when the choice of items or candidates changes, so that no certification mixes two


async def certify_async(
    run: Run | str | Path,
    precision: float,
    *,
    negative_precision: float | None = None,
    confidence: float = 0.95,
    expires: int = EXPIRES,
    out: str | Path | None = None,
    **options: Unpack[RunOptions],
) -> Certificate:
    """Certify a threshold from which positive decisions have a precision of at least ``precision``.

    Parameters
    ----------
    run : Run or path
        A finished audit that used ``logit_bias``, whose endpoint is asked, or that read shown probabilities.
    precision : float
        Required share of right decisions among the positive ones.
    negative_precision : float, optional
        Required share of right decisions among the negative ones, those below a second threshold. The rule
        abstains between the two thresholds.
    confidence : float
        Minimum probability that the certificate holds; with two thresholds, that both bounds do.
    expires : int
        Number of days for which the certificate is valid.
    out : path, optional
        File to write; ``certificate.json`` in the run folder by default.
    **options : optional
        Limits, prices, API key, endpoint and callbacks, as in `RunOptions`.

    Raises
    ------
    NotCertifiedError
        If no threshold passes; no file is written.
    NotIdentifiedError, InputError
        If this run cannot be certified at all.
    UnfitError
        If the endpoint no longer behaves as in the audit.
    """
    goal = CertifyGoal(precision, negative_precision, confidence)
    if expires < 1:
        raise InputError(f"expires: must be a number of days from 1 up, got {expires!r}")
    finished, context = opened(run), RunContext.of(**options)
    goal.check(finished)
    asked = AskedSettings.of_run(finished, **context.address)
    folder, address = finished.folder / _name(finished, goal), asked.settings.endpoint
    path = Path(out or finished.folder / CERTIFICATE_FILE)

    def begin(store: Store) -> _Certification:
        plan = _begin(store, finished, goal, asked, context.tell)
        return _Certification(store=store, run=finished, goal=goal, asked=asked, plan=plan, tell=context.tell)

    try:
        if finished.shown:
            with Store.open(folder / RUN_FILE) as store:
                return begin(store).conclude(RunOutcome(AnswerTable.empty(), Usage()), expires, path)
        async with opened_run(folder, address, context, Store, asked.accepted) as (store, governor):
            certification = await asyncio.to_thread(begin, store)
            return certification.conclude(await certification.ask(governor), expires, path)
    except NotCertifiedError as error:
        if error.stopped or (higher := _certified_for_more(finished, goal)) is None:
            raise
        context.tell(f"the rule that was certified for {higher.precision:g} serves: {error.message}")
    return await certify_async(
        finished,
        higher.precision,
        negative_precision=higher.negative_precision,
        confidence=higher.confidence,
        expires=expires,
        out=out,
        **options,
    )


certify = blocking(certify_async)


def _config(run: Run, goal: CertifyGoal) -> dict[str, Any]:
    return {**msgspec.to_builtins(goal), "algorithm": _ALGORITHM, "run": run.digest}


def _name(run: Run, goal: CertifyGoal) -> str:
    digest = hashlib.blake2b(msgspec.json.encode(_config(run, goal)), digest_size=4).hexdigest()
    return "-".join([FOLDER, *(f"{value:g}" for value in goal.wanted.values()), digest])


def planned_certification(run: Run, goal: CertifyGoal) -> CertifyPlan:
    """What a certification would ask, as the next attempt unless it has begun."""
    with Store.read(run.folder / RUN_FILE) as audit:
        return plan_certification(run, goal, _attempt(audit, _name(run, goal))[0])


def _attempt(audit: Store, name: str) -> tuple[int, list[str]]:
    """The number of an attempt to certify a run, and the names of all."""
    attempts = audit.note("attempts") or []
    attempts += [name] if name not in attempts else []
    return attempts.index(name) + 1, attempts


def _certified_for_more(run: Run, goal: CertifyGoal) -> CertifyGoal | None:
    """A goal at least as high for which a rule of the same run is certified."""
    with Store.read(run.folder / RUN_FILE) as audit:
        attempts = audit.note("attempts") or []
    for path in (run.folder / name / RUN_FILE for name in attempts):
        if not path.exists():
            continue
        with Store.read(path) as store:
            config, made = store.note("config") or {}, store.note("made")
        other = CertifyGoal(*(config[field.name] for field in fields(CertifyGoal)))
        if made is not None and config == _config(run, other) and other.serves(goal):
            return other
    return None


def _begin(
    store: Store, run: Run, goal: CertifyGoal, asked: AskedSettings, tell: Callable[[str], None]
) -> CertifyPlan:
    if asked.items is None and not run.shown:
        raise NotIdentifiedError(
            f"{run.folder}: the run keeps only hashes of its prompts, and certifying has to ask them again",
            remedy="audit with {keep_prompts} left out",
            options={"keep_prompts": True},
        )
    store.begin(_config(run, goal), asked.items or (), keep_prompts=False)
    if (noted := store.note("plan")) is None:
        tell("choosing the thresholds to test")
        with Store.open(run.folder / RUN_FILE) as audit:
            attempt, attempts = _attempt(audit, _name(run, goal))
            plan = plan_certification(run, goal, attempt)
            if plan.chance < _IN_VAIN:
                raise NotCertifiedError(
                    f"by the {plan.choosing:,} items that choose, no threshold has a chance to pass on the "
                    f"other {len(plan.items):,}; nothing was asked",
                    remedy="audit more items, or lower {precision} or {confidence}",
                    options={"precision": ..., "confidence": ...},
                )
            audit.set_note("attempts", attempts)
        store.set_note("plan", msgspec.to_builtins(plan))
    else:
        plan = msgspec.convert(noted, CertifyPlan)
    if plan.why:
        tell(plan.why)
    tell(f"testing {listed([f'{side.first:.4f}' for side in plan.sides])}, and on from there")
    return plan


@dataclass(frozen=True, kw_only=True)
class _Certification:
    """A certification under way."""

    store: Store
    run: Run
    goal: CertifyGoal
    asked: AskedSettings
    plan: CertifyPlan
    tell: Callable[[str], None]

    async def ask(self, governor: Governor) -> RunOutcome:
        assert self.asked.items is not None
        job = Job(
            items=self.asked.items,
            question=self.asked.question,
            store=self.store,
            max_shift=self.run.max_shift,
        )
        controls = Controls(job, every=self.plan.control_every)
        planned = self.plan.first_queries
        return await ask_design(self._design, job, governor, planned=planned, controls=controls)

    @property
    def _design(self) -> CertifyDesign:
        return CertifyDesign.of(self.run, self.plan, self._reuse)

    def _reuse(self) -> Reuse:
        store = self.store
        before: Reuse = store.note("reuse") or self.plan.reuse
        now, why, none = before, "", "no answer of the run is reused"
        names, (counts, _) = store.served_names(), observed_controls(store)
        both = self.run.answered.joined(store.answered())
        if before == "all" and not set(names) <= set(self.asked.served):
            called = printable(listed([name.words for name in names]), 120)
            now, why = "own", f"the endpoint now calls itself {called}: {none}"
        elif before == "all" and KnownRange.of(len(self.run.labels), both).contradictory.any():
            now, why = "own", f"the endpoint no longer answers as in the run: {none}"
        if before != "none" and (counts.disagreed or counts.failed):
            now = "none"
            why = "repeated queries were answered differently: each item is asked at each threshold itself"
        if now != before:
            store.set_note("reuse", now)
            self.tell(why)
        return now

    def conclude(self, outcome: RunOutcome, expires: int, path: Path) -> Certificate:
        """Write the certificate; raises `NotCertifiedError` or `UnfitError` if there is none to write."""
        run, stopped = self.run, outcome.stopped
        served = self._served()
        if stopped is INTERRUPTED:
            raise self._stopped(stopped)
        if stopped is not None:
            why = printable(stopped.reason)
            self.tell(f"{why}: what has passed by now counts; run the same again to continue")
        reuse, design = self._reuse(), self._design
        controls = self._controls(reuse)
        states = design.states(outcome.answered, reuse)
        sides = {state.side.name: certified for state in states if (certified := _certified(state))}
        if len(sides) < len(states):
            raise self._not_certified(states, stopped)
        accept, reject = sides["accept"], sides.get("reject")
        made = self._date([side.shift for side in sides.values()])
        request, *second = (decision_request(run, side.shift, self.asked.accepted) for side in sides.values())
        positive, negative = request.tokens if not run.result.answers else (run.result.answers, ())
        certificate = Certificate(
            blindcal=version("blindcal"),
            accept=accept,
            reject=reject,
            level=self.goal.confidence,
            attempt=self.plan.attempt,
            candidates=sum(len(state.tests) for state in states),
            items=len(self.plan.items),
            queries=self.store.usage().served,
            reused=design.reused(outcome.answered, reuse),
            controls=controls,
            model=run.result.model,
            served=served or self.asked.served,
            prompt_digest=prompt_digest(run.settings, run.result.targets),
            made=made,
            expires=made + timedelta(days=expires),
            audited=b"".join(sorted({run.digests[item][:PREFIX] for item in run.answered.items})),
            request=CertifiedRequest(
                url=request.url,
                accept=request.body,
                reject=second[0].body if second else None,
                positive=positive,
                negative=negative,
                probability=None if request.shown is None else request.shown.words,
            ),
            settings=self.asked.noted,
            spread=None if run.result.steadiness is None else run.result.steadiness.spread,
        )
        certificate.save(path)
        return certificate

    def _controls(self, reuse: Reuse) -> ControlCounts:
        counts, steadiness = observed_controls(self.store)[0], self.run.result.steadiness
        # the endpoint still answers as in the audit if answers of the audit may be reused
        return counts + steadiness.controls if reuse == "all" and steadiness is not None else counts

    def _served(self) -> tuple[ServedModel, ...]:
        _, served = observed_controls(self.store)
        models = list(dict.fromkeys(name.model for name in served))
        if len(models) > 1:
            raise UnfitError(
                f"the endpoint answered as {printable(listed(models), 200)} while certifying, and a "
                "certificate can only be about one model",
                remedy=f"name one that does not change; delete {self.store.path.parent} to begin again",
            )
        return tuple(ServedModel(name.model, name.fingerprint) for name in served)

    def _date(self, shifts: list[float]) -> date:
        # certifying the same thresholds again does not renew the certificate
        noted = self.store.note("made")
        if noted is None or noted["shifts"] != shifts:
            noted = {"shifts": shifts, "date": datetime.now(UTC).date().isoformat()}
            self.store.set_note("made", noted)
        return date.fromisoformat(noted["date"])

    def _not_certified(self, states: tuple[SideState, ...], stopped: Stopped | None) -> NotCertifiedError:
        state = next((state for state in states if state.tests and not state.tests[0].passed), None)
        if state is None:
            return self._stopped(stopped or Stopped("the queries ended"))
        test, name = state.tests[0], "precision" if state.side.name == "accept" else "negative_precision"
        options, following = {name: ...}, level_of_attempt(self.goal.confidence, self.plan.attempt + 1)
        needed = items_needed(replace(test, level=1 - (1 - following) / len(states)))
        if needed is None:
            remedy = f"more items would not help, as the observed share is below the goal: lower {{{name}}}"
        else:
            total = _rounded(int(np.ceil(needed / (1 - CHOOSING))))
            remedy = (
                f"an audit of about {total} items would probably do; or lower {{{name}}} or {{confidence}}"
            )
            options["confidence"] = ...
        positive = "accepted" if self.run.result.answers else "positive"
        kind = "negative" if name == "negative_precision" else positive
        seen = _seen(state, self.plan.attempt, kind, alone=len(states) == 1)
        return NotCertifiedError(seen, remedy=remedy, options=options)

    def _stopped(self, stopped: Stopped) -> NotCertifiedError:
        return NotCertifiedError(
            f"{printable(stopped.reason)} before a threshold was tested to the end: up to "
            f"{self.plan.most_queries:,} queries may be needed",
            remedy="run the same again, with a higher limit if one was reached; what was asked is kept",
            stopped=True,
        )


def _certified(state: SideState) -> CertifiedSide | None:
    test = state.certified or state.passed  # a stopped run may not have decided every item
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
        level=state.side.level,
    )


def _seen(state: SideState, attempt: int, decisions: str, *, alone: bool) -> str:
    test, beyond = state.tests[0], "from" if state.side.name == "accept" else "below"
    share = f" ({test.right / test.decided:.1%})" if test.decided else ""
    unknown = f", counting {test.unknown:,} without a valid answer as wrong" if test.unknown else ""
    which = "no threshold" if alone else f"no threshold for {decisions} decisions"
    return (
        f"{which} passes: of {test.items:,} items, {test.decided:,} decisions are {decisions} {beyond} "
        f"{test.threshold:.4f}, the most precise one to be expected, and {test.right:,} of them rightly"
        f"{share}{unknown}. With the error of at most {100 * (1 - test.level):.2g}% that attempt {attempt} "
        f"on this run may have, the precision is at least {test.bound:.4f}, and {test.wanted:g} is wanted"
    )


def _rounded(number: int) -> str:
    step = 10 ** max(0, len(str(number)) - 2)
    return f"{-(-number // step) * step:,}"
