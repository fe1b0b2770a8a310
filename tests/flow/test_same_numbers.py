"""`simulate` finds the numbers that were recorded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from paths import ROOT, SHARED


@pytest.mark.skipif(not (SHARED / "scores").is_dir(), reason="needs ../shared/scores")
def test_simulate_finds_the_numbers_it_found_before() -> None:
    """Every method on the two smallest real score sets; the last digits differ between processors.

    bench/same_numbers.py compares all twelve, to the last digit.
    """
    command = [sys.executable, str(ROOT / "bench" / "same_numbers.py"), "--data", str(SHARED)]
    run = subprocess.run([*command, "--smallest=2", "--tolerance=1e-9"], capture_output=True, text=True)
    assert run.stdout == "16 simulations of 2 files, 0 numbers differ\n", run.stderr
    assert run.returncode == 0
