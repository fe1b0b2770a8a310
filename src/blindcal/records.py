"""The frozen records that modules pass to each other.

A *query* asks one item with a shift ``b`` on the positive answer and a temperature ``T`` (METHOD 2);
its answer is positive, negative or invalid. Queries are passed in columns, one :class:`Round` at a time,
so that a million of them are three arrays and not a million objects.

With more than two answers (METHOD 8), an answer is its number, from 0 up in the order of the answers, and a
query has a bias for each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any, Literal, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]

Way: TypeAlias = Literal["logprobs", "thresholds", "temperature", "repeated answers", "stated confidence"]
"""What an audit can build on, the best first."""
Semantics: TypeAlias = Literal["pair", "max", "sum"]
EstimatorName: TypeAlias = Literal["latent", "blind", "shares", "flips", "stated"]
AnswerFormat: TypeAlias = Literal["word", "sentence", "json"]

POSITIVE = 1
NEGATIVE = 0
INVALID = -1
UNLABELLED = -1
"""The label of an item that has none."""
PLAIN = -1
"""What a query without a shift is about: no answer in particular."""


def level_percent(level: float) -> str:
    """A confidence level as a percentage: 95%, 99.9%."""
    return f"{100 * level:.4g}%"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its interval and the interval's confidence level.

    ``value`` is ``None`` if the answers do not determine it, and the ends if the method gives no interval.
    ``f"{estimate:.4f}"`` writes both: ``0.0988 (95%: 0.0822 to 0.1151)``.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    level: float | None = None

    @property
    def has_interval(self) -> bool:
        """Whether the estimate has an interval."""
        return self.low is not None and self.high is not None

    @property
    def half_width(self) -> float:
        """Half the width of the interval; NaN without one."""
        return np.nan if self.low is None or self.high is None else (self.high - self.low) / 2

    def times(self, factor: float) -> Estimate:
        """The estimate and its interval, multiplied by ``factor``."""
        value, low, high = (None if x is None else factor * x for x in (self.value, self.low, self.high))
        return Estimate(value, low, high, self.level)

    def __float__(self) -> float:
        return np.nan if self.value is None else self.value

    def __contains__(self, value: float) -> bool:
        """Whether a value is inside the interval."""
        return self.low is not None and self.high is not None and self.low <= value <= self.high

    def __format__(self, spec: str) -> str:
        spec = spec or ".4f"
        if self.value is None:
            return "unknown"
        if self.low is None or self.high is None:
            return format(self.value, spec)
        level = "" if self.level is None else f"{level_percent(self.level)}: "
        return f"{self.value:{spec}} ({level}{self.low:{spec}} to {self.high:{spec}})"

    def __str__(self) -> str:
        return format(self)


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of threshold answers: jitter of the log-odds (standard deviation) and share of flips."""

    jitter: float = 0.0
    flip_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Item:
    """A question: chat messages, or one message whose role is ``prompt`` for plain completions.

    Items of one ``group`` belong together: intervals resample whole groups. ``part`` is the item's part
    in a breakdown. ``choices`` is the number of its answers, and ``label`` the number of the right one, or
    `UNLABELLED`.
    """

    id: str
    label: int
    messages: tuple[Message, ...]
    _: KW_ONLY
    group: str | None = None
    part: str | None = None
    choices: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What a record of a stream brings: an item, ``None`` if it is a label alone, and a label, if known.

    ``digest`` tells whether the prompts of two records are the same. ``problem`` says why a label that is
    there cannot be read.
    """

    id: str
    item: Item | None
    digest: bytes
    label: int = UNLABELLED
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a file of a stream was read: bytes of JSON lines, else records.

    ``mark`` tells whether it is still the same file.
    """

    place: int = 0
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Token:
    """One vocabulary entry that can serve as an answer."""

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class Targets:
    """The tokens that mean positive and negative; one per side under ``pair`` semantics.

    If there are more than two answers, ``answers`` has the tokens of each, and the two sides are empty.
    """

    positive: tuple[Token, ...]
    negative: tuple[Token, ...]
    semantics: Semantics = "pair"
    answers: tuple[tuple[Token, ...], ...] = ()

    @property
    def by_answer(self) -> tuple[tuple[Token, ...], ...]:
        """The tokens of each answer, in the order of the numbers that stand for the answers."""
        return self.answers or (self.negative, self.positive)

    @property
    def sides(self) -> tuple[tuple[Token, ...], ...]:
        """The tokens of the positive and the negative answer, or of each answer in order."""
        return self.answers or (self.positive, self.negative)

    @property
    def tokens(self) -> tuple[Token, ...]:
        """All tokens: those of the positive answer first, or in the order of the answers."""
        return tuple(token for side in self.sides for token in side)

    @property
    def words(self) -> tuple[str, ...]:
        """One spelling of each answer: of the positive and the negative one, or of all in their order."""
        return tuple(side[0].text for side in self.sides)


