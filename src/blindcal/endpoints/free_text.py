r"""Parsing of free-text answers: which answer word a model settles on and how confident it is, or why none.

Models that reason answer last, so the last match of the surest form counts. From surest to weakest:

1. marked: ``Answer: Yes``, ``The final answer is **No**.``, ``\boxed{Yes}``, ``{"answer": "Yes"}``;
2. alone on a line: ``**Yes**``;
3. set off at the start of a sentence (``Yes, because ...``), or last in the text (``So I would say no.``);
4. anywhere else.

Words that repeat the question ("Yes or No"), are negated ("not true") or begin a phrase ("no evidence") are
skipped, and so is everything up to ``</think>``.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from blindcal.records import Message

FreeTextReason = Literal["", "empty", "cut short", "refusal", "negated", "no answer"]

REFUSAL = re.compile(
    r"\b(i (?:can(?:no|')t|am (?:not able|unable)|won't)|i'm (?:not able|unable|sorry)|as an ai|"
    r"unable to (?:answer|determine))",
    re.IGNORECASE,
)
_THOUGHT = re.compile(r"\A.*</(?:think|thinking|reasoning)>", re.IGNORECASE | re.DOTALL)
_THINKING = re.compile(r"<(?:think|thinking|reasoning)>", re.IGNORECASE)
_OBJECT = re.compile(r"\{[^{}]*\}")
_BOXED = re.compile(r"\\boxed\s*\{|####")
_MARKUP = re.compile(r"[*_~`\"{}\[\](<>|$]|\\[a-z]+")
_DASHES = dict.fromkeys(range(8208, 8214), "-") | {0x2019: "'"}
_QUOTE = re.compile(
    "[\u00ab\u00bb\u2018-\u201f\u2039\u203a\u300c-\u300f\u3008-\u300b\u3010\u3011]|(?<!\\w)'|'(?!\\w)"
)
_CUE = re.compile(
    r"(?:answer|verdict|conclusion|label|judge?ment|decision|result|option|choice|"
    r"antwort|réponse|respuesta|risposta|resposta|ответ|答案|回答|答え)"
    r"(?:[\s:=,.>-]|\b(?:is|be|was|would|should|must|to|this|that|the|question|option|therefore|clearly|simply|"
    r"ist|lautet|est|es|è|é)\b|[是は])*\Z",
    re.IGNORECASE,
)
_EITHER = re.compile(r"\s*(?:/|,?\s*\b(?:or|and|vs|oder|ou|или)\b|或)\s*", re.IGNORECASE)
_COMMA = re.compile(r"\s*,\s*")
_NEGATED = re.compile(
    r"(?:\b(?:not|never|neither|nor|cannot|nicht|pas|rather than|instead of)|n't)\s+(?:\w+\s+){0,2}\Z",
    re.IGNORECASE,
)
_SENTENCE_START = re.compile(r"(?:\A|[.!?:。\n]|^\s*(?:[-#•]|\d+[.)]))\s*\Z", re.MULTILINE)
_SET_OFF = re.compile(r"\s*(?:[.,;:!?…。、\n]|-\s|\Z)")
_LINE_START, _LINE_END = re.compile(r"^[\s#•-]*\Z", re.MULTILINE), re.compile(r"[\s.!。]*$", re.MULTILINE)
_PHRASE = re.compile(r"[ ]+(?!(?:because|since|as|with|but|due|for|given|if|here)\b)[^\W\d_]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FreeText:
    """The index of the answer in a text, or ``None`` and the reason."""

    answer: int | None
    reason: FreeTextReason = ""


def parse_free_text(text: str, answers: Sequence[str], *, finished: bool = True) -> FreeText:
    """Find the answer in a text; if it was not ``finished`` but cut short, only a marked answer counts.

    Examples
    --------
    >>> parse_free_text("The passage says so. Therefore, the answer is **Yes**.", ["Yes", "No"]).answer
    0
    >>> parse_free_text("Yes, no visa is needed.", ["Yes", "No"]).answer
    0
    >>> parse_free_text("It is not true.", ["True", "False"]).reason
    'negated'
    """
    spoken = _THOUGHT.sub("", text)
    if _THINKING.search(spoken):
        return FreeText(None, "cut short")
    plain = _plain(_BOXED.sub(" answer: ", spoken))
    places = _places(plain, tuple(answers))
    best = max((place for place in places if place.form), default=None)
    if best is not None and (finished or best.form == _MARKED):
        return FreeText(best.answer)
    if not finished:
        return FreeText(None, "cut short")
    if not plain:
        return FreeText(None, "empty")
    if any(place.negated for place in places):
        return FreeText(None, "negated")
    return FreeText(None, "refusal" if REFUSAL.search(plain) else "no answer")


def parse_json_text(text: str, answers: Sequence[str], *, finished: bool = True) -> FreeText:
    """Read the field ``answer`` of the last JSON object in a text, else the text as by `parse_free_text`.

    Examples
    --------
    >>> parse_json_text('{"answer": "No", "reason": "The answer is not Yes"}', ["Yes", "No"]).answer
    1
    """
    for match in reversed(list(_OBJECT.finditer(_THOUGHT.sub("", text)))):
        try:
            answer = json.loads(match[0]).get("answer")
        except (ValueError, RecursionError):
            continue
        if isinstance(answer, str | bool):
            return parse_free_text(str(answer), answers)
    return parse_free_text(text, answers, finished=finished)


_MARKED, _ALONE, _SET_APART, _MENTIONED, _NONE = 4, 3, 2, 1, 0


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    """A match of an answer word; they sort by form, then by position."""

    form: int
    start: int
    answer: int
    negated: bool


def _places(plain: str, answers: tuple[str, ...]) -> list[_Place]:
    matches = list(_pattern(answers).finditer(plain))
    listed: set[int] = set()
    for k in range(len(matches) - 2, -1, -1):  # "A, B or C" from its end
        between = matches[k].end(), matches[k + 1].start()
        if _EITHER.fullmatch(plain, *between) or (k + 1 in listed and _COMMA.fullmatch(plain, *between)):
            listed |= {k, k + 1}
    return [
        _Place(_form(plain, match), match.start(), int((match.lastgroup or "_0")[1:]), _negated(plain, match))
        for k, match in enumerate(matches)
        if k not in listed
    ]


def _negated(plain: str, match: re.Match[str]) -> bool:
    return _NEGATED.search(plain[: match.start()]) is not None


def _form(plain: str, match: re.Match[str]) -> int:
    before, end = plain[: match.start()], match.end()
    if _negated(plain, match):
        return _NONE
    in_phrase = _PHRASE.match(plain, end) is not None
    if _CUE.search(before) and not in_phrase:
        return _MARKED
    if _LINE_START.search(before) and _LINE_END.match(plain, end):
        return _ALONE
    if _SENTENCE_START.search(before) and _SET_OFF.match(plain, end):
        return _SET_APART
    if not re.search(r"\w", plain[end:]):
        return _SET_APART
    return _NONE if in_phrase else _MENTIONED


def _plain(text: str) -> str:
    normal = unicodedata.normalize("NFKC", text).translate(_DASHES)
    shown = _QUOTE.sub("", normal).replace(")", ",")
    return _MARKUP.sub("", shown).strip()


@lru_cache(maxsize=32)
def _pattern(answers: tuple[str, ...]) -> re.Pattern[str]:
    numbered = sorted(enumerate(map(_plain, answers)), key=lambda pair: -len(pair[1]))
    return re.compile("|".join(f"(?P<_{number}>{_word(word)})" for number, word in numbered), re.IGNORECASE)


def _word(word: str) -> str:
    """A single letter keeps its case; a script without spaces has no word boundaries."""
    body = re.escape(word)
    if len(word) == 1 and word.isascii():
        body = f"(?-i:{body})"
    unspaced = unicodedata.category(word[0]) == "Lo"
    return body if unspaced else rf"(?<![\w'-]){body}(?![\w']|-\w)"


def ask_json(messages: tuple[Message, ...], words: tuple[str, ...]) -> tuple[Message, ...]:
    forms = [json.dumps({"answer": word}, ensure_ascii=False) for word in words]
    return instruct(messages, words, f"Reply only with JSON: {either(forms)}")


def either(words: Sequence[str]) -> str:
    """Join words as alternatives: "A, B or C"."""
    return f"{', '.join(words[:-1])} or {words[-1]}"


def instruct(messages: tuple[Message, ...], words: tuple[str, ...], instruction: str) -> tuple[Message, ...]:
    """Append an instruction to the last message, minus a last sentence that asks for the word alone."""
    last = messages[-1]
    content = last.content if len(words) == 2 else _WAITING.sub("", last.content)
    asked = _plea(words).sub("", content).rstrip()
    return (*messages[:-1], replace(last, content=f"{asked}\n{instruction}"))


# A last line that only introduces the answer, as in multiple-choice prompts.
_WAITING = re.compile(
    r"^[ \t]*(?:the\s+)?(?:correct\s+)?answer(?:\s+is)?\s*:?\s*\Z", re.IGNORECASE | re.MULTILINE
)


def _plea(words: tuple[str, ...]) -> re.Pattern[str]:
    plea = rf"\b{re.escape(words[0])}\b[^.?!\n]*\b{re.escape(words[-1])}\b"
    start = r"(?<=[.?!:\n])|(?<=[.?!]\s)|\A"
    if len(words) > 2:
        plea = rf"(?:{plea}|\b(?:letter|option|choice)\b)"
        start = r"(?<=\n)|(?<=\w\w[.?!]\s)|\A"  # not after the "D." of an option
    return re.compile(
        rf"(?:{start})[ \t]*(?:please\s+)?(?:answer|reply|respond)\b[^.?!\n]*{plea}"
        r"[^.?!\n]*[.!]?\s*\Z",
        re.IGNORECASE,
    )


# Stated confidence (METHOD 3): that of a positive answer, or one minus that of a negative one

StatedReason = (
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
    reason: StatedReason = ""
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
    stated = _stated(text, least=0.5)
    return stated if answer or stated.p is None else Verbalized(1 - stated.p)


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
    stated = _stated(text, least=0.0)
    return stated if stated.p is None else replace(stated, answer=read.answer)


def _stated(text: str, least: float) -> Verbalized:
    confidence = _confidence(text)
    if confidence is None:
        return Verbalized(None, "no confidence")
    return Verbalized(confidence) if least <= confidence <= 1 else Verbalized(None, "confidence out of range")


def _answer(text: str, positive: Sequence[str], negative: Sequence[str]) -> bool | StatedReason:
    yes, no = ("|".join(re.escape(word.strip()) for word in words) for words in (positive, negative))
    places = [
        (match.start(), side)
        for side, words in ((True, yes), (False, no))
        for match in re.finditer(rf"(?<!\w)(?:{words})(?!\w)", text, re.IGNORECASE)
    ]
    if not places:
        return "no answer"
    start, first = min(places)
    both = re.search(rf"(?<!\w)(?:{yes})\s*(?:/|or|and)\s*(?:{no})(?!\w)", text, re.IGNORECASE)
    if both and both.start() == start:  # "True or False?" repeats the question
        after = [place for place in places if place[0] >= both.end()]
        return min(after)[1] if after else "both answers"
    return first


def _confidence(text: str) -> float | None:
    if percent := _PERCENT.search(text):
        return _number(percent[1]) / 100
    if out_of := _OUT_OF.search(text):
        return _number(out_of[1]) / float(out_of[2])
    short = len(text.split()) <= _FEW
    if number := _NAMED.search(text) or (_BARE.search(text) if short else None):
        value = _number(number[1])
        return value if value <= 1 else value / 100
    if not short:
        return None
    phrases = [word for word in _WORDS if re.search(rf"\b{word}\b", text, re.IGNORECASE)]
    return _WORDS[max(phrases, key=len)] if phrases else None


def _number(text: str) -> float:
    return float(text.replace(",", "."))
