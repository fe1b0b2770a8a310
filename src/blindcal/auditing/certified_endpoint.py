"""Whether an endpoint is still the one that was certified, before and while it decides.

A few forced queries show whether the bias acts, and replies name the model and the system behind them. What
does not fit ends the run, or is noted as a reason why nothing is promised if the run is forced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from blindcal.auditing.job import Job
from blindcal.auditing.prepare import Prepared, patient_of
from blindcal.auditing.remembered_endpoint import RememberedEndpoint
from blindcal.auditing.session import Session
from blindcal.endpoints.base import Endpoint
from blindcal.endpoints.bias_checks import IRRESISTIBLE
from blindcal.errors import BlindcalError, CertificateError, ReplyError, UnfitError
from blindcal.records import NEGATIVE, POSITIVE, Reply, Usage
from blindcal.results.certificate import Certificate, ServedModel
from blindcal.store.run_store import SavedAnswer, Store
from blindcal.text import listed, printable

CHECKED = 6
"""Items that are asked before the first decision, each forced to both answers."""
CERTIFY_AGAIN = (
    "certify again, and decide in another folder with {out}; or {force} goes on, and nothing is promised"
)
_DOUBTS_NOTE = "doubts"
_NAMELESS = ServedModel("", "")


def doubts(store: Store) -> tuple[str, ...]:
    """Why nothing is promised of the decisions of a run, which was forced; empty if it was not."""
    return tuple(store.note(_DOUBTS_NOTE) or ())


def note_doubt(store: Store, doubt: str) -> None:
    """Note why nothing is promised."""
    if doubt not in doubts(store):
        store.set_note(_DOUBTS_NOTE, [*doubts(store), doubt])


def note_other_names(store: Store, certificate: Certificate) -> None:
    """Note the doubt if answers came from a model or system that was not certified."""
    _raise_or_note(store, _other_names_so_far(store, certificate), force=True)


def check_expiry(store: Store, certificate: Certificate, *, force: bool) -> None:
    """Refuse a certificate that has expired, unless the run is forced."""
    if certificate.expired():
        expired = CertificateError(
            f"the certificate expired on {certificate.expires}",
            remedy="certify again; or {force} goes on, and nothing is promised",
            options={"force": True},
        )
        _raise_or_note(store, expired, force)


async def check_endpoint(
    session: Session, certificate: Certificate, prepared: Prepared, endpoint: Endpoint, *, force: bool
) -> None:
    """Check that the endpoint follows the bias and names itself as certified; noted once it was found.

    What was found is noted as the preparation of the run. A run that is refused forgets the replies, so that
    the next one asks again.
    """
    store = session.store
    if store.note("ready") is not None:
        _raise_or_note(store, _other_names_so_far(store, certificate), force)
        return
    session.tell("checking the endpoint")
    about = RememberedEndpoint(endpoint, session, 2 * CHECKED, for_what="the check of the endpoint")
    job = certified_job(session, certificate, prepared, force=force)
    forced = await _ask_forced(job, patient_of(session, about))
    names = [_name_in(one.reply) for one in forced]
    unbiased = _bias_error(forced) if prepared.max_shift >= IRRESISTIBLE else None
    try:
        _raise_or_note(store, unbiased, force)
        _raise_or_note(store, other_names(names, certificate), force)
    except BlindcalError:
        store.forget_asides()
        raise
    found = None if unbiased is None else {"forced": True, "objection": unbiased.message}
    prepared = replace(prepared, spent=about.paid, size=about.tokens.size, probe=found)
    store.set_note("ready", msgspec.to_builtins(prepared))


def other_names(heard: Iterable[ServedModel], certificate: Certificate) -> CertificateError | None:
    """The error about replies that name a model or system that was not certified, if any does."""
    certified = certificate.served or (_NAMELESS,)
    others = {one.words for one in heard if one not in certified}
    if not others:
        return None
    return CertificateError(
        f"replies come from {listed(sorted(others))}, and what was certified is "
        f"{listed([one.words for one in certified])}",
        remedy=CERTIFY_AGAIN,
        options={"out": ..., "force": True},
    )


def _other_names_so_far(store: Store, certificate: Certificate) -> CertificateError | None:
    return other_names([ServedModel(*name) for name in store.served_names()], certificate)


@dataclass(frozen=True, kw_only=True)
class CertifiedJob(Job):
    """A job that ends once a reply names a model or system that was not certified."""

    certificate: Certificate

    def check(self, usage: Usage, saved: Sequence[SavedAnswer]) -> None:
        """Raise if many replies make no sense, or if one is not from what was certified."""
        Job.check(self, usage, saved)
        names = self.store.served_names()
        readable = {one.served for one in saved if not one.unusable}
        heard = [ServedModel(*names[number - 1]) if number else _NAMELESS for number in readable]
        if (error := other_names(heard, self.certificate)) is not None:
            raise error


def certified_job(session: Session, certificate: Certificate, prepared: Prepared, *, force: bool) -> Job:
    """What is asked; unless it is forced, the job ends if the endpoint is replaced."""
    if force:
        return Job.of(session, prepared)
    return CertifiedJob.of(session, prepared, certificate=certificate)


@dataclass(frozen=True, slots=True)
class _Forced:
    """A reply to a forced query, and whether it is the answer that was forced."""

    item: int
    right: bool
    reply: Reply


async def _ask_forced(job: Job, endpoint: Endpoint) -> list[_Forced]:
    """Force both answers of a few items; those that are refused are left out."""
    chosen = np.random.default_rng(0).permutation(len(job.items))[:CHECKED].tolist()
    wanted = [(item, answer) for item in chosen for answer in (POSITIVE, NEGATIVE)]
    asking = (endpoint.ask(job.forced(item, answer)) for item, answer in wanted)
    found = []
    for (item, answer), reply in zip(
        wanted, await asyncio.gather(*asking, return_exceptions=True), strict=True
    ):
        if isinstance(reply, Reply):
            found.append(_Forced(item, job.question.parse(reply).answer == answer, reply))
        elif not isinstance(reply, ReplyError):
            raise reply
    return found


def _bias_error(forced: Sequence[_Forced]) -> UnfitError | None:
    """The error if most items do not follow the bias: then one of their two forced answers is wrong."""
    wrong = {one.item for one in forced if not one.right}
    asked = {one.item for one in forced}
    if 2 * len(wrong) <= len(asked):
        return None
    return UnfitError(
        f"logit_bias acted when this was certified but does not now: on {len(wrong)} of {len(asked)} items, "
        "an answer forced by the largest shift came out otherwise",
        remedy=f"find out what changed at the provider, {CERTIFY_AGAIN}",
        options={"out": ..., "force": True},
    )


def _raise_or_note(store: Store, error: BlindcalError | None, force: bool) -> None:
    if error is None:
        return
    if not force:
        raise error
    note_doubt(store, error.message)


def _name_in(reply: Reply) -> ServedModel:
    """What a reply names, as the run file notes it."""
    return ServedModel(printable(reply.model or "", 100), printable(reply.fingerprint or "", 100))
