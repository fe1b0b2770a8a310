"""The fit of a run with more than two answers: of the answers given, and of their margins (METHOD 8).

Whether an answer is given again when its logit is lowered by m depends on its *margin*: by how much its logit
exceeds that of the strongest other answer. So one query can decide by the margin, but not by the probability.
The precision of such decisions follows from the same fit, whose cells are ranges of margins.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import ClassVar

import numpy as np

from blindcal.estimate.findings import NOTHING, Findings
from blindcal.estimate.grid import EDGES_S
from blindcal.estimate.latent import functionals as of
from blindcal.estimate.latent.fit import LatentFit
from blindcal.estimate.latent.operating import Decisions
from blindcal.records import Estimate, FloatArray


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class GivenFit(LatentFit):
    """A fit in which the label is whether the answer given is right, and f the confidence in that answer."""

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
    def deployable(self) -> LatentFit:
        """The same fit of margins, for decisions that one query can take, unless none were tested."""
        if self.patterns.axis.direct:
            return self
        kept = {field.name: getattr(self, field.name) for field in fields(LatentFit)}
        return MarginFit(**kept | {"others": tuple(one.deployable for one in self.others)})


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class MarginFit(LatentFit):
    """A fit in which f = sigmoid(margin): its thresholds and shifts are those of decisions by one query."""

    least_threshold: ClassVar[float] = 0.5  # the answer given always leads

    @property
    def population(self) -> FloatArray:
        """The population's joint table over (label, margin), label 0 first."""
        return self.ensemble.table

    @property
    def draws(self) -> FloatArray:
        """The same of every refit."""
        return np.concatenate([tables for _, tables in self.resampling.by_axis])

    def _own_decisions(self, what: str) -> Decisions:
        rows = self.problem.readings.rows(self.problem.hard)
        asked = np.searchsorted(EDGES_S[1:-1], np.sort(-rows.shifts) + 1e-9)  # inner edges at or below each
        tested = len(rows) - np.searchsorted(asked, np.arange(1, EDGES_S.size - 1))
        return replace(super()._own_decisions(what), tested=tested.astype(np.float64))
