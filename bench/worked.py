"""Whether a threshold that is chosen and deployed on the embedded model has the promised precision.

    python bench/worked.py [--n 300] [--deployed 160] [--precision 0.5] [--out runs/worked]

Serves SmolLM2-135M with llama.cpp on this machine and asks it whether the writer of a sentence liked a thing.
Without a shift, it always answers No. One part of the questions is audited with `blindcal audit`,
`blindcal threshold` chooses the threshold, and the printed request is sent for every question of the other
part. If interrupted, the same command continues the audit. Takes a few minutes on two cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tqdm import tqdm

import blindcal as bc
from blindcal.endpoints.local_server import ServerSettings, serve
from record import Cell, parser, record, table

QUESTION = '"The {thing} was {word}." Did they like the {thing}? Answer Yes or No.'
THINGS = (
    "soup film hotel phone concert book coffee waiter museum lamp jacket flight game pizza keyboard cake "
    "train lecture garden camera sofa song beach radio bakery pillow teacher bicycle market play"
)
GOOD = (
    "delightful wonderful excellent charming perfect superb lovely brilliant terrific fantastic pleasant "
    "great marvellous splendid impressive"
)
BAD = (
    "disgusting terrible awful broken useless horrible disappointing dreadful boring nasty filthy unbearable "
    "poor faulty overpriced"
)


def blindcal(*arguments: str) -> str:
    """Run a command as a user would, and return its standard output."""
    command = [sys.executable, "-m", "blindcal", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def questions(n: int) -> list[dict[str, Any]]:
    """``n`` of the 900 sentences, in random order; the label says whether the word is a positive one."""
    rows = [
        {"id": f"{thing} {word}", "thing": thing, "word": word, "label": label}
        for thing in THINGS.split()
        for label, words in ((1, GOOD), (0, BAD))
        for word in words.split()
    ]
    return [rows[int(k)] for k in np.random.default_rng(0).permutation(len(rows))[:n]]


def ask(body: dict[str, Any], url: str, row: dict[str, Any]) -> bool:
    """Whether the deployed model answers Yes to the printed request."""
    text = body["messages"][0]["content"].format_map(row)
    sent = json.dumps({**body, "messages": [{"role": "user", "content": text}]}).encode()
    request = urllib.request.Request(url, sent, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        said: str = json.load(reply)["choices"][0]["message"]["content"]
    return said.strip().casefold() == "yes"


def main() -> None:
    """Audit, choose, deploy, count, and record the table."""
    options = parser(__doc__)
    options.add_argument("--out", type=Path, default=Path("runs/worked"))
    options.add_argument("--n", type=int, default=300, help="questions audited")
    options.add_argument("--deployed", type=int, default=160, help="other questions, deployed on")
    options.add_argument("--precision", type=float, default=0.5)
    options.add_argument(
        "--port", type=int, default=18437, help="fixed: a run is taken up at the same address"
    )
    arguments = options.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = questions(arguments.n + arguments.deployed)
    items, run = arguments.out / "audited.jsonl", arguments.out / "run"
    items.write_text("".join(json.dumps(row) + "\n" for row in rows[: arguments.n]))
    wish = ["threshold", str(run), "--precision", str(arguments.precision), "--json"]
    with serve(settings=ServerSettings(port=arguments.port)) as served:
        where = ["--base-url", served.base_url, "--model", served.model, "--set", "timeout=300"]
        blindcal("audit", str(items), *where, "--template", QUESTION, "--out", str(run))
        chosen = json.loads(blindcal(*wish))
        deployed = rows[arguments.n :]
        said = [ask(chosen["request"], chosen["url"], row) for row in tqdm(deployed, disable=None)]
    right = [row["label"] for row, yes in zip(deployed, said, strict=True) if yes]
    found = sum(right) / max(1, sum(row["label"] for row in deployed))
    fit = bc.open_run(run).fit()
    point = fit.choose_threshold(precision=arguments.precision).point
    expected = fit.next_precision(point.threshold, max(1, len(right)))
    shown = "{:.3f} (95%: {:.3f} to {:.3f})"
    result: list[list[Cell]] = [
        ["threshold", (point.threshold,), None],
        ["precision", ends(point.precision), sum(right) / max(1, len(right))],
        [f"precision of {len(right)} decisions", ends(expected), sum(right) / max(1, len(right))],
        ["recall", ends(point.recall), found],
    ]
    tables = {"deployed": table({"": "{}", "promised": shown, "deployed": "{:.3f}"}, result)}
    record("worked", tables, folder=arguments.results, repeats=1, seeds="seed 0")


def ends(estimate: bc.Estimate) -> tuple[float, float, float]:
    """An estimate and its interval."""
    assert estimate.low is not None
    assert estimate.high is not None
    return float(estimate), estimate.low, estimate.high


if __name__ == "__main__":
    main()
