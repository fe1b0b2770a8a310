"""Standard streams that are closed, full, or without a reader, as pipes and schedulers leave them."""

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


@pytest.mark.parametrize("arguments", [("items", "builtin"), ("audit", "--help")])
@pytest.mark.parametrize(
    ("redirection", "said"),
    [
        (">/dev/full", "error: standard output: the disk is full: free some space, and run the same again\n"),
        (">&-", "error: standard output: is closed: redirect it to a file, or to /dev/null\n"),
    ],
)
def test_output_that_cannot_be_written_is_an_error(
    redirection: str, said: str, arguments: tuple[str, ...]
) -> None:
    """A result that nobody can have is one line on standard error, whoever prints it."""
    ended = shell(redirection, *arguments)
    assert ended.returncode == 1
    assert ended.stderr == said


@pytest.mark.parametrize("arguments", [("items", "builtin"), ("audit", "--help")])
def test_a_reader_that_has_seen_enough_ends_a_command_in_silence(arguments: tuple[str, ...]) -> None:
    """A pipe without a reader ends the command as a shell expects, without a word."""
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
    assert ended.returncode == 141
    assert ended.stderr == ""


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", "<&- 2>&-"])
def test_messages_that_nobody_can_read_change_nothing(redirection: str, tmp_path: Path) -> None:
    """Warnings and progress are a courtesy: without them a command does what it does."""
    out = tmp_path / "items.jsonl"
    ended = shell(redirection, "items", "builtin", "--n", "20", "--out", str(out))
    assert ended.returncode == 0
    assert out.read_text().count("\n") == 20
    refused = shell(redirection, "items", "none-of-this-name")
    assert refused.returncode == 1


def test_without_any_stream_a_file_is_still_written(tmp_path: Path) -> None:
    """Files get no number of a closed stream: what is printed never ends up in them."""
    out = tmp_path / "items.jsonl"
    ended = shell("<&- >&- 2>&-", "items", "builtin", "--n", "20", "--out", str(out))
    assert ended.returncode == 0
    assert out.read_text().count("\n") == 20


def test_a_terminal_of_few_characters_shows_the_others_escaped(tmp_path: Path) -> None:
    """A name that the terminal's encoding lacks is shown escaped, not as a traceback."""
    out = tmp_path / "日本.jsonl"
    ended = shell("", "items", "builtin", "--n", "20", "--out", str(out), PYTHONIOENCODING="latin-1")
    assert ended.returncode == 0
    assert "\\u65e5\\u672c.jsonl" in ended.stderr
