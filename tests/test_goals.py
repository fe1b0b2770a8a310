"""Goals: read in one form, pursued where they are decided, at the same number of queries, and resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st
from scipy.special import expit

import blindcal as bc
from blindcal.auditing.audit import audit
from blindcal.auditing.limits import Limits
from blindcal.design import PILOT, LatentDesign, answer_design
from blindcal.errors import ConfigError, InputError, NotIdentifiedError
from blindcal.estimate.candidates import MOST_CANDIDATES, deciding_places
from blindcal.estimate.grid import CELLS, EDGES_S
from blindcal.estimate.operating import GRID_SHIFTS, decision_rates
from blindcal.goals import Goal
from blindcal.methods import METHODS, make_design
from blindcal.planning.goal_forecast import goal_forecast, least_items
from blindcal.planning.shapes import Shape, preset
from blindcal.prices import Prices
from blindcal.records import AnswerTable, FloatArray, IntArray
from blindcal.results.result import AuditResult
from blindcal.settings import Settings
from blindcal.simulation.replay import Server
from blindcal.simulation.simulate import ask, log_odds, respond
from blindcal.store.run_store import RUN_FILE, Store
from commanding import blindcal, printed_error, refusal
from deciding import audited, model, serving, settings, write_items

GOAL = Goal("precision", 0.85)


def crowded(n: int, seed: int) -> tuple[IntArray, FloatArray]:
    """A model whose confidence crowds at 0 and 1: its precision grows with the log-odds, far beyond .99."""
    rng = np.random.default_rng(seed)
    s = 2.5 * rng.standard_normal(n) + np.where(rng.random(n) < 0.5, 6, -6)
    return (rng.random(n) < expit(0.5 * s - 1.5 * np.sign(s))).astype(np.int64), np.asarray(expit(s))


def precision_at(shift: float, seed: int = 99) -> float:
    """The precision of deciding with a shift, over many items of the crowded model."""
    labels, p = crowded(200_000, seed)
    return float(labels[log_odds(p) >= -shift].mean())


# What a goal is


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("precision=0.95", Goal("precision", 0.95)),
        (" recall = .9 ", Goal("recall", 0.9)),
        ("cost=5:1", Goal("cost", 5, 1)),
        ("ece=0.05", Goal("ece", 0.05)),
    ],
)
def test_a_goal_has_one_form(text: str, goal: Goal) -> None:
    """A goal is read from text, and its own text means the same."""
    assert Goal.parse(text) == goal == Goal.parse(str(goal))


@pytest.mark.parametrize(
    "text",
    [
        "precision",
        "precision=1",
        "recall=0",
        "recall=nan",
        "cost=5",
        "cost=5:0",
        "cost=1:inf",
        "auroc=0.9",
        "",
        "ece=a",
    ],
)
def test_what_is_no_goal_is_refused(text: str) -> None:
    """The error names the rule and what came, in Python, in settings and on the command line."""
    with pytest.raises(InputError, match=r"^goal: "):
        Goal.parse(text)
    with pytest.raises(ConfigError, match=r"^goal: "):
        Settings(model="m", goal=text)
    assert "--goal" in refusal(blindcal("audit", "items.jsonl", "--model", "m", "--goal", text))


@given(st.sampled_from(["precision", "recall", "ece"]), st.floats(0.001, 0.999))
def test_every_share_can_be_a_goal(name: str, value: float) -> None:
    """The text of a goal is read as the same text again."""
    goal = Goal.parse(f"{name}={value}")
    assert goal.value == value
    assert str(Goal.parse(str(goal))) == str(goal)


@pytest.mark.parametrize("method", [name for name, one in METHODS.items() if not one.goals])
def test_methods_without_thresholds_refuse_a_goal(method: str) -> None:
    """The refusal says which method can, and what to do without."""
    with pytest.raises(ConfigError, match=r"latent can: use method='latent', or leave goal='recall=0.9' out"):
        Settings(model="m", method=method, goal="recall=0.9")


def test_more_than_two_answers_have_no_goal() -> None:
    """A threshold of several answers is another decision."""
    with pytest.raises(ConfigError, match="is for two answers"):
        make_design("latent", np.array([0, 1, 2, 1]), queries=2.0, choices=np.full(4, 3), goal=GOAL)


# Where it is asked


def asked_edges(answered: AnswerTable) -> FloatArray:
    return np.asarray(-answered.shifts)


@example_settings(deadline=None, max_examples=12)
@given(
    st.integers(30, 300),
    st.sampled_from([0.5, 1.0, 1.7]),
    st.sampled_from(["precision=0.8", "recall=0.8", "cost=3:1", "ece=0.1"]),
)
def test_a_goal_costs_no_query(n: int, queries: float, goal: str) -> None:
    """With a goal, as many queries are asked; a first one for every item before any second one."""
    labels, p = crowded(n, n)
    usual = LatentDesign(labels, queries, 3)
    aimed = replace(usual, goal=Goal.parse(goal))
    rng = np.random.default_rng(0)
    answered = answer_design(aimed, lambda asked, _: respond(log_odds(p), asked, rng))
    assert sum(aimed.sizes) == sum(usual.sizes) >= len(answered)
    first = answered.items[: min(n, len(answered))]
    assert np.unique(first).size == first.size
    assert (np.abs(answered.shifts) <= EDGES_S[-2]).all()


def test_the_pilot_is_the_same_with_a_goal() -> None:
    """Only what comes after the pilot depends on the goal, and nothing does if it is an ECE."""
    labels, p = crowded(800, 1)
    usual, aimed, ece = (
        ask(make_design("latent", labels, seed=1, goal=goal), p, seed=1)
        for goal in (None, GOAL, Goal("ece", 0.1))
    )
    pilot = slice(0, round(PILOT * 800))
    assert np.array_equal(usual.shifts[pilot], aimed.shifts[pilot])
    assert not np.array_equal(usual.shifts, aimed.shifts)
    assert np.array_equal(usual.shifts, ece.shifts)


@pytest.mark.parametrize("goal", [GOAL, Goal("recall", 0.9), Goal("cost", 6, 1)])
def test_queries_go_where_the_goal_is_decided(goal: Goal) -> None:
    """After the pilot, at few thresholds; most of them nearer the deciding one than usual queries are."""
    labels, p = crowded(1500, 2)
    usual, aimed = (ask(make_design("latent", labels, seed=2, goal=one), p, seed=2) for one in (None, goal))
    rows = slice(round(PILOT * 1500), None)
    mine = labels[aimed.items[rows]] == 1 if goal.name == "recall" else np.ones(1125, bool)
    after = asked_edges(aimed)[rows][mine]
    assert np.unique(after).size <= 2 * MOST_CANDIDATES
    many_labels, many_p = crowded(200_000, 3)
    cell = np.clip(np.searchsorted(EDGES_S, log_odds(many_p), side="right") - 1, 0, CELLS - 1)
    table = np.bincount(cell + CELLS * many_labels, minlength=2 * CELLS) / many_p.size
    each_round = int(mine.sum()) // 2
    decided = -GRID_SHIFTS[int(deciding_places(decision_rates(table[None]), goal, each_round)[0])]
    far, usually = (np.median(np.abs(s - decided)) for s in (after, asked_edges(usual)[rows]))
    assert far < 0.6 * usually


def test_a_recall_is_asked_of_positives_alone() -> None:
    """Negatives tell nothing about a recall, and are asked at many thresholds, as usual."""
    labels, p = crowded(1200, 4)
    aimed = ask(make_design("latent", labels, goal=Goal("recall", 0.9)), p)
    rows = slice(round(PILOT * 1200), None)
    negative = labels[aimed.items[rows]] == 0
    assert np.unique(aimed.shifts[rows][negative]).size > 100
    assert np.unique(aimed.shifts[rows][~negative]).size <= 2 * MOST_CANDIDATES


def test_every_round_of_a_goal_can_be_made_again() -> None:
    """The next round follows from the seed and the answers before it, also after the first queries."""
    labels, p = crowded(300, 5)
    rng = np.random.default_rng(0)
    answered, rounds = AnswerTable.empty(), 0
    while (asked := LatentDesign(labels, 1.5, 7, goal=GOAL).next_round(answered)) is not None:
        again = LatentDesign(labels, 1.5, 7, goal=GOAL).next_round(answered)
        assert again is not None
        assert np.array_equal(asked.items, again.items)
        assert np.array_equal(asked.shifts, again.shifts)
        answered = answered.with_round(asked, respond(log_odds(p), asked, rng))
        rounds += 1
    assert rounds == 4


def test_one_label_alone_is_asked_as_usual() -> None:
    """Without both labels there is nothing to decide, and no error."""
    labels, p = np.ones(200, np.int64), crowded(200, 7)[1]
    assert len(ask(make_design("latent", labels, goal=GOAL), p)) == 200


# What is promised


def fit_of(labels: IntArray, answered: AnswerTable) -> bc.LatentFit:
    return bc.latent(
        labels[answered.items], answered.shifts, answered.answers, 0.0, answered.items, resamples=150
    )


def test_a_goal_turns_no_promise_into_one() -> None:
    """For a model that crowds at the ends, the same number of queries now promises, and the promise holds."""
    promised = 0
    for seed in range(4):
        labels, p = crowded(1500, seed)
        usual, aimed = (
            fit_of(labels, ask(make_design("latent", labels, seed=seed, goal=goal), p, seed=seed))
            for goal in (None, GOAL)
        )
        with pytest.raises(NotIdentifiedError):
            usual.choose_threshold(precision=GOAL.value)
        try:
            shift = aimed.choose_threshold(precision=GOAL.value).point.shift
        except NotIdentifiedError:
            continue
        promised += 1
        assert precision_at(shift) >= GOAL.value
    assert promised >= 2


def test_only_thresholds_that_were_asked_are_promised() -> None:
    """Between its candidates an audit with a goal promises nothing: the smoothness of a fit is no answer."""
    labels, p = crowded(1500, 8)
    answered = ask(make_design("latent", labels, goal=GOAL), p)
    tested = fit_of(labels, answered).patterns.tested_beyond()
    times = np.array([np.isclose(answered.shifts, shift).sum() for shift in GRID_SHIFTS])
    assert np.array_equal(tested, times)


# How many items it takes


def test_a_forecast_grows_with_the_items() -> None:
    """More items reach a goal more often; the smallest number that suffices does so."""
    shape, goal = preset("overconfident"), Goal("precision", 0.8)
    few, many = (goal_forecast(shape, goal, n).chance for n in (150, 6000))
    assert few < many
    least = least_items(shape, goal)
    assert least is not None
    assert least.chance >= 0.8
    assert least_items(shape, goal, most=150) is None


@pytest.mark.parametrize(
    ("goal", "why"), [("precision=0.99", "at most 0.96"), ("cost=5:1", "any audit"), ("ece=0.05", "ECE is")]
)
def test_a_goal_out_of_reach_is_said_to_be(goal: str, why: str) -> None:
    """No number of items helps if the assumed model does not have it in it."""
    assert why in printed_error(blindcal("plan", "--goal", goal))


def test_a_plan_for_a_goal() -> None:
    """The plan says how often it is reached with these items, and how many it takes."""
    found = json.loads(blindcal("plan", "--goal", "recall=0.9", "--sample", 500, "--json").stdout)
    assert found["items"] == found["queries"] == 500
    assert 0 <= found["goal"]["chance"] <= 1
    assert found["least"]["chance"] >= 0.8
    assert "goes without" in refusal(blindcal("plan", "--goal", "recall=0.9", "--power", 0.9))
    assert "one query per item" in refusal(blindcal("plan", "--goal", "recall=0.9", "--queries", 2))


def test_forecasts_agree_with_simulated_audits() -> None:
    """The forecast chance is that of simulated audits, within the noise of twelve of them."""
    shape, goal, made = preset("overconfident"), Goal("precision", 0.75), 0
    for seed in range(12):
        labels, p = Shape(shape.name, shape.table).sample(600, np.random.default_rng(seed))
        fit = fit_of(labels, ask(make_design("latent", labels, seed=seed, goal=goal), p, seed=seed))
        try:
            made += fit.choose_threshold(precision=goal.value).point.threshold > 0
        except NotIdentifiedError:
            continue
    chance = goal_forecast(shape, goal, 600).chance
    assert abs(made - 12 * chance) <= 3 * np.sqrt(12 * max(chance * (1 - chance), 0.05))


# Over HTTP

N = 500
LABELS, P = model(N, 5)


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_items(tmp_path_factory.mktemp("goals") / "items.jsonl", LABELS)


@pytest.fixture(scope="module")
def server(items: Path) -> Iterator[Server]:
    with serving(items, P) as one:
        yield one


@pytest.fixture(scope="module")
def run(items: Path, server: Server) -> Path:
    return audited(items, server, items.parent / "run", method="latent", goal="precision=.8", resamples=200)


def test_the_result_says_whether_the_goal_is_reached(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In result.json, on the page and on the console; `threshold` goes by it without being told."""
    from blindcal.cli.result_summary import print_result

    found = AuditResult.load(run / "result.json")
    assert found.settings["goal"] == "precision=0.8"
    assert found.goal is not None
    assert found.goal.reached
    print_result(found, run)
    assert "reached: precision at least 0.8, 95% sure" in capsys.readouterr().out
    assert "precision at least 0.8: reached at threshold" in (run / "report.html").read_text()
    chosen = json.loads(blindcal("threshold", run, "--resamples", 200, "--json").stdout)
    assert chosen["shift"] == found.goal.shift
    assert chosen["confidence"] == 0.95
    every = blindcal("threshold", run, "--all", "--resamples", 40)
    assert every.stdout.startswith("at")
    assert "give one of the two" in refusal(blindcal("threshold", run, "--all", "--recall", 0.9))


