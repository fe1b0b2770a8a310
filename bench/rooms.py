"""Write the tables of docs/decisions/packages.md: the imports of each room of the package, and their sizes.

    python bench/rooms.py            # the imports
    python bench/rooms.py --sizes    # the sizes, too

Each row of the first table is a room: a top-level module or package. Its last column, which a test checks,
lists the rooms that it imports from, lazily or not. The second table has the files and lines of each room.
"""

from __future__ import annotations

from record import ROOT, table

import re
import sys
from collections import Counter
from pathlib import Path

from test_imports import MODULES, ROOMS, of_ours, room_of  # the one place that reads imports

PAGE = ROOT / "docs" / "decisions" / "packages.md"
SIZES = re.compile(r"(?<=<!-- sizes -->\n).*?(?=<!-- /sizes -->)", re.DOTALL)
#: Files and lines of each room before it was halved.
_BEFORE = """
auditing 37 7056, estimate 41 6917, endpoints 25 5750, cli 27 4754, results 23 3527, items 16
2716, report 17 2563, simulation 10 1770, reproduce 6 1241, planning 6 1141, store 4 1130,
scoring 5 798, methods 1 507, estimation 1 460, telemetry 5 440, settings 1 423, records 1 415,
design 1 346, choice_design 1 340, errors 1 210, plot 1 199, blindcal 1 189, progress_bar 1 100,
text 1 87, goals 1 78, confidence_prompt 1 73, prices 1 54, atomic_write 1 52, untrusted_json 1
48, query_seeds 1 47, json_form 1 40, notebook_display 1 32, pareto 1 25, __main__ 1 6
"""
BEFORE = {room: (int(files), int(lines)) for room, files, lines in map(str.split, _BEFORE.split(","))}
WHOLE_BEFORE = {"src": (243, 43534), "tests": (170, 36053), "bench": (60, 8792)}


def lines(path: Path) -> int:
    """The lines of a file."""
    return path.read_bytes().count(b"\n")


def sizes() -> str:
    """The files and lines of every room, and of the whole, before and now."""
    counts, totals = Counter[str](), Counter[str]()
    for name, path in MODULES.items():
        counts[room_of(name)] += 1
        totals[room_of(name)] += lines(path)
    rooms = sorted({*BEFORE, *ROOMS}, key=lambda room: -max(BEFORE.get(room, (0, 0))[1], totals[room]))
    rows = [
        [f"`{room}`", *BEFORE.get(room, (None, None)), counts[room] or None, totals[room] or None]
        for room in rooms
    ]
    for name, before in WHOLE_BEFORE.items():
        files = list((ROOT / name).rglob("*.py"))
        rows.append([f"**{name}**", *before, len(files), sum(map(lines, files))])
    heads = ("files before", "lines before", "files", "lines")
    return table({"room": "{}", **dict.fromkeys(heads, "{:,}")}, rows).markdown()


def with_imports(page: str) -> str:
    """The page with the rooms that each room imports from."""
    for room in ROOMS:
        mine = [name for name in MODULES if room_of(name) == room]
        used = {room_of(imported) for name in mine for imported in of_ours(name)} - {room}
        shown = ", ".join(sorted(used, key=ROOMS.index)) or "nothing"
        head = re.compile(rf"^\| `{room}` \| [^|\n]* \|", re.M).search(page)
        assert head is not None, f"{room} has no row in {PAGE}"
        end = page.index("\n", head.end())
        page = f"{page[: head.end()]} {shown} |{page[end:]}"
    return page


if __name__ == "__main__":
    written = with_imports(PAGE.read_text())
    PAGE.write_text(SIZES.sub(lambda _: f"\n{sizes()}\n", written) if "--sizes" in sys.argv else written)
