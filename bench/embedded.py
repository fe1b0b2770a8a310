"""The embedded model audited over HTTP, and compared with its own hidden probabilities.

    python bench/embedded.py [--n 1000]
    python bench/embedded.py --choices [--n 500]

One query per item with ``latent`` on the built-in questions, or two on a sample of the shorter questions
of MMLU with four options; the oracle is the same server's own logprobs. If interrupted, the same command
continues: scores and audit are kept in ``--out``. The table of levels shows how good the hidden probabilities
are by difficulty; the accuracy is that of the model's own answer, and that of the best threshold.
"""

from __future__ import annotations

from record import Cell, Table, parser, record, table, whole_source

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

import blindcal as bc
from blindcal.endpoints.local_model import ServerSettings, serve
from blindcal.items.score_files import read_choices, read_scores
from blindcal.records import FloatArray, IntArray
from choices import BINS, truths
from hidden import score

LONGEST = 400  # characters of a prompt of MMLU
#: The estimates with a truth, by their names in the table and in the result.
ESTIMATES = {
    "ECE": "ece",
    "accuracy": "accuracy",
    "overconfidence": "overconfidence",
    "Brier score": "brier",
    "AUROC": "auroc",
}
COMPARED = {
    "estimate": "{:.4f}",
    "95% interval": "{:.4f} to {:.4f}",
    "oracle": "{:.4f}",
    "off by": "{:+.4f}",
    "inside": "{}",
}


def blindcal(*arguments: str) -> str:
    """Run a command as a user would, and return its standard output."""
    command = [sys.executable, "-m", "blindcal", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def audited(
    items: Path, folder: Path, settings: ServerSettings, *options: str
) -> tuple[dict[str, Any], list[float]]:
    """Score and audit the questions: the result, and the seconds of both."""
    scores, times = folder / "scores.csv", [time.perf_counter()]
    with serve(settings=settings) as served:
        where = ["--base-url", served.base_url, "--model", served.model, "--set", "timeout=300"]
        if not scores.exists():
            score(items, served.base_url, served.model, scores)
        times.append(time.perf_counter())
        files = ["--out", str(folder / "run"), "--oracle", str(scores)]
        result = blindcal(
            "audit", str(items), *where, *files, *options, "--concurrency", "4", "--seed", "0", "--json"
        )
        times.append(time.perf_counter())
    return json.loads(result), np.diff(times).tolist()


def compared(estimate: dict[str, Any], truth: float) -> list[Cell]:
    """An estimate of a result beside the truth."""
    between = (estimate["low"], estimate["high"])
    inside = "yes" if between[0] <= truth <= between[1] else "no"
    return [estimate["value"], between, truth, estimate["value"] - truth, inside]


def two_answers(folder: Path, n: int, settings: ServerSettings) -> dict[str, Table]:
    """The audit of the built-in questions, and how good the hidden probabilities are."""
    items = folder / "builtin.jsonl"
    blindcal("items", "builtin", "--n", str(n), "--out", str(items))
    result, times = audited(items, folder, settings)
    row = [n, *compared(result["ece"], result["oracle"]["ece"]), *times]
    columns = {"items": "{:,}", **COMPARED, "scored in": "{:.0f} s", "audited in": "{:.0f} s"}
    scores = read_scores(folder / "scores.csv")
    p, labels = np.asarray(scores.p), np.asarray(scores.labels)
    level = np.array([name.split("-")[1] for name in scores.ids])
    rows: list[list[Cell]] = [["all", *quality(p, labels)]]
    rows += [[f"level {one}", *quality(p[level == one], labels[level == one])] for one in sorted(set(level))]
    heads = ("AUROC", "accuracy", "at the best threshold", "ECE")
    levels = table({"questions": "{}", "items": "{:,}", **dict.fromkeys(heads, "{:.3f}")}, rows)
    return {"audit": table(columns, [row]), "levels": levels}


def quality(p: FloatArray, labels: IntArray) -> list[float]:
    """Number of items, AUROC, accuracy, accuracy at the best threshold, ECE."""
    positive = labels == 1
    above = rankdata(p)[positive] - rankdata(p[positive])  # negatives below each positive; ties count half
    thresholds = np.unique(np.quantile(p, np.linspace(0, 1, 201)))
    best = max(float(np.mean((p >= t) == labels)) for t in thresholds)
    own = float(np.mean((p >= 0.5) == labels))
    return [p.size, float(above.mean() / np.sum(~positive)), own, best, float(bc.binned_ece(labels, p).ece)]


def four_answers(data: Path, folder: Path, n: int, settings: ServerSettings) -> dict[str, Table]:
    """The audit of questions with four options: a row per estimate, and what was asked."""
    every, items = folder / "mmlu.jsonl", folder / "sample.jsonl"
    blindcal("items", "mmlu-choices", "--data-dir", str(data), "--out", str(every))
    with every.open() as file:
        lines = [line for line in file if len(json.loads(line)["prompt"]) <= LONGEST]
    chosen = np.random.default_rng(0).choice(len(lines), n, replace=False)
    items.write_text("".join(lines[place] for place in np.sort(chosen)))
    options = ["--method", "latent", "--queries", "2", "--bins", str(BINS)]
    result, _ = audited(items, folder, settings, *options)
    known = read_choices(folder / "scores.csv")
    truth = truths(known.labels, known.logits)
    rows = [[name, *compared(result[field], truth[name])] for name, field in ESTIMATES.items()]
    spend, invalid = result["spend"], result["counts"]["invalid"]
    counts = [
        known.labels.size,
        *(spend[name] for name in ("queries", "probe_queries", "control_queries")),
        invalid,
    ]
    heads = dict.fromkeys(["items", "queries", "of the probe", "controls", "invalid"], "{:,}")
    return {"audit": table({"": "{}", **COMPARED}, rows), "run": table(heads, [counts])}


def main() -> None:
    """Score, audit, and record the tables."""
    options = parser(__doc__, threads=0)
    options.add_argument("--choices", action="store_true", help="questions with four options")
    options.add_argument("--n", type=int, help="number of questions")
    options.add_argument("--out", type=Path, help="folder of the run")
    arguments = options.parse_args()
    name = "embedded-choices" if arguments.choices else "embedded"
    folder = arguments.out or Path("runs") / name
    folder.mkdir(parents=True, exist_ok=True)
    # fixed ports: a run is taken up at the same address
    settings = ServerSettings(port=18432 if arguments.choices else 18431, threads=arguments.threads)
    if arguments.choices:
        tables = four_answers(arguments.data / "data", folder, arguments.n or 500, settings)
    else:
        tables = two_answers(folder, arguments.n or 1000, settings)
    record(name, tables, arguments, repeats=1, seeds="seed 0", runs=whole_source())


if __name__ == "__main__":
    main()
