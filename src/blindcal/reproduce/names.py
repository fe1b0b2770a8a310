"""Names of files and folders for models and data sets, whatever these are called."""

from __future__ import annotations

import re


def file_name(*parts: str) -> str:
    """Parts joined by two underscores, with nothing in them that a file system or a shell would mind."""
    return "__".join(re.sub(r"[^\w.]+", "-", part).strip("-.") or "x" for part in parts)
