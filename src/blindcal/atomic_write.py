"""Files that are written whole or not at all, and folders for them; a failure is a `FileError`."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blindcal.errors import FileError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn system errors while ``path`` is written into `FileError`."""
    if "\0" in str(path):
        raise FileError(f"{str(path)!r}: a path cannot have a null character", remedy="choose another path")
    try:
        yield
    except OSError as error:
        raise FileError.of(error, path) from error


def make_folder(path: Path) -> None:
    """Create a folder and its parents, unless they exist."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a path to write to, and rename it to ``path`` at the end; readers never see a partial file.

    The folder is created if needed, links are followed, and a failure leaves nothing behind. A device or a
    pipe is written to directly, because renaming would replace it.
    """
    with writing(path):
        if path.exists() and not path.is_file():
            yield path
            return
        target = Path(os.path.realpath(path))
        if target.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(target.name + ".part")
        try:
            yield draft
            draft.replace(target)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


def write_file(path: Path, content: bytes | str) -> None:
    """Write bytes, or text as UTF-8, by `atomic_write`."""
    with atomic_write(path) as draft:
        draft.write_bytes(content if isinstance(content, bytes) else content.encode())
