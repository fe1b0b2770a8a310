"""Write the transcript of docs/install.md: the built wheel, installed in an empty environment and used there.

python bench/transcript.py            # build, install, run, rewrite it
python bench/transcript.py --check    # end with status 1 if anything but its numbers would change
"""

from __future__ import annotations

from record import ROOT

import re
import sys
import tempfile
from pathlib import Path

from fresh_install import build, transcript, wording  # the tests run the same session

PAGE = ROOT / "docs" / "install.md"
_BLOCK = re.compile(r"(?<=<!-- transcript -->\n```text\n).*?(?=```\n<!-- /transcript -->)", re.DOTALL)


def shown() -> str:
    """The transcript on the page."""
    found = _BLOCK.search(PAGE.read_text())
    assert found is not None, f"{PAGE} has no transcript"
    return found[0]


def main() -> int:
    """Write the transcript, unless this is a check."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, _ = build(folder / "dist")
        made = transcript(wheel, folder)
    if "--check" in sys.argv[1:]:
        return 0 if wording(made) == wording(shown()) else 1
    PAGE.write_text(_BLOCK.sub(lambda _: made, PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
