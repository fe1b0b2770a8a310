"""Plans: the queries, cost and precision of an audit, and the smallest audit that reaches a half-width."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from blindcal.confidence_prompt import INSTRUCTION, ask_confidence, ask_json
from blindcal.endpoints import vocabulary
from blindcal.errors import InputError, MissingExtraError
from blindcal.estimate.truth import bins_blind
from blindcal.items.catalogue import open_items
from blindcal.items.files import Items
from blindcal.methods import METHODS, SIMULABLE, count_controls, count_queries, method_of
from blindcal.planning.forecast import Forecast, forecast, worth
from blindcal.planning.shapes import DEFAULT, Shape, preset
from blindcal.prices import CHARACTERS_A_TOKEN, Prices
from blindcal.records import Usage
from blindcal.settings import DEFAULT_BINS, Settings

PROBE_QUERIES, CHOICE_PROBE_QUERIES = 170, 240
"""Pilot queries and probe together, roughly; with two answers, and with more."""
LATENCY = 0.6  # seconds per reply, assumed if unknown

_LEAST, _MOST = 20, 10_000_000  # range of items in which a plan is searched


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Mean tokens per query; ``counted`` says whether they were counted or estimated."""

    prompt: float
    completion: float = 1.0
    counted: bool = False


@dataclass(frozen=True, slots=True)
class Throughput:
    """Speed of queries: seconds per reply, concurrent queries, requests and tokens per minute."""

    latency: float = LATENCY
    concurrency: int = 32
    rpm: float | None = None
    tpm: float | None = None

    def seconds(self, queries: int, tokens: float) -> float:
        """The minimum time for this many queries with this many tokens in total."""
        waits = [queries * self.latency / self.concurrency]
        waits += [60 * queries / self.rpm] if self.rpm else []
        waits += [60 * tokens / self.tpm] if self.tpm else []
        return max(waits)


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """The queries, cost and expected precision of an audit; ``None`` for what is not known in advance.

    ``queries`` are those of the design, ``probe_queries`` roughly those of the probe, and
    ``control_queries`` those that watch the endpoint during the run; tokens and cost include all of them.
    ``counted`` says whether the tokens were counted or estimated.
    """

    items: int
    queries: int
    probe_queries: int
    prompt_tokens: int | None
    completion_tokens: int | None
    counted: bool
    cost: float | None
    seconds: float
    forecast: Forecast | None = None
    control_queries: int = 0

    def __repr__(self) -> str:
        cost = "" if self.cost is None else f", ${self.cost:,.4f}"
        expected = "" if self.forecast is None else f", {self.forecast.summary}"
        return f"Plan({self.items:,} items, {self.queries:,} queries{cost}{expected})"


@dataclass(frozen=True, slots=True, repr=False)
class PlanInputs:
    """The inputs of a plan: the assumed shape, bins and level, and the tokens, prices and time of queries."""

    shape: Shape
    bins: int | None = None
    level: float = 0.95
    tokens: TokenCount | None = None
    prices: Prices | None = None
    throughput: Throughput = Throughput()

    def __repr__(self) -> str:
        tokens = "" if self.tokens is None else f", {self.tokens.prompt:g} tokens per prompt"
        prices = "" if self.prices is None else f", {self.prices!r}"
        return f"PlanInputs({self.shape!r}{tokens}{prices})"

    def plan(self, method: str, n: int, queries: float) -> Plan:
        """Plan one audit."""
        bins = self.bins or (bins_blind(n) if method == "blind" else DEFAULT_BINS)
        expected = forecast(self.shape, method, n, queries, bins=bins, level=self.level)
        return self.priced(method, n, count_queries(method, n, queries, bins), expected)

    def priced(
        self, method: str, n: int, queries: int, expected: Forecast | None = None, probes: int = PROBE_QUERIES
    ) -> Plan:
        """Plan this many queries, the probe before them and the controls among them, with their cost."""
        controls = count_controls(method, n, queries)
        if self.tokens is None:
            seconds = self.throughput.seconds(queries + controls, 0)
            return Plan(n, queries, probes, None, None, False, None, seconds, expected, controls)
        asked, probed = (
            Usage(
                queries=k,
                attempts=k,
                prompt_tokens=round(self.tokens.prompt * k),
                completion_tokens=round(self.tokens.completion * k),
            )
            for k in (queries + controls, probes)
        )
        both = asked + probed
        return Plan(
            n,
            queries,
            probes,
            both.prompt_tokens,
            both.completion_tokens,
            self.tokens.counted,
            None if self.prices is None else self.prices.cost(both),
            self.throughput.seconds(asked.queries, asked.prompt_tokens + asked.completion_tokens),
            expected,
            controls,
        )


