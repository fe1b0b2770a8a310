"""Importing the package is quick, and the command line starts."""

from __future__ import annotations

import os
import subprocess
import sys

HEAVY = (
    *("pyreqwest", "datasets", "pandas", "polars", "pyarrow", "torch", "transformers", "matplotlib"),
    *("xllamacpp", "scipy.stats"),
)


def python(*arguments: str, **environ: str) -> list[str]:
    """What a fresh interpreter prints, in words."""
    clean = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=clean | environ
    ).stdout.split()


def test_importing_is_quick_and_light() -> None:
    """`import blindcal` takes under a second of CPU and loads no client, reader, model or plot."""
    script = (
        "import time; begin = time.process_time(); import blindcal; spent = time.process_time() - begin\n"
        f"import sys; print(spent, *[name for name in {HEAVY!r} if name in sys.modules])\n"
        "print(*[name for name in blindcal.__all__ if not hasattr(blindcal, name)])"
    )
    (spent,) = python("-c", script)
    assert float(spent) < 1.0


def test_the_command_line_starts_without_numpy() -> None:
    """`blindcal --help` loads no numpy, so that its choice of threads holds; the user's own wins."""
    script = "import blindcal.cli, os, sys; print(os.environ['OPENBLAS_NUM_THREADS'], 'numpy' in sys.modules)"
    assert python("-c", script) == ["1", "False"]
    assert python("-c", script, OPENBLAS_NUM_THREADS="2") == ["2", "False"]


def test_the_package_runs_as_a_module() -> None:
    """`python -m blindcal` is the command line, where its command is not on the path."""
    assert "version" in python("-m", "blindcal", "--version")
