"""Full BoolQ and full binarised MMLU, audited over real HTTP from recorded logits, beside `simulate`.

    python bench/replayed.py [--data ../shared] [--only boolq]

The server answers from a real model's recorded logits as an opaque API would; `blindcal.audit` asks it one
query an item. The same seed in `simulate`, which asks no server, must give the same ECE to the last digit.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import blindcal
from accuracy import read_pair
from blindcal import data
from blindcal.endpoints import replay
from blindcal.endpoints.recording import Recording
from blindcal.simulate import simulate

BOOLQ = "Passage: {passage}\nQuestion: {question}?\nAnswer True or False."
MMLU = (
    "Question: {question}\nProposed answer: {choice}\n"
    "Is the proposed answer correct? Reply only with Yes or No."
)


def boolq(folder: Path) -> Iterator[dict[str, object]]:
    """The paper's BoolQ prompts."""
    with gzip.open(folder / "boolq_validation.jsonl.gz", "rt") as file:
        for row in map(json.loads, file):
            prompt = BOOLQ.format(passage=row["passage"], question=row["question"])
            yield {"id": row["id"], "label": int(row["label"]), "prompt": prompt}


def mmlu(folder: Path) -> Iterator[dict[str, object]]:
    """Each question as four Yes/No questions, grouped."""
    with gzip.open(folder / "mmlu_test.jsonl.gz", "rt") as file:
        for row in map(json.loads, file):
            for place, choice in enumerate(row["choices"]):
                prompt = MMLU.format(question=row["question"], choice=choice)
                name = f"{row['id']}/{'ABCD'[place]}"
                yield {"id": name, "label": int(row["answer"] == place), "prompt": prompt, "group": row["id"]}


def audited(items: Path, logits: Path, words: tuple[str, str], out: Path, seed: int) -> blindcal.AuditResult:
    """One audit over HTTP of a recorded model."""
    recording = Recording.load(logits, positive=words[0], negative=words[1])
    with data.load(items, data.Reading()) as questions, replay.running(recording, questions) as server:
        settings = blindcal.Settings(
            model=recording.name,
            base_url=server.base_url,
            positive=words[0],
            negative=words[1],
            positive_ids=_ids(logits, words[0]),
            negative_ids=_ids(logits, words[1]),
            seed=seed,
        )
        with blindcal.Bar(disable=None) as bar:
            return blindcal.audit(items, settings, out=out, progress=bar)


def _ids(logits: Path, word: str) -> tuple[int, ...]:
    """The id of the variant without a space."""
    with gzip.open(logits, "rt") as file:
        names = next(file).strip().split(",")
    return tuple(int(name.split("|")[1]) for name in names if name.split("|")[0] == word)


def main() -> None:
    """Print a row for each recorded cell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared")
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print("| cell | items | oracle | over HTTP | `simulate` | equal | 95% interval | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for name, make, words in (("boolq", boolq, ("True", "False")), ("mmlu", mmlu, ("Yes", "No"))):
        for logits in sorted((arguments.data / "logits").glob(f"*__{name}__logits.csv.gz")):
            if arguments.only not in logits.name:
                continue
            with tempfile.TemporaryDirectory() as folder:
                items = Path(folder) / "items.jsonl"
                rows = make(arguments.data / "data")
                items.write_text("".join(json.dumps(row) + "\n" for row in rows))
                begin = time.perf_counter()
                result = audited(items, logits, words, Path(folder) / "run", arguments.seed)
                took = time.perf_counter() - begin
            labels, p = read_pair(logits)
            direct = simulate("latent", labels, p, repeats=1, seed=arguments.seed)
            ece = result.ece
            assert ece.value is not None
            print(
                f"| {logits.name.split('__logits')[0]} | {labels.size:,} | {direct.oracle:.4f} | "
                f"{ece.value:.6f} | "
                f"{direct.estimates[0]:.6f} | {'yes' if ece.value == direct.estimates[0] else 'NO'} | "
                f"{ece.low:.4f} to {ece.high:.4f} | {took:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
