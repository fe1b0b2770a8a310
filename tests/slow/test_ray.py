"""Counting on a real Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from paths import ROOT


def test_ray_counts_as_one_machine_does(tmp_path: Path) -> None:
    """Shards counted on a real Ray, rows of an item apart, give the same counts, estimate and interval."""
    command = [sys.executable, str(ROOT / "bench" / "shards.py"), "--answers", "20000", "--shards", "3"]
    command += ["--queries", "1", "2", "--resamples", "50", "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| 20,000")]
    assert [(row[0], row[1], row[4]) for row in rows] == [("20,000", "1", "yes"), ("20,000", "2", "yes")]
