"""AUROC, accuracy and ECE of a model on the built-in questions, by level and by family.

    blindcal items builtin --out questions.jsonl
    blindcal score questions.jsonl --base-url URL --model MODEL --out scores.csv
    python bench/builtin.py scores.csv

Accuracy is that of the answer the model gives, at probability 1/2, and of the best threshold there is.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from blindcal.estimate.truth import binned_ece
from blindcal.items.score_files import read_scores
from blindcal.records import FloatArray, IntArray


def row(name: str, p: FloatArray, labels: IntArray) -> str:
    """One line of the table."""
    positive = labels == 1
    above = rankdata(p)[positive] - rankdata(p[positive])  # negatives below each positive; ties count half
    thresholds = np.unique(np.quantile(p, np.linspace(0, 1, 201)))
    best = max(float(np.mean((p >= t) == labels)) for t in thresholds)
    said = float(np.mean((p >= 0.5) == labels))
    figures = (above.mean() / np.sum(~positive), said, best, binned_ece(labels, p).ece)
    return f"| {name} | {len(p):,} | " + " | ".join(f"{value:.3f}" for value in figures) + " |"


def main() -> None:
    """Print the table of one score file."""
    scores = read_scores(Path(sys.argv[1]))
    p, labels = np.asarray(scores.p), np.asarray(scores.labels)
    parts = [name.split("-") for name in scores.ids]
    print("| questions | n | AUROC | accuracy | at the best threshold | ECE |\n|---|---|---|---|---|---|")
    print(row("all", p, labels))
    for column, title in ((1, "level {}"), (0, "{}")):
        values = np.array([part[column] for part in parts])
        for value in sorted(set(values)):
            chosen = values == value
            print(row(title.format(value), p[chosen], labels[chosen]))


if __name__ == "__main__":
    main()
