"""Live audits, killed (SIGKILL) at random moments of every phase while the endpoint fails.

    python bench/kills.py [--kills 100]

One item in twenty is refused by a content filter, and one request in five fails: 503, 429 or a reset
connection. Every audit must end with the result of one that was left alone, and must ask nothing again but
what was in flight when it was killed. The waits are short, and the endpoint is on this machine.
"""

from __future__ import annotations

from record import Cell, parser, record, table

import random
import tempfile
from pathlib import Path

from killing import CONCURRENCY, ITEMS, PHASES, Killer, write_items


def main() -> None:
    """Kill audits until every phase was hit often enough, and record how often."""
    options = parser(__doc__)
    options.add_argument("--kills", type=int, default=100, help="number of kills, in all phases alike")
    arguments = options.parse_args()
    each = arguments.kills // len(PHASES)
    with tempfile.TemporaryDirectory() as folder:
        items = Path(folder) / "items.jsonl"
        write_items(items, ITEMS)
        killer = Killer(items, Path(folder), random.Random(0))
        while missing := [phase for phase in PHASES if killer.kills[phase] < each]:
            killer.run(sorted(3 * missing, key=PHASES.index))
            print(f"{killer.runs} audits: {dict(killer.kills)}", flush=True)
    kills = killer.kills.total()
    row: list[Cell] = [
        killer.runs,
        *(killer.kills[phase] for phase in PHASES),
        killer.again,
        kills * CONCURRENCY,
        0,  # an audit that ends otherwise ends this script with an AssertionError
    ]
    columns = {
        "audits": "{}",
        **{f"killed in: {phase}": "{}" for phase in PHASES},
        "requests made again": "{}",
        "in flight at most": "{}",
        "results that differ": "{}",
    }
    record(
        "kills",
        {"kills": table(columns, [row])},
        arguments,
        repeats=kills,
        seeds="moments and failures seeded",
    )


if __name__ == "__main__":
    main()
