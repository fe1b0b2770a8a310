"""Files that are there whole or not at all: written beside their place, and put into it at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Where to write what shall be at `path`: a reader sees the old file or the new one, never a half."""
    draft = path.with_name(path.name + ".part")
    yield draft
    draft.replace(path)
