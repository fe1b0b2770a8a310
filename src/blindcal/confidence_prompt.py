"""The prompt that asks a model to state its confidence in words (METHOD 3, verbalized)."""

from __future__ import annotations

import re
from dataclasses import replace

from blindcal.records import Message

INSTRUCTION = (
    "Answer {positive} or {negative}, and say how confident you are in that answer, from 50% (a mere guess) "
    "to 100% (certain). Write one line and nothing else: {positive} or {negative}, then the percentage."
)


def ask_confidence(
    messages: tuple[Message, ...], words: tuple[str, str], instruction: str = INSTRUCTION
) -> tuple[Message, ...]:
    """Append the instruction to the last message, on a line of its own.

    A last sentence that asks for one of the two words alone ("Answer Yes or No.", "Reply only with Yes or
    No.") is removed, because it would contradict the instruction.
    """
    said = instruction.replace("{positive}", words[0]).replace("{negative}", words[1])
    last = messages[-1]
    asked = _plea(*words).sub("", last.content).rstrip()
    return (*messages[:-1], replace(last, content=f"{asked}\n{said}"))


def _plea(positive: str, negative: str) -> re.Pattern[str]:
    either = rf"\b{re.escape(positive)}\b[^.?!\n]*\b{re.escape(negative)}\b"
    return re.compile(
        rf"(?:(?<=[.?!:\n])|(?<=[.?!]\s)|\A)[ \t]*(?:please\s+)?(?:answer|reply|respond)\b[^.?!\n]*{either}"
        r"[^.?!\n]*[.!]?\s*\Z",
        re.IGNORECASE,
    )
