"""Verbalized confidence: the prompt that asks for it, and the probability in a text (METHOD 3).

p is the stated confidence, from 50% to 100%, of a positive answer, and one minus that of a negative one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from blindcal.endpoints.free_text import REFUSAL, FreeTextReason, either, instruct, parse_free_text
from blindcal.records import Message

Reason = (
    FreeTextReason
    | Literal["empty", "refusal", "no answer", "both answers", "no confidence", "confidence out of range"]
)

INSTRUCTION = (
    "Answer {positive} or {negative}, and say how confident you are in that answer, from 50% (a mere guess) "
    "to 100% (certain). Write one line and nothing else: {positive} or {negative}, then the percentage."
)
CHOICE_INSTRUCTION = (
    "Answer {answers}, and say how confident you are in that answer, from 0% (certainly wrong) to 100% "
    "(certain). Write one line and nothing else: {answers}, then the percentage."
)
"""The instruction for more than two answers."""

_PERCENT = re.compile(
    r"(?<![\d.,])(?<!\bnot )(\d{1,3}(?:[.,]\d+)?)\s*(?:%|per\s?cent\b|percent\b|pct\b)", re.IGNORECASE
)
_NAMED = re.compile(
    r"\b(?:confiden\w*|certain\w*|probability|sure|likelihood)\b[^\d\n]{0,25}?(\d{1,3}(?:[.,]\d+)?)(?!\s*[%\d/])",
    re.IGNORECASE,
)
_OUT_OF = re.compile(r"(?<![\d.,])(\d{1,3}(?:[.,]\d+)?)\s*(?:/|out of)\s*(100|10)\b", re.IGNORECASE)
#: A bare number in a short answer: at the end of a line, after its first word, after punctuation, or alone.
_BARE = re.compile(r"(?:^|[^\w\s.$]|^\W*\w+)\s*(0?[.,]\d+|1[.,]0+|\d{2,3})[)\]}\"'*]*\.?\s*$", re.MULTILINE)
_FEW = 10  # words; in an answer this short, every number is about the answer
#: Confidences of phrases in a short answer; the longest phrase that occurs counts.
_WORDS = {
    "absolutely certain": 1.0,
    "completely certain": 1.0,
    "almost certain": 0.95,
    "very confident": 0.9,
    "very likely": 0.9,
    "highly confident": 0.9,
    "fairly confident": 0.75,
    "likely": 0.7,
    "somewhat confident": 0.65,
    "not sure": 0.5,
    "toss-up": 0.5,
    "coin flip": 0.5,
    "fifty-fifty": 0.5,
}


def ask_confidence(
    messages: tuple[Message, ...], words: tuple[str, ...], instruction: str | None = None
) -> tuple[Message, ...]:
    """Ask for a confidence in place of the word alone.

    An ``instruction`` may use ``{answers}`` or, for two answers, ``{positive}`` and ``{negative}``.
    """
    wording = instruction or (INSTRUCTION if len(words) == 2 else CHOICE_INSTRUCTION)
    wording = wording.replace("{answers}", either(words))
    if len(words) == 2:
        wording = wording.replace("{positive}", words[0]).replace("{negative}", words[1])
    return instruct(messages, words, wording)


@dataclass(frozen=True, slots=True)
class Verbalized:
    """The probability of the positive answer, or with more than two of ``answer``; ``None`` has a reason."""

    p: float | None
    reason: Reason = ""
    answer: int | None = None


def parse_verbalized(
    text: str, positive: Sequence[str] = ("Yes",), negative: Sequence[str] = ("No",)
) -> Verbalized:
    """Read an answer and its stated confidence.

    Examples
    --------
    >>> parse_verbalized("Yes, 85%").p
    0.85
    >>> round(parse_verbalized("No. Confidence: 0.9").p, 2)
    0.1
    >>> parse_verbalized("Yes").reason
    'no confidence'
    """
    if not text.strip():
        return Verbalized(None, "empty")
    answer = _answer(text, positive, negative)
    if not isinstance(answer, bool):
        refused = answer == "no answer" and REFUSAL.search(text) is not None
        return Verbalized(None, "refusal" if refused else answer)
    confidence = _confidence(text)
    if confidence is None:
        return Verbalized(None, "no confidence")
    if not 0.5 <= confidence <= 1:
        return Verbalized(None, "confidence out of range")
    return Verbalized(confidence if answer else 1 - confidence)


def parse_stated_choice(text: str, answers: Sequence[str]) -> Verbalized:
    """Read one of several answers and the confidence in it, from 0% to 100%.

    Examples
    --------
    >>> parse_stated_choice("C, 80%", ["A", "B", "C", "D"])
    Verbalized(p=0.8, reason='', answer=2)
    >>> parse_stated_choice("The answer is (B). Confidence: 35%", ["A", "B", "C"]).answer
    1
    """
    read = parse_free_text(text, answers)
    if read.answer is None:
        return Verbalized(None, read.reason)
    confidence = _confidence(text)
    if confidence is None:
        return Verbalized(None, "no confidence")
    if not 0 <= confidence <= 1:
        return Verbalized(None, "confidence out of range")
    return Verbalized(confidence, answer=read.answer)


def _answer(text: str, positive: Sequence[str], negative: Sequence[str]) -> bool | Reason:
    places = []
    for side, words in ((True, positive), (False, negative)):
        for word in words:
            matches = re.finditer(rf"(?<!\w){re.escape(word.strip())}(?!\w)", text, re.IGNORECASE)
            places += [(match.start(), side) for match in matches]
    if not places:
        return "no answer"
    first = min(places)
    either = re.search(
        rf"(?<!\w)(?:{'|'.join(re.escape(w.strip()) for w in positive)})\s*(?:/|or|and)\s*"
        rf"(?:{'|'.join(re.escape(w.strip()) for w in negative)})(?!\w)",
        text,
        re.IGNORECASE,
    )
    if either and either.start() == first[0]:  # "True or False?" repeats the question
        after = [place for place in places if place[0] >= either.end()]
        return min(after)[1] if after else "both answers"
    return first[1]


def _confidence(text: str) -> float | None:
    percent = _PERCENT.search(text)
    if percent:
        return _number(percent[1]) / 100
    out_of = _OUT_OF.search(text)
    if out_of:
        return _number(out_of[1]) / float(out_of[2])
    named = _NAMED.search(text)
    short = len(text.split()) <= _FEW
    number = named or (_BARE.search(text) if short else None)
    if number:
        value = _number(number[1])
        return value if value <= 1 else value / 100
    if not short:
        return None
    phrases = [word for word in _WORDS if re.search(rf"\b{word}\b", text, re.IGNORECASE)]
    return _WORDS[max(phrases, key=len)] if phrases else None


def _number(text: str) -> float:
    return float(text.replace(",", "."))
