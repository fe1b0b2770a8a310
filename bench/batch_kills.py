"""Audits through batches, killed (SIGKILL) at random moments of every phase while the service fails.

    python bench/batch_kills.py [--each 10]

One item in twenty is refused by a content filter, and a fifth of all requests and of all lines of a batch
fail: 429, 500, 503, a dropped connection, or a response that is lost after the request was carried out. Every
audit must end with the result of one that was left alone, with no batch created twice and no query billed
twice. The waits are short, and the service is on this machine.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from record import ROOT, Cell, parser, record, table

sys.path.append(str(ROOT / "tests"))

from batch_killing import ITEMS, Killer
from killing import PHASES, write_items

REQUESTS = {
    "upload": "uploading a file",
    "create": "creating a batch",
    "look": "polling a batch",
    "content": "collecting answers",
}
SEARCH = "list"  # comes by itself, after a creation that failed


def main() -> None:
    """Kill audits until every phase was hit often enough, and record how often."""
    options = parser(__doc__)
    options.add_argument("--each", type=int, default=10, help="least number of kills in each phase")
    arguments = options.parse_args()
    each = arguments.each
    with tempfile.TemporaryDirectory(dir=".") as folder:
        items = Path(folder) / "items.jsonl"
        write_items(items, ITEMS)
        killer = Killer(items, Path(folder), random.Random(0))
        tally = killer.tally
        while missing := [
            *(phase for phase in PHASES if tally.kills[phase] < each),
            *(request for request in REQUESTS if tally.requests[request] < each),
        ]:
            killer.run(sorted(missing * 2, key=[*PHASES[:2], *REQUESTS, *PHASES[2:]].index))
            print(
                f"{tally.runs} audits: {dict(tally.kills)}, {dict(tally.requests)}, {dict(tally.errors)}",
                flush=True,
            )
    rows: list[list[Cell]] = [[phase, tally.kills[phase]] for phase in PHASES]
    shown = {**REQUESTS, SEARCH: "searching the list"}
    rows += [[f"in a round, while {what}", tally.requests[name]] for name, what in shown.items()]
    outcome = {
        "audits": "{}",
        "kills": "{}",
        "ended with a question": "{}",
        "ended with another error": "{}",
        "live answers lost with a kill": "{}",
        "batches or queries paid twice": "{}",
        "results that differ": "{}",
    }
    counts = [
        tally.runs,
        tally.kills.total(),
        tally.questions,
        tally.errors.total(),
        tally.lost_in_flight,
        *(0, 0),  # an audit that does ends this script with an AssertionError
    ]
    record(
        "batch_kills",
        {
            "moments": table({"killed in": "{}", "times": "{}"}, rows),
            "outcome": table(outcome, [counts]),
        },
        folder=arguments.results,
        repeats=tally.kills.total(),
        seeds="moments and failures seeded",
    )


if __name__ == "__main__":
    main()
