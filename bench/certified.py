"""How often a certified threshold breaks its promise, how often there is one, and what it keeps.

    python bench/certified.py [--repeats 1000] [--growing 1000] [--shown 1] [--choices 1]

Repeat r draws 2,000 items from a population with known truth (seed r), audits them with one query per item,
and certifies a precision at 95% confidence; the endpoint is simulated. A violation is a certified rule whose
true precision is below the one asked for; "below the bound" compares with the bound, which is higher if every
candidate passed.

In the growth attack, the audit of a rule just short of its goal grows in steps of 500 items, and is certified
after each step. Growing repeat r draws 6,000 items (seed r); its audit and the order of the items stay the
same. Once a certificate is made, it is broken, and no further one is asked for.

With --shown 1, the endpoint shows its probabilities: the same items, which are decided at every threshold, so
that nothing is asked. With --choices 1, there are several answers, and the rule accepts the given one.

2,000 items are what people have: BoolQ has 3,270. Of these, 1,500 certify. With ten times as many, every
population is certified in nearly every repeat, and the rows differ by recall alone.
"""

from __future__ import annotations

from record import Cell, options, record, run_all, table

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from scipy.special import expit, logit, softmax

from accuracy import load
from blindcal.certifying.design import CertifyDesign, SideState
from blindcal.design import answer_design
from blindcal.estimate.certification import (
    CHOOSING,
    SideName,
    certified_bound,
    choose_candidates,
    level_of_attempt,
    split_items,
)
from blindcal.estimate.latent.model import working_table
from blindcal.estimate.patterns import count_patterns
from blindcal.items.score_files import read_choices
from blindcal.methods import make_design
from blindcal.records import AnswerTable, FloatArray, IntArray, Round
from blindcal.simulation.simulate import ask
from populations import CHOSEN, Population

N, LEVEL = 2000, 0.95
GROWN = tuple(range(1000, 6001, 500))
FAR = 50.0  # log-odds whose probability is 0 or 1 in every digit


def _atoms(rng: np.random.Generator, n: int) -> FloatArray:
    """Two tenths of the items at exactly 0, three at .5, three at 1, and the rest in between."""
    between = logit(np.clip(rng.beta(0.5, 0.5, n), 1e-9, 1 - 1e-9))
    which = rng.choice(4, n, p=[0.2, 0.3, 0.3, 0.2])
    return np.where(which == 3, between, np.array([-FAR, 0.0, FAR, 0.0])[which])


def _sure(rng: np.random.Generator, n: int) -> FloatArray:
    return np.where(rng.random(n) < 0.5, -FAR, FAR)


def _right(share: float) -> Callable[[FloatArray], FloatArray]:
    """The curve of a model that is sure, and right this often."""
    return lambda f: 1 - share + (2 * share - 1) * f


CROWDED, CALIBRATED, WRONG = CHOSEN[3], CHOSEN[5], CHOSEN[0]
RARE = Population(
    "rare positives",
    lambda rng, n: -3.0 + 2.0 * rng.standard_normal(n),
    lambda f: expit(1.1 * logit(f) - 0.7),
)
LLAMA, GPT = "Llama-3.1-70B__mmlu_test.csv.gz", "gpt-4o-mini__mmlu_test_direct.csv.gz"
DAVINCI = "gpt3-davinci__boolq_0shot.csv.gz"


@dataclass(frozen=True)
class GoalRow:
    """A population, by a shape or a score file, and the precision of each side to certify."""

    population: Population | str
    precision: float
    negative: float | None = None

    @property
    def wanted(self) -> dict[SideName, float]:
        """The precision of each side."""
        accepted: dict[SideName, float] = {"accept": self.precision}
        return accepted if self.negative is None else {**accepted, "reject": self.negative}

    @property
    def name(self) -> str:
        """The population in words."""
        if isinstance(self.population, Population):
            return self.population.name
        return self.population.partition(".csv")[0].replace("__", " ").replace("_", " ")

    def sample(self, data: Path, rng: np.random.Generator, n: int = N) -> tuple[IntArray, FloatArray]:
        """Labels and probabilities of ``n`` items."""
        if isinstance(self.population, Population):
            return self.population.sample(n, rng)
        labels, p = recorded(data, self.population)
        picked = rng.integers(labels.size, size=n)
        return labels[picked], p[picked]


