"""Decide about unlabelled items by a certificate.

Every item is asked at the upper threshold; with a lower one, items that are not accepted are asked there too.
Where the endpoint shows probabilities, one request decides by both. Requests go through the same engine as an
audit's, with control queries that notice if the bias stops acting or probabilities move.

The certificate covers this rule at this endpoint until a date. A run is refused if the certificate has
expired, the endpoint ignores the bias, or replies name another model or system. With ``force`` it goes on
without any guarantee, and the result says why. It does so, too, if in the end the answers were noisier than
when they were certified, or changed during the run.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import msgspec
import numpy as np

from blindcal.asking.ask_design import RunOutcome, ask_design
from blindcal.asking.controls import (
    NAMELESS,
    Controls,
    ask_forced,
    bias_ignored,
    forced_in_vain,
    stored_controls,
    unknown_names,
)
from blindcal.asking.given_answers import answer_from_file
from blindcal.asking.governor import GovernedEndpoint, Governor
from blindcal.asking.job import Job, answers_kept, opened_run
from blindcal.asking.run_context import RunContext, RunOptions, blocking
from blindcal.auditing.audit import default_folder
from blindcal.auditing.conclude import observed_change, observed_controls, observed_moves
from blindcal.auditing.prepared import AskedSettings, Prepared
from blindcal.choice_design import choice_round
from blindcal.design import make_round
from blindcal.errors import BlindcalError, InputError, NotCertifiedError, NotIdentifiedError, UnfitError
from blindcal.estimate.noise import ControlCounts
from blindcal.items.catalogue import open_items
from blindcal.items.question_files import Items
from blindcal.methods import METHODS, control_spacing
from blindcal.prices import Prices
from blindcal.probing.bias_checks import IRRESISTIBLE
from blindcal.records import NEGATIVE, AnswerTable, IntArray, Round
from blindcal.report.sentences import control_words
from blindcal.results.certificate import Certificate
from blindcal.results.decisions import DecisionResult, write_decisions
from blindcal.results.recalibration import Recalibration
from blindcal.results.result import Spend
from blindcal.settings import Settings
from blindcal.store.run_file import ServedModel, StoredReply
from blindcal.store.run_store import Store
from blindcal.text import listed, printable

FOLDER = Path("decisions")
CHECKED = 6
"""Number of items that check the endpoint before the first decision, each forced to both answers."""
_AGAIN = "certify again, and decide in another folder with {out}; or {force} goes on, and nothing is promised"


async def decide_async(
    certificate: Certificate | str | Path,
    items: str | Path,
    *,
    out: str | Path | None = None,
    force: bool = False,
    id_field: str | None = None,
    confidence_field: str | None = None,
    recalibration: Recalibration | str | Path | None = None,
    **options: Unpack[RunOptions],
) -> DecisionResult:
    """Decide about the items of a file by a certificate.

    Parameters
    ----------
    certificate : Certificate or path
        The certified rule, which holds the endpoint, the prompt and the thresholds.
    items : path
        A file of questions, or the name of a set. Labels are ignored.
    out : path, optional
        Folder of the run; ``decisions/ITEMS-MODEL`` by default. A run begun there is continued.
    force : bool
        Go on, without any guarantee, even if the certificate has expired or the endpoint has changed.
    id_field : str, optional
        Field with the id of an item; by default that of the certified audit.
    confidence_field : str, optional
        Field with the confidence, if the certified audit read those of a file; by default the same.
    recalibration : Recalibration or path, optional
        A map of `blindcal recalibrate`, by which decisions also have the probability to show.
    **options : optional
        Limits, prices, API key, endpoint and callbacks, as in `RunOptions`.

    Raises
    ------
    NotCertifiedError
        If the certificate has expired, or replies name another model or system.
    UnfitError
        If the endpoint does not follow the bias.
    InputError
        If the folder holds another run, or a limit is too low even to check the endpoint.
    NotIdentifiedError
        If the run is stopped before the first answer.
    EndpointError
        If the endpoint cannot be asked any further; every answer so far is kept.
    """
    if not isinstance(certificate, Certificate):
        certificate = Certificate.load(certificate)
    shown = _recalibration(recalibration, certificate)
    run = RunContext.of(**options)
    given = {"id_field": id_field, "confidence_field": confidence_field}
    named = {name: value for name, value in given.items() if value is not None}
    asked = AskedSettings.of_certificate(certificate, **run.address, **named)
    folder = Path(out) if out is not None else decision_folder(items, certificate)
    address = asked.settings.endpoint
    async with opened_run(folder, address, run, Store, asked.accepted) as (store, governor):
        run.tell("reading items")
        loaded = await asyncio.to_thread(_read_items, items, asked.settings)
        config = await asyncio.to_thread(_config, loaded, certificate)
        store.begin(config, loaded, keep_prompts=asked.settings.prompt.keep_prompts)
        certified = CertifiedEndpoint(certificate, store, force or bool(store.note("finished")))
        outcome = await _ask(loaded, asked, certified, governor)
        run.tell("writing the decisions")
        with answers_kept():
            return await asyncio.to_thread(_conclude, loaded, certified, outcome, folder, run.prices, shown)


decide = blocking(decide_async)


def decision_folder(items: str | Path, certificate: Certificate) -> Path:
    """Default folder, the same for the same items and model."""
    return FOLDER / default_folder(items, certificate.model).name


def _recalibration(
    given: Recalibration | str | Path | None, certificate: Certificate
) -> Recalibration | None:
    recalibration = Recalibration.load(given) if isinstance(given, str | Path) else given
    if recalibration is not None and not certificate.shown:
        raise InputError("recalibration: this endpoint shows no probability that it could be applied to")
    if recalibration is not None and recalibration.model != certificate.model:
        of_other, model = printable(recalibration.model, 80), printable(certificate.model, 80)
        raise InputError(f"recalibration: is that of {of_other}, and the certificate is about {model}")
    return recalibration


def _read_items(items: str | Path, settings: Settings) -> Items:
    try:
        loaded = open_items(items, settings.prompt, labelled=False)
    except InputError as error:
        if "template" not in error.options:
            raise
        words = "the certificate is about questions in the words of its audit: give records with its fields"
        raise InputError(error.message, remedy=words) from None
    if loaded.words is not None and loaded.words != settings.answer_words:
        raise InputError(
            f"{loaded.path}: is answered with {printable(', '.join(loaded.words), 80)}, and the certificate "
            f"is about {printable(', '.join(settings.answer_words), 80)}",
            remedy="decide about items that are asked as in the audit",
        )
    return loaded


def _config(items: Items, certificate: Certificate) -> dict[str, object]:
    asked = certificate.settings.config
    return {
        **{name: asked.get(name) for name in ("model", "base_url")},
        "certificate": hashlib.blake2b(certificate.to_json(), digest_size=16).hexdigest(),
        "items": len(items),
        "items_digest": items.digest,
    }


@dataclass(frozen=True)
class DecisionDesign:
    """Asks each of ``n`` items at the shift ``accept``, then those not accepted at ``reject``, if given.

    Where probabilities are shown, there is no shift, and one reading is compared with both thresholds.
    """

    n: int
    accept: float
    reject: float | None
    choices: IntArray | None = None

    def next_round(self, answered: AnswerTable) -> Round | None:
        if not len(answered):
            return choice_round(np.arange(self.n), self.choices, np.full(self.n, self.accept))
        if self.reject is None or len(answered) > self.n:
            return None
        left = np.sort(answered.items[answered.answers == NEGATIVE])
        return make_round(left, np.full(left.size, self.reject)) if left.size else None


@dataclass(frozen=True)
class CertifiedEndpoint:
    """Holds a run of decisions to its certificate: doubts are errors, or with ``force`` only noted."""

    certificate: Certificate
    store: Store
    force: bool

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the decisions have no guarantee; empty if they have one."""
        return tuple(self.store.note("doubts") or ())

    def doubt(self, error: BlindcalError) -> None:
        """Raise an error, or note it if the run is forced."""
        if not self.force:
            raise error
        if error.message not in self.doubts:
            self.store.set_note("doubts", [*self.doubts, error.message])

    def check_expiry(self) -> None:
        if self.certificate.expired():
            again = "certify again; or {force} goes on, and nothing is promised"
            words = f"the certificate expired on {self.certificate.expires}"
            self.doubt(NotCertifiedError(words, remedy=again, options={"force": True}))

    async def check(self, job: Job, governor: Governor) -> str | None:
        """Doubt an endpoint that ignores the bias or changed its name; returns the objection to the bias.

        Where probabilities are shown there is no bias, and each reply names its model.
        """
        if self.certificate.shown:
            return None
        governor.run.tell("checking the endpoint")
        asked = GovernedEndpoint(governor, expected=2 * CHECKED, for_what="the check of the endpoint")
        chosen = np.random.default_rng(0).permutation(len(job.items))[:CHECKED].tolist()
        forced = await ask_forced(job, asked, chosen)
        ignored = bias_ignored(forced) if job.max_shift >= IRRESISTIBLE else None
        objection = None
        try:
            if ignored is not None:
                objection = f"logit_bias acted when this was certified but does not now: {ignored}"
                self.doubt(_bias_error(objection))
            self.check_names(ServedModel.of(reply.reply.model, reply.reply.fingerprint) for reply in forced)
        except BlindcalError:
            self.store.forget("probe")  # the next run checks again
            raise
        return objection

    def check_names(self, names: Iterable[ServedModel]) -> None:
        """Doubt replies that name a model or system that was not certified."""
        certified = self.certificate.served or (NAMELESS,)
        if others := unknown_names(names, certified):
            words = listed([name.words for name in certified])
            why = f"replies come from {listed(others)}, and what was certified is {words}"
            self.doubt(NotCertifiedError(why, remedy=_AGAIN, options={"out": ..., "force": True}))

    def check_replies(self, saved: Sequence[StoredReply]) -> None:
        """Doubt the names in stored replies."""
        names = self.store.served_names()
        readable = {reply.served for reply in saved if not reply.unusable}
        self.check_names(names[number - 1] if number else NAMELESS for number in readable)


