"""`latent`: the distribution of the hidden log-odds given the label, and everything that follows from it.

METHOD 4 to 6. Each answer is a censored (threshold) or noisy (sampled) reading of an item's log-odds;
any mixture, with any number of queries an item, goes into one likelihood.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.linalg import eigh
from scipy.sparse import csr_array

from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate import functionals as of
from blindcal.estimate.bounds import error_bounds
from blindcal.estimate.checks import (
    ArrayLike,
    answers_array,
    codes,
    fraction,
    labels_array,
    per_item,
    reals,
    whole,
    wholes,
)
from blindcal.estimate.drawn import DrawnFit
from blindcal.estimate.grid import CELLS, EDGES_P, MID_P, MID_S, edge_of_threshold, memberships
from blindcal.estimate.model import Ensemble, fit_ensemble, link_scores
from blindcal.estimate.operating import (
    Decisions,
    OperatingCurve,
    OperatingPoint,
    choose_threshold,
    operating_curve,
)
from blindcal.estimate.patterns import Patterns, count_patterns
from blindcal.estimate.resampling import incidence, of_items, of_units, resampled_tables
from blindcal.estimate.uncertainty import (
    Interval,
    absolute_sum_interval,
    percentile_interval,
    quadratic_pvalue,
    stretched,
    unseen_share,
)
from blindcal.records import INVALID, NEGATIVE, POSITIVE, FloatArray, IntArray

_JITTERS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)
_CLEARLY = 3.0  # units of log-evidence by which more jitter must do better than less
# How much wider than the refits say the AUROC's interval and the curve's band are: what a smooth curve bends,
# every refit bends alike. Measured by bench/coverage.py --unseen.
_BENT = 1.25
_WIDE = 0.25  # of probability: a smooth density may be trusted to bridge less, and not more


@dataclass(frozen=True, slots=True)
class Brier:
    """Brier score and its parts: score = reliability - resolution + uncertainty."""

    score: float
    reliability: float
    resolution: float
    uncertainty: float


@dataclass(frozen=True, slots=True)
class Curve:
    """A function of the confidence f with a pointwise band."""

    f: FloatArray
    value: FloatArray
    low: FloatArray
    high: FloatArray
    level: float


@dataclass(frozen=True, slots=True)
class Gaps:
    """Signed gaps per bin with an interval each."""

    edges: FloatArray
    value: FloatArray
    low: FloatArray
    high: FloatArray
    level: float


@dataclass(frozen=True, slots=True)
class ConfidenceDistribution:
    """Share of each label's items whose confidence falls in each bin."""

    edges: FloatArray
    negatives: FloatArray
    positives: FloatArray


