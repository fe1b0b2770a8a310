"""One sampled answer an item: between which bounds it leaves the ECE, and whether the truth is there.

python bench/once.py [--data ../shared] [--seeds 20]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from blindcal import design
from blindcal.estimate.bounds import error_bounds
from blindcal.estimate.patterns import count_patterns
from blindcal.reproduce import sources
from blindcal.reproduce.cells import ask
from blindcal.reproduce.table import known


def main() -> None:
    """Print a row for each score set and each recorded model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared")
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    print("| set | oracle | bounds, seed 0 | inside |\n|---|---|---|---|")
    inside = 0
    paths = sources.find([arguments.data / "scores", arguments.data / "logits"])
    for path in paths:
        source = sources.read(path)
        oracle = known(source, 5, "pair").ece
        found = []
        for seed in range(arguments.seeds):
            plan = design.make("sampling", source.labels, queries=1, bins=5, seed=seed)
            a = ask(plan, source, "sampling", seed)
            patterns = count_patterns(
                source.labels, a.shifts, a.temperatures, a.answers, a.items, None, jitter=0.0
            )
            bounds = error_bounds(patterns, 0.95, source.n)
            assert bounds is not None
            found.append(bounds)
        there = sum(low <= oracle <= high for low, high in found)
        inside += there
        low, high = found[0]
        print(f"| {source.name} | {oracle:.4f} | {low:.4f} to {high:.4f} | {there} of {len(found)} |")
    print(f"{inside} of {len(paths) * arguments.seeds}")


if __name__ == "__main__":
    main()
