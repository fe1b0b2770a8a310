"""Plans: the queries, cost and precision of an audit, and the smallest audit that reaches a half-width."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from blindcal.endpoints import tokens
from blindcal.endpoints.free_text import INSTRUCTION, ask_confidence, ask_json
from blindcal.errors import InputError, MissingExtraError
from blindcal.estimate.truth import bins_blind
from blindcal.items.catalogue import open_items
from blindcal.items.question_files import Items
from blindcal.methods import METHODS, SIMULABLE, count_controls, count_queries, method_of
from blindcal.planning.forecast import DEFAULT, Shape, half_width, preset
from blindcal.prices import CHARACTERS_A_TOKEN, Prices
from blindcal.records import Usage
from blindcal.settings import DEFAULT_BINS, Settings

PROBE_QUERIES, CHOICE_PROBE_QUERIES = 170, 240
"""Approximate queries of pilot and probe, with two answers and with more."""
LATENCY = 0.6  # seconds per reply, assumed if unknown

_LEAST, _MOST = 20, 10_000_000  # range of items in which a plan is searched


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Mean tokens per query; ``counted`` is false if they are estimated."""

    prompt: float
    completion: float = 1.0
    counted: bool = False

    def total(self, queries: int) -> tuple[int, int]:
        return round(self.prompt * queries), round(self.completion * queries)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Seconds per reply, concurrent queries, and limits on requests and tokens per minute."""

    latency: float = LATENCY
    concurrency: int = 32
    rpm: float | None = None
    tpm: float | None = None

    def seconds(self, queries: int, tokens: float) -> float:
        """Minimum duration; ``tokens`` is the total over all queries."""
        waits = [queries * self.latency / self.concurrency]
        waits += [60 * queries / self.rpm] if self.rpm else []
        waits += [60 * tokens / self.tpm] if self.tpm else []
        return max(waits)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Plan:
    """The queries, cost and expected precision of an audit; ``None`` for what is not known in advance.

    ``probe_queries`` is approximate. Tokens and cost include the probe and the controls, and are estimated
    unless ``counted``. ``half_width`` is that of the interval of the ECE, for the assumed shape.
    """

    items: int
    queries: int
    probe_queries: int
    control_queries: int
    prompt_tokens: int | None
    completion_tokens: int | None
    counted: bool
    cost: float | None
    seconds: float
    half_width: float | None

    def __repr__(self) -> str:
        cost = "" if self.cost is None else f", ${self.cost:,.4f}"
        width = "" if self.half_width is None else f", ECE ± {self.half_width:.4f}"
        return f"Plan({self.items:,} items, {self.queries:,} queries{cost}{width})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """The inputs of a plan; without a shape, no interval is forecast."""

    shape: Shape | None
    bins: int | None = None
    level: float = 0.95
    tokens: TokenCount | None = None
    prices: Prices | None = None
    throughput: Throughput = Throughput()

    def plan(self, method: str, n: int, queries: float, probes: int = PROBE_QUERIES) -> Plan:
        """Plan one audit with about ``probes`` queries before it."""
        bins = self.bins or (bins_blind(n) if method == "blind" else DEFAULT_BINS)
        asked = count_queries(method, n, queries, bins)
        controls = count_controls(method, n, asked)
        run, total = asked + controls, asked + controls + probes
        prompt, completion = (None, None) if self.tokens is None else self.tokens.total(total)
        usage = Usage(
            queries=total, attempts=total, prompt_tokens=prompt or 0, completion_tokens=completion or 0
        )
        each = 0.0 if self.tokens is None else self.tokens.prompt + self.tokens.completion
        return Plan(
            items=n,
            queries=asked,
            probe_queries=probes,
            control_queries=controls,
            prompt_tokens=prompt,
            completion_tokens=completion,
            counted=self.tokens is not None and self.tokens.counted,
            cost=None if self.prices is None or self.tokens is None else self.prices.cost(usage),
            seconds=self.throughput.seconds(run, each * run),
            half_width=None
            if self.shape is None
            else half_width(self.shape, method, n, queries, bins=bins, level=self.level),
        )


def plan_audit(
    items: str | Path,
    settings: Settings,
    *,
    prices: Prices | None = None,
    throughput: Throughput | None = None,
    shape: Shape | str | None = DEFAULT,
) -> Plan:
    """Plan an audit without asking anything.

    Parameters
    ----------
    items : path
        File of labelled questions, or name of a set.
    settings : Settings
        Settings of the audit; ``auto`` is planned as `latent`.
    prices : Prices, optional
        Dollars per million tokens; by default OpenAI's dated list prices of some models, at its own address.
    throughput : Throughput, optional
        How fast queries are answered.
    shape : Shape or str, optional
        Assumed shape of the model, or its name (see ``blindcal plan``). Without one, or with more than two
        answers, the precision is not forecast.
    """
    method = settings.assumed_method
    loaded = open_items(items, settings.prompt)
    n = min(len(loaded), settings.design.sample or len(loaded))
    settings = settings.replace(method=method).resolved(n, loaded.words)
    several = len(settings.answer_words) > 2
    if several or method not in SIMULABLE:  # what a model will state in words cannot be forecast
        shape = None
    inputs = PlanInputs(
        shape=preset(shape) if isinstance(shape, str) else shape,
        bins=settings.bins,
        level=settings.estimation.level,
        tokens=count_tokens(loaded, settings),
        prices=settings.list_prices if prices is None else prices,
        throughput=throughput or Throughput(),
    )
    return inputs.plan(method, n, settings.queries, probe_queries(several=several) if settings.probed else 0)


def probe_queries(*, several: bool) -> int:
    return CHOICE_PROBE_QUERIES if several else PROBE_QUERIES


def count_tokens(items: Items, settings: Settings) -> TokenCount:
    """Count the mean tokens per query, or estimate them from the characters without a vocabulary."""
    with ThreadPoolExecutor(1) as other:  # a notebook has a loop of its own
        return other.submit(asyncio.run, _count_tokens(items, settings)).result()


async def _count_tokens(items: Items, settings: Settings) -> TokenCount:
    stated, instruction = settings.estimator_name == "stated", settings.prompt.instruction
    longest = float(settings.max_tokens(settings.prompt.answer_format or "word"))
    model, tokenizer = settings.endpoint.model, settings.prompt.tokenizer
    if tokenizer is not None or tokens.openai_encoding(model) is not None:
        with contextlib.suppress(MissingExtraError):
            encode = tokens.named_vocabulary(tokenizer or model)
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


def smallest_plans(
    inputs: PlanInputs,
    width: float,
    method: str,
    budgets: Iterable[float] | None = None,
    most: int = _MOST,
) -> tuple[Plan, ...]:
    """Find the smallest audit with this half-width for each number of queries per item; fewest queries first.

    ``budgets`` are these numbers, by default the method's. No plan has more than ``most`` items.
    """
    if not method_of(method).fitted:
        raise InputError(f"method: {method} gives no interval; plan with latent")
    tried = METHODS[method].plan_budgets if budgets is None else budgets
    plans = [plan for queries in tried if (plan := _smallest(inputs, width, method, queries, most))]
    return tuple(sorted(plans, key=lambda plan: plan.queries + plan.control_queries))


def _smallest(inputs: PlanInputs, width: float, method: str, queries: float, most: int) -> Plan | None:
    from scipy.optimize import brentq  # slow to import, and rarely needed

    def excess(log_n: float) -> float:
        reached = inputs.plan(method, round(math.exp(log_n)), queries).half_width
        assert reached is not None
        return math.log(reached / width)

    low, high = math.log(_LEAST), math.log(max(most, _LEAST + 1))
    if excess(high) > 0:
        return None
    n = _LEAST if excess(low) <= 0 else math.ceil(math.exp(brentq(excess, low, high, xtol=0.01)))
    while excess(math.log(n)) > 0:
        n = min(most, math.ceil(1.01 * n))
    return inputs.plan(method, n, queries)
