"""What real models say when they are asked for their confidence, and how much of it can be read.

    python bench/verbalized.py [--n 60] [--instruction TEXT] [--recorded ../shared/logits]

Asks the embedded model ``n`` built-in questions by ``--method verbalized`` over HTTP, and reads recorded
answers (``*__verbalized.csv.gz``: id, label, text) if their folder is given. Prints the share that was read,
why the rest was not, and a few texts. About two seconds a question on two cores.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from blindcal.auditing.audit import audit
from blindcal.endpoints.local_server import serve
from blindcal.endpoints.query_format import ConfidenceQuestion
from blindcal.estimate.truth import binned_ece
from blindcal.items.catalogue import SETS, builtin
from blindcal.items.record_files import as_line
from blindcal.records import IntArray
from blindcal.settings import Settings
from blindcal.store.run_store import RUN_FILE, Store


def show(name: str, labels: IntArray, texts: Sequence[str], words: tuple[str, str]) -> None:
    """One model's answers in a few lines."""
    found = ConfidenceQuestion(words).stated(texts)
    known = np.isfinite(found.p)
    ece = binned_ece(labels[known], found.p[known], 5).ece if known.any() else float("nan")
    print(
        f"{name}: {known.mean():.1%} of {known.size:,} read, ECE of these {ece:.4f}, unread {found.reasons}"
    )
    stated, times = np.unique(np.round(np.maximum(found.p[known], 1 - found.p[known]), 3), return_counts=True)
    often = sorted(zip(times.tolist(), stated.tolist(), strict=True), reverse=True)[:4]
    print("    most often:", ", ".join(f"{value:.0%} {count:,} times" for count, value in often))
    for text in texts[:5]:
        print(f"    {text!r}")


def recorded(folder: Path) -> None:
    """Every recorded set of answers in a folder; the data set's name is in the file's."""
    for path in sorted(folder.glob("*__verbalized.csv.gz")):
        with gzip.open(path, "rt", newline="") as file:
            rows = list(csv.DictReader(file))
        labels = np.array([int(row["label"]) for row in rows])
        show(path.name, labels, [row["text"] for row in rows], SETS[path.name.split("__")[1]].words)


def embedded(n: int, instruction: str | None) -> None:
    """The embedded model, asked over HTTP by an audit."""
    with tempfile.TemporaryDirectory() as name, serve() as served:
        items = Path(name) / "items.jsonl"
        made = list(builtin(n))
        items.write_bytes(b"".join(map(as_line, made)))
        settings = Settings(
            model=served.model,
            base_url=served.base_url,
            method="verbalized",
            instruction=instruction,
            timeout=300,
        )
        audit(items, settings, out=Path(name) / "run")
        with Store.read(Path(name) / "run" / RUN_FILE) as store:
            order = store.rounds()[0].items
            texts = [text for _, _, text, _ in store.texts()]
        show(served.model, np.array([record["label"] for record in made])[order], texts, ("Yes", "No"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--n", type=int, default=60, help="built-in questions; 0 for none")
    parser.add_argument("--instruction", help="another wording, with {positive} and {negative}")
    parser.add_argument("--recorded", type=Path, help="a folder of recorded answers")
    options = parser.parse_args()
    if options.recorded is not None:
        recorded(options.recorded)
    if options.n:
        embedded(options.n, options.instruction)
