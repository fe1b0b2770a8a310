"""`blindcal plan` and the plans behind it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, logit

from blindcal.asking.run_context import Limits
from blindcal.errors import InputError
from blindcal.estimate.problem import Problem
from blindcal.estimate.shown import fit_answers
from blindcal.estimate.truth import binned_ece
from blindcal.planning.forecast import OVERCONFIDENT, Shape, half_width, shape_of_scores
from blindcal.planning.plan import PROBE_AT_ONCE, Plan, PlanInputs, TokenCount, items_needed, plan_audit
from blindcal.prices import Prices
from blindcal.records import FloatArray
from blindcal.settings import Settings
from commanding import blindcal
from finished_runs import FinishedRuns
from fitting import asked

INPUTS = PlanInputs(shape=OVERCONFIDENT, tokens=TokenCount(200), prices=Prices(1.0, 2.0))


def planned(*arguments: object) -> Any:
    done = blindcal("plan", *arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


@pytest.fixture
def items(tmp_path: Path) -> Path:
    path = tmp_path / "items.jsonl"
    records = ({"prompt": "x" * 400, "label": k % 2, "id": k} for k in range(300))
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_plan_has_queries_tokens_cost_time_and_width() -> None:
    """Each follows from the numbers given, and the repr shows them on one line."""
    plan = INPUTS.plan("latent", 1000, 1.5)
    asked = 1500 + plan.control_queries + plan.probe_queries
    assert (plan.queries, plan.prompt_tokens, plan.completion_tokens) == (1500, 200 * asked, asked)
    assert plan.cost == pytest.approx((200 * 1.0 + 2.0) * asked / 1e6)
    assert plan.seconds == pytest.approx(((1500 + plan.control_queries) / 32 + 200 / PROBE_AT_ONCE) * 0.6)
    assert repr(plan) == f"Plan(1,000 items, 1,500 queries, $0.3585, ECE ± {plan.half_width:.4f})"


def test_a_plan_can_be_made_with_and_without_an_event_loop(items: Path) -> None:
    """`plan_audit` works in a script and inside a loop that is running, as a notebook's is."""
    settings = Settings(model="unknown", queries=1.5, sample=200, level=0.9)

    async def inside() -> dict[str, Plan]:
        return plan_audit(items, settings)

    plans = plan_audit(items, settings)
    plan = plans["latent"]
    assert asyncio.run(inside()) == plans
    assert (plan.items, plan.queries, plan.counted, plan.cost) == (200, 300, False, None)
    assert plan.prompt_tokens == 100 * (300 + plan.control_queries + plan.probe_queries)
    assert plan_audit(items, settings, shape=None)["latent"].half_width is None


def test_without_a_method_each_that_may_be_allowed_is_planned(items: Path) -> None:
    """Nothing is assumed of an endpoint that was not asked; queries are those that a method can ask."""
    plans = plan_audit(items, Settings(model="unknown", queries=3))
    assert list(plans) == ["decisions", "logprobs", "latent", "temperature", "repeated"]
    assert [plan.queries for plan in plans.values()] == [300, 300, 900, 900, 900]
    assert [plan.probe_queries for plan in plans.values()] == [12, 50, 200, 200, 200]
    assert all(plan.half_width for plan in plans.values())
    assert list(plan_audit(items, Settings(model="unknown", api="systemone"))) == ["decisions"]
    assert next(iter(plan_audit(items, Settings(model="unknown", api="chat")))) == "logprobs"
    assert list(plan_audit(items, Settings(model="unknown", method="blind"))) == ["blind"]
    shown = blindcal("plan", "--half-width", 0.05, "--tokens", 100, "--prices", "1,1").output
    for text in ("decisions ", "latent ", "+- 0.04", "~$0.", "blindcal probe"):
        assert text in shown


@pytest.mark.parametrize(("rpm", "tpm", "seconds"), [(None, None, 8.3), (60, None, 1250), (60, 1000, 15_075)])
def test_the_slowest_limit_decides_the_time(rpm: int | None, tpm: int | None, seconds: float) -> None:
    """Latency, requests per minute and tokens per minute: whichever lets the least through."""
    limits = Limits(concurrency=32, rpm=rpm, tpm=tpm)
    inputs = replace(INPUTS, shape=None, latency=0.1, limits=limits)
    assert inputs.plan("latent", 1000, 1.0).seconds == pytest.approx(seconds, rel=0.01)


