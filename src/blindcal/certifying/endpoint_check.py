"""Whether an endpoint is still the one that was certified, before and while it decides.

A few forced queries show whether the bias acts, and replies name the model and the system behind them. What
does not fit ends the run, or is noted as a reason why nothing is promised if the run is forced.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from blindcal.asking.endpoint_identity import (
    NAMELESS,
    ForcedReply,
    ask_forced,
    bias_ignored,
    name_in,
    unknown_names,
)
from blindcal.asking.governor import GovernedEndpoint, Governor
from blindcal.asking.job import Job
from blindcal.auditing.prepared import Prepared, Session, job_of
from blindcal.errors import BlindcalError, NotCertifiedError, UnfitError
from blindcal.probing.bias_checks import IRRESISTIBLE
from blindcal.results.certificate import Certificate
from blindcal.store.run_store import ServedModel, Store, StoredReply
from blindcal.text import listed

CHECKED = 6
"""Items that are asked before the first decision, each forced to both answers."""
CERTIFY_AGAIN = (
    "certify again, and decide in another folder with {out}; or {force} goes on, and nothing is promised"
)


def doubts(store: Store) -> tuple[str, ...]:
    """Why nothing is promised of the decisions of a run, which was forced; empty if it was not."""
    return tuple(store.note("doubts") or ())


def note_doubt(store: Store, doubt: str) -> None:
    """Note why nothing is promised."""
    if doubt not in doubts(store):
        store.set_note("doubts", [*doubts(store), doubt])


def note_other_names(store: Store, certificate: Certificate) -> None:
    """Note the doubt if answers came from a model or system that was not certified."""
    _raise_or_note(store, _other_names_so_far(store, certificate), force=True)


def check_expiry(store: Store, certificate: Certificate, *, force: bool) -> None:
    """Refuse a certificate that has expired, unless the run is forced."""
    if certificate.expired():
        expired = NotCertifiedError(
            f"the certificate expired on {certificate.expires}",
            remedy="certify again; or {force} goes on, and nothing is promised",
            options={"force": True},
        )
        _raise_or_note(store, expired, force)


async def check_endpoint(
    session: Session, certificate: Certificate, prepared: Prepared, governor: Governor, *, force: bool
) -> None:
    """Check that the endpoint follows the bias and names itself as certified; noted once it was found.

    What was found is noted as the preparation of the run. A run that is refused forgets the replies, so that
    the next one asks again.
    """
    store = session.store
    if store.note("ready") is not None:
        _raise_or_note(store, _other_names_so_far(store, certificate), force)
        return
    session.run.tell("checking the endpoint")
    asked = GovernedEndpoint(governor, store, expected=2 * CHECKED, for_what="the check of the endpoint")
    job = certified_job(session, certificate, prepared, force=force)
    chosen = np.random.default_rng(0).permutation(len(job.items))[:CHECKED].tolist()
    forced = await ask_forced(job, asked, chosen)
    names = [name_in(one.reply) for one in forced]
    unbiased = _bias_error(forced) if prepared.max_shift >= IRRESISTIBLE else None
    try:
        _raise_or_note(store, unbiased, force)
        _raise_or_note(store, other_names(names, certificate), force)
    except BlindcalError:
        store.forget("probe")
        raise
    objection = None if unbiased is None else unbiased.message
    prepared = replace(prepared, objection=objection)
    store.set_note("ready", msgspec.to_builtins(prepared))


def other_names(heard: Iterable[ServedModel], certificate: Certificate) -> NotCertifiedError | None:
    """The error about replies that name a model or system that was not certified, if any does."""
    others = unknown_names(heard, certificate.served)
    if not others:
        return None
    certified = certificate.served or (NAMELESS,)
    return NotCertifiedError(
        f"replies come from {listed(others)}, and what was certified is "
        f"{listed([one.words for one in certified])}",
        remedy=CERTIFY_AGAIN,
        options={"out": ..., "force": True},
    )


def _other_names_so_far(store: Store, certificate: Certificate) -> NotCertifiedError | None:
    return other_names(store.served_names(), certificate)


def certified_job(session: Session, certificate: Certificate, prepared: Prepared, *, force: bool) -> Job:
    """What is asked; unless it is forced, the job ends once a reply names what was not certified."""
    store = session.store

    def check_names(saved: Sequence[StoredReply]) -> None:
        names = store.served_names()
        readable = {one.served for one in saved if not one.unusable}
        named = [names[number - 1] if number else NAMELESS for number in readable]
        if (error := other_names(named, certificate)) is not None:
            raise error

    return replace(job_of(session, prepared), also_check=None if force else check_names)


def _bias_error(forced: Sequence[ForcedReply]) -> UnfitError | None:
    """The error if most items do not follow the bias."""
    seen = bias_ignored(forced)
    if seen is None:
        return None
    return UnfitError(
        f"logit_bias acted when this was certified but does not now: {seen}",
        remedy=f"find out what changed at the provider, {CERTIFY_AGAIN}",
        options={"out": ..., "force": True},
    )


def _raise_or_note(store: Store, error: BlindcalError | None, force: bool) -> None:
    if error is None:
        return
    if not force:
        raise error
    note_doubt(store, error.message)
