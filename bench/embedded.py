"""The embedded model audited over HTTP and compared with its own hidden probabilities.

    python bench/embedded.py --out runs/embedded [--boolq ../shared/data/boolq_validation.jsonl.gz]

One query an item with ``latent``, on 1,000 built-in questions and, if the file is given, on the first 600
of BoolQ's validation set with the paper's prompt. Interrupted, the same command goes on: scores and audits
are kept in the folder. About half an hour on two cores, most of it BoolQ's long passages.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

from blindcal.endpoints.local_server import ServerSettings, serve

PAPER = "Passage: {passage}\nQuestion: {question}?\nAnswer True or False."


def blindcal(*arguments: str) -> str:
    """Run a command as a user would; its standard output."""
    command = [sys.executable, "-c", "from blindcal.cli import main; main()", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def builtin(folder: Path, n: int) -> Path:
    """The built-in questions as a file."""
    path = folder / "builtin.jsonl"
    blindcal("items", "builtin", "--n", str(n), "--out", str(path))
    return path


def boolq(folder: Path, source: Path, n: int) -> Path:
    """The first items of BoolQ as a file."""
    path = folder / "boolq.jsonl"
    with gzip.open(source, "rt", encoding="utf-8") as lines:
        path.write_text("".join(islice(lines, n)), encoding="utf-8")
    return path


def measure(name: str, items: Path, options: list[str], folder: Path, settings: ServerSettings) -> None:
    """Score and audit one set, and print what was found."""
    scores, run = folder / f"{name}-scores.csv", folder / f"{name}-run"
    with serve(settings=settings) as served:
        common = [
            str(items),
            "--base-url",
            served.base_url,
            "--model",
            served.model,
            "--timeout",
            "300",
            *options,
        ]
        times = []
        for command in (
            ["score", *common, "--out", str(scores), "--concurrency", "2"],
            ["audit", *common, "--out", str(run), "--oracle", str(scores), "--concurrency", "4", "--json"],
        ):
            started = time.perf_counter()
            output = blindcal(*command)
            times.append(time.perf_counter() - started)
    (folder / f"{name}-result.json").write_text(output)
    result = json.loads(output)
    print(f"{name}: score {times[0]:.0f} s, audit {times[1]:.0f} s")
    print(json.dumps({key: result.get(key) for key in ("ece", "oracle")}, indent=1), flush=True)


def main() -> None:
    """Measure the sets that are there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/embedded"))
    parser.add_argument("--boolq", type=Path)
    parser.add_argument("--n", type=int, default=1000, help="number of built-in questions")
    parser.add_argument("--n-boolq", type=int, default=600)
    parser.add_argument("--only", choices=["builtin", "boolq"], help="one of the two sets")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument(
        "--port", type=int, default=18431, help="fixed: a run is taken up at the same address"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    settings = ServerSettings(port=options.port, threads=options.threads)
    if options.only != "boolq":
        measure("builtin", builtin(options.out, options.n), [], options.out, settings)
    if options.boolq is not None and options.only != "builtin":
        items = boolq(options.out, options.boolq, options.n_boolq)
        words = ["--template", PAPER, "--positive", "True", "--negative", "False"]
        measure("boolq", items, words, options.out, settings)


if __name__ == "__main__":
    main()
