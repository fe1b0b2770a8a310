"""The frozen records that modules pass to each other.

A *query* asks one item with a shift ``b`` on the positive answer and a temperature ``T`` (METHOD 2); its
answer is positive, negative or invalid. Queries are passed in columns, one :class:`Round` at a time, so that
a million of them are three arrays. With more than two answers (METHOD 8), an answer is its number, from 0 up,
and a query has a bias for each answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any, Literal, Self, SupportsFloat, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

Way: TypeAlias = Literal[
    "decisions", "logprobs", "thresholds", "temperature", "repeated answers", "stated confidence", "given"
]
"""What an audit can build on, best first; confidences given in a file need no endpoint."""
Semantics: TypeAlias = Literal["pair", "max", "sum"]
EstimatorName: TypeAlias = Literal["latent", "blind", "shares", "flips", "stated"]
AnswerFormat: TypeAlias = Literal["word", "sentence", "json"]

POSITIVE = 1
NEGATIVE = 0
INVALID = -1
UNLABELLED = -1
"""Label of an item without one."""
PLAIN = -1
"""What a query without a shift is about: no answer in particular."""


def level_percent(level: float) -> str:
    """A confidence level as a percentage: 95%, 99.9%."""
    return f"{100 * level:.6g}%"


@dataclass(frozen=True, slots=True, repr=False)
class Estimate:
    """A number with its interval and the interval's confidence level; it is ordered as the number is.

    ``value`` is ``None`` if the answers do not determine it, and the ends if the method gives no interval.
    ``f"{estimate:.4f}"`` formats both: ``0.0988 (95%: 0.0822 to 0.1151)``.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    level: float | None = None

    @property
    def has_interval(self) -> bool:
        """Whether there is an interval."""
        return self.low is not None and self.high is not None

    @property
    def half_width(self) -> float:
        """Half the width of the interval; NaN without one."""
        return np.nan if self.low is None or self.high is None else (self.high - self.low) / 2

    def times(self, factor: float) -> Estimate:
        """Multiply the estimate and its interval by ``factor``."""
        value, low, high = (None if x is None else factor * x for x in (self.value, self.low, self.high))
        return Estimate(value, low, high, self.level)

    def __float__(self) -> float:
        return np.nan if self.value is None else self.value

    def __contains__(self, value: float) -> bool:
        return self.low is not None and self.high is not None and self.low <= value <= self.high

    def __lt__(self, other: SupportsFloat) -> bool:
        return float(self) < float(other)

    def __le__(self, other: SupportsFloat) -> bool:
        return float(self) <= float(other)

    def __gt__(self, other: SupportsFloat) -> bool:
        return float(self) > float(other)

    def __ge__(self, other: SupportsFloat) -> bool:
        return float(self) >= float(other)

    def __repr__(self) -> str:
        return f"{self:.3f}"

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
    """Noise of threshold answers."""

    jitter: float = 0.0  # standard deviation of the log-odds
    flip_rate: float = 0.0  # share of flipped answers


@dataclass(frozen=True, slots=True)
class Message:
    """A chat message."""

    role: str
    content: str


INSTRUCTIONS = "instructions"
"""Role of the message that holds the question about the text of the messages before it."""
GIVEN = "given"
"""Role of the only message of an item whose confidence is given in a file, which holds it."""


