"""Answer probabilities from the logprobs of the likeliest first tokens.

The list is short, so it may lack spellings of an answer. Two bounds limit what it lacks: hidden tokens share
what the shown ones leave of 1, and none is likelier than the least likely shown one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from blindcal.records import Semantics
from blindcal.text import spellings, spoken

TOP_LOGPROBS = 20
"""Logprobs to ask for: the most that OpenAI allows, and vLLM by default."""
FARTHEST = 50.0
"""Stands for infinite log-odds, far beyond what rounded probabilities can show."""

_UNSHOWN = -9999.0  # written by OpenAI and vLLM for tokens that are too unlikely to be shown
_ROUNDING = 1e-6  # a sum of rounded probabilities is not known better
_LARGEST = 0.01  # logprob that rounding can explain
_MOST = 1.05  # sum of probabilities that rounding can explain
_TOKEN_ID = re.compile(r"token_id:\d+")

BY_ID = "return_tokens_as_token_ids"
"""vLLM's field, and option, that names the tokens of logprobs by id: ``token_id:123``."""


def named_by_id(logprobs: Mapping[str, float] | None) -> bool:
    return bool(logprobs) and all(map(_TOKEN_ID.fullmatch, logprobs or ()))


def fault_in(logprobs: Mapping[str, float] | None) -> str | None:
    """Why a list of logprobs cannot be read; ``None`` if it can."""
    if not logprobs:
        return "this endpoint shows no logprobs"
    if named_by_id(logprobs):
        return f"this endpoint shows logprobs by token id and not by text (vLLM does with {BY_ID})"
    values = list(logprobs.values())
    if max(values) > _LARGEST or sum(map(math.exp, values)) > _MOST:
        return (
            "what this endpoint shows as logprobs are no logarithms of probabilities: it seems to show "
            "logits (vLLM does with logprobs-mode raw_logits or processed_logits)"
        )
    return None


@dataclass(frozen=True, slots=True)
class ShownAnswers:
    """The probabilities of the answers in a list of logprobs, in the order of their words.

    Each value of ``shown`` may be larger by its part of ``more``, and their sum by ``unseen``; ``mass`` is
    the shown probability of all spellings.
    """

    shown: tuple[float, ...]
    more: tuple[float, ...]
    unseen: float
    mass: float

    @property
    def likeliest(self) -> int:
        return self.shown.index(max(self.shown))

    def low(self, place: int = 0) -> float:
        """Lower bound of the log-odds of an answer against all others."""
        more = min(self.unseen, _others(self.more, place))
        return _log_odds(self.shown[place], _others(self.shown, place) + more)

    def high(self, place: int = 0) -> float:
        """Upper bound of the log-odds of an answer against all others."""
        return _log_odds(self.shown[place] + self.more[place], _others(self.shown, place))


def shown_answers(
    logprobs: Mapping[str, float], words: tuple[str, ...], semantics: Semantics = "sum"
) -> ShownAnswers:
    """Find the answer words in a list of logprobs.

    ``sum`` semantics add up all tokens that are the word but for case and white space, ``max`` takes the
    likeliest, and ``pair`` the exact token (METHOD 1). Of more than two answers, letters keep their case.
    """
    chances = {text: math.exp(value) for text, value in logprobs.items() if value > _UNSHOWN}
    unseen = max(1 - sum(chances.values()), _ROUNDING)
    least = min(chances.values(), default=1.0)
    shown, more, mass = [], [], 0.0
    for word in words:
        letter = len(words) > 2 and len(word.strip()) == 1
        same = str.strip if letter else spoken
        spelled = [chance for text, chance in chances.items() if same(text) == same(word)]
        mass += sum(spelled)
        if semantics == "sum":
            missing = len(spellings(word, letter=letter)) - len(spelled)
        else:
            if semantics == "pair":
                spelled = [chances[word]] if word in chances else []
            spelled = [max(spelled)] if spelled else []
            missing = 1 - len(spelled)
        shown.append(sum(spelled))
        more.append(min(unseen, max(missing, 0) * least))
    return ShownAnswers(tuple(shown), tuple(more), unseen, min(mass, 1.0))


def _others(values: tuple[float, ...], place: int) -> float:
    return sum(values[:place] + values[place + 1 :])


def _log_odds(positive: float, negative: float) -> float:
    if not positive or not negative:
        return FARTHEST if positive else -FARTHEST
    return min(max(math.log(positive) - math.log(negative), -FARTHEST), FARTHEST)