@dataclass(frozen=True)
class LatentFit(DrawnFit):
    """One fit; every quantity is a functional of it.

    Point estimates of what the *sample* did (``ece``, ``gaps``, ``accuracy``, ``brier``, ``auroc``,
    ``log_loss``) combine the fit with each item's own answers; ``tce``, ``curve`` and operating points
    speak of the population. Intervals are for the population's value.
    """

    patterns: Patterns = field(repr=False)
    ensemble: Ensemble = field(repr=False)
    items: int
    queries: int
    invalid: int
    jitter: float
    seed: int = field(repr=False)
    resamples: int = field(repr=False)
    groups: IntArray | None = field(repr=False)

    @cached_property
    def population(self) -> FloatArray:
        """The population's joint table over (label, cell), label 0 first."""
        return self.ensemble.table

    @cached_property
    def sample(self) -> FloatArray:
        """The sample's expected joint table, given each item's own answers."""
        return self.ensemble.expected_counts / self.patterns.n

    @cached_property
    def draws(self) -> FloatArray:
        """Joint tables of the population, refitted to resampled items and resampled priors."""
        resample = of_items(self.patterns) if self.groups is None else of_units(self._incidence)
        rng = np.random.default_rng(self.seed)
        return resampled_tables(self.patterns, self.ensemble, self.resamples, rng, resample)

    # -- calibration ---------------------------------------------------------------------------

    def gaps(self, bins: int = 5) -> FloatArray:
        """Signed gaps per bin, positive where the positive class is predicted too confidently."""
        return of.gaps(self.sample, whole(bins, "bins"))

    def gap_intervals(self, bins: int = 5, level: float = 0.95) -> Gaps:
        """Signed gaps with an interval each."""
        low, high = self._band(of.gaps(self.draws, whole(bins, "bins")), level)
        edges, unseen = np.arange(bins + 1) / bins, self.unseen(level)
        seen = (1 - unseen) * of.gaps(self.population, bins)
        low = np.minimum(low, seen + unseen * (edges[:-1] - 1))
        high = np.maximum(high, seen + unseen * edges[1:])
        return Gaps(edges, self.gaps(bins), low, high, level)

    def ece(self, bins: int = 5, *, top_label: bool = False) -> float:
        """Binned expected calibration error of the sample, an estimate of ``binned_ece`` of the hidden f.

        With many bins the latter also counts the labels' own noise within each bin, which single answers
        cannot see: this one then stays near the population's.
        """
        gaps = of.top_label_gaps if top_label else of.gaps
        return float(np.abs(gaps(self.sample, whole(bins, "bins"))).sum())

    def tce(self) -> float:
        """True calibration error E|E[Y|f] - f| of the population."""
        return float(of.tce(self.population))

    def curve(self, points: int = 99, level: float = 0.95) -> Curve:
        """Calibration curve E[Y|f] with a pointwise band."""
        f = np.arange(1, whole(points, "points") + 1) / (points + 1)
        low, high = stretched(*self._band(of.curve(self.draws), level), _BENT)
        value = of.curve(self.population)
        at = [np.interp(f, MID_P, column) for column in (value, low, high)]
        return Curve(f, at[0], at[1], at[2], level)

    def calibrated_pvalue(self) -> float:
        """P-value of "perfectly calibrated": E[Y|f] = f for every f.

        A score test against smooth departures of the link. The variance is that of labels drawn anew from
        the calibrated fit: where positives are rare, labels that happen to be all alike vary too little
        among themselves to tell. Groups widen it wherever their members agree more than chance has it.
        """
        departures = link_scores(self.patterns)
        total = self.patterns.counts @ departures.scores
        prior = np.diag(departures.precision)
        # directions that the answers resolve count in full, those that only the prior holds hardly at all
        inner = np.linalg.inv(departures.variance + prior)
        if self.groups is not None:
            by_group = self._incidence @ departures.scores
            excess, along = eigh(by_group.T @ by_group + prior, departures.variance + prior)
            inner = (along / np.maximum(excess, 1.0)) @ along.T
        weights = 1 - np.asarray(np.linalg.eigvals(inner @ prior).real, dtype=np.float64)
        return quadratic_pvalue(float(total @ inner @ total), weights)

    # -- discrimination and scores ---------------------------------------------------------------

    def accuracy(self) -> float:
        """Share of items on which the unshifted greedy answer is right."""
        return float(of.accuracy(self.sample))

    def auroc(self) -> float:
        """Area under the ROC curve."""
        self._both_classes("auroc")
        return float(of.auroc(self.sample))

    def brier(self) -> Brier:
        """Brier score and its decomposition; the reliability is that of the fitted curve."""
        score = float(of.brier(self.sample))
        reliability = float(of.reliability(self.population))
        prevalence = float(of.prevalence(self.sample))
        uncertainty = prevalence * (1 - prevalence)
        return Brier(score, reliability, reliability + uncertainty - score, uncertainty)

    def log_loss(self) -> float:
        """Mean negative log-likelihood of the labels; confidences beyond 1 - 1e-6 count as that."""
        return float(of.log_loss(self.sample))

    def mean_confidence(self) -> float:
        """Mean probability of the positive class."""
        return float(of.mean_confidence(self.sample))

    def confidence(self, bins: int = 20) -> ConfidenceDistribution:
        """Distribution of the confidence f for each label."""
        share = [half @ memberships(whole(bins, "bins")) for half in of.by_label(self.sample)]
        # the link gives the label that no item has a trace of mass, which is no distribution
        there = [bool((self.patterns.labels == label).any()) for label in (NEGATIVE, POSITIVE)]
        negatives, positives = (s / s.sum() if has else 0 * s for s, has in zip(share, there, strict=True))
        return ConfidenceDistribution(np.arange(bins + 1) / bins, negatives, positives)

    # -- decisions -----------------------------------------------------------------------------

    def operating_point(
        self,
        *,
        precision: float | None = None,
        recall: float | None = None,
        cost_fp: float | None = None,
        cost_fn: float | None = None,
        confidence: float | None = 0.95,
        level: float = 0.95,
        max_shift: float = np.inf,
    ) -> OperatingPoint:
        """The threshold, and the shift that deploys it, for a wanted precision, recall or cost ratio.

        Parameters
        ----------
        precision : float
            The lowest threshold that reaches it.
        recall : float
            The highest threshold that keeps it.
        cost_fp, cost_fn : float
            What a wrong "positive" and a wrong "negative" cost: the threshold with the least expected cost.
        confidence : float or None
            How sure it must be that the threshold does what is asked for; nothing is promised of a threshold
            beyond which hardly an answer lies. With ``None`` the estimate decides, and the deployed model
            falls short about as often as not. Costs need none.
        level : float
            Of the intervals.
        max_shift : float
            The largest shift that the endpoint takes.
        """
        return choose_threshold(
            self._decisions("operating_point"),
            precision=precision,
            recall=recall,
            cost_fp=cost_fp,
            cost_fn=cost_fn,
            confidence=confidence,
            level=fraction(level, "level"),
            max_shift=max_shift,
        )

    def operating_curve(
        self,
        thresholds: ArrayLike | None = None,
        *,
        cost_fp: float | None = None,
        cost_fn: float | None = None,
        level: float = 0.95,
    ) -> OperatingCurve:
        """What deciding "positive iff f >= t" does for each threshold, by default .05, .10 ... .95."""
        t = np.arange(1, 20) / 20 if thresholds is None else np.asarray(thresholds, dtype=np.float64)
        if t.ndim != 1 or not ((t > 0) & (t < 1)).all():
            raise InputError(f"thresholds: must lie strictly between 0 and 1, got {thresholds!r}")
        return operating_curve(
            self._decisions("operating_curve"), t, fraction(level, "level"), cost_fp, cost_fn
        )

    def next_right(self, threshold: float, decisions: int, level: float = 0.95) -> Interval:
        """How large a share of the next so many positive decisions at a threshold will be right.

        Wider than the interval of the precision, which speaks of endlessly many: what to hold a deployed
        model against.
        """
        place = edge_of_threshold(np.array([fraction(threshold, "threshold")])) - 1
        here = self._decisions("next_right").at(place)
        low, high = here.next_right(whole(decisions, "decisions"), fraction(level, "level"))[:, 0]
        return Interval(float(low), float(high), level)

    def _decisions(self, what: str) -> Decisions:
        self._both_classes(what)
        return Decisions.of(
            self.population,
            self.draws,
            lambda tail: self.unseen(1 - 2 * tail),
            self.patterns.tested_beyond(),
        )

    # -- uncertainty -----------------------------------------------------------------------------

    def interval(self, quantity: str, level: float = 0.95, *, bins: int = 5) -> Interval:
        """Confidence interval for the population's value of a scalar quantity.

        Parameters
        ----------
        quantity : {"ece", "tce", "accuracy", "auroc", "brier", "reliability", "log_loss", "mean_confidence"}
        level : float
        bins : int
            Bins of ``ece``.

        Notes
        -----
        However well the answers agree, ``n`` items cannot speak for a share of the population that none of
        them comes from, and a share ``q`` goes unseen with probability ``(1 - q)^n``. No interval is narrower
        than what such a share could do: five items that are all right do not make a model perfect.

        Where no threshold was asked over a wide stretch of probabilities, nothing tells where in it an item
        lies: ``ece`` and ``tce`` are then open by as much as that could change them. Where every item was
        asked once by one and the same noisy question, they are as wide as :mod:`blindcal.estimate.bounds`.
        """
        fraction(level, "level")
        sums: dict[str, Callable[[FloatArray], FloatArray]] = {
            "ece": lambda table: of.gaps(table, whole(bins, "bins")),
            "tce": of.cell_gaps,
        }
        if quantity in sums:
            signed = sums[quantity]
            gaps = signed(self.population)
            found = self._widened(absolute_sum_interval(gaps, signed(self.draws), level), np.abs(gaps).sum())
            low, high = found.low - self._unasked, found.high + self._unasked
            units = self.items if self.groups is None else np.unique(self.groups).size
            if (bounds := error_bounds(self.patterns, level, units)) is not None:
                low, high = min(low, bounds[0]), max(high, bounds[1])
            return Interval(max(0.0, low), min(1.0, high), level)
        if quantity not in _SCALARS:
            known = ", ".join([*sums, *_SCALARS])
            raise InputError(f"quantity: must be one of {known}, got {quantity!r}")
        if quantity == "auroc":
            self._both_classes("auroc")
        value = _SCALARS[quantity]
        found = percentile_interval(value(self.draws), level)
        if quantity == "auroc":
            ends = stretched(found.low, found.high, _BENT)
            found = Interval(float(ends[0]), float(ends[1]), level)
        return self._widened(found, float(value(self.population)), _MOST.get(quantity, 1.0))

    def _widened(self, found: Interval, value: float, most: float = 1.0) -> Interval:
        """An interval of a quantity in [0, most], widened to what an unseen part of the population can do."""
        unseen = self.unseen(found.level)
        low, high = (1 - unseen) * value, (1 - unseen) * value + unseen * most
        return Interval(max(0.0, min(found.low, low)), min(most, max(found.high, high)), found.level)

    def unseen(self, level: float) -> float:
        """The largest share of the population that may well (by ``level``) have stayed out of the sample."""
        units = self.items - self.unanswered if self.groups is None else np.unique(self.groups).size
        return unseen_share(units, level)

    @cached_property
    def _unasked(self) -> float:
        """The most by which the gaps' absolute sum could differ with items moved within unasked stretches."""
        patterns = self.patterns
        if patterns.curve_labels.size:  # a sampled or noisy answer reads the whole range
            return 0.0
        asked = np.unique(np.concatenate([patterns.start, patterns.stop]) % CELLS)
        edges = np.unique(np.concatenate([[0], asked, [CELLS]]))
        width = np.diff(EDGES_P[edges])
        mass = np.add.reduceat(self.population.reshape(2, CELLS).sum(axis=0), edges[:-1])
        return float((mass * width)[width > _WIDE].sum())

    def invalid_bound(self) -> float:
        """The most by which ``ece`` could differ had every invalid answer been valid.

        An item with an invalid answer contributes its expectation; its true contribution lies within one
        item's weight of it, in the one or two bins it can touch.
        """
        return min(1.0, 2 * min(self.invalid, self.items) / self.items)

    @property
    def unanswered(self) -> int:
        """Items without a single valid answer."""
        whole_range = (self.patterns.stop - self.patterns.start) == CELLS
        return int(self.patterns.counts[: self.patterns.start.size][whole_range].sum())

    @property
    def contradictions(self) -> int:
        """Items whose threshold answers contradict each other (the endpoint's jitter)."""
        return self.patterns.contradictions

    def _band(self, draws: FloatArray, level: float) -> tuple[FloatArray, FloatArray]:
        tail = (1 - fraction(level, "level")) / 2
        low, high = np.quantile(draws, [tail, 1 - tail], axis=0)
        return low, high

    def _both_classes(self, what: str) -> None:
        if np.unique(self.patterns.labels).size < 2:
            raise NotIdentifiedError(f"{what}: needs items of both labels, and all items here have one")

    @cached_property
    def _incidence(self) -> csr_array:
        """Items of each group (rows) that show each pattern (columns)."""
        assert self.groups is not None
        return incidence(self.groups, int(self.groups.max()) + 1, self.patterns)


