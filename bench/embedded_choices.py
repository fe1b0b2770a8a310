"""The embedded model audited over HTTP on questions with four options, and compared with its logprobs.

    python bench/embedded_choices.py [--n 500] [--out runs/embedded-choices]

The questions are a random sample of the shorter ones of MMLU, so that this takes minutes. ``latent`` asks for
the plain answer and one query about it; the probe and the control queries are part of the audit. The oracle
is the same server's own logprobs. If interrupted, the same command continues: scores and audit are kept in
the folder.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from blindcal.endpoints.local_server import ServerSettings, serve
from blindcal.items.score_files import read_choices
from choices import BINS, truths
from embedded import blindcal
from record import Cell, parser, record, table

SEED = 0
LONGEST = 400  # characters of a prompt
#: The estimates that have a truth, by their names in the table and in the result.
ESTIMATES = {
    "ECE": "ece",
    "accuracy": "accuracy",
    "overconfidence": "overconfidence",
    "Brier score": "brier",
    "AUROC": "auroc",
}


def sample(data: Path, n: int, folder: Path) -> Path:
    """A file with ``n`` questions drawn from the shorter ones of MMLU."""
    every, drawn = folder / "mmlu.jsonl", folder / "sample.jsonl"
    blindcal("items", "mmlu-choices", "--set", f"data_dir={data}", "--out", str(every))
    with every.open() as file:
        lines = [line for line in file if len(json.loads(line)["prompt"]) <= LONGEST]
    chosen = np.random.default_rng(SEED).choice(len(lines), n, replace=False)
    drawn.write_text("".join(lines[place] for place in np.sort(chosen)))
    return drawn


def audited(items: Path, folder: Path, settings: ServerSettings) -> tuple[list[list[Cell]], list[Cell]]:
    """Score and audit the questions: a row per estimate, and what was asked."""
    scores, run = folder / "scores.csv", folder / "run"
    with serve(settings=settings) as served:
        where = ["--base-url", served.base_url, "--model", served.model, "--set", "timeout=300"]
        blindcal("score", str(items), *where, "--out", str(scores), "--concurrency", "2")
        asked = ["--method", "latent", "--queries", "2", "--set", f"bins={BINS}", "--seed", str(SEED)]
        options = ["--out", str(run), "--oracle", str(scores), "--concurrency", "4", "--json"]
        result = json.loads(blindcal("audit", str(items), *where, *asked, *options))
    known = read_choices(scores)
    truth = truths(known.labels, known.logits)
    rows: list[list[Cell]] = []
    for name, field in ESTIMATES.items():
        found = result[field]
        between = (found["low"], found["high"])
        inside = "yes" if between[0] <= truth[name] <= between[1] else "no"
        rows.append([name, found["value"], between, truth[name], found["value"] - truth[name], inside])
    spend, invalid = result["spend"], result["counts"]["invalid"]
    queries = [spend["queries"], spend["probe_queries"], spend["control_queries"], invalid]
    return rows, [known.labels.size, *queries]


def main() -> None:
    """Score, audit, and record the tables."""
    options = parser(__doc__)
    options.add_argument("--out", type=Path, default=Path("runs/embedded-choices"))
    options.add_argument("--n", type=int, default=500, help="number of questions")
    options.add_argument("--threads", type=int, default=0)
    options.add_argument(
        "--port", type=int, default=18432, help="fixed: a run is taken up at the same address"
    )
    arguments = options.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    items = sample(arguments.data / "data", arguments.n, arguments.out)
    settings = ServerSettings(port=arguments.port, threads=arguments.threads)
    rows, run = audited(items, arguments.out, settings)
    columns = {
        "": "{}",
        "estimate": "{:.4f}",
        "95% interval": "{:.4f} to {:.4f}",
        "oracle": "{:.4f}",
        "off by": "{:+.4f}",
        "inside": "{}",
    }
    counted = dict.fromkeys(["items", "queries", "of the probe", "controls", "invalid"], "{:,}")
    tables = {"audit": table(columns, rows), "run": table(counted, [run])}
    record("embedded_choices", tables, folder=arguments.results, repeats=1, seeds=f"seed {SEED}")


if __name__ == "__main__":
    main()
