"""Counting on a real Ray."""

from __future__ import annotations

import json
import subprocess
import sys

from paths import ROOT


def test_ray_counts_as_one_machine_does() -> None:
    """Shards counted on a real Ray, rows of an item apart, give the same counts, estimate and interval."""
    command = [sys.executable, str(ROOT / "bench" / "shards.py"), "--answers", "20000", "--shards", "3"]
    command += ["--queries", "1", "2", "--resamples", "50"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [(each["queries"], each["answers"], each["equal"]) for each in reports] == [
        (1.0, 20_000, True),
        (2.0, 20_000, True),
    ]
