"""Bounds on the ECE from one sampled answer per item, and whether they contain the truth.

    python bench/once.py [--repeats 20]

Uses the twelve score sets and the four recorded cells. Repeat r uses seed r.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from tqdm import tqdm

import blindcal as bc
from blindcal.estimate.bounds import error_bounds
from blindcal.estimate.patterns import count_patterns
from blindcal.methods import make_design
from blindcal.reproduce import sources
from blindcal.reproduce.sources import Source
from blindcal.simulation.simulate import ask
from record import Cell, parser, record, table


def bounds(source: Source, seed: int) -> tuple[float, float]:
    """The bounds on the ECE from one sampled answer per item."""
    design = make_design("sampling", source.labels, seed=seed)
    answers = ask(design, source.probabilities("pair"), seed=seed)
    found = error_bounds(count_patterns(source.labels, answers), 0.95, source.n)
    assert found is not None
    return found


def main() -> None:
    """Run the study, and record its table."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=20)
    arguments = options.parse_args()
    rows: list[list[Cell]] = []
    inside = 0
    paths = sources.find([arguments.data / "scores", arguments.data / "logits"])
    for path in tqdm(paths, disable=None):
        source = sources.read(path)
        oracle = float(bc.binned_ece(source.labels, source.probabilities("pair")).ece)
        found = [bounds(source, seed) for seed in range(arguments.repeats)]
        there = sum(low <= oracle <= high for low, high in found)
        inside += there
        rows.append([source.name, oracle, found[0], (there, len(found))])
    rows.append(["**all**", None, None, (inside, len(paths) * arguments.repeats)])
    columns = {
        "set": "{}",
        "oracle": "{:.4f}",
        "bounds, seed 0": "{:.4f} to {:.4f}",
        "inside": "{} of {}",
    }
    record("once", {"bounds": table(columns, rows)}, folder=arguments.results, repeats=arguments.repeats)


if __name__ == "__main__":
    main()
