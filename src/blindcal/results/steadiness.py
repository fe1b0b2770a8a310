"""Whether an endpoint stayed the same during a run, and how noisy its answers were."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from blindcal.estimate.drift import Drift
from blindcal.estimate.noise import ControlCounts
from blindcal.records import Estimate

DRIFT_LEVEL = 0.001
"""P-value below which a change of the answers is reported; an endpoint that stays the same rarely gets it."""
MOST_FLIPS = 0.07
"""Share of flipped answers that the estimates can allow for; with more, the answers are not to be trusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerName:
    """A model and fingerprint that replies name, and from which query to which they do."""

    model: str
    fingerprint: str
    answers: int
    first: int
    last: int

    @property
    def name(self) -> str:
        """Both in words."""
        return " ".join(filter(None, (self.model, self.fingerprint and f"({self.fingerprint})"))) or "no name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Steadiness:
    """How steady the endpoint was during a run.

    ``controls`` counts the control queries. ``flip_rate`` is the estimated share of answers that are the
    opposite of what they should be, and ``jitter`` the noise of the log-odds. ``drift`` is the test for a
    change of the answers during the run. ``bias_lost`` is the number of the answer from which on the forced
    answers were wrong, if the run was forced to go on. ``served`` are the models that the replies name.
    Queries are numbered from 1 in the order of asking. ``warnings`` and ``notes`` say what it means:
    ``warnings`` make all estimates doubtful.
    """

    queries: int
    controls: ControlCounts
    flip_rate: Estimate
    jitter: Estimate
    drift: Drift | None
    bias_lost: int | None
    served: tuple[ServerName, ...]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def with_sentences(found: Steadiness, slack: int) -> Steadiness:
    """Add what it means in words; up to ``slack`` queries were under way at the same time."""
    replaced = _replaced(found.served, slack)
    another_model = replaced and len({one.model for one in found.served}) > 1
    warnings = [
        _bias_lost(found),
        _many_flips(found),
        _changed(found),
        _other_server(found, replaced=True) if another_model else "",
    ]
    notes = [
        _some_noise(found),
        _other_server(found, replaced) if len(found.served) > 1 and not another_model else "",
    ]
    return replace(found, warnings=tuple(filter(None, warnings)), notes=tuple(filter(None, notes)))


def _bias_lost(found: Steadiness) -> str:
    if found.bias_lost is None:
        return ""
    return (
        f"logit_bias stopped acting during the run, at about query {found.bias_lost:,} of {found.queries:,}, "
        f"and the run was forced to go on: {_of_controls(found)}. The estimates may be meaningless."
    )


def _many_flips(found: Steadiness) -> str:
    rate = found.flip_rate
    if found.bias_lost is not None or rate.value is None or rate.value <= MOST_FLIPS:
        return ""
    return (
        f"About {_percent(rate)} of the answers do not follow logit_bias: {_of_controls(found)}. That is too "
        "many to allow for, and the estimates may be meaningless."
    )


def _changed(found: Steadiness) -> str:
    drift = found.drift
    if drift is None or drift.pvalue >= DRIFT_LEVEL:
        return ""
    return (
        f"The answers changed during the run, after about {drift.at:,} of {found.queries:,} queries (p-value "
        f"{drift.pvalue:.1g}): the estimates mix what the endpoint was before with what it was after."
    )


def _some_noise(found: Steadiness) -> str:
    seen = found.controls.failed or found.controls.disagreed
    if not seen or found.bias_lost is not None or float(found.flip_rate) > MOST_FLIPS:
        return ""
    return (
        f"The answers are noisy: {_of_controls(found)}. If the estimator is latent, the estimates allow for "
        f"{_percent(found.flip_rate)} flipped answers and for a jitter of {found.jitter:.2g} in log-odds."
    )


def _other_server(found: Steadiness, replaced: bool) -> str:
    """What the replies name, if it is more than one thing."""
    first, *others = found.served
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    if replaced:
        return (
            f"The endpoint was replaced during the run: replies came from {first.name} and, from about query "
            f"{others[0].first:,} of {found.queries:,} on, from {others[0].name}{more}. The estimates mix "
            "them."
        )
    return (
        f"Replies came from {len(found.served)} servers in turns: {first.name} ({first.answers:,} answers), "
        f"{others[0].name} ({others[0].answers:,}){more}. That is usual if a provider spreads its load."
    )


def _replaced(served: tuple[ServerName, ...], slack: int) -> bool:
    """Whether each ended before the next began, up to queries that were under way together."""
    return len(served) > 1 and all(earlier.last <= later.first + slack for earlier, later in pairwise(served))


def _of_controls(found: Steadiness) -> str:
    counts = found.controls
    forced = f"{counts.failed:,} of {counts.forced:,} forced answers were wrong"
    if not counts.repeated:
        return forced
    repeated = f"{counts.disagreed:,} of {counts.repeated:,} repeated queries were answered differently"
    return f"{forced}, and {repeated}"


def _percent(rate: Estimate) -> str:
    between = f" ({100 * rate.low:.2g}% to {100 * rate.high:.2g}%)" if rate.low and rate.high else ""
    return f"{100 * float(rate):.2g}%{between}"
