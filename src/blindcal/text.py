"""Untrusted text, made safe to store, to print and to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Sequence

# C0 and C1 controls, surrogates, what XML forbids, and characters that reorder or hide what follows them.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff"
    "\ufeff\ufff9-\ufffb\ufffe\uffff]"
)
_FORMULA = ("=", "+", "-", "@", "\u2212")
_NAMED = {9: "\\t", 10: "\\n", 13: "\\r"}
_SURROGATE = re.compile("[\ud800-\udfff]")


def printable(text: str, limit: int = 200) -> str:
    """Cut ``text`` at ``limit``, and escape control, invisible and reordering characters."""
    if len(text) <= limit and text.isascii() and text.isprintable():  # nearly every answer
        return text
    shown = _UNSAFE.sub(_escape, text[:limit])
    return shown + "…" if len(text) > limit else shown


def visible(text: str, lines: bool = False) -> str:
    """Escape ``text`` as `printable` does, but in full; ``lines`` keeps line breaks and tabs."""
    kept = "\t\n" if lines else ""
    return _UNSAFE.sub(lambda match: match[0] if match[0] in kept else _escape(match), text)


def shortened(text: str, limit: int) -> str:
    """Cut ``text`` to about ``limit`` characters, a quarter of them from its start, the rest from its end."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 4]}\n[...]\n{text[limit // 4 - limit :]}"


def encodable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, by U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def spoken(text: str) -> str:
    """Normalize an answer word: case-folded, without surrounding white space."""
    return text.strip().casefold()


def spellings(word: str, *, letter: bool = False) -> tuple[str, ...]:
    """Texts of tokens that can be an answer word: in each case, without and with a space before it.

    The ``letter`` of an option keeps its case, because " a" and " i" are words.
    """
    word = word.strip()
    cases = dict.fromkeys([word] if letter else [word, word.capitalize(), word.lower(), word.upper()])
    return tuple(text for case in cases for text in (case, f" {case}"))


def listed(names: Sequence[str]) -> str:
    """Join names as in a sentence: "one, two and three"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def csv_cell(text: str) -> str:
    """Escape ``text``, with a quote before what a spreadsheet would run as a formula, full-width or not."""
    if not text or (text.isascii() and text.isalnum()):  # as most ids and answers are
        return text
    shown = printable(text, limit=len(text))
    return f"'{shown}" if unicodedata.normalize("NFKC", shown).lstrip()[:1] in _FORMULA else shown


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Write a table as CSV, its texts escaped by `csv_cell`; ``None`` is an empty cell."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(header)
    table.writerows([csv_cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return text.getvalue()


def file_name(*parts: str) -> str:
    """Join parts by two underscores, without characters special to a file system or a shell."""
    return "__".join(re.sub(r"[^\w.]+", "-", part).strip("-.") or "x" for part in parts)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return _NAMED.get(code) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")
