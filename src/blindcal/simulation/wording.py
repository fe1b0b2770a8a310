"""The sentences in which a replay answers, if its service does not answer in one word."""

from __future__ import annotations

import zlib

_SENTENCES = (
    "Based on the passage, the answer is **{0}**.",
    "{0}.",
    "The answer is: {0}",
    "**Answer:** {0}",
    "Let me look at what is asked. The text says enough to decide it.\n\nFinal answer: {0}",
    'After considering both sides, my answer is "{0}".',
    "{0}, according to the text above.",
)
_NEITHER = "It depends on what exactly is meant."


def sentence(word: str | None, prompt: str, number: int) -> str:
    """A sentence that says a word, or none; which one depends on the prompt and the answer's number."""
    if word is None:
        return _NEITHER
    return _SENTENCES[(zlib.crc32(prompt.encode()) + number) % len(_SENTENCES)].format(word.strip())