@dataclass(frozen=True, slots=True)
class Request:
    """One request to an endpoint, independent of any provider's format.

    A ``temperature`` of ``None`` is not sent: the endpoint uses its own. ``n`` answers are asked for at once,
    and ``fields`` are further fields of the body, such as a ``response_format``.
    """

    messages: tuple[Message, ...]
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    temperature: float | None = 0.0
    _: KW_ONLY
    max_tokens: int = 1
    top_logprobs: int = 0
    seed: int | None = None
    n: int = 1
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sampled(self) -> bool:
        """Whether the answer is drawn, as far as the request says."""
        return self.temperature is None or self.temperature > 0


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply: the text, the tokens billed, and the logprobs of the first position if exposed.

    ``prompt_tokens`` is 0 if the endpoint reports none, or numbers that cannot be true. ``model`` and
    ``fingerprint`` are what the endpoint calls the model and the system that answered.
    ``logprob`` is that of the answer itself, which may be missing in ``logprobs`` (the likeliest tokens).
    ``further`` are the other answers to a request for several; what all of them cost is counted in the first.
    """

    text: str
    finish_reason: str | None = None
    _: KW_ONLY
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    model: str | None = None
    logprobs: Mapping[str, float] | None = None
    logprob: float | None = None
    fingerprint: str | None = None
    further: tuple[Reply, ...] = ()

    @property
    def usage(self) -> Usage:
        """What the reply cost: one query per answer, all answered at the first attempt."""
        return Usage(
            queries=1 + len(self.further),
            attempts=1,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=self.cached_tokens,
        )


class _Columns:
    """Columns of arrays of one length, some of which may be missing."""

    items: IntArray

    def __len__(self) -> int:
        return int(self.items.size)

    def rows(self, chosen: npt.NDArray[np.bool_] | IntArray | slice) -> Self:
        """The chosen rows."""
        columns = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]  # the classes below are dataclasses
        return type(self)(**{name: None if each is None else each[chosen] for name, each in columns.items()})


@dataclass(frozen=True, slots=True)
class Round(_Columns):
    """Queries that are sent together, in columns: the item, shift and temperature of each.

    With more than two answers, ``about`` is the number of the answer that has the shift, `PLAIN` if none has,
    and ``biases`` has a column per answer with all that is added to it: the shift, Gumbel numbers of our own,
    or minus infinity for an answer that the item does not have.
    """

    items: IntArray
    shifts: FloatArray
    temperatures: FloatArray
    _: KW_ONLY
    about: IntArray | None = None
    biases: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class AnswerTable(_Columns):
    """Queries with their answers (``POSITIVE``, ``NEGATIVE`` or ``INVALID``), in columns.

    ``stated`` is the probability of the positive answer that each answer states, NaN if it states none;
    ``None`` if answers are single words. ``bounds`` has two columns, between which each answer shows the
    log-odds to be, NaN where it shows none; ``None`` if no answer does.

    With more than two answers, ``answers`` are their numbers, ``stated`` and ``bounds`` are about the answer
    that was given, and ``about`` and ``biases`` are those of the `Round`. In a table that is reduced to one
    answer against the rest, ``gumbel`` says to which queries the rest had Gumbel numbers.
    """

    items: IntArray
    shifts: FloatArray
    temperatures: FloatArray
    answers: IntArray
    _: KW_ONLY
    stated: FloatArray | None = None
    bounds: FloatArray | None = None
    about: IntArray | None = None
    biases: FloatArray | None = None
    gumbel: npt.NDArray[np.bool_] | None = None

    @classmethod
    def empty(cls) -> AnswerTable:
        """A table without answers."""
        none, ints = np.empty(0), np.empty(0, np.int64)
        return cls(ints, none, none, ints)

    def of(self, items: IntArray) -> AnswerTable:
        """The answers to these items only."""
        return self.rows(np.isin(self.items, items))

    def with_round(self, asked: Round, answers: IntArray, bounds: FloatArray | None = None) -> AnswerTable:
        """These answers followed by those of one more round."""
        return self.joined(
            AnswerTable(
                asked.items,
                asked.shifts,
                asked.temperatures,
                answers,
                bounds=bounds,
                about=asked.about,
                biases=asked.biases,
            )
        )

    def joined(self, other: AnswerTable) -> AnswerTable:
        """These answers followed by others, without what they state."""
        if not len(self):
            return replace(other, stated=None)
        unbounded = self.bounds is None and other.bounds is None
        return AnswerTable(
            np.concatenate([self.items, other.items]),
            np.concatenate([self.shifts, other.shifts]),
            np.concatenate([self.temperatures, other.temperatures]),
            np.concatenate([self.answers, other.answers]),
            bounds=None if unbounded else np.concatenate([self.bounds_or_nan, other.bounds_or_nan]),
            about=_stacked(self.about, other.about),
            biases=_stacked(self.biases, other.biases),
        )

    @property
    def bounds_or_nan(self) -> FloatArray:
        """The bounds, NaN for every answer if none shows any."""
        return np.full((len(self), 2), np.nan) if self.bounds is None else self.bounds


ColumnT = TypeVar("ColumnT", FloatArray, IntArray)


def _stacked(first: ColumnT | None, second: ColumnT | None) -> ColumnT | None:
    """One column followed by another; ``None`` if either is missing."""
    return None if first is None or second is None else np.concatenate([first, second])


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What queries cost: their number, attempts and billed tokens.

    ``queries`` have an outcome. ``invalid`` of these are no valid answer, and ``unusable`` of the invalid
    ones no reply that could be read. ``wasted`` counts replies that were served and led to no outcome.
    """

    queries: int = 0
    attempts: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    invalid: int = 0
    unusable: int = 0
    wasted: int = 0

    @classmethod
    def of(cls, *counts: int) -> Usage:
        """The usage of counts in the order of the fields."""
        return cls(**dict(zip((each.name for each in fields(cls)), counts, strict=False)))

    @property
    def served(self) -> int:
        """The number of queries to be counted as spent."""
        return self.queries + self.wasted

    @property
    def tokens(self) -> tuple[int, int, int]:
        """The tokens of the prompts, of the completions, and those of the prompts that were cached."""
        return self.prompt_tokens, self.completion_tokens, self.cached_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            queries=self.queries + other.queries,
            attempts=self.attempts + other.attempts,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            invalid=self.invalid + other.invalid,
            unusable=self.unusable + other.unusable,
            wasted=self.wasted + other.wasted,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a run.

    While ``probing``, the queries are those of the probe, and ``total`` is approximate.
    """

    done: int
    total: int
    usage: Usage
    cost: float | None
    concurrency: int
    probing: bool = False
