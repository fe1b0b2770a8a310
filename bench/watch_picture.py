"""Run the examples of docs/watch.md, and take the picture of the second one's page, docs/images/watch.png.

    python bench/watch_picture.py

They run in the world in which tests/slow/test_doc_pages.py runs the examples, and print what the page shows.
Needs a browser.
"""

from __future__ import annotations

from record import ROOT

import subprocess
import sys
import tempfile
from pathlib import Path

from docs_world import MODELS, docs_world
from picture import photograph

PICTURE = ROOT / "docs" / "images" / "watch.png"
ALARM = 4  # the exit status of a watch with an alarm


def main() -> None:
    """Audit, watch, and look at the page."""
    blindcal = [sys.executable, "-m", "blindcal", "watch", "--reference", f"runs/questions-{MODELS[0]}"]
    with tempfile.TemporaryDirectory() as folder, docs_world(Path(folder)):
        quiet = [*blindcal, "traffic.jsonl", "--labels", "labels.csv", "--every", "200"]
        subprocess.run(quiet, cwd=folder, check=True)
        raised = [*blindcal, "changed.jsonl", "--every", "300"]
        assert subprocess.run(raised, cwd=folder, check=False).returncode == ALARM
        photograph(Path(folder, "watches", f"changed-{MODELS[0]}", "watch.html"), PICTURE, height=1600)


if __name__ == "__main__":
    main()
