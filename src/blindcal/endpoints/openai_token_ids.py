"""Token ids of the usual answer words in OpenAI's encodings, so that an audit needs no vocabulary of 42 MB.

``python bench/openai_ids.py`` prints the table anew from ``bpe-openai``; a test compares them.
A spelling that is missing here is more than one token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

WORDS = ("Yes", "No", "True", "False")
ENCODINGS = ("o200k_base", "cl100k_base")

IDS: dict[str, dict[str, int]] = {
    "o200k_base": {
        "Yes": 13022,
        " Yes": 11377,
        "yes": 6763,
        " yes": 14531,
        "YES": 31958,
        " YES": 32968,
        "No": 3160,
        " No": 3004,
        "no": 1750,
        " no": 860,
        "NO": 14695,
        " NO": 9319,
        "True": 4710,
        " True": 6432,
        "true": 3309,
        " true": 1343,
        "TRUE": 51138,
        " TRUE": 19894,
        "False": 8168,
        " False": 7983,
        "false": 7556,
        " false": 1485,
        "FALSE": 75732,
        " FALSE": 19451,
    },
    "cl100k_base": {
        "Yes": 9642,
        " Yes": 7566,
        "yes": 9891,
        " yes": 10035,
        "YES": 14331,
        " YES": 14410,
        "No": 2822,
        " No": 2360,
        "no": 2201,
        " no": 912,
        "NO": 9173,
        " NO": 5782,
        "True": 2575,
        " True": 3082,
        "true": 1904,
        " true": 837,
        "TRUE": 21260,
        " TRUE": 8378,
        "False": 4139,
        " False": 3641,
        "false": 3934,
        " false": 905,
        "FALSE": 31451,
        " FALSE": 7989,
    },
}


def spellings() -> tuple[str, ...]:
    """The words as they stand, in lower and in upper case, each with a leading space and without."""
    cases = [spelling for word in WORDS for spelling in (word, word.lower(), word.upper())]
    return tuple(text for spelling in cases for text in (spelling, f" {spelling}"))


def known(encoding: str, text: str) -> list[int] | None:
    """The ids of a usual answer word, an empty list if it is more than one token; None for any other text."""
    if encoding not in IDS or text not in spellings():
        return None
    return [IDS[encoding][text]] if text in IDS[encoding] else []


def table(encode: Callable[[str], Sequence[int]]) -> dict[str, int]:
    """The spellings that are one token each."""
    found = {text: encode(text) for text in spellings()}
    return {text: ids[0] for text, ids in found.items() if len(ids) == 1}
