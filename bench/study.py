"""How often the 95% intervals of the report hold: every number, every method that fits.

    python bench/study.py                                  # everything: about an hour on two cores
    python bench/study.py --classwise                      # the ECE of each of several answers: minutes
    python bench/study.py --figures                        # those of docs/figures.md on score files: minutes
    python bench/study.py --choose --methods latent-1 --sizes 2000 --groups "score files"

Each repeat draws n items from a population with known truth, asks them as one method does, fits, and compares
every interval of the report with the population's value. Recorded populations are real models' score files,
drawn with replacement; six of the twelve may be used to choose how the method works (``--choose``), the other
six only to report. Seeds start from 50,000, with ``--choose`` from 40,000. Only a whole study is recorded.
"""

from __future__ import annotations

from record import Cell, Table, parser, record, run_all, table

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path

import numpy as np
from scipy.special import softmax

from blindcal.estimate.shown import classwise
from blindcal.estimate.truth import binned_ece
from blindcal.items.score_files import read_choices
from blindcal.records import FloatArray, IntArray
from page_figures import BINS, FIGURES, NAMES, intervals, true_figures
from populations import ATOMS, CHOSEN, Population, Recorded, drawn, narrow, simulated_fit

TO_CHOOSE = (
    "Llama-3.1-70B__mmlu_test",
    "Llama-3.1-8B-Instruct__mmlu_test_direct",
    "Mistral-7B-Instruct-v0.2__truthfulqa_binary",
    "Starling-LM-7B-alpha__halueval_dialogue",
    "gpt2-xl__boolq_0shot",
    "gpt3-curie__rte_train_0shot",
)
TO_REPORT = (
    "Mistral-7B-Instruct-v0.3__mmlu_test_direct",
    "OpenHermes-2-Mistral-7B__truthfulqa_binary",
    "zephyr-7b-beta__halueval_dialogue",
    "gpt-4o-mini__mmlu_test_direct",
    "gpt3-davinci__boolq_0shot",
    "Meta-Llama-3-8B-Instruct__boolq_0shot_1500",
)
FIRST_SEED, FIRST_TO_CHOOSE = 50_000, 40_000
REFITS = 80  # behind each interval, of which an audit has 1,000
SIZES = (400, 2000, 10_000)
#: Methods with their queries per item.
METHODS = {
    "latent-1": ("latent", 1.0),
    "latent-2": ("latent", 2.0),
    "temperature-3": ("temperature", 3.0),
    "repeated-2": ("repeated", 2.0),
    "logprobs-1": ("logprobs", 1.0),
}
LATENT, *OTHERS = METHODS
SAMPLED = ("temperature", "repeated")
SCORES, DRAWN, NARROW, MIXED = "score files", "drawn at random", "narrow confidence", "all of these"
SHAPES = (
    *(one.name for one in ATOMS),
    "crowded at 0 and 1",
    "sine-shaped curve",
    "exactly calibrated",
    NARROW,
)
ALL_SHAPES = (*(one.name for one in (*ATOMS, *CHOSEN)), NARROW, DRAWN)
CALIBRATED = ("exactly calibrated", "a third at 1/2, calibrated")


@dataclass(frozen=True, slots=True)
class Setting:
    """A group of populations that the repeats go through in turn, a method and a number of items."""

    group: str
    method: str
    n: int

    @property
    def title(self) -> str:
        """The method and the number of items."""
        name, queries = METHODS[self.method]
        return f"{name}, K={queries:g}, n={self.n:,}"