def test_a_stopped_audit_goes_on_with_the_same_queries(
    items: Path, server: Server, run: Path, tmp_path: Path
) -> None:
    """Stopped within its rounds, an audit with a goal asks in the end what one that ran through asked."""
    wish = settings(server, method="latent", goal="precision=0.8", resamples=2)
    for most in (350, 450, 600):
        partial = audit(items, wish, out=tmp_path / "run", limits=Limits(max_queries=most))
        assert not partial.complete
    audit(items, wish, out=tmp_path / "run")
    with Store.read(tmp_path / "run" / RUN_FILE) as mine, Store.read(run / RUN_FILE) as whole:
        for one, other in zip(mine.rounds(), whole.rounds(), strict=True):
            assert np.array_equal(one.items, other.items)
            assert np.array_equal(one.shifts, other.shifts)


@pytest.mark.parametrize("goal", [None, "precision=0.9", "recall=0.8"])
def test_a_run_keeps_its_goal(items: Path, server: Server, run: Path, goal: str | None) -> None:
    """A run with answers cannot go on with another goal, or without one."""
    with pytest.raises(ConfigError, match="goal"):
        audit(items, settings(server, method="latent", goal=goal), out=run)


def test_a_sum_of_money_pursues_the_goal(items: Path, server: Server, tmp_path: Path) -> None:
    """Without a number of queries, the budget pays for a pilot and then for the goal."""
    found = audit(
        items,
        settings(server, method="latent", goal="cost=2:1"),
        out=tmp_path / "run",
        limits=Limits(max_cost=0.7),
        prices=Prices(50, 50),
    )
    assert found.complete
    assert found.goal is not None
    with Store.read(tmp_path / "run" / RUN_FILE) as store:
        pilot, *rest = store.rounds()
    assert rest
    assert np.unique(rest[0].shifts).size <= MOST_CANDIDATES < np.unique(pilot.shifts).size


