"""The probabilities that an endpoint shows: the logprobs of the likeliest first tokens of an answer.

The list is short, so it may lack spellings of an answer. What it lacks is bounded in two ways: all tokens
that are not shown share what the shown ones leave of 1, and none of them is likelier than the least likely
one that is shown.
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
"""Log-odds that stand for infinite ones, far beyond all that a probability shown with rounding can tell."""

_UNSHOWN = -9999.0  # written by OpenAI and vLLM for tokens that are too unlikely to be shown
_ROUNDING = 1e-6  # a sum of rounded probabilities is not known better
_LARGEST = 0.01  # logprob that rounding can explain
_MOST = 1.05  # sum of probabilities that rounding can explain
_TOKEN_ID = re.compile(r"token_id:\d+")

BY_ID = "return_tokens_as_token_ids"
"""vLLM's field, and option, that names the tokens of logprobs by id: ``token_id:123``."""


def named_by_id(logprobs: Mapping[str, float] | None) -> bool:
    """Whether a list of logprobs names its tokens by id, and not by text."""
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
    """The probabilities of the two answers in a list of logprobs.

    ``positive`` and ``negative`` are shown; each may be larger by up to ``more_positive`` and
    ``more_negative``. ``mass`` is the shown probability of all spellings of both.
    """

    positive: float
    negative: float
    more_positive: float
    more_negative: float
    mass: float

    @property
    def low(self) -> float:
        """The lowest possible log-odds of the positive answer."""
        return _log_odds(self.positive, self.negative + self.more_negative)

    @property
    def high(self) -> float:
        """The highest possible log-odds of the positive answer."""
        return _log_odds(self.positive + self.more_positive, self.negative)


def shown_answers(
    logprobs: Mapping[str, float], words: tuple[str, ...], semantics: Semantics = "sum"
) -> ShownAnswers:
    """Find the two answer words in a list of logprobs.

    Under ``sum`` semantics every token that is a word but for case and white space counts for it, under
    ``max`` the likeliest of these, and under ``pair`` only the token that is exactly the word (METHOD 1).
    """
    chances = {text: math.exp(value) for text, value in logprobs.items() if value > _UNSHOWN}
    unseen = max(1 - sum(chances.values()), _ROUNDING)
    least = min(chances.values(), default=1.0)
    shown, more, mass = [], [], 0.0
    for word in words:
        found = [chance for text, chance in chances.items() if spoken(text) == spoken(word)]
        mass += sum(found)
        if semantics == "sum":
            missing = len(spellings(word)) - len(found)
        else:
            if semantics == "pair":
                found = [chances[word]] if word in chances else []
            found = [max(found)] if found else []
            missing = 1 - len(found)
        shown.append(sum(found))
        more.append(min(unseen, max(missing, 0) * least))
    return ShownAnswers(shown[0], shown[1], more[0], more[1], min(mass, 1.0))


def _log_odds(positive: float, negative: float) -> float:
    if not positive or not negative:
        return FARTHEST if positive else -FARTHEST
    return min(max(math.log(positive) - math.log(negative), -FARTHEST), FARTHEST)
