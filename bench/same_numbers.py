"""Check that `simulate` finds the numbers that it found when they were recorded, to the last digit.

    python bench/same_numbers.py [--data ../shared] [--smallest 4] [--tolerance 0] [--record]

Every method on the twelve score sets, seed 0, two repeats, against ``tests/data/simulate_before.json``. It
lists the differences, and exits with status 1 if there are any. Other processors round differently: the last
digits may differ there, and ``--tolerance 1e-9`` accepts that. After a change of the estimates, ``--record``
records them as they are now.
"""

from __future__ import annotations

import arithmetic  # noqa: F401 - before numpy is loaded
from record import ROOT, parser, run_all

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from blindcal.items.score_files import read_scores
from blindcal.simulation.simulate import simulate

RECORDED = ROOT / "tests" / "data" / "simulate_before.json"


@dataclass(frozen=True, slots=True)
class Recorded:
    """What one method found on one file: the oracle, then the estimates of two repeats."""

    path: Path
    method: str
    numbers: tuple[float, ...]


def recorded(folder: Path) -> list[Recorded]:
    """Everything that was recorded, the smallest files first."""
    known = json.loads(RECORDED.read_text())
    paths = sorted((folder / name for name in known), key=lambda path: path.stat().st_size)
    return [
        Recorded(path, method, (numbers["oracle"], *numbers["estimates"]))
        for path in paths
        for method, numbers in known[path.name].items()
    ]


def compute(known: Recorded) -> tuple[float, ...]:
    """The same numbers, computed now."""
    name, _, queries = known.method.partition(" K=")
    method, _, estimator = name.partition("+")
    scores, repeats = read_scores(known.path), len(known.numbers) - 1
    made = simulate(
        method, scores.labels, scores.p, estimator=estimator or "own", queries=float(queries), repeats=repeats
    )
    return made.oracle, *made.estimates


def main() -> int:
    """Print the differences."""
    options = parser(__doc__)
    options.add_argument("--smallest", type=int, metavar="N", help="Only the N smallest files.")
    options.add_argument("--tolerance", type=float, default=0.0, help="Largest difference that is none.")
    options.add_argument("--record", action="store_true", help="Record the numbers as they are now.")
    arguments = options.parse_args()
    try:
        work = recorded(arguments.data / "scores")
    except FileNotFoundError as error:
        raise SystemExit(
            f"{error.filename} is missing: name the folder of recorded models with --data"
        ) from None
    kept = list(dict.fromkeys(known.path for known in work))[: arguments.smallest]
    work = [known for known in work if known.path in kept]
    computed = run_all(compute, work, arguments)
    if arguments.record:
        content = json.loads(RECORDED.read_text())
        for known, (oracle, *estimates) in zip(work, computed, strict=True):
            content[known.path.name][known.method] = {"oracle": oracle, "estimates": estimates}
        RECORDED.write_text(json.dumps(content, indent=1) + "\n")
    lines = [
        f"{known.path.name}, {known.method}, number {place}: {before!r} before, {after!r} now"
        for known, now in zip(work, computed, strict=True)
        for place, (before, after) in enumerate(zip(known.numbers, now, strict=True))
        if not abs(after - before) <= arguments.tolerance
    ]
    print(*lines, f"{len(work)} simulations of {len(kept)} files, {len(lines)} numbers differ", sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