def test_the_items_needed_reach_the_half_width_and_hardly_more() -> None:
    """A tenth fewer items would not reach it, and too few items give none."""
    n = items_needed(INPUTS, 0.03, "latent", 2.0)
    assert n is not None
    widths = [INPUTS.plan("latent", items, 2.0).half_width for items in (n, round(0.9 * n))]
    assert widths[0] is not None
    assert widths[1] is not None
    assert widths[0] <= 0.03 < widths[1]
    assert items_needed(INPUTS, 0.01, "latent", 1.0, most=300) is None
    with pytest.raises(InputError, match="blind gives no interval; plan with latent"):
        items_needed(INPUTS, 0.03, "blind", 1.0)


def test_the_command_plans_for_items(items: Path) -> None:
    """It prints how to find out what is not known; a file brings its own number of items and tokens."""
    shown = blindcal("plan", "--sample", 800, "--method", "latent").output
    for line in (
        "items      800\n",
        "queries    800 by latent",
        "tokens     unknown: give a file of items, or --tokens",
        "cost       unknown: give --prices",
        "interval   +- 0.0",
    ):
        assert line in shown
    assert "items      1,000, assumed: give a file of items or --sample N" in (
        blindcal("plan", "--method", "latent").output
    )
    latent = ("--method", "latent")
    plan = planned(items, "--prices", "1,1", "--queries", 1.5, *latent)
    asked = 450 + plan["control_queries"] + plan["probe_queries"]
    assert (plan["items"], plan["queries"], plan["prompt_tokens"]) == (300, 450, 100 * asked)
    assert plan["cost"] == pytest.approx(101 * asked / 1e6)
    assert planned(items, "--sample", 100)["decisions"]["items"] == 100
    assert planned(items, "--sample", 100, *latent)["items"] == 100


def test_the_command_finds_the_number_of_items() -> None:
    """A wanted half-width gives the number of items, and the cost of asking them."""
    plan = planned("--half-width", 0.04, "--tokens", 100, "--prices", "1,1")["latent"]
    assert 0.03 < plan["half_width"] <= 0.04
    assert plan["items"] == plan["queries"]
    assert plan["cost"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--half-width", 1], "0.0001<=x<=0.5"),
        (["--sample", 200, "--half-width", 0.01], "200 items do not suffice"),
        (["--shape", "nowhere"], "no run and no file"),
        (["--prices", 1], "is not two prices such as 0.15,0.6"),
    ],
)
def test_a_wrong_option_is_refused(arguments: list[object], message: str) -> None:
    """The error names the option and what it takes, or what does not suffice."""
    found = blindcal("plan", *arguments)
    assert found.exit_code in (1, 2)
    assert message in found.output


def test_scores_and_runs_serve_as_shapes(finished_runs: FinishedRuns, tmp_path: Path) -> None:
    """A score file gives its shape; a finished run also its method, tokens and number of items."""
    shape = OVERCONFIDENT
    labels, p = shape.sample(300, np.random.default_rng(3))
    scores = tmp_path / "scores.csv"
    rows = (f"{k},{label},{p[k]}\n" for k, label in enumerate(labels))
    scores.write_text("id,label,p\n" + "".join(rows))
    by_scores = planned("--shape", scores, "--sample", 1000)
    assert by_scores["ece"] == pytest.approx(shape.ece(), abs=0.06)
    run = finished_runs.original("plain")
    by_run = planned("--shape", run.folder, "--prices", "1,1")
    assert by_run["ece"] == pytest.approx(run.result.ece.value, abs=0.02)
    assert (by_run["items"], by_run["counted"]) == (run.kind.n, True)
    assert by_run["cost"] > 0


# Forecasts: the width that is planned is the width that is seen

AUDITS = 6


def shape_of(s: FloatArray, chance: FloatArray) -> Shape:
    """The shape of these log-odds, whose labels are positive with this chance."""
    labels = np.random.default_rng(1).random(s.size) < chance
    return shape_of_scores("drawn", labels.astype(np.int64), expit(s))