@dataclass(frozen=True, slots=True)
class Item:
    """A question with its label, if known."""

    id: str
    label: int  # number of the right answer, or UNLABELLED
    messages: tuple[Message, ...]  # one with the role "prompt" for plain completions
    _: KW_ONLY
    group: str | None = None  # intervals resample whole groups
    part: str | None = None  # part of a breakdown
    choices: int = 2  # number of answers

    @property
    def given(self) -> tuple[int, float, list[float]]:
        """The answer and its probability (of two, that of the positive one) that a file gives.

        Then the probabilities of all of more than two answers, if the file gives them.
        """
        form = tuple[str, int, float, list[float]]
        _, *given = msgspec.json.decode(self.messages[0].content, type=form)
        return given[0], given[1], given[2]

    @property
    def digest(self) -> bytes:
        """A hash of the prompt."""
        return hashlib.blake2b(msgspec.json.encode(self.messages), digest_size=16).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A record of a stream: an item, a label, or both."""

    id: str
    item: Item | None
    digest: bytes  # of the prompt
    label: int = UNLABELLED
    problem: str = ""  # why a label cannot be read


@dataclass(frozen=True, slots=True)
class Position:
    """How far a file of a stream was read."""

    place: int = 0  # bytes of JSON lines, else records
    mark: str = ""  # changes if the file is replaced


@dataclass(frozen=True, slots=True)
class Token:
    """A vocabulary entry that can serve as an answer."""

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class Targets:
    """The tokens that mean positive and negative; one per side under ``pair`` semantics."""

    positive: tuple[Token, ...]
    negative: tuple[Token, ...]
    semantics: Semantics = "pair"
    answers: tuple[tuple[Token, ...], ...] = ()  # of each of more than two answers; the sides are then empty

    @property
    def by_answer(self) -> tuple[tuple[Token, ...], ...]:
        """Tokens of each answer, by its number."""
        return self.answers or (self.negative, self.positive)

    @property
    def sides(self) -> tuple[tuple[Token, ...], ...]:
        """Tokens of each answer, the positive one before the negative one."""
        return self.answers or (self.positive, self.negative)

    @property
    def tokens(self) -> tuple[Token, ...]:
        """All tokens, in the order of `sides`."""
        return tuple(token for side in self.sides for token in side)

    @property
    def words(self) -> tuple[str, ...]:
        """One spelling of each answer, in the order of `sides`."""
        return tuple(side[0].text for side in self.sides)


@dataclass(frozen=True, slots=True)
class TypedQuestion:
    """A question to a decision API: which of the options, or, without any, whether something is true.

    ``graded`` options are levels, from the lowest to the highest.
    """

    instructions: str
    options: tuple[str, ...] = ()
    graded: bool = False

    @property
    def kind(self) -> Literal["predicate", "choice", "score"]:
        return "predicate" if not self.options else "score" if self.graded else "choice"


@dataclass(frozen=True, slots=True)
class Request:
    """A request to an endpoint, independent of any provider's format."""

    messages: tuple[Message, ...]
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    temperature: float | None = 0.0  # None leaves it to the endpoint
    _: KW_ONLY
    max_tokens: int = 1
    top_logprobs: int = 0
    seed: int | None = None
    n: int = 1  # answers to ask for at once
    fields: Mapping[str, Any] = field(default_factory=dict)  # of the body, such as guided_choice
    question: TypedQuestion | None = None  # for a decision API

    @property
    def sampled(self) -> bool:
        return self.temperature is None or self.temperature > 0


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply with its billed tokens and, if exposed, the logprobs of the first position.

    That of a decision API has ``probabilities`` of the options by their text (of ``true`` for a predicate),
    and perhaps the option ``chosen`` and a ``confidence``.
    """

    text: str
    finish_reason: str | None = None
    _: KW_ONLY
    prompt_tokens: int = 0  # 0 if the endpoint reports none, or numbers that cannot be true
    completion_tokens: int = 0
    cached_tokens: int = 0
    model: str | None = None
    logprobs: Mapping[str, float] | None = None  # of the likeliest tokens
    logprob: float | None = None  # of the answer, which may be missing in logprobs
    fingerprint: str | None = None  # name of the system that answered
    further: tuple[Reply, ...] = ()  # other answers to the same request; their cost is in the first
    probabilities: Mapping[str, float] | None = None
    confidence: float | None = None
    chosen: str | None = None

    @property
    def usage(self) -> Usage:
        """Usage of the reply: one query per answer, in one attempt."""
        return Usage(
            queries=1 + len(self.further),
            attempts=1,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=self.cached_tokens,
        )


class _Columns:
    """Columns of the same length, some of which may be missing."""

    items: IntArray

    def __len__(self) -> int:
        return int(self.items.size)

    @property
    def columns(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]  # the classes below are dataclasses

    def rows(self, chosen: npt.NDArray[np.bool_] | IntArray | slice) -> Self:
        columns = self.columns.items()
        return type(self)(**{name: None if each is None else each[chosen] for name, each in columns})


@dataclass(frozen=True, slots=True)
class Round(_Columns):
    """Queries to send together, in columns."""

    items: IntArray
    shifts: FloatArray
    temperatures: FloatArray
    _: KW_ONLY
    # the following only with more than two answers
    about: IntArray | None = None  # number of the answer that has the shift, or PLAIN
    biases: FloatArray | None = None  # per answer, shift and Gumbel number; -inf if the item does not have it


@dataclass(frozen=True, slots=True)
class AnswerTable(_Columns):
    """Queries with their answers, in columns.

    ``answers`` are `POSITIVE`, `NEGATIVE` or `INVALID`; with more than two answers, their numbers, and
    ``stated`` and ``bounds`` are about the given answer. ``about`` and ``biases`` are as in `Round`.
    """

    items: IntArray
    shifts: FloatArray
    temperatures: FloatArray
    answers: IntArray
    _: KW_ONLY
    stated: FloatArray | None = None  # stated probability of the positive answer; NaN where none is stated
    bounds: FloatArray | None = None  # two columns: the ends of the log-odds that an answer shows, or NaN
    shown: FloatArray | None = None  # the probability that it shows of each of more than two answers, or NaN
    about: IntArray | None = None
    biases: FloatArray | None = None
    gumbel: BoolArray | None = None  # one answer against the rest: Gumbel numbers on the rest

    @classmethod
    def empty(cls) -> AnswerTable:
        none, ints = np.empty(0), np.empty(0, np.int64)
        return cls(ints, none, none, ints)

    def of(self, items: IntArray) -> AnswerTable:
        return self.rows(np.isin(self.items, items))

    def with_round(self, asked: Round, answers: IntArray) -> AnswerTable:
        return self.joined(AnswerTable(**asked.columns, answers=answers))

    def joined(self, other: AnswerTable) -> AnswerTable:
        """These answers followed by others, without what they state."""
        if not len(self):
            return replace(other, stated=None)
        if self.bounds is not None or other.bounds is not None:
            self, other = (replace(each, bounds=each.bounds_or_nan) for each in (self, other))
        pairs: dict[str, list[Any]] = {
            name: [self.columns[name], other.columns[name]]
            for name in self.columns.keys() - {"stated", "gumbel"}
        }
        some = {name: pair for name, pair in pairs.items() if pair[0] is not None and pair[1] is not None}
        return AnswerTable(**{name: np.concatenate(pair) for name, pair in some.items()})

    @property
    def bounds_or_nan(self) -> FloatArray:
        return np.full((len(self), 2), np.nan) if self.bounds is None else self.bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What queries cost: their number, attempts and billed tokens."""

    queries: int = 0  # those with an outcome
    attempts: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    invalid: int = 0  # queries without a valid answer
    unusable: int = 0  # invalid ones without a readable reply
    wasted: int = 0  # replies that led to no outcome

    @classmethod
    def of(cls, *counts: int) -> Usage:
        """Usage from counts in the order of the fields."""
        return cls(**dict(zip((each.name for each in fields(cls)), counts, strict=False)))

    @property
    def served(self) -> int:
        """Number of queries to count as spent."""
        return self.queries + self.wasted

    @property
    def tokens(self) -> tuple[int, int, int]:
        """Tokens of the prompts, of the completions, and of the cached prompts."""
        return self.prompt_tokens, self.completion_tokens, self.cached_tokens

    def __add__(self, other: Usage) -> Usage:
        # by slots, because every reply is added
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a run."""

    done: int
    total: int  # approximate while probing
    usage: Usage
    cost: float | None
    concurrency: int
    probing: bool = False  # the queries are those of the probe
