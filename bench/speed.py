"""What one fit with 1,000 refits costs, beside sorting the data 1,000 times and another library's bootstrap.

    python bench/speed.py [--markdown docs/speed.md]

`uncertainty-calibration` needs the probabilities themselves; it is given them, and times its own 100
resamples, counted ten times. Everything runs on one thread.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import blindcal
from blindcal import design
from blindcal.simulation.simulate import ask, generate

MMLU = 56_168


def seconds(call: Callable[[], object], times: int = 1) -> float:
    """Best wall time of one call."""
    best = np.inf
    for _ in range(times):
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    return float(best)


def fit_parts(n: int) -> tuple[float, float, float]:
    """Seconds for counting and fitting, for 1,000 refits, and for the metrics after that."""
    labels, p = generate(n, 0)
    answered = ask(design.make("latent", labels, adaptive=False), labels, p)
    rows = labels[answered.items]
    fits: list[blindcal.LatentFit] = []
    fitting = seconds(
        lambda: fits.append(blindcal.latent(rows, answered.shifts, answered.answers, items=answered.items))
    )
    refitting = seconds(lambda: fits[0].draws)
    rest = seconds(lambda: (fits[0].interval("ece"), fits[0].interval("auroc"), fits[0].calibrated_pvalue()))
    return fitting, refitting, rest


def peer(n: int) -> float | None:
    """Seconds of 1,000 bootstrap resamples of `uncertainty-calibration`, from its own 100."""
    try:
        import calibration
    except ImportError:
        return None
    labels, p = generate(n, 0)
    return 10 * seconds(lambda: calibration.get_calibration_error_uncertainties(p, labels, p=1))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    _, p = generate(MMLU, 0)
    sorting = 1000 * seconds(lambda: np.sort(p), 20)
    fitting, refitting, rest = fit_parts(MMLU)
    other = peer(MMLU)
    ours = fitting + refitting
    lines = [
        f"| n = {MMLU:,} | seconds |",
        "|---|---|",
        f"| sorting the probabilities 1,000 times | {sorting:.2f} |",
        f"| `latent`: count and fit | {fitting:.2f} |",
        f"| `latent`: 1,000 refits | {refitting:.2f} |",
        f"| `latent`: intervals for ECE and AUROC, p-value | {rest:.2f} |",
        f"| **one fit and 1,000 refits / sorting** | {ours / sorting:.2f} times |",
    ]
    if other is None:
        lines.append("| `uncertainty-calibration` | not installed |")
    else:
        lines.append(f"| `uncertainty-calibration`, 1,000 resamples (100 timed) | {other:.1f} |")
        lines.append(
            f"| **`uncertainty-calibration` / one fit and 1,000 refits** | {other / ours:.0f} times |"
        )
    lines += ["", "| n | count and fit, s | 1,000 refits, s |", "|---|---|---|"]
    for n in (10**4, 10**6, 10**7):
        fitting, refitting, _ = fit_parts(n)
        lines.append(f"| 10^{round(np.log10(n))} | {fitting:.2f} | {refitting:.2f} |")
    print("\n".join(lines))
    if arguments.markdown:
        title = "# Speed\n\nMade by `python bench/speed.py`, one thread.\n\n"
        arguments.markdown.write_text(title + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
