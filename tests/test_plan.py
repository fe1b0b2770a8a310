"""``blindcal plan`` and the plans behind it."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from blindcal.auditing.audit import audit
from blindcal.cli import app
from blindcal.errors import InputError
from blindcal.estimate.latent import model
from blindcal.estimate.readings import Patterns
from blindcal.planning import forecast, shapes
from blindcal.planning.plan import (
    Plan,
    PlanInputs,
    Throughput,
    TokenCount,
    choices,
    plan_audit,
)
from blindcal.prices import Prices
from blindcal.settings import Settings
from serving import replaying

INPUTS = PlanInputs(shapes.preset("overconfident"), tokens=TokenCount(200), prices=Prices(1.0, 2.0))


def blindcal(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["plan", *map(str, arguments)])


def planned(*arguments: object) -> Any:
    found = blindcal(*arguments, "--json")
    assert found.exit_code == 0, found.output
    return json.loads(found.output)


@pytest.fixture
def items(tmp_path: Path) -> Path:
    path = tmp_path / "items.jsonl"
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        for k in range(300):
            file.write(json.dumps({"prompt": "x" * 400, "label": int(rng.random() < 0.5), "id": k}) + "\n")
    return path


def test_a_plan_says_what_it_asks_costs_and_finds_out() -> None:
    """Queries, tokens, cost and time are what the numbers given come to."""
    found = INPUTS.plan("latent", 1000, 1.5)
    asked = 1500 + found.control_queries + found.probe_queries
    assert (found.queries, found.prompt_tokens, found.completion_tokens) == (1500, 200 * asked, asked)
    assert found.cost == pytest.approx((200 * 1.0 + 2.0) * asked / 1e6)
    assert found.seconds == pytest.approx((1500 + found.control_queries) * 0.6 / 32)
    assert found.forecast is not None
    assert found.forecast.half_width is not None


def test_a_plan_shows_itself_in_one_line() -> None:
    """Items, queries, cost and what is expected; of its inputs what they assume."""
    found = INPUTS.plan("latent", 1000, 1.5)
    assert re.fullmatch(
        r"Plan\(1,000 items, 1,500 queries, \$0.3525, latent: ECE 0.1126 ± 0.\d{4}\)", repr(found)
    )
    assert repr(INPUTS).startswith(
        "PlanInputs(Shape('overconfident', ECE 0.1126), 200 tokens per prompt, Prices("
    )


def test_a_plan_can_be_had_with_and_without_an_event_loop(items: Path) -> None:
    """`plan_audit` works in a script and inside a loop that is running, as a notebook's is."""
    settings = Settings(model="unknown", queries=1.5, sample=200, level=0.9)
    shape = shapes.preset("rare")

    async def inside() -> Plan:
        return plan_audit(items, settings, shape=shape)

    first = plan_audit(items, settings, shape=shape)
    assert asyncio.run(inside()) == first
    assert (first.items, first.queries, first.counted, first.cost) == (200, 300, False, None)
    assert first.prompt_tokens == 100 * (300 + first.control_queries + first.probe_queries)
    known = PlanInputs(shape, level=0.9).plan("latent", 200, 1.5).forecast
    assert first.forecast == known
    assert plan_audit(items, settings, shape="rare") == first
    assert plan_audit(items, settings, shape=None).forecast is None


def test_the_slowest_limit_decides_the_time() -> None:
    """Latency, requests per minute and tokens per minute: whichever lets the least through."""
    assert Throughput(1.0, 10).seconds(100, 5000) == pytest.approx(10)
    assert Throughput(1.0, 10, rpm=60).seconds(100, 5000) == pytest.approx(100)
    assert Throughput(1.0, 10, rpm=60, tpm=1000).seconds(100, 5000) == pytest.approx(300)


def test_choices_reach_the_half_width_and_hardly_more() -> None:
    """Every choice reaches it, and a tenth fewer items would not."""
    inputs = PlanInputs(shapes.preset("overconfident").with_ece(0.05))
    found = choices(inputs, 0.03, "latent", [1.0, 2.0])
    assert [one.queries for one in found] == sorted(one.queries for one in found)
    assert len(found) == 2
    for one in found:
        assert one.forecast is not None
        assert one.forecast.half_width is not None
        assert one.forecast.half_width <= 0.03
        fewer = inputs.plan("latent", round(0.9 * one.items), one.forecast.queries).forecast
        assert fewer is not None
        assert fewer.half_width is not None
        assert fewer.half_width > 0.03


def test_what_the_items_do_not_reach_is_left_out() -> None:
    """Where there are too few items for any number of queries nothing is offered."""
    assert choices(INPUTS, 0.01, "latent", most=300) == ()


def test_methods_without_intervals_cannot_be_chosen_for_a_width() -> None:
    """Blind, sampling and extraction have no width to forecast, and say so."""
    with pytest.raises(InputError, match="blind gives no interval; plan with latent"):
        choices(INPUTS, 0.03, "blind")


