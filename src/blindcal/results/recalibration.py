"""The recalibration map of a run: the probability to show instead of each confidence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import expit

from blindcal.atomic_write import write_file
from blindcal.errors import InputError, NotIdentifiedError
from blindcal.estimate.findings import Curve
from blindcal.estimate.grid import EDGES_P, MID_P, by_label
from blindcal.estimate.measures import isotonic
from blindcal.estimate.shown import AnswersFit
from blindcal.json_form import json_page, read_saved
from blindcal.records import Estimate, FloatArray

RECALIBRATION_FILE = "recalibration.json"
FORMAT = 1
_BEYOND = 10  # items that lie at or beyond the first and the last knot
_KNOTS = np.unique(np.concatenate([[0.0, 1.0], np.arange(1, 40) / 40, expit(np.arange(-12, 12.5, 0.5))]))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Recalibration:
    """The share of positive labels (or of right answers) at each confidence, as a curve that never falls.

    It is linear between its ``knots``. Beyond the first and the last hardly any of the ``items`` was left,
    and only that is known there: the share is not above that of the first, or not below that of the last.
    """

    format: int = FORMAT
    model: str
    items: int
    knots: Curve

    def __repr__(self) -> str:
        first, last = self.knots.f[0], self.knots.f[-1]
        return f"Recalibration({self.model!r}, {self.items:,} items, confidences {first:g} to {last:g})"

    @classmethod
    def of_fit(cls, fit: AnswersFit, model: str) -> Recalibration:
        """The map of a fit: its curve, made monotone as it fits the items best."""
        if not fit.resamples:
            raise InputError("recalibration: its band needs resamples, and this fit has none")
        items = fit.items * np.sum(by_label(fit.smooth.sample), axis=0)
        cell = np.searchsorted(EDGES_P[1:-1], _KNOTS)
        enough = [np.cumsum(items)[cell] >= _BEYOND, np.cumsum(items[::-1])[::-1][cell] >= _BEYOND]
        known = _KNOTS[np.all(enough, axis=0)]
        if known.size < 2:
            raise NotIdentifiedError(
                f"recalibration: nearly all of these {fit.items:,} items have the same confidence, so that "
                "nothing is known about others"
            )
        value, curve = np.interp(known, MID_P, isotonic(fit.smooth.population)), fit.curve_at(known)
        # sorted, a band of a curve that never falls is no worse (Chernozhukov, Fernandez-Val, Galichon 2009)
        low = np.sort(np.minimum(value, np.array(curve.low)))
        high = np.sort(np.maximum(value, np.array(curve.high)))
        at, share, least, most = (tuple(each.tolist()) for each in (known, value, low, high))
        return cls(model=model, items=fit.items, knots=Curve(at, share, least, most, fit.level))

    def __call__(self, confidence: FloatArray) -> FloatArray:
        """The probability to show instead of each confidence; NaN stays NaN."""
        return np.interp(confidence, self.knots.f, self.knots.value)

    def at(self, confidence: float) -> Estimate:
        """The probability to show instead of a confidence, with its interval."""
        if not 0 <= confidence <= 1:
            raise InputError(f"confidence: must lie between 0 and 1, got {confidence!r}")
        knots = self.knots
        low = np.interp(confidence, knots.f, np.asarray(knots.low), left=0.0)
        high = np.interp(confidence, knots.f, np.asarray(knots.high), right=1.0)
        return Estimate(float(self(np.array(confidence))), float(low), float(high), knots.level)

    def confidence_of(self, probability: float) -> Estimate:
        """The lowest confidence whose share is this ``probability``: the threshold of a true 90%, say."""
        if not 0 < probability < 1:
            raise InputError(f"probability: must lie between 0 and 1, got {probability!r}")
        knots, last = self.knots, self.knots.f[-1]
        if knots.value[-1] < probability:
            raise NotIdentifiedError(
                f"no confidence is a true {probability:g}: at {last:g}, beyond which hardly any item lies, "
                f"it is {self.at(last):.3f}"
            )
        value, low, high = (
            _reached(knots.f, column or (), probability) for column in (knots.value, knots.high, knots.low)
        )
        return Estimate(value, low, high, knots.level)

    def save(self, path: Path) -> None:
        """Write the JSON form atomically."""
        write_file(path, json_page(self))

    @classmethod
    def load(cls, path: str | Path) -> Recalibration:
        """Read a map back."""
        return read_saved(Path(path), cls, "recalibration", FORMAT, "format")


def _reached(confidence: tuple[float, ...], column: tuple[float, ...], value: float) -> float:
    """The confidence at which a rising column reaches a value: 0 or 1 if it is beyond the knots."""
    place = int(np.searchsorted(column, value))
    if place in (0, len(column)):
        return 0.0 if place == 0 else 1.0
    left, right = column[place - 1], column[place]
    part = (value - left) / (right - left)
    return float(confidence[place - 1] + part * (confidence[place] - confidence[place - 1]))
