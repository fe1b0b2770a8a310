"""Plans: the queries, cost and precision of an audit, and the items that a half-width takes."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

from blindcal.asking.run_context import Limits
from blindcal.endpoints import tokens
from blindcal.endpoints.free_text import INSTRUCTION, ask_confidence, ask_json
from blindcal.errors import InputError, MissingExtraError
from blindcal.estimate.truth import bins_blind
from blindcal.items.catalogue import open_items
from blindcal.items.question_files import Items
from blindcal.methods import METHOD_OF, METHODS, count_queries, expected_controls, method_of
from blindcal.planning.forecast import OVERCONFIDENT, Shape, half_width
from blindcal.prices import CHARACTERS_A_TOKEN, Prices
from blindcal.probing.probe import FEW
from blindcal.records import Usage
from blindcal.settings import DEFAULT_BINS, Settings

PROBE_QUERIES, CHOICE_PROBE_QUERIES, LOGPROB_PROBE_QUERIES, DECISION_PROBE_QUERIES = 200, 240, 50, 12
"""Approximate queries of pilot and probe with two answers, with more, and where probabilities are shown."""
FEW_PROBE_QUERIES, FEW_CHOICE_PROBE_QUERIES = 70, 130
"""The same for fewer than `FEW` items, for which the dearest checks are left out."""
PROBE_AT_ONCE = 4
"""Queries of a probe under way at a time, on average: many follow from the answers before."""
LATENCY = 0.6  # seconds per reply, assumed without a run

Reasoning: TypeAlias = Literal["always", "unless none", "never"]
_O_SERIES, _GPT5, _DATED = r"o[134](-mini|-pro)?", r"gpt-5(-mini|-nano|-pro)?", r"(-\d{4}|$)"
_REASONING: dict[str, Reasoning] = {  # by names of models, as OpenAI says: docs/providers.md
    rf"({_O_SERIES}|{_GPT5}|gpt-6-astra){_DATED}|gpt-5(\.\d)?-codex": "always",
    rf"(gpt-5\.[56](-sol|-terra|-luna)?|gpt-6-luna){_DATED}": "unless none",
    rf"gpt-[34]|(gpt-5\.[1-4](-mini|-nano)?|gpt-5-chat-latest){_DATED}": "never",
}

_LEAST, _MOST = 20, 10_000_000  # range of items in which a plan is searched
_TRIES = 4


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Mean tokens per query; ``counted`` is false if they are estimated."""

    prompt: float
    completion: float = 1.0
    counted: bool = False

    def total(self, queries: int) -> tuple[int, int]:
        return round(self.prompt * queries), round(self.completion * queries)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Plan:
    """The queries, cost and expected precision of an audit; ``None`` for what is not known in advance.

    ``probe_queries`` is approximate. Tokens and cost include the probe and the controls, and are estimated
    unless ``counted``. ``half_width`` is that of the interval of the ECE, for the assumed shape. ``in_text``
    is the plan if the model reasons or explains itself before it answers, where only the probe can tell.
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
    in_text: Plan | None = None

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
    limits: Limits = field(default_factory=Limits)
    latency: float = LATENCY  # seconds per reply

    def plan(self, method: str, n: int, queries: float, probes: int | None = None) -> Plan:
        """Plan one audit with about ``probes`` queries before it, by default those of the method."""
        probes = probe_queries(method, n, several=False) if probes is None else probes
        bins = self.bins or (bins_blind(n) if method == "blind" else DEFAULT_BINS)
        asked = count_queries(method, n, queries, bins)
        controls = expected_controls(method, n, asked)
        total = asked + controls + probes
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
            seconds=self._seconds(asked + controls, probes, each * total),
            half_width=None
            if self.shape is None
            else half_width(self.shape, method, n, queries, bins=bins, level=self.level),
        )

    def of_settings(self, settings: Settings, method: str, n: int) -> Plan:
        """Plan the audit of ``n`` items that these settings ask for, by a method that they allow."""
        several = len(settings.answer_words) > 2
        stated = METHODS[method].estimator == "stated"  # what a model will state in words cannot be forecast
        probes = 0 if stated else probe_queries(method, n, several=several)
        queries = queries_per_item(settings, method)
        plan = replace(self, shape=None if stated else self.shape).plan(method, n, queries, probes)
        open_form = METHODS[method].free_text and settings.prompt.answer_format is None
        if self.tokens is None or not open_form or settings.prompt.max_tokens or reasoning(settings):
            return plan
        longer = replace(self.tokens, completion=float(settings.max_tokens("sentence")))
        texts = replace(self, shape=None, tokens=longer)
        return replace(plan, in_text=texts.plan(method, n, queries, probes))

    def _seconds(self, queries: int, probes: int, tokens: float) -> float:
        limits = self.limits
        rounds = queries / limits.concurrency + probes / min(PROBE_AT_ONCE, limits.concurrency)
        waits = [rounds * self.latency]
        waits += [60 * (queries + probes) / limits.rpm] if limits.rpm else []
        waits += [60 * tokens / limits.tpm] if limits.tpm else []
        return max(waits)


def plan_audit(
    items: str | Path,
    settings: Settings,
    *,
    prices: Prices | None = None,
    limits: Limits | None = None,
    shape: Shape | None = OVERCONFIDENT,
) -> dict[str, Plan]:
    """Plan an audit without asking anything; returns plans by method.

    Without a named method, there is one for each that the endpoint may allow, best first.

    Parameters
    ----------
    items : path
        File of labelled questions, or name of a set.
    settings : Settings
        Settings of the audit.
    prices : Prices, optional
        Dollars per million tokens; by default OpenAI's dated list prices of some models, at its own address.
    limits : Limits, optional
        How many requests are sent at once and per minute.
    shape : Shape, optional
        Assumed shape of the model. Without one, or with more than two answers, the precision is not forecast.
    """
    loaded = open_items(items, settings.prompt)
    n = min(len(loaded), settings.design.sample or len(loaded))
    settings = settings.resolved(n, loaded.words)
    inputs = PlanInputs(
        shape=None if len(settings.answer_words) > 2 else shape,
        bins=settings.bins,
        level=settings.estimation.level,
        tokens=count_tokens(loaded, settings),
        prices=settings.list_prices if prices is None else prices,
        limits=limits or Limits(),
    )
    return {method: inputs.of_settings(settings, method, n) for method in methods_to_try(settings)}


def methods_to_try(settings: Settings) -> tuple[str, ...]:
    """The named method, or those that an audit tries, best first; a stated confidence has no interval."""
    if not settings.auto:
        return (settings.design.method,)
    methods = tuple(METHOD_OF[way] for way in settings.ways if way != "stated confidence")
    if reasoning(settings) in (None, "never"):
        return methods
    refused = "temperature" if _known(settings.endpoint.model) else ""  # OpenAI's models take only 1 then
    return tuple(name for name in methods if METHODS[name].free_text and name != refused)


def reasoning(settings: Settings) -> Reasoning | None:
    """Whether the model reasons first, by its effort or else by its name; ``None`` if not known."""
    effort = settings.endpoint.extra_body.get("reasoning_effort")
    by_effort: Reasoning = "never" if effort == "none" else "always"
    return _known(settings.endpoint.model) if effort is None else by_effort


def _known(model: str) -> Reasoning | None:
    name = model.rpartition("/")[2]
    return next((known for names, known in _REASONING.items() if re.match(names, name)), None)


def queries_per_item(settings: Settings, method: str) -> float:
    """The mean number that these settings ask by a method."""
    given, several = settings.design.queries, len(settings.answer_words) > 2
    if given is not None and not settings.auto:
        return given
    return METHODS[method].nearest_queries(given, several=several)


def probe_queries(method: str, n: int, *, several: bool) -> int:
    """About how many queries the probe for ``n`` items takes; fewer where probabilities are shown."""
    if METHODS[method].shown:
        return DECISION_PROBE_QUERIES if METHODS[method].way == "decisions" else LOGPROB_PROBE_QUERIES
    if has_few(method, n):
        return FEW_CHOICE_PROBE_QUERIES if several else FEW_PROBE_QUERIES
    return CHOICE_PROBE_QUERIES if several else PROBE_QUERIES


def has_few(method: str, n: int) -> bool:
    """Whether a probe leaves out its dearest checks, which cost more than these items; draws need them."""
    return n < FEW and not METHODS[method].sampled


def count_tokens(items: Items, settings: Settings) -> TokenCount:
    """Count the mean tokens per query, or estimate them from the characters without a vocabulary."""
    with ThreadPoolExecutor(1) as other:  # a notebook has a loop of its own
        return other.submit(asyncio.run, _count_tokens(items, settings)).result()


async def _count_tokens(items: Items, settings: Settings) -> TokenCount:
    stated, instruction = settings.estimator_name == "stated", settings.prompt.confidence_wording
    first = METHODS[methods_to_try(settings)[0]]
    text = first.free_text and reasoning(settings) in ("always", "unless none")
    longest = float(settings.max_tokens(settings.prompt.answer_format or ("sentence" if text else "word")))
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


def items_needed(
    inputs: PlanInputs, width: float, method: str, queries: float, most: int = _MOST
) -> int | None:
    """The number of items that reaches this half-width, within a few percent; ``None`` if ``most`` do not."""
    if not method_of(method).fitted:
        raise InputError(f"method: {method} gives no interval; plan with latent")

    def excess(n: int) -> float:
        forecast = inputs.plan(method, n, queries).half_width
        assert forecast is not None
        return forecast / width

    n = min(1000, most)
    for _ in range(_TRIES):  # a half-width falls about as 1 / sqrt(n)
        n = min(most, max(_LEAST, math.ceil(n * excess(n) ** 2)))
    while excess(n) > 1:
        if n == most:
            return None
        n = min(most, math.ceil(1.01 * n))
    return n