def plan_audit(
    items: str | Path,
    settings: Settings,
    *,
    prices: Prices | None = None,
    throughput: Throughput | None = None,
    shape: Shape | str | None = DEFAULT,
) -> Plan:
    """Plan an audit without asking anything; this works in a notebook, too.

    Parameters
    ----------
    items : path
        A file of labelled questions or the name of a named set.
    settings : Settings
        The settings of the planned audit; ``auto`` is planned as `latent`.
    prices : Prices, optional
        Dollars per million tokens; by default OpenAI's dated list prices of some models, at its own address.
    throughput : Throughput, optional
        How fast queries are answered.
    shape : Shape or str, optional
        What is assumed about the model, or its name (see ``blindcal plan``); ``None`` leaves out the expected
        precision, which is not known for items with more than two answers.
    """
    shape = preset(shape) if isinstance(shape, str) else shape
    settings = settings.replace(method=settings.assumed_method)
    if settings.design.method not in SIMULABLE:  # what a model will state in words cannot be forecast
        shape = None
    prices = settings.list_prices if prices is None else prices
    loaded = open_items(items, settings.prompt)
    n = min(len(loaded), settings.design.sample or len(loaded))
    settings = settings.resolved(n, loaded.words)
    each = count_tokens(loaded, settings)
    shape = None if loaded.answers else shape
    inputs = PlanInputs(
        shape or preset(DEFAULT),
        settings.bins,
        settings.estimation.level,
        each,
        prices,
        throughput or Throughput(),
    )
    method, queries = settings.design.method, settings.queries
    if shape is not None:
        return inputs.plan(method, n, queries)
    several = len(settings.answer_words) > 2
    probes = probe_queries(several=several) if settings.probed else 0
    asked = count_queries(method, n, queries, settings.bins)
    return inputs.priced(method, n, asked, probes=probes)


def probe_queries(*, several: bool) -> int:
    """The number of queries that a probe takes, roughly."""
    return CHOICE_PROBE_QUERIES if several else PROBE_QUERIES


def count_tokens(items: Items, settings: Settings) -> TokenCount:
    """Mean tokens per query.

    They are counted if the model's vocabulary is available (a named tokenizer or an OpenAI model, with the
    extra ``tokenizers`` installed), and otherwise estimated from the number of characters.
    """
    counting = _count_tokens(items, settings)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(counting)
    with ThreadPoolExecutor(1, thread_name_prefix="blindcal-plan") as other:
        return other.submit(asyncio.run, counting).result()


async def _count_tokens(items: Items, settings: Settings) -> TokenCount:
    stated, instruction = settings.estimator_name == "stated", settings.prompt.instruction
    longest = float(settings.max_tokens(settings.prompt.answer_format or "word"))
    model, tokenizer = settings.endpoint.model, settings.prompt.tokenizer
    if tokenizer is not None or vocabulary.openai_encoding(model) is not None:
        with contextlib.suppress(MissingExtraError):
            encode = vocabulary.named(tokenizer or model)
            total = 0
            for item in items:
                asked = item.messages
                if stated:
                    asked = ask_confidence(asked, settings.answer_words, instruction)
                elif settings.prompt.answer_format == "json":
                    asked = ask_json(asked, settings.answer_words)
                # Overhead of the chat format per message and per reply, as documented by OpenAI.
                total += 3 + sum([4 + len(await encode(message.content)) for message in asked])
            return TokenCount(total / len(items), longest, counted=True)
    each = items.characters / len(items) + len(instruction or INSTRUCTION) * stated
    return TokenCount(each / CHARACTERS_A_TOKEN, longest)


# From a half-width to a number of items


def choices(
    inputs: PlanInputs,
    half_width: float,
    method: str,
    budgets: Iterable[float] | None = None,
    most: int = _MOST,
) -> tuple[Plan, ...]:
    """The smallest audit whose interval has this half-width, for each number of queries per item.

    ``budgets`` are the queries per item, by default those of the method. Those that do not reach it even
    with ``most`` items are left out. The plan with the fewest queries comes first.
    """
    if not method_of(method).fitted:
        raise InputError(f"method: {method} gives no interval; plan with latent")
    found = []
    start = 2000.0
    for queries in METHODS[method].plan_budgets if budgets is None else budgets:
        each = worth(inputs.shape, queries) if method == "latent" else 1.0
        least = _smallest(inputs, half_width, method, queries, most, start / each)
        if least is not None:
            start = least.items * each  # the next search starts where this one ended
            found.append(least)
    return tuple(sorted(found, key=lambda plan: plan.queries + plan.control_queries))


def _smallest(
    inputs: PlanInputs, half_width: float, method: str, queries: float, most: int, start: float
) -> Plan | None:
    """The plan with the fewest items (to a few per cent) that reaches a half-width.

    ``None`` if ``most`` items do not.
    """
    low, best = _LEAST, None
    n = round(min(max(start, _LEAST), most))
    for _ in range(12):
        tried = inputs.plan(method, n, queries)
        assert tried.forecast is not None
        assert tried.forecast.half_width is not None
        ratio = tried.forecast.half_width / half_width
        if ratio <= 1:
            best = tried
        elif n >= most:
            return None
        else:
            low = n
        if best is not None and best.items <= 1.03 * low:
            break
        n = _next_try(n, ratio, low, None if best is None else best.items, most)
        if best is not None and n >= 0.97 * best.items:
            break
    return best


def _next_try(n: int, ratio: float, low: int, high: int | None, most: int) -> int:
    """The next number of items, if the width for n is ``ratio`` times that wanted; it scales as 1/sqrt(n)."""
    guess = max(1.02 * n * ratio**2, low + 1)
    if high is None:
        return round(min(guess, most, 1000 * low))
    return round(guess) if guess < high else round(math.sqrt(low * high))