@dataclass(frozen=True, slots=True)
class Repeat:
    """The input of one repeat; ``source`` is a score file or the name of a population."""

    setting: Setting
    source: Path | str
    seed: int
    refits: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The true values, the intervals (shape (2, figures)), the ECE, and the p-value of "calibrated"."""

    source: str
    truth: FloatArray
    ends: FloatArray
    ece: float
    pvalue: float

    @property
    def held(self) -> FloatArray:
        """1 for each interval that contains the truth, 0 for each that does not, NaN if it does not count."""
        inside = (self.ends[0] <= self.truth) & (self.truth <= self.ends[1])
        return np.where(np.isnan(self.truth), np.nan, inside)

    @property
    def width(self) -> FloatArray:
        """The width of each interval; NaN if it does not count."""
        return np.where(np.isnan(self.truth), np.nan, self.ends[1] - self.ends[0])


def settings() -> Iterator[Setting]:
    """What is studied: not every method with every population and size, to limit the time."""
    yield from (Setting(SCORES, method, n) for method in METHODS for n in SIZES)
    yield from (Setting(shape, LATENT, 400) for shape in SHAPES[: len(ATOMS)])
    yield from (Setting(shape, LATENT, 2000) for shape in (*SHAPES, DRAWN))
    yield from (Setting(MIXED, LATENT, n) for n in (400, 10_000))
    yield from (Setting(MIXED, method, 2000) for method in OTHERS)


def population_of(source: Path | str, seed: int) -> Population | Recorded:
    """The population of a repeat; the random ones are different for every seed."""
    if isinstance(source, Path):
        return Recorded(source)
    makers = {DRAWN: drawn, NARROW: narrow}
    if source in makers:
        return makers[source](seed)
    return next(one for one in (*CHOSEN, *ATOMS) if one.name == source)


@lru_cache(maxsize=64)
def truth_of(source: Path | str, seed: int) -> tuple[FloatArray, FloatArray | None]:
    """The true values of a population, and where its curve is checked."""
    return true_figures(population_of(source, seed))


def observe(repeat: Repeat) -> Outcome:
    """Draw, ask and fit once."""
    setting, source, seed = repeat.setting, repeat.source, repeat.seed
    truth, at = truth_of(source, seed if source in (DRAWN, NARROW) else 0)
    labels, f = population_of(source, seed).sample(setting.n, np.random.default_rng([seed, setting.n]))
    method, queries = METHODS[setting.method]
    fit = simulated_fit(labels, f, method=method, queries=queries, seed=seed, resamples=repeat.refits)
    return Outcome(
        source.name.removesuffix(".csv.gz") if isinstance(source, Path) else source,
        truth,
        intervals(fit, at),
        float(fit.ece.value or 0.0),
        fit.calibrated_pvalue if setting.group in CALIBRATED else np.nan,
    )


def repeats_of(
    wanted: Sequence[Setting], files: Sequence[Path], seeds: range, refits: int
) -> Iterator[Repeat]:
    """All repeats of each setting, which go through the populations of its group in turn."""
    groups: Mapping[str, Sequence[Path | str]] = {SCORES: files, MIXED: ALL_SHAPES}
    for setting in wanted:
        sources = groups.get(setting.group, (setting.group,))
        for k, seed in enumerate(seeds):
            yield Repeat(setting, sources[k % len(sources)], seed, refits)


def study(repeats: Sequence[Repeat], options: Namespace) -> dict[Setting, list[Outcome]]:
    """The outcomes of each setting."""
    # one after another what has the same true values, which a process keeps
    ordered = sorted(repeats, key=lambda repeat: (repeat.seed, str(repeat.source)))
    outcomes: dict[Setting, list[Outcome]] = {repeat.setting: [] for repeat in repeats}
    for repeat, outcome in zip(ordered, run_all(observe, ordered, options, chunk=16), strict=True):
        outcomes[repeat.setting].append(outcome)
    return outcomes


def mean(values: Sequence[FloatArray]) -> list[float | None]:
    """The mean of each column over the rows where it counts, ``None`` if nowhere."""
    counted = np.array(values)
    with np.errstate(invalid="ignore"):
        found = np.nansum(counted, axis=0) / np.isfinite(counted).sum(axis=0)
    return [float(one) if np.isfinite(one) else None for one in found]


def held_table(columns: Mapping[str, Sequence[Outcome]]) -> Table:
    """A row per number of the report: the share of intervals that hold, and their mean width."""
    cells: list[list[Cell]] = []
    for outcomes in columns.values():
        both = zip(mean([one.held for one in outcomes]), mean([one.width for one in outcomes]), strict=True)
        cells.append([None if held is None or width is None else (held, width) for held, width in both])
    return _by_name(dict.fromkeys(columns, "{:.1%} ({:.3f})"), cells)


def least_table(columns: Mapping[str, Sequence[Outcome]]) -> Table:
    """A row per number of the report: the share that holds in the population where it is least."""
    cells: list[list[Cell]] = []
    for outcomes in columns.values():
        sources = sorted({one.source for one in outcomes})
        shares = [mean([one.held for one in outcomes if one.source == source]) for source in sources]
        each = [[share for share in row if share is not None] for row in zip(*shares, strict=True)]
        cells.append([min(row) if row else None for row in each])
    return _by_name(dict.fromkeys(columns, "{:.1%}"), cells)


def _by_name(formats: Mapping[str, str], columns: Sequence[Sequence[Cell]]) -> Table:
    rows = [
        [name, *row]
        for name, *row in zip(NAMES, *columns, strict=True)
        if any(cell is not None for cell in row)
    ]
    return table({"": "{}", **formats}, rows)


def ece_table(found: Mapping[Setting, Sequence[Outcome]]) -> Table:
    """The interval of the ECE, and how often the test of perfect calibration rejects where it was made."""
    rows: list[list[Cell]] = []
    for setting, outcomes in found.items():
        ends = [(one.truth[0], *one.ends[:, 0], one.ece, one.pvalue) for one in outcomes]
        truth, low, high, ece, pvalue = np.array(ends, float).T
        shares = [
            float(share.mean()) for share in ((low <= truth) & (truth <= high), low > truth, high < truth)
        ]
        rejected = None if np.isnan(pvalue).any() else float((pvalue < 0.05).mean())
        sizes = [float((high - low).mean()), float((ece - truth).mean())]
        name, queries = METHODS[setting.method]
        row: list[Cell] = [setting.group, name, queries, setting.n, float(truth.mean())]
        rows.append([*row, *shares, *sizes, rejected])
    formats = {
        **{"population": "{}", "method": "{}", "K": "{:g}", "items": "{:,}", "mean ECE": "{:.4f}"},
        **{"held": "{:.1%}", "all above": "{:.1%}", "all below": "{:.1%}"},
        **{"mean width": "{:.4f}", "mean error": "{:+.4f}", "p < 0.05": "{:.1%}"},
    }
    return table(formats, rows)


def summary_table(found: Mapping[Setting, Sequence[Outcome]]) -> Table:
    """A row per setting: the mean over all numbers of the report, and the least and the greatest share."""
    rows: list[list[Cell]] = []
    for setting, outcomes in found.items():
        each = mean([one.held for one in outcomes])
        known = [(share, name) for share, name in zip(each, NAMES, strict=True) if share is not None]
        name, queries = METHODS[setting.method]
        least, most = min(known), max(known)
        within = float(np.mean([0.93 <= share <= 0.98 for share, _ in known]))
        row: list[Cell] = [setting.group, name, queries, setting.n]
        rows.append([*row, float(np.mean([share for share, _ in known])), within, *least, most[0]])
    formats = {
        **{"population": "{}", "method": "{}", "K": "{:g}", "items": "{:,}", "mean": "{:.1%}"},
        **{"from 93% to 98%": "{:.0%}", "least": "{:.1%}", "which": "{}", "most": "{:.1%}"},
    }
    return table(formats, rows)


def tables(found: Mapping[Setting, Sequence[Outcome]]) -> dict[str, Table]:
    """Every table of the settings that were studied."""
    wanted = {
        "latent": [one for one in found if one.group == SCORES and one.method in (LATENT, "latent-2")],
        "sampled": [one for one in found if one.group == SCORES and METHODS[one.method][0] in SAMPLED],
        "logprobs": [one for one in found if one.group == SCORES and METHODS[one.method][0] == "logprobs"],
        "mixed": [one for one in found if one.group == MIXED],
    }
    made = {"summary": summary_table(found), "ece": ece_table(found)}
    for name, some in wanted.items():
        if some:
            made[name] = held_table({one.title: found[one] for one in some})
    for n in SIZES:
        shapes = {one.group: found[one] for one in found if one.group in (*SHAPES, DRAWN) and one.n == n}
        if shapes:
            made[f"shapes-{n}"] = held_table(shapes)
    files = {one.title: found[one] for one in found if one.group == SCORES}
    if files:
        made["least"] = least_table(files)
    return made


@lru_cache
def choices(path: Path) -> tuple[IntArray, FloatArray]:
    """Labels, and the probability of each answer."""
    known = read_choices(path)
    return known.labels, softmax(known.logits, axis=1)


def classwise_held(job: tuple[Path, int, int, int]) -> list[float]:
    """Whether the interval of the mean holds, and its width; the same of a class, in the mean over all."""
    path, n, seed, resamples = job
    labels, p = choices(path)
    picked = np.random.default_rng([seed, n]).integers(labels.size, size=n)
    mean, each = classwise(labels[picked], p[picked], bins=BINS, resamples=resamples, seed=seed)
    true = [float(binned_ece(labels == k, column, BINS).ece) for k, column in enumerate(p.T)]
    held = [float(value in estimate) for value, estimate in zip(true, each, strict=True)]
    widths = [2 * estimate.half_width for estimate in each]
    return [
        float(float(np.mean(true)) in mean),
        2 * mean.half_width,
        float(np.mean(held)),
        float(np.mean(widths)),
    ]


def classwise_table(options: Namespace, seeds: range) -> Table:
    """A row per file and number of items."""
    paths = sorted((options.data / "choices").glob("*.csv.gz"))
    places = list(product(paths, SIZES))
    jobs = [(path, n, seed, options.refits) for path, n in places for seed in seeds]
    found = np.array(run_all(classwise_held, jobs, options, chunk=16)).reshape(len(places), len(seeds), -1)
    rows = [
        [path.name.removesuffix(".csv.gz").replace("__", ", "), n, *held.tolist()]
        for (path, n), held in zip(places, found.mean(axis=1), strict=True)
    ]
    columns = {"file": "{}", "n": "{:,}", "mean over classes": "{:.1%}", "its width": "{:.3f}"}
    return table(columns | {"a class": "{:.1%}", "its mean width": "{:.3f}"}, rows)


def main() -> None:
    """Run the study, and record its tables."""
    options = parser(__doc__, repeats=400, refits=REFITS)
    options.add_argument("--choose", action="store_true", help="the half of the files to choose on")
    options.add_argument("--classwise", action="store_true", help="the ECE of each of several answers")
    options.add_argument("--figures", action="store_true", help="the figures of docs/figures.md alone")
    options.add_argument("--methods", nargs="*", choices=list(METHODS))
    options.add_argument("--sizes", type=int, nargs="*", help="numbers of items")
    options.add_argument("--groups", nargs="*", help="populations")
    arguments = options.parse_args()
    first = FIRST_TO_CHOOSE if arguments.choose else FIRST_SEED
    seeds = range(first, first + arguments.repeats)
    if arguments.classwise:
        record(
            "study-classwise",
            {"classwise": classwise_table(arguments, seeds)},
            arguments,
            seeds=f"seeds from {first:,}",
        )
        return
    names = TO_CHOOSE if arguments.choose else TO_REPORT
    files = [arguments.data / "scores" / f"{name}.csv.gz" for name in names]
    if not all(path.is_file() for path in files):
        raise SystemExit(f"{arguments.data} lacks score files: give their folder with --data")
    if arguments.figures:
        wanted = [Setting(SCORES, method, n) for method in ("logprobs-1", LATENT) for n in SIZES]
        found = study(list(repeats_of(wanted, files, seeds, arguments.refits)), arguments)
        held = held_table({one.title: outcomes for one, outcomes in found.items()})
        rows = [row for row in held.rows if row[0] in FIGURES]
        record(
            "study-figures",
            {"held": replace(held, rows=tuple(rows))},
            arguments,
            seeds=f"seeds from {first:,}",
        )
        return
    chosen = {"method": arguments.methods, "n": arguments.sizes, "group": arguments.groups}
    wanted = [one for one in settings() if all(not v or getattr(one, k) in v for k, v in chosen.items())]
    if not wanted:
        raise SystemExit("nothing is studied with these methods, sizes and groups together")
    made = tables(study(list(repeats_of(wanted, files, seeds, arguments.refits)), arguments))
    if arguments.choose or any(chosen.values()):
        for title, shown in made.items():
            print(f"\n{title}\n\n{shown.markdown()}", end="")
        return
    record("study", made, arguments, seeds=f"seeds from {first:,}")


if __name__ == "__main__":
    main()