def test_the_command_plans_for_a_number_of_items() -> None:
    """Items, queries and interval; what is not known is said to be so, with what would tell."""
    found = blindcal("--sample", 800)
    assert found.exit_code == 0
    assert "queries     800 by latent" in found.output
    assert "tokens      unknown: give a file of items, or --tokens" in found.output
    assert "cost        unknown: give --prices" in found.output
    assert "interval    +- 0.0" in found.output


def test_the_command_counts_a_file(items: Path) -> None:
    """A file brings its own number of items and tokens."""
    found = planned(items, "--prices", "1,1", "--queries", 1.5)
    asked = 450 + found["control_queries"] + found["probe_queries"]
    assert (found["items"], found["queries"], found["prompt_tokens"]) == (300, 450, 100 * asked)
    assert found["cost"] == pytest.approx(101 * asked / 1e6)
    assert planned(items, "--sample", 100)["items"] == 100
    assert "the file holds 300" in blindcal(items, "--sample", 301).output


def test_the_command_works_the_other_way_round() -> None:
    """A wanted half-width gives numbers of items and queries, the cheapest first."""
    found = planned("--half-width", 0.04, "--tokens", 100, "--prices", "1,1")["choices"]
    assert all(one["forecast"]["half_width"] <= 0.04 for one in found)
    assert [one["cost"] for one in found] == sorted(one["cost"] for one in found)
    short = blindcal("--sample", 200, "--half-width", 0.01)
    assert short.exit_code == 1
    assert "200 items do not suffice" in short.output


def test_wrong_wishes_are_refused_in_one_line() -> None:
    """Each names the option and the cure."""
    assert "0<x<1" in blindcal("--half-width", 1).output
    assert "is none of overconfident" in blindcal("--shape", "nowhere").output
    assert "is not two prices such as 0.15,0.6" in blindcal("--prices", 1).output


def test_scores_and_runs_serve_as_shapes(tmp_path: Path) -> None:
    """A score file gives its shape; a finished run also its method, tokens and number of items."""
    shape = shapes.preset("underconfident")
    labels, p = shape.sample(300, np.random.default_rng(3))
    scores = tmp_path / "scores.csv"
    with scores.open("w", newline="") as file:
        csv.writer(file).writerows([("id", "label", "p"), *zip(range(300), labels, p, strict=True)])
    questions = tmp_path / "items.jsonl"
    with questions.open("w") as file:
        for k, label in enumerate(labels):
            file.write(json.dumps({"id": f"q{k}", "prompt": f"question {k}?", "label": int(label)}) + "\n")
    with replaying(questions, p) as server:
        settings = Settings(model="replay", base_url=server.base_url, resamples=50)
        result = audit(questions, settings, out=tmp_path / "run")
    by_scores = planned("--shape", scores, "--sample", 1000)
    by_run = planned("--shape", tmp_path / "run", "--prices", "1,1")
    assert by_scores["forecast"]["ece"] == pytest.approx(shape.ece(), abs=0.06)
    assert by_run["forecast"]["ece"] == pytest.approx(result.ece.value, abs=0.02)
    assert (by_run["items"], by_run["counted"]) == (300, True)
    assert by_run["cost"] > 0


def test_a_plan_takes_less_than_two_seconds(tmp_path: Path) -> None:
    """The whole command, Python's start included, in seconds of processor time: others do not count."""
    kept = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}  # compiled, as installed
    command = [sys.executable, "-c", "from blindcal.cli import main; main()", "plan"]

    def spent(*arguments: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **kept}
        subprocess.run([*command, *arguments], check=True, capture_output=True, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    spent("--sample", "300", "--queries", "1")
    for plan in (("--sample", "3000", "--queries", "1.5"), ("--half-width", "0.02", "--queries", "1")):
        # a core whose other half is busy takes longer over the same work: the least of three counts
        assert any(spent(*plan) < 2.0 for _ in range(3))


@pytest.mark.parametrize(("arguments", "fits"), [(["--sample", 3000], 2), (["--half-width", 0.02], 9)])
def test_a_plan_takes_few_fits(
    arguments: list[object], fits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan takes fits of a few hundredths of a second each, and their number does not depend on load."""
    begun = 0

    def counted(patterns: Patterns, *, enough: float) -> model.Ensemble:
        nonlocal begun
        begun += 1
        return model.fit_ensemble(patterns, enough=enough)

    for cached in (forecast._scatter, forecast._bend, forecast._rehearsed, forecast._rehearsal):
        cached.cache_clear()
    monkeypatch.setattr(forecast, "fit_ensemble", counted)
    monkeypatch.chdir(tmp_path)
    assert blindcal(*arguments).exit_code == 0
    assert 0 < begun <= fits
