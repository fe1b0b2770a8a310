"""Make tests/data/smollm2__builtin__logits.csv.gz: a real model's recorded logits on some built-in questions.

    blindcal serve --port 8099 &
    blindcal score builtin --model SmolLM2-135M-Instruct.Q4_1 --base-url http://127.0.0.1:8099/v1 \
      --first 240 --out scores.csv
    python bench/own_logits.py scores.csv

It gives tests a real model's log-odds without any other data. Logprobs are logits whose log-sum-exp is zero.
The greedy answer is the likeliest recorded token, or none if all other tokens together are likelier.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import sys
from pathlib import Path

_NONE = "2"  # an id that no recorded token has
OUT = Path(__file__).resolve().parents[1] / "tests" / "data" / "smollm2__builtin__logits.csv.gz"


def main() -> None:
    """Convert a score file."""
    with Path(sys.argv[1]).open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = [name for name in rows[0] if "|" in name]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["id", "label", *names, "lse", "argmax"])
    for row in rows:
        logits = {name: float(row[name]) for name in names}
        best = max(names, key=lambda name: logits[name])
        rest = math.log(max(1 - float(row["mass"]), 1e-12))
        argmax = best.rpartition("|")[2] if logits[best] > rest else _NONE
        shown = [f"{logits[name]:.5f}" for name in names]
        table.writerow([row["id"], row["label"], *shown, "0", argmax])
    with OUT.open("wb") as raw, gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as file:
        file.write(text.getvalue().encode())


if __name__ == "__main__":
    main()
