"""Whether an endpoint is still the one that was certified, before and while it decides.

A few forced queries show whether the bias acts, and replies name the model and the system behind them. What
does not fit ends the run, or is noted as a reason why nothing is promised if the run is forced.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from blindcal.asking.endpoint_identity import NAMELESS, ask_forced, bias_ignored, name_in, unknown_names
from blindcal.asking.governor import GovernedEndpoint, Governor
from blindcal.asking.job import Job
from blindcal.errors import BlindcalError, NotCertifiedError, UnfitError
from blindcal.probing.bias_checks import IRRESISTIBLE
from blindcal.results.certificate import Certificate
from blindcal.store.run_store import Store
from blindcal.store.stored import ServedModel, StoredReply
from blindcal.text import listed

CHECKED = 6
"""Items that are asked before the first decision, each forced to both answers."""
_AGAIN = "certify again, and decide in another folder with {out}; or {force} goes on, and nothing is promised"


@dataclass(frozen=True)
class CertifiedEndpoint:
    """Holds a run of decisions to its certificate; if it is forced, doubts are noted and do not end it."""

    certificate: Certificate
    store: Store
    force: bool

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why nothing is promised of the decisions of a run; empty without a doubt."""
        return tuple(self.store.note("doubts") or ())

    def doubt(self, error: BlindcalError | str) -> None:
        """Raise an error, or note why nothing is promised."""
        if isinstance(error, BlindcalError) and not self.force:
            raise error
        words = error.message if isinstance(error, BlindcalError) else error
        if words not in self.doubts:
            self.store.set_note("doubts", [*self.doubts, words])

    def check_expiry(self) -> None:
        """Doubt a certificate that has expired."""
        if self.certificate.expired():
            again = "certify again; or {force} goes on, and nothing is promised"
            words = f"the certificate expired on {self.certificate.expires}"
            self.doubt(NotCertifiedError(words, remedy=again, options={"force": True}))

    async def check(self, job: Job, governor: Governor) -> str | None:
        """Doubt an endpoint that does not follow the bias or has another name; what was objected to the bias.

        A run that ends here forgets the replies, so that the next one asks again.
        """
        governor.run.tell("checking the endpoint")
        about = {"expected": 2 * CHECKED, "for_what": "the check of the endpoint"}
        asked = GovernedEndpoint(governor, self.store, **about)  # type: ignore[arg-type]  # of two types
        chosen = np.random.default_rng(0).permutation(len(job.items))[:CHECKED].tolist()
        forced = await ask_forced(job, asked, chosen)
        ignored = bias_ignored(forced) if job.max_shift >= IRRESISTIBLE else None
        objection = None
        try:
            if ignored is not None:
                objection = f"logit_bias acted when this was certified but does not now: {ignored}"
                self.doubt(bias_error(objection))
            self.check_names(name_in(reply.reply) for reply in forced)
        except BlindcalError:
            self.store.forget("probe")
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
        """Doubt the names in replies that are on disk."""
        names = self.store.served_names()
        readable = {reply.served for reply in saved if not reply.unusable}
        self.check_names(names[number - 1] if number else NAMELESS for number in readable)


def bias_error(words: str) -> UnfitError:
    """The error of a bias that does not act."""
    remedy = f"find out what changed at the provider, {_AGAIN}"
    return UnfitError(words, remedy=remedy, options={"out": ..., "force": True})
