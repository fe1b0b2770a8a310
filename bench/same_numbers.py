"""Check that `simulate` finds the same numbers as before the refactoring, to the last digit.

    python bench/same_numbers.py [--data ../shared/scores] [--smallest 4] [--tolerance 0] [--record]

Every method on the twelve score sets, seed 0, two repeats, against ``tests/data/simulate_before.json``. It
lists the differences, and exits with status 1 if there are any. Other processors round differently: the last
digits may differ there, and ``--tolerance 1e-9`` accepts that. After a change of the estimates, ``--record``
records them as they are now.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from blindcal.items.score_files import read_scores
from blindcal.simulation.simulate import simulate

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "tests" / "data" / "simulate_before.json"


@dataclass(frozen=True, slots=True)
class Recorded:
    """What one method found on one file: the oracle, then the estimates of two repeats."""

    path: Path
    method: str
    numbers: tuple[float, ...]


def recorded(folder: Path) -> list[Recorded]:
    """Everything that was recorded, the smallest files first.

    Raises
    ------
    FileNotFoundError
        If a score file is not in the folder.
    """
    known = json.loads(RECORDED.read_text())
    paths = sorted((folder / name for name in known), key=lambda path: path.stat().st_size)
    return [
        Recorded(path, method, (found["oracle"], *found["estimates"]))
        for path in paths
        for method, found in known[path.name].items()
    ]


def compute(one: Recorded) -> tuple[float, ...]:
    """The same numbers, computed now."""
    name, _, queries = one.method.partition(" K=")
    method, _, estimator = name.partition("+")
    scores = read_scores(one.path)
    found = simulate(
        method,
        scores.labels,
        scores.p,
        estimator=estimator or "own",
        queries=float(queries),
        repeats=len(one.numbers) - 1,
    )
    return found.oracle, *found.estimates


def differences(one: Recorded, now: tuple[float, ...], tolerance: float) -> Iterator[str]:
    """A line per number that has changed."""
    for what, before, after in zip(
        ("oracle", *(f"seed {seed}" for seed in range(len(now) - 1))), one.numbers, now, strict=True
    ):
        if not abs(after - before) <= tolerance:
            yield f"{one.path.name}, {one.method}, {what}: {before!r} before, {after!r} now"


def main() -> int:
    """Print the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "scores")
    parser.add_argument("--smallest", type=int, metavar="N", help="Only the N smallest files.")
    parser.add_argument("--tolerance", type=float, default=0.0, help="Largest difference that is none.")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--record", action="store_true", help="Record the numbers as they are now.")
    arguments = parser.parse_args()
    try:
        work = recorded(arguments.data)
    except FileNotFoundError as error:
        raise SystemExit(f"{error.filename} is missing: give the folder of score files with --data") from None
    kept = list(dict.fromkeys(one.path for one in work))[: arguments.smallest]
    work = [one for one in work if one.path in kept]
    with ProcessPoolExecutor(arguments.processes) as pool:
        found = list(tqdm(pool.map(compute, work), total=len(work), leave=False, disable=None))
    if arguments.record:
        known = json.loads(RECORDED.read_text())
        for one, (oracle, *estimates) in zip(work, found, strict=True):
            known[one.path.name][one.method] = {"oracle": oracle, "estimates": estimates}
        RECORDED.write_text(json.dumps(known, indent=1) + "\n")
    lines = [
        line
        for one, now in zip(work, found, strict=True)
        for line in differences(one, now, arguments.tolerance)
    ]
    print(*lines, f"{len(work)} simulations of {len(kept)} files, {len(lines)} numbers differ", sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