def _bias_error(words: str) -> UnfitError:
    remedy = f"find out what changed at the provider, {_AGAIN}"
    return UnfitError(words, remedy=remedy, options={"out": ..., "force": True})


async def _ask(
    items: Items, asked: AskedSettings, certified: CertifiedEndpoint, governor: Governor
) -> RunOutcome:
    store, certificate, prepared = certified.store, certified.certificate, asked.prepared
    if asked.settings.given:
        certified.check_expiry()
        outcome = answer_from_file(DecisionDesign(len(items), 0.0, None), items, store)
        store.set_note("finished", True)
        return outcome
    job = Job(items=items, question=asked.question, store=store, max_shift=prepared.max_shift)
    if not store.note("finished"):  # a finished run has its doubts noted
        certified.check_expiry()
    if (noted := store.note("ready")) is None:
        prepared = replace(prepared, objection=await certified.check(job, governor))
        store.set_note("ready", msgspec.to_builtins(prepared))
    else:
        prepared = msgspec.convert(noted, Prepared)
        certified.check_names(store.served_names())
    governor.run.tell("asking")
    if not certified.force:
        job = replace(job, also_check=certified.check_replies)
    controlled = prepared.objection is None and METHODS[asked.settings.design.method].controlled
    every = control_spacing(len(items)) if controlled else None
    accept, lower = certificate.accept.shift, certificate.reject
    if certificate.shown:
        accept, lower = 0.0, None  # one reading is compared with both thresholds
    design = DecisionDesign(len(items), accept, None if lower is None else lower.shift, items.choices)
    planned = round(len(items) * (1 if lower is None else 2 - certificate.accept.share))
    controls = Controls(job, every=every, force=certified.force)
    try:
        outcome = await ask_design(design, job, governor, planned=planned, controls=controls)
    except UnfitError as error:
        raise _bias_error(error.message) from None
    if outcome.stopped is None:
        store.set_note("finished", True)
    elif not len(outcome.answered):
        raise NotIdentifiedError(
            f"{printable(outcome.stopped.reason)} before the first answer",
            remedy="nothing is lost: run the same again, with a higher limit if one was reached",
        )
    return outcome


