"""The picture in the README: an audit of a recorded model beside the truth that the audit did not see.

    python bench/picture.py [--logits ../shared/logits/qwen__boolq__logits.csv.gz] [--out docs/images]

One answer an item, as `blindcal audit` asks for it, gives the bars, the curve and its band. The rings
are what the recorded probabilities say.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import blindcal
from blindcal import design
from blindcal.estimate.truth import bin_index
from blindcal.records import FloatArray, IntArray
from blindcal.report.plots import figure_style
from blindcal.report.style import file_bytes, ink
from blindcal.reproduce.sources import read
from blindcal.simulate import ask

TRUE_BINS = 10


def draw(fit: blindcal.LatentFit, labels: IntArray, p: FloatArray, *, dark: bool) -> Figure:
    """The Blind Calibration Curve and the reliability diagram, each with the truth on it."""
    with figure_style(dark=dark):
        figure = Figure(figsize=(9.2, 4.4), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
        fit.plot_curve(left)
        gaps = blindcal.binned_ece(labels, p, 5).gaps
        rings = {"facecolors": "none", "edgecolors": [ink()], "linewidths": 1.3, "zorder": 5}
        left.scatter(np.arange(0.5, 5) / 5 + 0.055, gaps, s=34, **rings)
        fit.plot_reliability(right)
        where = bin_index(p, TRUE_BINS)
        count = np.bincount(where, minlength=TRUE_BINS)
        predicted, observed = (np.bincount(where, x, minlength=TRUE_BINS) / count for x in (p, labels))
        right.scatter(predicted, observed, s=12 + 260 * count / p.size, label="hidden truth", **rings)
        right.legend(loc="lower right")
    return figure


def main() -> None:
    """Audit, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    shared = Path(__file__).resolve().parents[2] / "shared"
    parser.add_argument("--logits", type=Path, default=shared / "logits" / "qwen__boolq__logits.csv.gz")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args()
    source = read(arguments.logits)
    labels, p = source.labels, source.probabilities("pair")
    asked = ask(design.make("latent", labels, seed=0), labels, p)
    fit = blindcal.latent(labels[asked.items], asked.shifts, asked.answers, items=asked.items)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, dark in (("audit", False), ("audit-dark", True)):
        figure = draw(fit, labels, p, dark=dark)
        (arguments.out / f"{name}.svg").write_bytes(file_bytes(figure, "svg"))
    between = fit.interval("ece")
    print(
        f"{source.model} on {source.data}, {labels.size:,} items: estimated ECE {fit.ece():.4f} "
        f"({between.low:.4f} to {between.high:.4f}), true {blindcal.binned_ece(labels, p, 5).ece:.4f}"
    )


if __name__ == "__main__":
    main()
