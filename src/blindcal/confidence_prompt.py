"""The prompts that ask for more than a word: for a confidence (METHOD 3, verbalized), or for JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from blindcal.records import Message

INSTRUCTION = (
    "Answer {positive} or {negative}, and say how confident you are in that answer, from 50% (a mere guess) "
    "to 100% (certain). Write one line and nothing else: {positive} or {negative}, then the percentage."
)
CHOICE_INSTRUCTION = (
    "Answer {answers}, and say how confident you are in that answer, from 0% (certainly wrong) to 100% "
    "(certain). Write one line and nothing else: {answers}, then the percentage."
)
"""The same for more than two answers."""


def ask_confidence(
    messages: tuple[Message, ...], words: tuple[str, ...], instruction: str | None = None
) -> tuple[Message, ...]:
    """Append the instruction, by default the usual one, to the last message, on a line of its own.

    In it, ``{answers}`` stands for all answer words, and ``{positive}`` and ``{negative}`` for the two of
    them if there are no more. A last sentence that asks for one of the words alone ("Answer Yes or No.",
    "Reply only with Yes or No.", "Answer with the letter.") is removed, because it would contradict the
    instruction.
    """
    said = instruction or (INSTRUCTION if len(words) == 2 else CHOICE_INSTRUCTION)
    said = said.replace("{answers}", _either(words))
    if len(words) == 2:
        said = said.replace("{positive}", words[0]).replace("{negative}", words[1])
    return _instruct(messages, words, said)


def ask_json(messages: tuple[Message, ...], words: tuple[str, ...]) -> tuple[Message, ...]:
    """Ask for the answer as a JSON object, in the way of `ask_confidence`."""
    forms = [json.dumps({"answer": word}, ensure_ascii=False) for word in words]
    return _instruct(messages, words, f"Reply only with JSON: {_either(forms)}")


def _either(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def _instruct(messages: tuple[Message, ...], words: tuple[str, ...], said: str) -> tuple[Message, ...]:
    last = messages[-1]
    content = last.content if len(words) == 2 else _CUE.sub("", last.content)
    asked = _plea(words).sub("", content).rstrip()
    return (*messages[:-1], replace(last, content=f"{asked}\n{said}"))


_CUE = re.compile(
    r"^[ \t]*(?:the\s+)?(?:correct\s+)?answer(?:\s+is)?\s*:?\s*\Z", re.IGNORECASE | re.MULTILINE
)
"""A last line that only waits for the answer, as in prompts of multiple-choice questions."""


def _plea(words: tuple[str, ...]) -> re.Pattern[str]:
    either = rf"\b{re.escape(words[0])}\b[^.?!\n]*\b{re.escape(words[-1])}\b"
    start = r"(?<=[.?!:\n])|(?<=[.?!]\s)|\A"
    if len(words) > 2:
        either = rf"(?:{either}|\b(?:letter|option|choice)\b)"
        start = r"(?<=\n)|(?<=\w\w[.?!]\s)|\A"  # not after the "D." of an option
    return re.compile(
        rf"(?:{start})[ \t]*(?:please\s+)?(?:answer|reply|respond)\b[^.?!\n]*{either}"
        r"[^.?!\n]*[.!]?\s*\Z",
        re.IGNORECASE,
    )
