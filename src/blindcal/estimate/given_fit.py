"""The fit of a run with more than two answers: of the answers given, and of their margins (METHOD 8).

Whether an answer is given again when its logit is lowered by m depends on its *margin*: by how much its logit
exceeds that of the strongest other answer. So one query can decide by the margin, but not by the probability.
The precision of such decisions follows from the same fit, whose cells are ranges of margins.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import ClassVar

import numpy as np

from blindcal.errors import NotIdentifiedError
from blindcal.estimate import functionals as of
from blindcal.estimate.axis import Axis
from blindcal.estimate.excess import ExcessPosterior
from blindcal.estimate.findings import NOTHING, Findings
from blindcal.estimate.grid import EDGES_S
from blindcal.estimate.latent_fit import LatentFit
from blindcal.estimate.model import fit_ensemble
from blindcal.estimate.operating import Decisions
from blindcal.estimate.patterns import Patterns
from blindcal.estimate.resampling import Alternative, Resampling
from blindcal.estimate.top_label import GivenAnswers, axis_of, excess_of, read_given
from blindcal.records import INVALID, Estimate, FloatArray, IntArray, Noise


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class GivenFit(LatentFit):
    """A fit in which the label is whether the answer given is right, and f the confidence in that answer.

    ``given`` are the answers behind it, and ``excess`` is what is known about it, if margins were tested.
    """

    given: GivenAnswers
    excess: ExcessPosterior | None

    @staticmethod
    def accuracy_of(tables: FloatArray) -> FloatArray:
        """The share of right answers."""
        return of.prevalence(tables)

    @property
    def overconfidence(self) -> Estimate:
        """Mean confidence in the given answer minus the share of correct answers."""
        return self.leaning

    def findings(self, *, brief: bool = False) -> Findings:
        """Everything that a result shows; no answer is the positive one that a model could lean to."""
        return replace(LatentFit.findings(self, brief=brief), leaning=NOTHING)

    @property
    def margins(self) -> MarginFit:
        """The same fit of margins, for decisions that one query can take.

        Raises
        ------
        NotIdentifiedError
            If no query tested a margin.
        """
        if self.patterns.axis.direct:
            raise NotIdentifiedError(
                "no query of this run tested by how much an answer leads over the others"
            )
        hard = self.given.readings.rows(self.given.hard)
        asked = np.searchsorted(EDGES_S[1:-1], np.sort(-hard.shifts) + 1e-9)  # inner edges at or below each
        tested = len(hard) - np.searchsorted(asked, np.arange(1, EDGES_S.size - 1))
        refits = self.resampling
        others = tuple(replace(one, patterns=_of_margins(one.patterns)) for one in refits.alternatives)
        patterns = _of_margins(self.patterns)
        kept = {field.name: getattr(self, field.name) for field in fields(LatentFit)}
        return MarginFit(
            **kept
            | {
                "patterns": patterns,
                "resampling": replace(refits, patterns=patterns, alternatives=others),
                "tested": tested.astype(np.float64),
            }
        )


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class MarginFit(LatentFit):
    """A fit in which f = sigmoid(margin): its thresholds and shifts are those of decisions by one query.

    ``tested`` is the number of queries that tested at least the margin of each inner edge of the grid.
    """

    tested: FloatArray

    least_threshold: ClassVar[float] = 0.5  # the answer given always leads

    def _decisions(self, what: str) -> Decisions:
        return replace(super()._decisions(what), tested=self.tested)


class _MarginAxis(Axis):
    """Margins that stay margins."""

    def to_log_odds(self, tables: FloatArray) -> FloatArray:
        """Tables over margins, as they are."""
        return tables


def _of_margins(patterns: Patterns) -> Patterns:
    axis = patterns.axis
    return replace(patterns, axis=_MarginAxis(axis.nodes, axis.weights, axis.calibrated, axis.first))


def fit_given(
    given: GivenAnswers,
    groups: IntArray | None = None,
    *,
    noise: Noise | None = None,
    excess: ExcessPosterior | None = None,
    bins: int = 5,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> GivenFit:
    """Fit the distribution of the given answers' log-odds, for right and for wrong answers.

    Parameters
    ----------
    given : GivenAnswers
    groups : array, per item, optional
    noise : Noise, optional
        The noise of answers at T = 0.
    excess : ExcessPosterior, optional
        What is known about the excess, for a part of the items; by default it is estimated.
    bins, level, resamples, seed
        As in `latent`.
    """
    noise = Noise() if noise is None else noise
    items = given.items
    readings = given.readings.of(items)
    if not items.size or not (readings.answers != INVALID).any():
        raise NotIdentifiedError("no query about an answer that was given has a valid answer")
    if given.hard.any() and excess is None:
        excess = excess_of(given, noise)
    use = excess if given.hard.any() else None
    patterns = read_given(given, noise, axis_of(given, None if use is None else use.best))
    ensemble = fit_ensemble(patterns)
    alternatives = []
    for other, share in () if use is None or not resamples else use.others:
        read = patterns.on(axis_of(given, other))
        alternatives.append(Alternative(read, fit_ensemble(read), share))
    return GivenFit(
        patterns=patterns,
        ensemble=ensemble,
        resampling=Resampling(
            patterns,
            ensemble,
            resamples,
            seed,
            None if groups is None else groups[items],
            tuple(alternatives),
        ),
        items=items.size,
        queries=len(readings),
        invalid=int((readings.answers == INVALID).sum()),
        jitter=noise.jitter,
        bin_count=bins,
        level=level,
        given=given,
        excess=use,
    )
