"""The API key that all tests have in their environment, and the search for it where it must not be."""

from __future__ import annotations

import gzip
from pathlib import Path

KEY = "sk-sweep+Zq7/Rw9=Lm3-Tn5Kd8Vb2Xc6Hj4"


def leaked(content: bytes | str) -> bool:
    """Whether a content holds the beginning of the key: what is cut short has leaked, too."""
    raw = content.encode(errors="replace") if isinstance(content, str) else content
    return KEY[:12].encode() in (gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw)


def leaking_files(folder: Path) -> list[Path]:
    """The files below a folder that hold the key."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return [path for path in files if leaked(path.name) or leaked(path.read_bytes())]
