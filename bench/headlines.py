"""What the first sentence of a report claims, and what is true: 200 demos, and audits of other models.

    python bench/headlines.py [--demos 200] [--pages 4]

The demo asks SmolLM2-135M 600 built-in questions, with a seed of its own each time; its hidden probabilities
are those that bench/embedded.py scored. Other audits have 600 items too, drawn from a known population:
random shapes, the score files (with replacement), and models with many items at exactly 0, 1/2 or 1. Every
audit asks one query per item. ``--pages`` writes the reports of the headlines that are furthest from the
truth, and their pictures, to look at.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tqdm import tqdm

import blindcal as bc
from audits import RESAMPLES
from blindcal.estimate.findings import Findings
from blindcal.evidence import Evidence, estimate
from blindcal.items.score_files import read_scores
from blindcal.methods import make_design
from blindcal.records import FloatArray, IntArray, Targets, Token
from blindcal.report.narrative import quote, quoted_tail
from blindcal.report.page import write_page
from blindcal.report.sentences import Number, Numbers, Quoted
from blindcal.results.result import AnswerCounts, Spend
from blindcal.simulation.simulate import ask
from populations import Population, Recorded, drawn, narrow
from record import Cell, Table, parser, record, table

ITEMS = 600
SCORED = Path("runs/embedded/scores.csv")


@dataclass(frozen=True, slots=True)
class Truth:
    """The probabilities of a population, and how often the label of each is positive."""

    f: FloatArray
    up: FloatArray

    def right(self, side: str, confidence: float) -> float:
        """How often answers of a side are right, from a confidence up."""
        # the operating points are at multiples of 1/40, of which the doubles may be off by a bit
        there = self.f >= confidence - 1e-9 if side == "positive" else self.f < 1 - confidence + 1e-9
        return float((self.up if side == "positive" else 1 - self.up)[there].mean()) if there.any() else 0.5

    @property
    def accuracy(self) -> float:
        """How often all answers are right."""
        return float(np.where(self.f >= 0.5, self.up, 1 - self.up).mean())


@dataclass(frozen=True, slots=True)
class Headline:
    """The first sentence of one report: the rightness that it claims, and the truth.

    ``confidence`` is what it quotes, ``None`` if it is about all answers; ``share`` of the items have it.
    """

    population: str
    seed: int
    text: str
    confidence: float | None
    share: float
    right: bc.Estimate
    truth: float

    @property
    def holds(self) -> bool:
        """Whether the truth is in the interval."""
        return self.truth in self.right

    @property
    def miss(self) -> float:
        """By how much the claim differs from the truth."""
        return abs(float(self.right) - self.truth)


@lru_cache
def demo() -> tuple[IntArray, FloatArray]:
    """The labels and hidden probabilities of the built-in questions."""
    if not SCORED.is_file():
        sys.exit(f"{SCORED} is missing: python bench/embedded.py makes it, in some minutes")
    scores = read_scores(SCORED)
    return scores.labels, scores.p


def always_sure(seed: int) -> Population:
    """A model that is always certain, and right four times in five."""
    share = np.random.default_rng([seed, 79]).uniform(0.2, 0.8)

    def draw(rng: np.random.Generator, n: int) -> FloatArray:
        return np.where(rng.random(n) < share, 40.0, -40.0)

    return Population(f"always sure {seed}", draw, lambda f: np.where(f > 0.5, 0.8, 0.2))


def tied(seed: int) -> Population:
    """A third of the items at exactly one half."""
    rest = drawn(seed)

    def draw(rng: np.random.Generator, n: int) -> FloatArray:
        return np.where(rng.random(n) < 1 / 3, 0.0, rest.draw(rng, n))

    return Population(f"tied {seed}", draw, rest.curve)


KINDS = {"drawn at random": drawn, "narrow": narrow, "always sure": always_sure, "a third at 1/2": tied}
#: Populations and the share of `--demos` audits that each gets.
SHARES = {
    "the demo": 1.0,
    "the demo's model, its 1,000 questions": 0.5,
    "score files": 0.6,
    "drawn at random": 0.5,
    "narrow": 0.25,
    "always sure": 0.125,
    "a third at 1/2": 0.125,
}


def sample(name: str, seed: int, files: Sequence[Path]) -> tuple[IntArray, FloatArray, Truth]:
    """The items of one audit, and the truth about their population."""
    rng = np.random.default_rng([seed, 14])
    if name == "the demo":
        labels, p = demo()
        labels, p = labels[:ITEMS], p[:ITEMS]
        return labels, p, Truth(p, labels.astype(np.float64))
    if name.startswith("the demo"):
        labels, p = demo()
        picked = rng.integers(labels.size, size=ITEMS)
        return labels[picked], p[picked], Truth(p, labels.astype(np.float64))
    population = Recorded(files[seed % len(files)]) if name == "score files" else KINDS[name](seed)
    return *population.sample(ITEMS, rng), Truth(*population.many())


def audited(labels: IntArray, p: FloatArray, name: str, seed: int) -> bc.AuditResult:
    """The result of an audit with one query per item, without an endpoint."""
    design = make_design("latent", labels, queries=1, seed=seed)
    answers = ask(design, p, seed=seed)
    found = estimate(Evidence("latent", design, labels, answers, resamples=RESAMPLES))
    positive = int(answers.answers.sum())
    return bc.AuditResult(
        **{field.name: getattr(found, field.name) for field in fields(Findings)},
        blindcal=importlib.metadata.version("blindcal"),
        created="2026-01-01T00:00:00+00:00",
        complete=True,
        stopped=None,
        items="questions",
        model=name,
        method="latent",
        estimator="latent",
        semantics="pair",
        measures="a simulated model",
        level=0.95,
        by=None,
        invalid_reasons={},
        counts=AnswerCounts(
            items=labels.size,
            positive_labels=int(labels.sum()),
            positive=positive,
            negative=len(answers) - positive,
            invalid=0,
            unanswered=0,
        ),
        spend=Spend(
            queries=labels.size,
            probe_queries=0,
            attempts=labels.size,
            prompt_tokens=0,
            completion_tokens=0,
            cached_tokens=0,
            cost=None,
        ),
        seconds=0.0,
        targets=Targets((Token(1, "Yes"),), (Token(2, "No"),)),
        example=None,
        probe=None,
        oracle=None,
        settings={"positive": "Yes", "negative": "No", "queries": 1.0, "offset": 50.0, "seed": seed},
    )


def spelled_out(result: bc.AuditResult) -> str:
    """The first sentence as text."""
    numbers = Numbers(result)
    return "".join(
        numbers.show(piece.path, piece.form).striptags()
        if isinstance(piece, Number)
        else (piece.text if isinstance(piece, Quoted) else piece)
        for piece in quote(result) or ()
    )


def headline(job: tuple[str, int, tuple[Path, ...]]) -> Headline:
    """One audit's first sentence and the truth about it."""
    name, seed, files = job
    labels, p, truth = sample(name, seed, files)
    result = audited(labels, p, name, seed)
    tail = quoted_tail(result)
    said = spelled_out(result)
    if tail is None:
        return Headline(name, seed, said, None, 1.0, result.accuracy, truth.accuracy)
    true = truth.right(tail.side, tail.confidence)
    return Headline(name, seed, said, tail.confidence, tail.share, tail.right, true)