def test_a_sample_grows_with_its_goal(items: Path, server: Server, tmp_path: Path) -> None:
    """Each stage of a sample has a pilot of its own, and pursues the same goal."""
    for sample in (200, 400):
        wish = settings(server, method="latent", goal="precision=0.8", sample=sample)
        found = audit(items, wish, out=tmp_path / "run")
        assert found.counts.items == sample
    with Store.read(tmp_path / "run" / RUN_FILE) as store:
        assert [len(asked) for asked in store.rounds()] == [50, 75, 75, 50, 75, 75]


def test_an_endpoint_without_thresholds_is_refused_after_the_probe(items: Path, tmp_path: Path) -> None:
    """If the probe finds that only sampled answers can be had, the goal is refused, with a cure."""
    with (
        serving(items, P, bias="ignored") as server,
        pytest.raises(ConfigError, match="goal: temperature cannot"),
    ):
        audit(items, settings(server, goal="precision=0.8"), out=tmp_path / "run")


def test_readings_of_logprobs_reach_a_goal_too(items: Path, tmp_path: Path) -> None:
    """Where every probability is shown there is nothing to aim at, and the goal is still decided."""
    with serving(items, P, logprobs=True) as server:
        found = audit(items, settings(server, goal="precision=0.8"), out=tmp_path / "run")
    assert found.method == "logprobs"
    assert found.goal is not None
    assert found.goal.reached
