"""What an audit would ask, cost and find out; and which audit finds out what is wanted for the least."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scipy.special import ndtri

from blindcal import design
from blindcal.auditing.prepare import ABOUT
from blindcal.confidence_prompt import INSTRUCTION, ask_confidence
from blindcal.endpoints import tokens
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.query_format import STATED_TOKENS
from blindcal.errors import InputError, MissingExtraError
from blindcal.estimate.truth import bins_blind
from blindcal.items.catalogue import open_items
from blindcal.items.files import Items
from blindcal.methods import FITTED
from blindcal.planning.forecast import Forecast, forecast, worth
from blindcal.planning.shapes import DEFAULT, Shape, preset
from blindcal.prices import CHARACTERS_A_TOKEN, Prices, total_cost
from blindcal.records import Usage
from blindcal.settings import DEFAULT_BINS, Settings

LATENCY = 0.6  # seconds a reply that are assumed where none is known
#: Mean queries an item that are weighed against each other.
LADDER: dict[str, tuple[float, ...]] = {
    "latent": (1.0, 1.5, 2.0, 3.0),
    "temperature": (2.0, 3.0, 4.0),
    "blind": (1.0,),
    "sampling": (2.0, 4.0, 8.0),
    "extraction": (4.0, 6.0, 8.0),
}
#: Those of a figure, which shows the rest between them.
DRAWN = {**LADDER, "temperature": (2.0, 4.0), "sampling": (2.0, 8.0), "extraction": (4.0, 8.0)}
_LEAST, _MOST = 20, 10_000_000  # items between which a plan is sought


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Tokens of one query; ``counted`` says whether they are, or are guessed."""

    prompt: float
    completion: float = 1.0
    counted: bool = False


@dataclass(frozen=True, slots=True)
class Throughput:
    """How fast queries can go."""

    latency: float = LATENCY
    concurrency: int = 32
    rpm: float | None = None
    tpm: float | None = None

    def seconds(self, queries: int, tokens: float) -> float:
        """How long so many queries, of so many tokens together, take at the least."""
        waits = [queries * self.latency / self.concurrency]
        waits += [60 * queries / self.rpm] if self.rpm else []
        waits += [60 * tokens / self.tpm] if self.tpm else []
        return max(waits)


@dataclass(frozen=True, slots=True)
class Plan:
    """What an audit would ask, cost and find out; ``None`` is what is not known beforehand.

    ``queries`` are the design's, ``probe_queries`` about what the probe takes on top; tokens and cost are of
    both. ``counted`` says whether the tokens are, or are guessed.
    """

    items: int
    queries: int
    probe_queries: int
    prompt_tokens: int | None
    completion_tokens: int | None
    counted: bool
    cost: float | None
    seconds: float
    promise: Forecast | None = None


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """What planning weighs: the shape assumed, how results are read, and what a query takes.

    ``batch`` counts the price of batches for all but the probe.
    """

    shape: Shape
    bins: int | None = None
    level: float = 0.95
    tokens: TokenCount | None = None
    prices: Prices | None = None
    pace: Throughput = Throughput()
    batch: bool = False

    def plan(self, method: str, n: int, queries: float, *, tested: bool = True) -> Plan:
        """The plan of one audit; ``tested`` as for :func:`promise`."""
        bins = self.bins or (bins_blind(n) if method == "blind" else DEFAULT_BINS)
        promised = forecast(self.shape, method, n, queries, bins=bins, level=self.level, tested=tested)
        return self.priced(n, design.count(method, n, queries, bins), promised)

    def priced(self, n: int, queries: int, promised: Forecast | None = None, probes: int = ABOUT) -> Plan:
        """What so many queries cost, and the probe before them."""
        if self.tokens is None:
            return Plan(n, queries, probes, None, None, False, None, self.pace.seconds(queries, 0), promised)
        asked, probed = (
            Usage(k, k, round(self.tokens.prompt * k), round(self.tokens.completion * k))
            for k in (queries, probes)
        )
        both = asked + probed
        return Plan(
            n,
            queries,
            probes,
            both.prompt_tokens,
            both.completion_tokens,
            self.tokens.counted,
            None if self.prices is None else total_cost(self.prices, probed, asked, self.batch),
            self.pace.seconds(queries, asked.prompt_tokens + asked.completion_tokens),
            promised,
        )


async def plan(
    items: str | Path,
    settings: Settings,
    *,
    prices: Prices | None = None,
    pace: Throughput | None = None,
    shape: Shape | None = None,
    scratch: Path | None = None,
) -> Plan:
    """What an audit would ask and cost, without asking anything; with a shape, what it would find out too."""
    loaded = await asyncio.to_thread(
        open_items, items, settings.reading, data_dir=settings.data_dir, scratch=scratch
    )
    with loaded:
        n = min(len(loaded), settings.subset or len(loaded))
        each = await count_tokens(loaded, settings)
        settings = settings.resolved(n, loaded.words)
    assert settings.queries is not None
    assert settings.bins is not None
    means = PlanInputs(
        shape or preset(DEFAULT),
        settings.bins,
        settings.level,
        each,
        prices,
        pace or Throughput(),
        settings.batch,
    )
    if shape is not None:
        return means.plan(settings.method, n, settings.queries)
    probes = 0 if settings.reads == "stated" else ABOUT
    count = design.count(settings.method, n, settings.queries, settings.bins)
    return means.priced(n, count, probes=probes)


