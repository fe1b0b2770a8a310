"""What the steadiness of an endpoint during a run means, in sentences."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from blindcal.records import Estimate
from blindcal.results.result import Steadiness

DRIFT_LEVEL = 0.001
"""P-value below which a change of the answers is reported; an endpoint that stays the same rarely gets it."""
MOST_FLIPS = 0.07
"""Share of flipped answers that the estimates can allow for; with more, the answers are not to be trusted."""


def with_sentences(steady: Steadiness, slack: int) -> Steadiness:
    """Add what it means in words; up to ``slack`` queries were under way at the same time."""
    warnings, notes = [], []
    counts, rate, drift, served = steady.controls, steady.flip_rate, steady.drift, steady.served
    if steady.bias_lost is not None:
        warnings.append(
            f"logit_bias stopped acting during the run, at about query {steady.bias_lost:,} of "
            f"{steady.queries:,}, and the run was forced to go on: {_controls(steady)}. The estimates may be "
            "meaningless."
        )
    elif rate.value is not None and rate.value > MOST_FLIPS:
        warnings.append(
            f"About {_percent(rate)} of the answers do not follow logit_bias: {_controls(steady)}. That is "
            "too many to allow for, and the estimates may be meaningless."
        )
    elif counts.failed or counts.disagreed:
        notes.append(
            f"The answers are noisy: {_controls(steady)}. If the estimator is latent, the estimates allow "
            f"for {_percent(rate)} flipped answers and for a jitter of {steady.jitter:.2g} in log-odds."
        )
    if drift is not None and drift.pvalue < DRIFT_LEVEL:
        warnings.append(
            f"The answers changed during the run, after about {drift.at:,} of {steady.queries:,} queries "
            f"(p-value {drift.pvalue:.1g}): the estimates mix what the endpoint was before with what it was "
            "after."
        )
    if len(served) > 1:
        replaced = all(earlier.last <= later.first + slack for earlier, later in pairwise(served))
        models = {server.model for server in served}
        (warnings if replaced and len(models) > 1 else notes).append(_servers(steady, replaced))
    return replace(steady, warnings=tuple(warnings), notes=tuple(notes))


def _servers(steady: Steadiness, replaced: bool) -> str:
    """Which servers the replies name, and whether one took the place of another."""
    first, second, *others = steady.served
    more = f" and {len(others)} more" if others else ""
    if replaced:
        return (
            f"The endpoint was replaced during the run: replies came from {first.name} and, from about query "
            f"{second.first:,} of {steady.queries:,} on, from {second.name}{more}. The estimates mix them."
        )
    return (
        f"Replies came from {len(steady.served)} servers in turns: {first.name} ({first.answers:,} answers), "
        f"{second.name} ({second.answers:,}){more}. That is usual if a provider spreads its load."
    )


def _controls(steady: Steadiness) -> str:
    counts = steady.controls
    forced = f"{counts.failed:,} of {counts.forced:,} forced answers were wrong"
    repeated = f"{counts.disagreed:,} of {counts.repeated:,} repeated queries were answered differently"
    return f"{forced}, and {repeated}" if counts.repeated else forced


def _percent(rate: Estimate) -> str:
    between = f" ({100 * rate.low:.2g}% to {100 * rate.high:.2g}%)" if rate.low and rate.high else ""
    return f"{100 * float(rate):.2g}%{between}"