ROWS = (
    GoalRow(CROWDED, 0.75),
    GoalRow(Population("atoms at 0, .5 and 1", _atoms, lambda f: 0.06 + 0.91 * f), 0.9),
    GoalRow(RARE, 0.6),
    GoalRow(Population("always sure", _sure, _right(0.97)), 0.95),
    GoalRow(Population("always sure, and just short", _sure, _right(0.9499)), 0.95),
    GoalRow(CALIBRATED, 0.95),
    GoalRow(WRONG, 0.8),
    GoalRow(GPT, 0.8),
    GoalRow(LLAMA, 0.9),
    GoalRow(DAVINCI, 0.85),
    GoalRow(CROWDED, 0.75, 0.75),
    GoalRow(LLAMA, 0.9, 0.9),
)


SEVERAL = (
    GoalRow("Llama-3.1-70B-Instruct__mmlu_test.csv.gz", 0.95),
    GoalRow("Llama-3.1-8B__mmlu_test.csv.gz", 0.85),
    GoalRow("Qwen-14B__emotion4_task_0shot.csv.gz", 0.85),
    GoalRow("Llama-2-7b-hf__emotion4_base_0shot.csv.gz", 0.5),
    GoalRow("mpt-7b__emotion4_task_1shot.csv.gz", 0.45),
)
EVERY = (*ROWS, *SEVERAL)


@lru_cache
def recorded(data: Path, name: str) -> tuple[IntArray, FloatArray]:
    """Labels and probabilities; of several answers, whether the likeliest is right, and its probability."""
    if not (path := data / "choices" / name).exists():
        return load(data / "scores" / name)
    known = read_choices(path)
    p = softmax(known.logits, axis=1)
    return (p.argmax(axis=1) == known.labels).astype(np.int64), p.max(axis=1)


@dataclass(frozen=True)
class WholePopulation:
    """All probabilities of a population in order, and the running sum of the chances of a positive label."""

    f: FloatArray
    positive: FloatArray

    def below(self, threshold: float) -> tuple[int, float]:
        """How many items lie below a threshold, and how many of these are positive."""
        place = int(np.searchsorted(self.f, threshold))
        return place, float(self.positive[place])

    def accepted(self, threshold: float) -> tuple[int, float]:
        """How many items are decided positive, and how many of these rightly."""
        items, positive = self.below(threshold)
        return self.f.size - items, float(self.positive[-1]) - positive

    def rejected(self, threshold: float) -> tuple[int, float]:
        """How many items are decided negative, and how many of these rightly."""
        items, positive = self.below(threshold)
        return items, items - positive

    def best(self, precision: float) -> float:
        """The highest recall of a threshold with this precision."""
        places = np.unique(self.f, return_index=True)[1]
        right = self.positive[-1] - self.positive[places]
        reached = right >= precision * (self.f.size - places)
        return float(right[reached].max(initial=0.0) / self.positive[-1])


@lru_cache
def truth(place: int, data: Path) -> WholePopulation:
    """What is true of a population."""
    population = EVERY[place].population
    if isinstance(population, Population):
        f, up = population.many()
    else:
        labels, f = recorded(data, population)
        up = labels.astype(np.float64)
    order = np.argsort(f, kind="stable")
    return WholePopulation(f[order], np.concatenate([[0.0], np.cumsum(up[order])]))


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """One certification: whether there is a certificate, whether it is broken, what it keeps and costs.

    ``kept`` is the share of positive labels that are accepted, ``decided`` of all items that the rule decides
    with a promise. ``beyond`` says that the true precision is below the bound, which may be above the goal.
    """

    queries: int
    certified: bool = False
    violated: bool = False
    beyond: bool = False
    kept: float = 0.0
    decided: float = 0.0


def audited(labels: IntArray, p: FloatArray, seed: int, *, shown: bool) -> AnswerTable:
    """The answers of an audit: threshold answers, or the probabilities themselves."""
    if not shown:
        return ask(make_design("latent", labels, seed=seed), p, seed=seed)
    items, none, log_odds = np.arange(p.size), np.zeros(p.size), np.clip(logit(p), -FAR, FAR)
    return AnswerTable(
        items, none, none, (p >= 0.5).astype(np.int64), bounds=np.column_stack([log_odds, log_odds])
    )


def certification(
    row: GoalRow, labels: IntArray, p: FloatArray, answered: AnswerTable, seed: int, attempt: int = 1
) -> tuple[tuple[SideState, ...], int]:
    """The states in which the sides of a rule end, and the number of queries that this took."""
    choosing, certifying = split_items(np.unique(answered.items), None, seed, CHOOSING)
    mine, shown = answered.of(choosing), answered.bounds is not None
    patterns = count_patterns(labels[choosing], replace(mine, items=np.searchsorted(choosing, mine.items)))
    sides = choose_candidates(
        working_table(patterns),
        choosing.size,
        certifying.size,
        row.wanted,
        level_of_attempt(LEVEL, attempt),
        -answered.bounds_or_nan[:, 0] if shown else answered.shifts,
    )
    design = CertifyDesign(labels=labels, items=certifying, sides=sides, before=answered, shown=shown)

    def answer(asked: Round, _: int) -> IntArray:
        return (p[asked.items] >= expit(-asked.shifts)).astype(np.int64)

    own = answer_design(design, answer)
    return design.states(own, "all"), len(own)


