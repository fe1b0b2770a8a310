"""Watch a stream of answers for people who send the queries themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from scipy.special import gammaincc

from blindcal.errors import InputError
from blindcal.estimate.checks import ArrayLike, answers_array, fraction, probabilities, whole
from blindcal.estimate.latent.fit import LatentFit
from blindcal.estimate.streams.alarms import FOR_REFERENCE, Against, MonitorState, StreamMonitor
from blindcal.estimate.streams.betting import CurveClaim
from blindcal.estimate.streams.reference import Reference
from blindcal.records import INVALID, UNLABELLED, FloatArray, Noise
from blindcal.results.run import Run, opened

_BINS = 20
_CLEARLY_UNEVEN = 1e-9  # p-value; evenly drawn thresholds hardly ever have one that low


class Monitor(StreamMonitor):
    """Alarms for a stream of answers that may be looked at any time.

    Every item is asked once, with the threshold t in the logit_bias (a shift of ``-logit(t)``), and t has to
    be uniform on (0, 1), whatever the item: ``thresholds`` draws some. An alarm is raised for nothing
    with chance ``level`` at most, however long the stream and however often one looks.

    Parameters
    ----------
    reference : Run, path or LatentFit, optional
        The audit that the stream is held against. Without one, only the calibration is watched.
    level : float
        The highest chance of each alarm ever to be raised for nothing.
    against : "reference" or "perfect", optional
        What the calibration is held against; by default the reference if there is one.
    max_ece : float, optional
        Hold the calibration against this limit instead: the alarm is raised if the expected calibration error
        is above it.
    slices : int
        The highest number of slices that are told apart.

    Examples
    --------
    >>> import numpy as np
    >>> import blindcal as bc
    >>> rng = np.random.default_rng(0)
    >>> monitor = bc.Monitor()
    >>> t = monitor.thresholds(1000, rng)
    >>> f = rng.uniform(size=1000)                       # hidden in the model
    >>> labels = rng.uniform(size=1000) < f**2           # overconfident
    >>> state = monitor.update(labels, t, f >= t)
    >>> state.alarm("calibration").raised
    True
    """

    def __init__(
        self,
        reference: Run | str | Path | LatentFit | None = None,
        *,
        level: float = 0.05,
        against: Literal["reference", "perfect"] | None = None,
        max_ece: float | None = None,
        slices: int = 20,
    ) -> None:
        level = fraction(level, "level")
        fit, reach = _fit_of(reference)
        known = None
        if fit is not None:
            known = Reference.of(fit, level * FOR_REFERENCE, reach=reach)
        claim = _claim(known, against, max_ece)
        if claim == "reference" and known is not None:
            curve = known.curve
        else:
            noise = Noise() if known is None else known.curve.noise
            curve = CurveClaim(allowance=max_ece or 0.0, noise=noise, reach=reach)
        super().__init__(
            curve.game,
            None if known is None else known.share.game,
            level=level,
            against=claim,
            max_ece=max_ece,
            for_reference=FOR_REFERENCE,
            slices=whole(slices, "slices", 2),
        )
        self._spread = np.zeros(_BINS)
        self._rows = 0

    def __repr__(self) -> str:
        return f"Monitor({self._answers:,} answers, {self._calibration.process.observations:,} labelled)"

    @staticmethod
    def thresholds(n: int, rng: np.random.Generator) -> FloatArray:
        """Thresholds for ``n`` items, uniform on (0, 1)."""
        return rng.uniform(1e-12, 1, n)

    def update(
        self,
        labels: ArrayLike,
        thresholds: ArrayLike,
        answers: ArrayLike,
        parts: Sequence[str | None] | None = None,
    ) -> MonitorState:
        """Add answers and return the state of the alarms.

        Parameters
        ----------
        labels : array of 0 and 1
            -1 or NaN where the label is not known: then the answer counts for the questions alone.
        thresholds : array of numbers in (0, 1)
        answers : array of 0 and 1
            Whether the answer at the threshold was positive; -1 or NaN if it was invalid, which is left out.
        parts : sequence of str, optional
            The slice of each item.
        """
        t = probabilities(thresholds, "thresholds")
        given, known = answers_array(answers, t.size), answers_array(labels, t.size)
        if parts is not None and len(parts) != t.size:
            raise InputError(f"parts: {len(parts)} values for {t.size} answers")
        self._check_spread(t)
        places = self._rows + np.arange(t.size)
        self._rows += t.size
        valid = given != INVALID
        self.add_answers(t[valid], given[valid], places[valid])
        both = valid & (known != UNLABELLED)
        chosen = None if parts is None else [part for part, one in zip(parts, both, strict=True) if one]
        self.add_labelled(known[both], t[both], given[both], places[both], chosen)
        return self.state()

    def _check_spread(self, t: FloatArray) -> None:
        """Refuse thresholds that are clearly not uniform, by a chi-square test of all so far."""
        spread = self._spread + np.histogram(t, _BINS, (0, 1))[0]
        expected = spread.sum() / _BINS
        if expected >= 5:
            statistic = float(((spread - expected) ** 2).sum() / expected)
            if gammaincc((_BINS - 1) / 2, statistic / 2) < _CLEARLY_UNEVEN:
                raise InputError(
                    "thresholds: are not spread evenly over (0, 1), which all alarms rely on",
                    remedy="draw each at random with Monitor.thresholds, whatever the item",
                )
        self._spread = spread


def _fit_of(reference: Run | str | Path | LatentFit | None) -> tuple[LatentFit | None, float]:
    """The fit of a reference, and the highest log-odds that can be asked."""
    if reference is None or isinstance(reference, LatentFit):
        return reference, np.inf
    run = opened(reference)
    return run.fit(), run.max_shift


def _claim(known: Reference | None, against: str | None, max_ece: float | None) -> Against:
    if max_ece is not None:
        if against is not None:
            raise InputError("against and max_ece exclude each other: give one of them")
        fraction(max_ece, "max_ece")
        return "max_ece"
    if against is None:
        return "perfect" if known is None else "reference"
    if against not in ("reference", "perfect"):
        raise InputError(f"against: must be 'reference' or 'perfect', not {against!r}")
    if against == "reference" and known is None:
        raise InputError("against: there is no reference to hold the stream against")
    return "reference" if against == "reference" else "perfect"
