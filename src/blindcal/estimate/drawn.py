"""What a fit draws of itself: drawing is the report's, and is imported when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blindcal.report.plots import Axes


class DrawnFit:
    """Figures of a `LatentFit`; each draws on ``ax``, or on a figure of its own, and returns the axes."""

    __slots__ = ()

    def plot_curve(self, ax: Axes | None = None, *, bins: int = 5, level: float = 0.95) -> Axes:
        """The Blind Calibration Curve: signed gaps with intervals, whose lengths add up to the ECE."""
        from blindcal.report import fitted

        return fitted.plot_curve(self, ax, bins, level)

    def plot_reliability(self, ax: Axes | None = None, *, bins: int = 5, level: float = 0.95) -> Axes:
        """The reliability diagram with its band, and the bins as dots."""
        from blindcal.report import fitted

        return fitted.plot_reliability(self, ax, bins, level)

    def plot_confidence(self, ax: Axes | None = None) -> Axes:
        """The distribution of the confidence for each label."""
        from blindcal.report import fitted

        return fitted.plot_confidence(self, ax)

    def plot_operating(
        self, ax: Axes | None = None, *, threshold: float | None = None, level: float = 0.95
    ) -> Axes:
        """Precision, recall and accuracy against the threshold; ``threshold`` marks one."""
        from blindcal.report import fitted

        return fitted.plot_operating(self, ax, threshold, level)

    def plot_cost(
        self, cost_fp: float, cost_fn: float, ax: Axes | None = None, *, level: float = 0.95
    ) -> Axes:
        """The expected cost of a decision against the threshold, with its band."""
        from blindcal.report import fitted

        return fitted.plot_cost(self, cost_fp, cost_fn, ax, level)

    def _repr_html_(self) -> str:
        from blindcal.report import notebook

        return notebook.fit_html(self)


class DrawnGaps:
    """The one figure that signed gaps alone allow."""

    __slots__ = ()

    def plot_curve(self, ax: Axes | None = None) -> Axes:
        """The Blind Calibration Curve: signed gaps, whose lengths add up to the ECE."""
        from blindcal.report import fitted

        return fitted.plot_gaps(self, ax)

    def _repr_html_(self) -> str:
        from blindcal.report import notebook

        return notebook.blind_html(self)
