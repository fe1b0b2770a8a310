"""Standard output that is full, without a reader, or of few characters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def shell(redirection: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A command with its streams redirected as in a shell; what it would say on standard error is caught."""
    command = f'exec "$@" {redirection}'
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}", "bash", sys.executable, "-m", "blindcal", *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_output_that_cannot_be_written_is_an_error() -> None:
    """A result that nobody can have is one line on standard error."""
    ended = shell(">/dev/full", "items", "builtin")
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: ")
    assert ended.stderr.endswith(": free some space, and run the same again\n")


@pytest.mark.parametrize("arguments", [("items", "builtin"), ("audit", "--help")])
def test_a_reader_that_has_seen_enough_ends_a_command_in_silence(arguments: tuple[str, ...]) -> None:
    """A pipe without a reader ends the command without a word."""
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [sys.executable, "-m", "blindcal", *arguments],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert ended.returncode == 1
    assert ended.stderr == ""


def test_a_terminal_of_few_characters_shows_the_others_escaped(tmp_path: Path) -> None:
    """A name that the terminal's encoding lacks is shown escaped, not as a traceback."""
    out = tmp_path / "日本.jsonl"
    ended = shell("", "items", "builtin", "--n", "20", "--out", str(out), PYTHONIOENCODING="latin-1")
    assert ended.returncode == 0
    assert "\\u65e5\\u672c.jsonl" in ended.stderr