def row(name: str, mine: Sequence[Headline]) -> list[Cell]:
    """The row of one population: its audits, and how their claims compare with the truth."""
    quoted = [one for one in mine if one.confidence is not None]
    return [
        name,
        len(mine),
        len(mine) - len(quoted),
        float(np.mean([one.confidence for one in quoted])) if quoted else None,
        float(np.mean([one.share for one in quoted])) if quoted else None,
        float(np.mean([2 * one.right.half_width for one in mine])),
        sum(one.holds for one in mine) / len(mine),
        max(one.miss for one in mine),
    ]


def worst(found: Sequence[Headline], count: int) -> list[Headline]:
    """The headlines that are furthest from the truth."""
    return sorted(found, key=lambda one: -one.miss)[:count]


def examples(found: Sequence[Headline]) -> Table:
    """A table of headlines with the truth."""
    rows: list[list[Cell]] = [[one.population, one.seed, one.text, one.truth] for one in found]
    return table({"population": "{}", "seed": "{}", "first sentence": "{}", "right in truth": "{:.0%}"}, rows)


def write_pages(found: Sequence[Headline], files: tuple[Path, ...], folder: Path) -> None:
    """Write the reports of some headlines, and a picture of the top of each."""
    from picture import photograph  # needs Chromium

    folder.mkdir(parents=True, exist_ok=True)
    for place, one in enumerate(found):
        labels, p, _ = sample(one.population, one.seed, files)
        page = (folder / f"worst-{place}.html").resolve()
        write_page(audited(labels, p, one.population, one.seed), page)
        photograph(page, page.with_suffix(".png"))


def main() -> None:
    """Audit, compare the headlines with the truth, and record the tables."""
    options = parser(__doc__)
    options.add_argument("--demos", type=int, default=200, help="number of demos")
    options.add_argument("--pages", type=int, default=0, help="number of reports to write")
    options.add_argument("--out", type=Path, default=Path("runs/headlines"), help="folder of the reports")
    arguments = options.parse_args()
    files = tuple(sorted((arguments.data / "scores").glob("*.csv.gz")))
    jobs = [
        (name, seed, files)
        for name, share in SHARES.items()
        for seed in range(max(1, round(share * arguments.demos)))
    ]
    with ProcessPoolExecutor(arguments.processes) as pool:
        found = list(tqdm(pool.map(headline, jobs), total=len(jobs), disable=None))
    rows = [row(name, [one for one in found if one.population == name]) for name in SHARES]
    columns = {
        "model": "{}",
        "audits": "{}",
        "quote no confidence": "{}",
        "mean confidence quoted": "{:.0%}",
        "items that have it": "{:.0%}",
        "mean width": "{:.1%}",
        "interval holds the truth": "{:.1%}",
        "largest miss": "{:.1%}",
    }
    tables = {"claims": table(columns, [*rows, row("all", found)]), "worst": examples(worst(found, 6))}
    repeats = {"demos": arguments.demos, "audits": len(found)}
    record("headlines", tables, folder=arguments.results, repeats=repeats)
    if arguments.pages:
        write_pages(worst(found, arguments.pages), files, arguments.out)


if __name__ == "__main__":
    main()
