"""Answers that the log of an evaluation has already, and that an audit need not ask for again.

A model asked at temperature 0 gives its likeliest answer. If an evaluation sent the same prompt to the same
model at temperature 0, and the reply is one of the answers, then a plain query, which adds nothing to any
answer or the same to all, gets that answer too. No other query of an audit can be answered from a log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from blindcal.endpoints.http import Address, without_path
from blindcal.endpoints.query_format import FreeTextQuestion, QuestionFormat, TokenQuestion
from blindcal.items.files import Items
from blindcal.items.logged_questions import LoggedAnswer, prompt_digest
from blindcal.records import IntArray, Reply, Round

_FIRST_WORD = re.compile(r"\s*\w+")


@dataclass(frozen=True)
class LoggedAnswers:
    """The answers in the records of items that serve as answers to plain queries of this form."""

    items: Items
    question: QuestionFormat
    address: Address

    @classmethod
    def of(cls, items: Items, question: QuestionFormat, address: Address) -> LoggedAnswers | None:
        """The logged answers of these items; ``None`` if there are none, or none could serve."""
        tempered = isinstance(question, TokenQuestion | FreeTextQuestion) and question.tempered
        if not items.logged or not tempered or address.extra_body:
            return None
        return cls(items, question, address)

    def places(self, asked: Round) -> IntArray:
        """Where a round has plain queries at temperature 0."""
        plain = (asked.temperatures == 0) & (asked.shifts == 0)
        if asked.biases is not None:
            plain &= (np.isinf(asked.biases) | (asked.biases == 0)).all(axis=1)
        return np.flatnonzero(plain)

    def reply(self, item: int) -> Reply | None:
        """The reply that a plain query about an item would get, if the log shows it."""
        logged = self.items.logged.get(item)
        if logged is None or not self._same_query(logged, item):
            return None
        text = self._shown(logged)
        return None if text is None else Reply(text, "stop")

    def _same_query(self, logged: LoggedAnswer, item: int) -> bool:
        """Whether the same prompt was sent to the same model, at temperature 0."""
        model = self.address.model
        named = logged.model == model or logged.model.endswith(f"/{model}")
        here = not logged.url or without_path(logged.url) == self.address.base_url
        if not (logged.greedy and named and here and logged.api == self.address.api):
            return False
        return logged.asked == prompt_digest(self.items[item].messages)

    def _shown(self, logged: LoggedAnswer) -> str | None:
        """What a log shows of the reply: its first token or the whole text, whichever the question reads."""
        question = self.question
        if isinstance(question, TokenQuestion):
            word, spelled = _first_word(logged.text), {token.text for token in question.targets.tokens}
            known = word in spelled and (not logged.among or spelled.issubset(logged.among))
            return word if known and question.max_tokens == 1 else None
        if not isinstance(question, FreeTextQuestion) or question.form != "sentence" or logged.among:
            return None
        same = logged.finished and question.constraint is None and not question.fields
        return logged.text if same else None


def _first_word(text: str) -> str:
    """The first word of a text with the space before it; the usual tokenizers end a token where it ends."""
    found = _FIRST_WORD.match(text)
    return text if found is None else found[0]
