"""The embedded model audited over HTTP and compared with its own hidden probabilities.

    python bench/embedded.py [--n 1000] [--out runs/embedded]

One query per item with ``latent`` on the built-in questions; the oracle is the same server's own logprobs.
If interrupted, the same command continues: scores and audit are kept in the folder. The second table shows
how good the hidden probabilities are, by level of difficulty; the accuracy is that of the model's own answer,
at probability 1/2, and that of the best threshold.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from scipy.stats import rankdata

import blindcal as bc
from blindcal.endpoints.local_server import ServerSettings, serve
from blindcal.items.score_files import read_scores
from blindcal.records import FloatArray, IntArray
from record import Cell, Table, parser, record, table


def blindcal(*arguments: str) -> str:
    """Run a command as a user would, and return its standard output."""
    command = [sys.executable, "-m", "blindcal", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def audited(folder: Path, n: int, settings: ServerSettings) -> list[Cell]:
    """Score and audit the questions, and compare the ECE."""
    items, scores, run = folder / "builtin.jsonl", folder / "scores.csv", folder / "run"
    blindcal("items", "builtin", "--n", str(n), "--out", str(items))
    with serve(settings=settings) as served:
        where = ["--base-url", served.base_url, "--model", served.model, "--set", "timeout=300"]
        began = time.perf_counter()
        blindcal("score", str(items), *where, "--out", str(scores), "--concurrency", "2")
        scored = time.perf_counter()
        options = ["--out", str(run), "--oracle", str(scores), "--concurrency", "4", "--json"]
        result = json.loads(blindcal("audit", str(items), *where, *options))
        done = time.perf_counter()
    ece, oracle = result["ece"], result["oracle"]["ece"]
    between = (ece["low"], ece["high"])
    inside = "yes" if between[0] <= oracle <= between[1] else "no"
    times = (scored - began, done - scored)
    return [n, ece["value"], between, oracle, ece["value"] - oracle, inside, *times]


def by_level(path: Path) -> Table:
    """How good the hidden probabilities are: a row per level of difficulty."""
    scores = read_scores(path)
    p, labels = np.asarray(scores.p), np.asarray(scores.labels)
    level = np.array([name.split("-")[1] for name in scores.ids])
    rows: list[list[Cell]] = [["all", *worth(p, labels)]]
    for value in sorted(set(level)):
        rows.append([f"level {value}", *worth(p[level == value], labels[level == value])])
    heads = ("AUROC", "accuracy", "at the best threshold", "ECE")
    return table({"questions": "{}", "items": "{:,}", **dict.fromkeys(heads, "{:.3f}")}, rows)


def worth(p: FloatArray, labels: IntArray) -> list[float]:
    """Number of items, AUROC, accuracy, accuracy at the best threshold, ECE."""
    positive = labels == 1
    above = rankdata(p)[positive] - rankdata(p[positive])  # negatives below each positive; ties count half
    thresholds = np.unique(np.quantile(p, np.linspace(0, 1, 201)))
    best = max(float(np.mean((p >= t) == labels)) for t in thresholds)
    said = float(np.mean((p >= 0.5) == labels))
    return [p.size, float(above.mean() / np.sum(~positive)), said, best, float(bc.binned_ece(labels, p).ece)]


def main() -> None:
    """Score, audit, and record the tables."""
    options = parser(__doc__)
    options.add_argument("--out", type=Path, default=Path("runs/embedded"))
    options.add_argument("--n", type=int, default=1000, help="number of built-in questions")
    options.add_argument("--threads", type=int, default=0)
    options.add_argument(
        "--port", type=int, default=18431, help="fixed: a run is taken up at the same address"
    )
    arguments = options.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    row = audited(arguments.out, arguments.n, ServerSettings(port=arguments.port, threads=arguments.threads))
    columns = {
        "items": "{:,}",
        "estimate": "{:.4f}",
        "95% interval": "{:.4f} to {:.4f}",
        "oracle": "{:.4f}",
        "off by": "{:+.4f}",
        "inside": "{}",
        "scored in": "{:.0f} s",
        "audited in": "{:.0f} s",
    }
    tables = {"audit": table(columns, [row]), "levels": by_level(arguments.out / "scores.csv")}
    record("embedded", tables, folder=arguments.results, repeats=1, seeds="seed 0")


if __name__ == "__main__":
    main()
