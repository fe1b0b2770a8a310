"""Atomic file writes: a file is written under another name and renamed when it is complete."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a path to write to, and rename it to `path` at the end; readers never see a partial file."""
    draft = path.with_name(path.name + ".part")
    yield draft
    draft.replace(path)
