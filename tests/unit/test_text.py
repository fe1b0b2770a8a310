"""Untrusted text never reaches a terminal or a spreadsheet as anything but text."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from blindcal.text import csv_cell, encodable, printable


@given(st.text(st.characters()))
def test_printable_text_has_no_controls(text: str) -> None:
    """No control, surrogate or reordering character is left, and UTF-8 can carry the rest."""
    shown = printable(text, limit=1000)
    assert not any(unicodedata.category(char) in ("Cc", "Cs") for char in shown)
    assert not set(shown) & set("\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u200e\u200f")
    shown.encode()


def test_escapes_are_shown_not_sent() -> None:
    """An ANSI sequence is shown as the characters it is made of."""
    assert printable("\x1b[31mred\n\u202e") == "\\x1b[31mred\\n\\u202e"


def test_long_text_is_cut_and_says_so() -> None:
    """A cut text ends in an ellipsis."""
    assert printable("abcdef", limit=3) == "abc…"


@given(st.text(st.characters()))
def test_encodable_text_can_be_encoded(text: str) -> None:
    """Whatever comes in, UTF-8 carries what comes out."""
    assert len(encodable(text).encode().decode()) == len(text)


@given(st.sampled_from("=+-@\t\r\uff1d\uff0b\uff0d\uff20\ufe66\u2212"), st.text(st.characters(), max_size=20))
def test_cells_start_no_formula(start: str, rest: str) -> None:
    """No cell starts with what a spreadsheet would run."""
    cell = csv_cell(start + rest)
    assert cell[0] not in "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20\ufe66\u2212"


def test_ordinary_cells_stay_as_they_are() -> None:
    """Text that is no formula is not changed."""
    assert csv_cell("Yes, 3 > 2") == "Yes, 3 > 2"
