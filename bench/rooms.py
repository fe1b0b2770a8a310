"""Draw the import graph of the package into docs/decisions/packages.md, lazy imports included.

    python bench/rooms.py

Each row of the page's table is a room: a top-level module or package. Its last column, which a test checks,
lists the rooms that it imports from.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "unit")]

from test_imports import MODULES, ROOMS, of_ours, room_of  # noqa: E402 - the one place that reads imports

PAGE = ROOT / "docs" / "decisions" / "packages.md"


def main() -> None:
    """Rewrite the last column of the table."""
    page = PAGE.read_text()
    for room in ROOMS:
        used = {room_of(one) for name in MODULES if room_of(name) == room for one in of_ours(name)} - {room}
        shown = ", ".join(sorted(used, key=ROOMS.index)) or "nothing"
        head = re.compile(rf"^\| `{room}` \| [^|\n]* \|", re.M).search(page)
        assert head is not None, f"{room} has no row in {PAGE}"
        end = page.index("\n", head.end())
        page = f"{page[: head.end()]} {shown} |{page[end:]}"
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
