"""Other packages on the same probabilities: the same figures, to the last digit where the definition agrees.

    python bench/peer_figures.py

The packages are those of the dependency group `peers`. Every figure is computed for each recorded model, by
the other package and by the fit of shown probabilities; of several answers, from the confidence in the given.

relplot counts items at the very ends of [0, 1] half: where it reflects its kernel there, the outermost of its
points, 0.001 apart, is kept once; and it cuts its kernel at a distance of 0.5. Its smooth ECE is therefore
compared twice, the second time with all probabilities within [0.001, 0.999] and where it is below 0.15.
"""

from __future__ import annotations

from record import options, record, run_all, table

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from netcal.metrics import ECE
from relplot import smECE
from scipy.special import softmax
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import brier_score_loss, roc_auc_score
from torchmetrics.functional.classification import binary_calibration_error

from blindcal.estimate.shown import ShownFit
from blindcal.items.score_files import read_choices, read_scores
from blindcal.records import FloatArray, IntArray

BINS = (5, 10, 15)
INSIDE, NARROW = "smooth ECE, inside", 0.15


def recalibrated(labels: IntArray, p: FloatArray) -> float:
    """The Brier score after isotonic regression."""
    return float(((IsotonicRegression().fit_transform(p, labels) - labels) ** 2).mean())


def miscalibration(labels: IntArray, p: FloatArray) -> float:
    """How much isotonic regression improves the Brier score."""
    return float(((p - labels) ** 2).mean()) - recalibrated(labels, p)


def discrimination(labels: IntArray, p: FloatArray) -> float:
    """How much better it is than the share of positive labels."""
    return float(labels.var()) - recalibrated(labels, p)


def relplot_smece(labels: IntArray, p: FloatArray) -> float:
    return float(smECE(p, labels))


def netcal_ece(labels: IntArray, p: FloatArray, bins: int) -> float:
    return float(ECE(bins).measure(p, labels))


def torchmetrics_ece(labels: IntArray, p: FloatArray, bins: int) -> float:
    return float(binary_calibration_error(torch.tensor(p), torch.tensor(labels), bins))


#: By figure: the package, what it computes from labels and probabilities, and our name.
FIGURES: dict[tuple[str, str], tuple[Callable[[IntArray, FloatArray], Any], str]] = {
    ("AUROC", "scikit-learn"): (roc_auc_score, "auroc"),
    ("Brier score", "scikit-learn"): (brier_score_loss, "brier"),
    ("miscalibration", "scikit-learn"): (miscalibration, "miscalibration"),
    ("discrimination", "scikit-learn"): (discrimination, "discrimination"),
    ("smooth ECE", "relplot"): (relplot_smece, "smece"),
    (INSIDE, "relplot"): (relplot_smece, "smece"),
    **{(f"ECE, {bins} bins", "netcal"): (partial(netcal_ece, bins=bins), "ece") for bins in BINS},
    **{(f"ECE, {bins} bins", "torchmetrics"): (partial(torchmetrics_ece, bins=bins), "ece") for bins in BINS},
}


def compared(path: Path) -> list[tuple[float, float]]:
    """What blindcal and the other package compute of each figure."""
    if path.parent.name == "choices":
        scores = read_choices(path)
        given = softmax(scores.logits, axis=1)
        labels, p = (given.argmax(axis=1) == scores.labels).astype(np.int64), given.max(axis=1).round(12)
    else:
        labels, p = read_scores(path).labels, read_scores(path).p
    found = []
    for (name, _), (theirs, ours) in FIGURES.items():
        bins = int(name.split()[1]) if name.startswith("ECE") else 5
        f = np.clip(p, 0.001, 0.999) if name == INSIDE else p
        fit = ShownFit(labels=labels, p=f, bin_count=bins)
        value = float(getattr(fit, ours))
        counts = name != INSIDE or value < NARROW
        found.append((value, float(theirs(labels, f)) if counts else np.nan))
    return found


def main() -> None:
    """Compare the packages on every file, and record the largest differences."""
    chosen = options(__doc__, repeats=1)
    files = sorted((chosen.data / "scores").glob("*.csv.gz")) + sorted(
        (chosen.data / "choices").glob("*.csv.gz")
    )
    each = np.array(run_all(compared, files, chosen))
    apart = np.abs(each[..., 0] - each[..., 1])
    counted = np.isfinite(apart).sum(axis=0)
    columns_of = zip(FIGURES, counted, np.nanmax(apart, axis=0), strict=True)
    rows = [(*name, int(count), float(most)) for name, count, most in columns_of]
    columns = {"figure": "{}", "package": "{}", "files": "{}", "largest difference": "{:.1e}"}
    record("peer-figures", {"apart": table(columns, rows)}, chosen)


if __name__ == "__main__":
    main()