def grown(job: tuple[int, int, Path, bool]) -> int:
    """The attempt at which a growing audit of a rule just short of its goal is certified; 0 if at none."""
    place, seed, data, shown = job
    row = ROWS[place]
    labels, p = row.sample(data, np.random.default_rng([seed, place, 15]), GROWN[-1])
    answered = audited(labels, p, seed, shown=shown)
    for attempt, items in enumerate(GROWN, 1):
        states, _ = certification(row, labels, p, answered.of(np.arange(items)), seed, attempt)
        if all(state.certified is not None for state in states):
            return attempt
    return 0


def certified(job: tuple[int, int, Path, bool]) -> RuleOutcome:
    """One simulated certification."""
    place, seed, data, shown = job
    row = EVERY[place]
    labels, p = row.sample(data, np.random.default_rng([seed, place, 14]))
    answered = audited(labels, p, seed, shown=shown)
    states, queries = certification(row, labels, p, answered, seed)
    if any(state.certified is None for state in states):
        return RuleOutcome(queries)
    real, outcome = truth(place, data), RuleOutcome(queries, certified=True)
    for state in states:
        assert state.certified is not None
        accepts = state.side.name == "accept"
        items, right = (real.accepted if accepts else real.rejected)(state.certified.threshold)
        outcome = replace(
            outcome,
            violated=outcome.violated or right < state.side.wanted * items,
            beyond=outcome.beyond or right < certified_bound(state.side, state.tests) * items,
            decided=outcome.decided + items / real.f.size,
            kept=right / float(real.positive[-1]) if accepts else outcome.kept,
        )
    return outcome


def cells(place: int, data: Path, outcomes: list[RuleOutcome]) -> list[Cell]:
    """The row of a population."""
    row, all_ = EVERY[place], len(outcomes)
    made = [outcome for outcome in outcomes if outcome.certified]
    goal = f"{row.precision:g}" if row.negative is None else f"{row.precision:g} and {row.negative:g}"
    violated, beyond = sum(one.violated for one in made), sum(one.beyond for one in made)
    return [
        row.name,
        goal,
        [len(made), all_],
        [violated, 100 * violated / all_],
        [beyond, 100 * beyond / all_],
        float(np.mean([one.kept for one in made])) if made else None,
        truth(place, data).best(row.precision),
        float(np.mean([one.queries for one in outcomes])),
        float(np.mean([one.decided for one in made])) if made and row.negative else None,
    ]


def main() -> None:
    """Run the study, and record its tables."""
    arguments = options(__doc__, repeats=1000, growing=1000, shown=0, choices=0)
    places, shown = range(len(ROWS)), bool(arguments.shown or arguments.choices)
    if arguments.choices:
        places = range(len(ROWS), len(EVERY))
    jobs = [(place, seed, arguments.data, shown) for place in places for seed in range(arguments.repeats)]
    each = run_all(certified, jobs, arguments, chunk=20)
    many = arguments.repeats
    rows = [cells(place, arguments.data, each[k * many : (k + 1) * many]) for k, place in enumerate(places)]
    columns = (
        "population {} | precision asked for {} | certified {} of {} | violations {} ({:.1f}%) | "
        "below the bound {} ({:.1f}%) | mean recall {:.3f} | highest recall there is {:.3f} | "
        "mean new queries {:,.0f} | decided by two thresholds {:.3f}"
    )
    if arguments.choices:
        record("certified_choices", {"populations": table(columns, rows)}, arguments, repeats=many)
        return
    short = next(place for place in places if "just short" in ROWS[place].name)
    jobs = [(short, seed, arguments.data, shown) for seed in range(arguments.growing)]
    attempts = np.array(run_all(grown, jobs, arguments, chunk=20))
    growth = []
    for last in (1, 2, 3, 5, len(GROWN)):
        broken = (attempts > 0) & (attempts <= last)
        growth.append([last, GROWN[last - 1], [int(broken.sum()), 100 * float(broken.mean())]])
    record(
        "certified_shown" if shown else "certified",
        {
            "populations": table(columns, rows),
            "growth": table("attempts {} | items {:,} | certified, and so broken {} ({:.1f}%)", growth),
        },
        arguments,
        repeats={"populations": many, "growth": arguments.growing},
    )


if __name__ == "__main__":
    main()