_SCALARS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "accuracy": of.accuracy,
    "auroc": of.auroc,
    "brier": of.brier,
    "reliability": of.reliability,
    "log_loss": of.log_loss,
    "mean_confidence": of.mean_confidence,
}
_MOST = {"log_loss": float(MID_S[-1])}  # the others are at most 1


def latent(
    labels: ArrayLike,
    shifts: ArrayLike,
    answers: ArrayLike,
    temperatures: ArrayLike = 0.0,
    items: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    *,
    counts: ArrayLike | None = None,
    jitter: float | str = 0.0,
    resamples: int = 1000,
    seed: int = 0,
) -> LatentFit:
    """Fit the distribution of the hidden log-odds given the label, by penalised maximum likelihood.

    Parameters
    ----------
    labels : array_like of 0/1, shape (queries,)
        The label of the item that each query asked.
    shifts : array_like, shape (queries,)
        The shift ``b`` added to the positive answer.
    answers : array_like, shape (queries,)
        1 positive, 0 negative, -1, NaN or None invalid.
    temperatures : array_like or float
        0 for a threshold query, positive for a sampled one.
    items : array_like, optional
        Which item each query asked (any names); by default each query asks an item of its own.
    groups : array_like, optional
        Which cluster each query's item belongs to; intervals and the p-value then resample clusters.
    counts : array_like, optional
        How many items each query's item stands for; see :class:`blindcal.Counts`. Not with ``groups``.
    jitter : float or "estimate"
        Standard deviation of the endpoint's own noise on the log-odds of threshold queries. An estimate is
        the least jitter that explains the answers about as well as any; only items that are asked near the
        same threshold more than once tell much about it.
    resamples : int
        Refits behind the intervals.
    seed : int
        Of those refits.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> f = rng.beta(2, 1, 3000)
    >>> labels = rng.random(3000) < f**2              # an overconfident model
    >>> thresholds = (rng.permutation(3000) + 0.5) / 3000
    >>> shifts = -np.log(thresholds / (1 - thresholds))
    >>> fit = latent(labels, shifts, f >= thresholds)
    >>> 0.14 < fit.ece(bins=5) < 0.20, fit.calibrated_pvalue() < 1e-6
    (True, True)
    """
    y_rows = labels_array(labels)
    rows = y_rows.size
    b = reals(shifts, "shifts", rows, infinite=True)
    t = reals(temperatures, "temperatures", rows, minimum=0.0)
    a = answers_array(answers, rows)
    owner = np.arange(rows) if items is None else codes(items, "items", rows)
    y = per_item("labels", y_rows, owner)
    clusters = None if groups is None else per_item("groups", codes(groups, "groups", rows), owner)
    weights = None if counts is None else per_item("counts", wholes(counts, "counts", rows), owner)
    if weights is not None and clusters is not None:
        raise InputError(
            "counts: items that were counted together cannot belong to groups; give one of the two"
        )
    if not (a != INVALID).any():
        raise NotIdentifiedError(f"answers: all {rows} are invalid, so nothing can be estimated")
    if not ((a != INVALID) & np.isfinite(b)).any():
        raise NotIdentifiedError(
            "shifts: all valid answers were forced by an infinite shift: nothing was asked"
        )
    stands_for = np.ones(rows, np.int64) if weights is None else weights[owner]
    queries, invalid = int(stands_for.sum()), int(stands_for[a == INVALID].sum())
    if invalid > queries / 2:
        warnings.warn(
            f"answers: {invalid} of {queries} are invalid (-1); code answers as 1 and 0, not 1 and -1",
            stacklevel=2,
        )
    known_jitter = _check_jitter(jitter)

    def count(noise: float) -> Patterns:
        return count_patterns(y, b, t, a, owner, weights, jitter=noise)

    candidates = (known_jitter,) if known_jitter is not None else _JITTERS
    fits = [(noise, patterns, fit_ensemble(patterns)) for noise in candidates for patterns in [count(noise)]]
    # without jitter contradictory answers are impossible; that they are read as lying between is no evidence
    possible = [found for found in fits if found[0] > 0 or not found[1].contradictions] or fits
    evidence = [max(mode.evidence for mode in found[2].modes) for found in possible]
    noise, patterns, ensemble = next(
        found for found, at in zip(possible, evidence, strict=True) if at > max(evidence) - _CLEARLY
    )
    return LatentFit(
        patterns=patterns,
        ensemble=ensemble,
        items=y.size if weights is None else int(weights.sum()),
        queries=queries,
        invalid=invalid,
        jitter=noise,
        seed=seed,
        resamples=whole(resamples, "resamples", 2),
        groups=clusters,
    )


def _check_jitter(jitter: float | str) -> float | None:
    if jitter == "estimate":
        return None
    if isinstance(jitter, str) or not (np.isfinite(jitter) and jitter >= 0):
        raise InputError(f'jitter: must be a number of at least 0 or "estimate", got {jitter!r}')
    return float(jitter)
