"""The prompts that ask for more than a word: for a confidence (METHOD 3, verbalized), or for JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from blindcal.records import Message

INSTRUCTION = (
    "Answer {positive} or {negative}, and say how confident you are in that answer, from 50% (a mere guess) "
    "to 100% (certain). Write one line and nothing else: {positive} or {negative}, then the percentage."
)


def ask_confidence(
    messages: tuple[Message, ...], words: tuple[str, ...], instruction: str = INSTRUCTION
) -> tuple[Message, ...]:
    """Append the instruction to the last message, on a line of its own.

    A last sentence that asks for one of the two words alone ("Answer Yes or No.", "Reply only with Yes or
    No.") is removed, because it would contradict the instruction.
    """
    return _instruct(
        messages, words, instruction.replace("{positive}", words[0]).replace("{negative}", words[1])
    )


def ask_json(messages: tuple[Message, ...], words: tuple[str, ...]) -> tuple[Message, ...]:
    """Ask for the answer as a JSON object, in the way of `ask_confidence`."""
    positive, negative = (json.dumps({"answer": word}, ensure_ascii=False) for word in words)
    return _instruct(messages, words, f"Reply only with JSON: {positive} or {negative}")


def _instruct(messages: tuple[Message, ...], words: tuple[str, ...], said: str) -> tuple[Message, ...]:
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
