"""A large file of confidences, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import blindcal as bc


def test_100000_rows(tmp_path: Path) -> None:
    """They take less than 500 MB, page included, and a few seconds."""
    rng, n = np.random.default_rng(0), 100_000
    p = rng.beta(0.7, 0.7, n)
    labels = rng.random(n) < p**1.3
    rows = (f"q{k},{int(y)},{f:.6f}\n" for k, (y, f) in enumerate(zip(labels, p, strict=True)))
    (tmp_path / "a.csv").write_text("id,label,p\n" + "".join(rows))
    command = ("audit", tmp_path / "a.csv", "--confidence", "p", "--out", tmp_path / "r", "--quiet")
    child = subprocess.Popen([sys.executable, "-m", "blindcal", *command])
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    assert used.ru_maxrss < 500_000  # kB
    assert used.ru_utime < 15  # seconds of a slow machine under load; about 5
    assert (tmp_path / "r" / "report.html").exists()
    assert bc.open_run(tmp_path / "r").result.counts.items == n