async def count_tokens(items: Items, settings: Settings) -> TokenCount:
    """Tokens of a mean query.

    Counted where the model's vocabulary is at hand (a named tokenizer, OpenAI's models, the extra
    ``tokenizers`` installed), and guessed from the number of characters otherwise.
    """
    stated, instruction = settings.reads == "stated", settings.instruction or INSTRUCTION
    longest = float(STATED_TOKENS) if stated else 1.0
    if settings.tokenizer is not None or tokens.openai_encoding(settings.model) is not None:
        with contextlib.suppress(MissingExtraError):
            encode = tokens.find(HttpEndpoint(settings.address), settings.model, settings.tokenizer)
            total = 0
            for item in items:
                asked = (
                    ask_confidence(item.messages, settings.words, instruction) if stated else item.messages
                )
                # What a chat wraps around each message and the reply, as OpenAI documents it.
                total += 3 + sum([4 + len(await encode(message.content)) for message in asked])
            return TokenCount(total / len(items), longest, counted=True)
    each = items.characters / len(items) + len(instruction) * stated
    return TokenCount(each / CHARACTERS_A_TOKEN, longest)


# -- the other way round -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlanGoal:
    """What is to be found out: the ECE to within a half-width, or that it is not calibrated at all."""

    half_width: float | None = None
    power: float | None = None

    def __post_init__(self) -> None:
        if (self.half_width is None) == (self.power is None):
            raise InputError(
                "give a half-width or a power, one of them (--half-width, or --power with --ece)"
            )
        if self.half_width is not None and not 0 < self.half_width < 1:
            raise InputError(f"half-width: must be between 0 and 1, got {self.half_width!r}")
        if self.power is not None and not 0 < self.power < 1:
            raise InputError(f"power: must be between 0 and 1, got {self.power!r}")

    def met(self, promised: Forecast) -> bool:
        """Whether a promise is good enough."""
        if self.half_width is not None:
            return promised.half_width is not None and promised.half_width <= self.half_width
        assert self.power is not None
        return promised.power is not None and promised.power >= self.power


def choices(
    means: PlanInputs,
    wanted: PlanGoal,
    methods: Iterable[str],
    budgets: Iterable[float] | None = None,
    most: int = _MOST,
) -> tuple[Plan, ...]:
    """For each method and number of queries an item the least audit that finds out what is wanted.

    Those that ``most`` items do not suffice for are left out. The one with the fewest queries comes first.
    """
    found = []
    given = None if budgets is None else tuple(budgets)
    for method in methods:
        if method not in FITTED:
            raise InputError(f"method: {method} gives neither an interval nor a test; plan with latent")
        start = 2000.0
        for queries in given or LADDER[method]:
            each = worth(means.shape, queries) if method == "latent" else 1.0
            promised = partial(_promised, means, method, queries, wanted.power is not None)
            n = _least_items(promised, wanted, most, start / each)
            if n is not None:
                start = n * each  # the next search begins where this one ended
                found.append(means.plan(method, n, queries, tested=wanted.power is not None))
    return tuple(sorted(found, key=lambda plan: plan.queries))


def _promised(means: PlanInputs, method: str, queries: float, tested: bool, n: int) -> Forecast:
    promised = means.plan(method, n, queries, tested=tested).promise
    assert promised is not None
    return promised


def _least_items(
    promised: Callable[[int], Forecast], wanted: PlanGoal, most: int, start: float
) -> int | None:
    """The fewest items, within a few per cent, whose promise is good enough; ``None`` if ``most`` are not."""
    low, high = _LEAST, None
    n = round(min(max(start, _LEAST), most))
    for _ in range(12):
        at = promised(n)
        if wanted.met(at):
            high = n
        elif n >= most:
            return None
        else:
            low = n
        if high is not None and high <= 1.03 * low:
            break
        n = _next_try(at, wanted, low, high, most)
        if high is not None and n >= 0.97 * high:
            break
    return high


def _next_try(at: Forecast, wanted: PlanGoal, low: int, high: int | None, most: int) -> int:
    """By the law that widths shrink, and standardised departures grow, with the root of n; and a bit more."""
    if wanted.half_width is not None:
        assert at.half_width is not None
        ratio = at.half_width / wanted.half_width
    else:
        assert wanted.power is not None
        assert at.power is not None
        ratio = _departure(wanted.power) / _departure(at.power)
    guess = max(1.02 * at.items * ratio**2, low + 1)
    if high is None:
        return round(min(guess, most, 1000 * low))
    return round(guess) if guess < high else round(math.sqrt(low * high))


def _departure(power: float) -> float:
    """How many standard errors from calibrated a departure must be for this power, roughly."""
    return float(ndtri(min(max(power, 0.06), 0.999)) + 1.96)


def front(plans: Iterable[Plan]) -> tuple[Plan, ...]:
    """The plans that no other beats in both queries (or cost) and width: the Pareto front, cheapest first."""
    best, kept = math.inf, []
    for one in sorted(plans, key=lambda plan: (price_of(plan), reach_of(plan))):
        if reach_of(one) < best:
            best = reach_of(one)
            kept.append(one)
    return tuple(kept)


def price_of(plan: Plan) -> float:
    """What a plan costs, or how many queries it takes where prices are not known."""
    return float(plan.queries) if plan.cost is None else plan.cost


def reach_of(plan: Plan) -> float:
    """How far from the truth a plan leaves one: the half-width, or the error exceeded once in twenty."""
    assert plan.promise is not None
    return plan.promise.error_95 if plan.promise.half_width is None else plan.promise.half_width
