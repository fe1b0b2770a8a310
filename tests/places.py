"""Disks as users have them: too small, or read-only. Tests that cannot have one here are skipped."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(at: Path, size: str) -> Iterator[Path]:
    """A file system of this size, mounted on a new folder; it takes root."""
    at.mkdir()
    with _mounted(at, ["-t", "tmpfs", "-o", f"size={size}", "none", str(at)]):
        yield at


@contextmanager
def read_only(folder: Path) -> Iterator[Path]:
    """A path to the same folder where nothing can be written, not even by root."""
    if os.geteuid() != 0:
        folder.chmod(0o500)
        try:
            yield folder
        finally:
            folder.chmod(0o700)
        return
    at = folder.with_name(folder.name + "-read-only")
    at.mkdir()
    with _mounted(at, ["--bind", str(folder), str(at)]):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(at)], check=True, capture_output=True)
        yield at


@contextmanager
def _mounted(at: Path, arguments: list[str]) -> Iterator[None]:
    try:
        subprocess.run(["mount", *arguments], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a file system is not permitted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(at)], check=True, capture_output=True)