def _conclude(
    items: Items,
    certified: CertifiedEndpoint,
    outcome: RunOutcome,
    folder: Path,
    prices: Prices | None,
    recalibration: Recalibration | None,
) -> DecisionResult:
    store, certificate = certified.store, certified.certificate
    controls, _ = observed_controls(store)
    if certified.force:
        certified.check_names(store.served_names())
    doubts = (*certified.doubts, *_unsteady(store, certificate, controls))
    counts = write_decisions(store, certificate, folder, recalibration)
    decisions = DecisionResult(
        folder=str(folder),
        model=certificate.model,
        items=len(items),
        accepted=counts.verdicts["accept"],
        rejected=counts.verdicts["reject"],
        abstained=counts.verdicts["abstain"],
        undecided=len(items) - counts.verdicts.total(),
        reasons=counts.reasons,
        stopped=None if outcome.stopped is None else printable(outcome.stopped.reason),
        doubts=doubts,
        level=certificate.level,
        accept=None if doubts else certificate.accept,
        reject=None if doubts else certificate.reject,
        expires=certificate.expires,
        expired=certificate.expired(),
        audited=counts.audited,
        controls=controls,
        spend=Spend.of(store, prices),
        labels_ignored=items.labels_ignored,
    )
    decisions.save()
    return decisions


def _unsteady(store: Store, certificate: Certificate, controls: ControlCounts) -> Iterator[str]:
    """What the control queries and the order of the answers say against the promise."""
    if forced_in_vain(stored_controls(store)):
        yield "logit_bias stopped acting during the run"
    elif controls.noisier_than(certificate.controls):
        yield f"the answers are noisier than when they were certified: {control_words(controls)}"
    moves, spread = observed_moves(store), certificate.spread
    if spread is not None and spread.exceeded_by(moves):
        yield (
            f"the probability of the same question moves by up to {moves.max():.2g}, and by "
            f"{spread.most:.2g} when it was certified"
        )
    if certificate.request.url and (at := observed_change(store)) is not None:
        yield f"the answers changed during the run, after about {at:,} queries"