DRAWN = np.random.default_rng(0).standard_normal(20_000)
CONFIDENT = logit(np.clip(np.random.default_rng(0).beta(0.15, 0.2, 20_000), 1e-9, 1 - 1e-9))
SHAPES = {
    "overconfident": OVERCONFIDENT,
    "underconfident": shape_of(0.2 + DRAWN, expit(0.44 + 2.2 * DRAWN)),
    "confident": shape_of(CONFIDENT, 0.12 + 0.7 * expit(CONFIDENT)),
    "rare": shape_of(1.5 * DRAWN - 3, expit(1.05 * DRAWN - 3.6)),
}


def width(method: str, n: int, queries: float, shape: Shape = OVERCONFIDENT) -> float:
    forecast = half_width(shape, method, n, queries)
    assert forecast is not None
    return forecast


@pytest.mark.parametrize(
    ("name", "method", "n", "queries"),
    [
        ("rare", "latent", 1500, 1.0),
        ("underconfident", "latent", 800, 2.0),
        ("confident", "latent", 800, 0.5),
        ("overconfident", "temperature", 1000, 3.0),
        ("overconfident", "repeated", 1000, 2.0),
        ("rare", "logprobs", 1500, 0.5),
    ],
)
def test_forecast_widths_are_seen(name: str, method: str, n: int, queries: float) -> None:
    """The mean width of seeded audits is within 15% of the forecast, and its own chance error."""
    widths = []
    for seed in range(AUDITS):
        labels, p = SHAPES[name].sample(n, np.random.default_rng([seed, 9]))
        answers = asked(labels, p, queries, method, seed)
        widths.append(fit_answers(Problem.of_answers(labels, answers), resamples=100).ece.half_width)
    chance = 2 * float(np.std(widths)) / np.sqrt(AUDITS) / np.mean(widths)
    assert width(method, n, queries, SHAPES[name]) / np.mean(widths) == pytest.approx(1, abs=0.15 + chance)


@pytest.mark.parametrize("method", ["latent", "temperature"])
def test_more_of_anything_narrows_the_interval(method: str) -> None:
    """Widths fall with items and with queries, and half a query per item is half the items."""
    by_items = [width(method, n, 2.0) for n in (300, 3000, 10_000)]
    by_queries = [width(method, 1000, k) for k in (1.0, 1.5, 3.0)]
    assert by_items == sorted(by_items, reverse=True)
    assert by_queries == sorted(by_queries, reverse=True)
    assert width(method, 2000, 0.5) == width(method, 1000, 1.0)


def test_what_is_left_after_many_queries_is_the_noise_of_labels() -> None:
    """Eight queries per item nearly give the interval of read probabilities, which nothing smooths."""
    assert 0.8 < width("latent", 1000, 8.0) / width("logprobs", 1000, 1.0) < 1


@pytest.mark.parametrize(
    ("method", "queries", "message"),
    [
        ("logprobs", 2.0, r"logprobs reads each item once at most, got 2"),
        ("temperature", 9.0, "temperature can be planned with at most 8 per item, got 9"),
        ("repeated", 1.0, r"repeated asks each item at least 2 times: one answer .* got 1"),
        ("verbalized", 1.0, r"method: can be planned for logprobs, latent, .*, got 'verbalized'"),
    ],
)
def test_what_cannot_be_forecast_is_refused(method: str, queries: float, message: str) -> None:
    """A method or a number of queries without a forecast is refused with the rule."""
    with pytest.raises(InputError, match=message):
        half_width(OVERCONFIDENT, method, 700, queries)


def test_a_sample_of_a_shape_has_its_ece() -> None:
    """Items drawn from a shape have its binned ECE, and items spread over it have it more closely."""
    labels, p = OVERCONFIDENT.sample(100_000, np.random.default_rng(0))
    # five gaps, each with a standard error of at most .5 / sqrt(100,000) = .0016
    assert float(binned_ece(labels, p, 5).ece) == pytest.approx(OVERCONFIDENT.ece(), abs=5 * 0.0016)
    labels, p = OVERCONFIDENT.spread(2000, np.random.default_rng(2))
    assert float(binned_ece(labels, p, 5).ece) == pytest.approx(OVERCONFIDENT.ece(), abs=0.004)
