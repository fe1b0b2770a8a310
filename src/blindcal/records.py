"""The frozen records that modules pass to each other.

A *query* asks one item with a shift ``b`` on the positive answer and a temperature ``T`` (METHOD 2);
its answer is positive, negative or invalid. Queries travel in columns, a :class:`Round` at a time,
so that a million of them are three arrays and not a million objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]

Semantics: TypeAlias = Literal["pair", "max", "sum"]
Estimator: TypeAlias = Literal["latent", "blind", "shares", "flips", "stated"]

POSITIVE = 1
NEGATIVE = 0
INVALID = -1


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Item:
    """A labelled question: chat messages, or one message whose role is ``prompt`` for plain completions.

    Items of one ``group`` belong together, so that intervals resample whole groups; a ``part`` is what the
    result is broken down by.
    """

    id: str
    label: int
    messages: tuple[Message, ...]
    group: str | None = None
    part: str | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """One vocabulary entry that can serve as an answer."""

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class Targets:
    """The tokens that mean positive and negative; one a side under ``pair`` semantics."""

    positive: tuple[Token, ...]
    negative: tuple[Token, ...]
    semantics: Semantics = "pair"


@dataclass(frozen=True, slots=True)
class Request:
    """What one call asks of an endpoint, free of any provider's spelling."""

    messages: tuple[Message, ...]
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    temperature: float = 0.0
    max_tokens: int = 1
    top_logprobs: int = 0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back: the text, what it cost, and the first position's logprobs if they were exposed.

    ``logprob`` is that of the answer itself, which ``logprobs`` (the likeliest tokens) need not hold.
    """

    text: str
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    model: str | None = None
    logprobs: Mapping[str, float] | None = None
    logprob: float | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """A batch of queries in columns: which item, which shift, which temperature."""

    items: IntArray
    shifts: FloatArray
    temperatures: FloatArray

    def __len__(self) -> int:
        return int(self.items.size)


@dataclass(frozen=True, slots=True)
class AnswerTable:
    """Queries with their answers (``POSITIVE``, ``NEGATIVE`` or ``INVALID``), in columns.

    ``stated`` is the probability of the positive answer that each says in words, NaN where it says none;
    ``None`` where answers are one word.
    """

    items: IntArray
    shifts: FloatArray
    temperatures: FloatArray
    answers: IntArray
    stated: FloatArray | None = None

    def __len__(self) -> int:
        return int(self.items.size)

    @classmethod
    def empty(cls) -> AnswerTable:
        """Nothing asked yet."""
        none, ints = np.empty(0), np.empty(0, np.int64)
        return cls(ints, none, none, ints)

    def of(self, items: IntArray) -> AnswerTable:
        """The answers to these items alone."""
        keep = np.isin(self.items, items)
        return AnswerTable(
            self.items[keep],
            self.shifts[keep],
            self.temperatures[keep],
            self.answers[keep],
            None if self.stated is None else self.stated[keep],
        )

    def with_round(self, asked: Round, answers: IntArray) -> AnswerTable:
        """These answers followed by those of one more round."""
        return AnswerTable(
            np.concatenate([self.items, asked.items]),
            np.concatenate([self.shifts, asked.shifts]),
            np.concatenate([self.temperatures, asked.temperatures]),
            np.concatenate([self.answers, answers]),
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """What answers cost: how many there are, how often was asked for them, and the tokens billed."""

    queries: int = 0
    attempts: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    invalid: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.queries + other.queries,
            self.attempts + other.attempts,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.invalid + other.invalid,
        )
