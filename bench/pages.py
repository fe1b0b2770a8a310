"""The sections of docs/benchmarks.md, from computed cells to Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import SupportsFloat

import numpy as np

import paper
from blindcal.estimate.truth import blind_bounds
from blindcal.records import FloatArray, Semantics, Targets
from blindcal.report.style import file_bytes
from blindcal.reproduce import page as drawings
from blindcal.reproduce.cells import CellSelection, Found
from blindcal.reproduce.names import file_name
from blindcal.reproduce.sources import Source
from blindcal.reproduce.table import (
    DASH,
    MethodTable,
    Row,
    column_of,
    errors_table,
    estimates_table,
    known,
    markdown_table,
)

Work = Sequence[tuple[Source, CellSelection]]
IMAGES = Path("images", "benchmarks")


def comparison(work: Work, found: Sequence[Found]) -> MethodTable:
    """The columns of a study whose sources are all asked alike."""
    wanted = work[0][1]
    columns = [column_of(source, cells, wanted.bins) for (source, _), cells in zip(work, found, strict=True)]
    return MethodTable(tuple(columns), wanted.bins, wanted.seeds)


def draw(work: Work, found: Sequence[Found], folder: Path) -> None:
    """The figures of (a), as `blindcal reproduce` draws them."""
    folder.mkdir(parents=True, exist_ok=True)
    compared = comparison(work, found)
    for one in drawings.draw(compared, [file_name(each.model, each.data) for each in compared.columns]):
        (folder / f"{one.name}.svg").write_bytes(file_bytes(one.figure, "svg"))


def recorded(work: Work, found: Sequence[Found]) -> str:
    """(a) Two real models on two full sets, every row of the published table."""
    compared = comparison(work, found)
    stated = "; ".join(
        f"{source.name} {source.stated.parsed:.1%} of {source.stated.p.size:,}"
        for source, _ in work
        if source.stated is not None
    )
    return _section(
        "Two recorded models, the whole published table",
        f"""Qwen2.5-Coder-1.5B-Instruct (`qwen`) and SmolLM2-135M-Instruct (`smollm2`) on all of BoolQ
(3,270) and binarised MMLU (56,168), {_seeds(work)}, 5 bins; mean ± standard
deviation over the seeds. `temperature` sends no bias, so it measures all spellings of a word
together and is held against that oracle; a third or more of SmolLM2's unbiased answers are
neither word. `extraction` does not depend on the seed. `verbalized` counts only answers in
which a confidence could be read ({stated}): on MMLU what it says rests on next to nothing.""",
        markdown_table(estimates_table(compared)),
        "Absolute error against the oracle:",
        markdown_table(errors_table(compared)),
        claims(compared),
        """What a query buys: the mean absolute error of the four cells against the queries an item, and
the Pareto front (`verbalized` is not in it, as only two of the cells have it).""",
        f"![Cost against error]({IMAGES.as_posix()}/pareto.svg)",
        """Blind Calibration Curves at one query an item (means over the seeds, with a standard
deviation to each side) beside the white-box reliability diagram, which no method saw:""",
        *(
            f"`{column.name}`:\n\n![Blind Calibration Curves, white-box reliability: {column.name}]"
            f"({IMAGES.as_posix()}/{file_name(column.model, column.data)}.svg)"
            for column in compared.columns
        ),
    )


def scored(work: Work, found: Sequence[Found]) -> str:
    """(b) Twelve real score sets."""
    compared = comparison(work, found)
    lines = [["set", "items", "oracle", *(row.name for row in _SHOWN)]]
    for column in compared.columns:
        assert column.oracle is not None
        errors = [column.entries[row].error for row in _SHOWN]
        lines.append([column.name, f"{column.n:,}", f"{column.oracle.ece:.4f}", *map(_four, errors)])
    lines.append(["mean", "", "", *(_four(compared.mean_error(row)) for row in _SHOWN)])
    return _section(
        "Twelve score sets",
        f"Mean absolute error against the oracle, {_seeds(work)}, 5 bins. Mean of the sets:",
        by_budget(compared),
        "Set by set:",
        markdown_table(lines),
        claims(compared),
        """At K = 1 no reading of samples can win everywhere: two shares are all they hold, and they leave
the error open over a wide stretch, whose upper end is what plain sampling reports
([why](baselines.md#the-same-answers-read-by-the-likelihood)).""",
    )


_SHOWN = (
    Row("blind", 1),
    Row("latent", 1),
    Row("sampling+latent", 1),
    Row("sampling+latent", 2),
    Row("temperature", 2),
    Row("latent", 2),
    Row("extraction", 4),
    Row("extraction", 6),
    Row("sampling", 8),
)


def by_budget(compared: MethodTable) -> str:
    """Methods down, budgets across: mean errors over the columns."""
    budgets = range(1, 9)
    ways = dict.fromkeys(row.way for row in compared.rows if row.way != "verbalized")
    lines = [["", *(f"K={k}" for k in budgets)]]
    for way in ways:
        lines.append([way, *(_four(compared.mean_error(Row(way, k))) for k in budgets)])
    return markdown_table(lines)


def claims(compared: MethodTable) -> str:
    """What is claimed of our methods, on the mean over the cells and cell by cell."""
    checks: list[tuple[str, list[tuple[Row, Row]]]] = [
        (
            "`latent` at K against `extraction` at K + 2, K = 1..4",
            [(Row("latent", k), Row("extraction", k + 2)) for k in range(1, 5)],
        ),
        (
            "`latent` against `extraction` at the same K, K = 1..8",
            [(Row("latent", k), Row("extraction", k)) for k in range(1, 9)],
        ),
        (
            "`latent` against `sampling` at the same K, K = 1..8",
            [(Row("latent", k), Row("sampling", k)) for k in range(1, 9)],
        ),
        (
            "`sampling+latent` against `sampling` at the same K, K = 1..8",
            [(Row("sampling+latent", k), Row("sampling", k)) for k in range(1, 9)],
        ),
    ]
    lines = [["at least as accurate", "on the mean", "cell by cell", "where not (ours / theirs)"]]
    for words, pairs in checks:
        means = [(ours, compared.mean_error(ours), compared.mean_error(theirs)) for ours, theirs in pairs]
        lost = [ours.queries for ours, one, other in means if one is None or other is None or one > other]
        cells = [
            (f"{column.name} K={ours.queries}", column.entries[ours].error, column.entries[theirs].error)
            for column in compared.columns
            for ours, theirs in pairs
        ]
        worse = [(where, a, b) for where, a, b in cells if a is None or b is None or a > b]
        shown = "; ".join(f"{where} {a:.5f} / {b:.5f}" for where, a, b in worse[:_MOST])
        more = f"; and {len(worse) - _MOST} more" if len(worse) > _MOST else ""
        mean = f"at all {len(pairs)}" if not lost else "all but K = " + ", ".join(map(str, lost))
        lines.append([words, mean, f"{len(cells) - len(worse)} of {len(cells)}", shown + more])
    return markdown_table(lines, limit=2000)


_MOST = 12


def predicted(
    work: Mapping[str, Work], found: Mapping[str, list[Found]], fits: dict[str, list[paper.Population]]
) -> str:
    """(c) Populations fitted to the paper's own cells."""
    head = ["", *(f"{model} {data}" for model, data in paper.CELLS), "mean"]
    # to the printed three digits, so that halves round as in print
    printed = [round(abs(one - other), 3) for one, other in zip(paper.BLIND, paper.ORACLE, strict=True)]
    lines = [head, ["printed: blind's error", *map(_four, printed), _four(np.mean(printed))]]
    tables, quiet = [], {}
    for name, words in (("unseen", "fitted without `blind`"), ("seen", "fitted with `blind`")):
        misfits = [one.misfit for one in fits[name]]
        bias = [abs(one.blind - one.oracle) for one in fits[name]]
        lines.append([f"{words}: mean misfit of the rows", *map(_four, misfits), _four(np.mean(misfits))])
        lines.append([f"{words}: `blind`'s error as N grows", *map(_four, bias), _four(np.mean(bias))])
        for way in ("blind", "latent"):
            errors = _errors(work[name], found[name], way)
            lines.append(
                [f"{words}: measured, `{way}`", *map(_four, errors.mean(axis=0)), _four(errors.mean())]
            )
            if way == "blind":
                averaged = _averaged(work[name], found[name])
                quiet[name] = averaged.mean()
                lines.append(
                    [
                        f"{words}: measured, `blind`, gaps averaged over the tables",
                        *map(_four, averaged),
                        _four(averaged.mean()),
                    ]
                )
                single = errors.mean(axis=1)
                lucky = int((single <= np.mean(printed)).sum())
                tables.append(
                    f"{words}, {single.size} such tables have a mean error of `blind` between "
                    f"{single.min():.4f} and {single.max():.4f}, mean {single.mean():.4f}; {lucky} of them "
                    "are as good as the printed one"
                )
    return _section(
        "Populations that print the paper's table",
        """No logits of the paper's own four models are at hand. But its printed rows say much about them:
a population (three humps of the log-odds and a curve E[Y|s]) is fitted to each cell's oracle,
sampling and extraction rows, seventeen figures, and then sampled at the paper's N. Many
populations print the same seventeen figures, and `blind` errs differently on each: its error is
where within a bin the confidence lies, which those rows hardly show. So each cell is fitted
twice, without and with the printed `blind` (within its noise).""",
        markdown_table(lines),
        f"The paper's table has a mean error of {_four(np.mean(printed))}. "
        + ". ".join(_capital(one) for one in tables)
        + f""". So a single split at that N errs more than was printed: its noise goes into |.| and adds up.
With its gaps averaged over the tables before |.|, `blind` errs by {_four(quiet["seen"])} on the
populations fitted with it, about as the paper's table says.""",
    )


def _errors(work: Work, found: Sequence[Found], way: str) -> FloatArray:
    """Absolute errors, a line a seed that the way was repeated with and a column a cell of the paper."""
    values = [
        abs(next(one.ece for cell, one in cells.items() if cell.way == way) - known(source, 5, "pair").ece)
        for (source, _), cells in zip(work, found, strict=True)
        if any(cell.way == way for cell in cells)
    ]
    return np.array(values).reshape(-1, len(paper.CELLS))


def _averaged(work: Work, found: Sequence[Found]) -> FloatArray:
    """Error of `blind` in each cell of the paper when its gaps are averaged over the seeds before |.|."""
    gaps, truth = [], []
    for (source, _), cells in zip(work, found, strict=True):
        gaps.append(next(one.gaps for cell, one in cells.items() if cell.way == "blind"))
        truth.append(known(source, 5, "pair").gaps)
    shape = (-1, len(paper.CELLS), 5)
    said, oracle = (np.array(one).reshape(shape).mean(axis=0) for one in (gaps, truth))
    return np.asarray(np.abs(np.abs(said).sum(axis=1) - np.abs(oracle).sum(axis=1)))


def sizes(work: Work, found: Sequence[Found], whole: MethodTable) -> str:
    """(d) How N moves the error."""
    errors: dict[tuple[str, int, str], list[float]] = {}
    for (source, wanted), cells in zip(work, found, strict=True):
        oracle = known(source, wanted.bins, "pair").ece
        for cell, one in cells.items():
            errors.setdefault((source.name, source.n, cell.way), []).append(abs(one.ece - oracle))
    for column in whole.columns:
        for way in ("blind", "latent"):
            error = column.entries[Row(way, 1)].error
            assert error is not None
            errors[column.name, column.n, way] = [error]
    names = [column.name for column in whole.columns]
    counts = sorted({n for _, n, _ in errors})
    lines = [["N", *(f"{name}, `{way}`" for name in names for way in ("blind", "latent"))]]
    for n in counts:
        said = [errors.get((name, n, way)) for name in names for way in ("blind", "latent")]
        lines.append([f"{n:,}", *(DASH if one is None else _four(np.mean(one)) for one in said)])
    return markdown_table(lines)


def binned(work: Work, found: Sequence[Found]) -> str:
    """(d) How M moves the error."""
    errors: dict[tuple[int, str, str], list[float]] = {}
    names: dict[str, None] = {}
    for (source, wanted), cells in zip(work, found, strict=True):
        oracle = known(source, wanted.bins, "pair").ece
        names.setdefault(source.name)
        for cell, one in cells.items():
            errors.setdefault((wanted.bins, source.name, cell.way), []).append(abs(one.ece - oracle))
    lines = [["M", *(f"{name}, `{way}`" for name in names for way in ("blind", "latent"))]]
    for bins in sorted({bins for bins, _, _ in errors}):
        said = [errors[bins, name, way] for name in names for way in ("blind", "latent")]
        lines.append([str(bins), *(_four(np.mean(one)) for one in said)])
    return markdown_table(lines)


def moved(size: str, bins: str, budgets: str) -> str:
    """(d) N, M and K together."""
    return _section(
        "How N, M and K move the error",
        """Mean absolute error at one query an item against the oracle of the very items asked; random parts
of the recorded sets. First N, at M = 5 bins:""",
        size,
        "M, on the full sets, against the oracle in the same M bins:",
        bins,
        "K, mean of the four recorded cells:",
        budgets,
    )


def spelled(work: Work, found: Sequence[Found]) -> str:
    """(e) The three semantics, and what it costs to take one for another."""
    lines = [["", "ECE sum", "ECE max", "ECE pair", "sides differ, sum and max", "largest |f sum - f max|"]]
    costs = [["all spellings biased", "against max", "against sum", "against pair"]]
    for (source, wanted), cells in zip(work, found, strict=True):
        pair = _pair(source)
        every: tuple[Semantics, ...] = ("sum", "max", "pair")
        p = {one: (pair if one == "pair" else source).probabilities(one) for one in every}
        oracle = {one: known(pair if one == "pair" else source, wanted.bins, one).ece for one in every}
        differ = (p["sum"] >= 0.5) != (p["max"] >= 0.5)
        lines.append(
            [
                source.name,
                *(_four(oracle[one]) for one in every),
                f"{differ.mean():.2%}",
                f"{np.abs(p['sum'] - p['max']).max():.3f}",
            ]
        )
        for way in wanted.ways:
            values = np.array([one.ece for cell, one in cells.items() if cell.way == way])
            errors = [np.abs(values - oracle[one]).mean() for one in ("max", "sum", "pair")]
            costs.append([f"{source.name}, `{way}`", *map(_four, errors)])
    return _section(
        "Several spellings of an answer",
        """The paper has it that with several tokens a side greedy decoding tests the *summed* probability.
It tests the largest token of each side (max). What the three have in common and where they
part, on all recorded spellings:""",
        markdown_table(lines),
        """With every spelling biased, one query an item: mean absolute error when the estimate is held
against each oracle. Thresholds (`blind`, `latent`) are nearest to max; samples at T = 1
(`sampling+latent`) follow the sum. Holding a threshold method against the summed oracle, as the
claim would have it, costs the difference of the first two columns: little for these two models,
whose other spellings are rare, and as much as those spellings weigh in general.""",
        markdown_table(costs),
    )


def _pair(source: Source) -> Source:
    asked = source.targets
    return replace(source, targets=Targets(asked.positive[:1], asked.negative[:1]))


def bounded(whole: MethodTable) -> str:
    """(f) The theorem's bounds beside what is measured."""
    lines = [
        [
            *("", "N", "bias: statistical", "trapezoid", "binning (L = 1)", "sum", "root of the MSE bound"),
            *("measured |bias|", "measured sd", "measured root MSE"),
        ]
    ]
    shares = []
    for column in whole.columns:
        bound = blind_bounds(column.n, whole.bins)
        one = column.entries[Row("blind", 1)]
        assert one.oracle is not None
        values = np.array(one.estimates)
        shares.append(np.sqrt(np.mean((values - one.oracle) ** 2) / bound.mse))
        lines.append(
            [
                column.name,
                f"{column.n:,}",
                *map(
                    _four, (bound.statistical, bound.trapezoid, bound.binning, bound.bias, np.sqrt(bound.mse))
                ),
                _four(abs(values.mean() - one.oracle)),
                DASH if values.size < 2 else _four(values.std(ddof=1)),
                _four(np.sqrt(np.mean((values - one.oracle) ** 2))),
            ]
        )
    return _section(
        "The theorem's bounds beside the measured error",
        f"""Bounds of `blind` at M = 5 (B_stat, B_trap, B_bin with L = 1; MSE <= (sum)^2 + variance),
and what it does against the binned oracle. B_bin bounds the step from the binned to the true
calibration error, which the measured columns do not contain. The bounds are for the worst
population: the measured root MSE is {min(shares):.0%} to {max(shares):.0%} of its bound.""",
        markdown_table(lines),
    )


def _seeds(work: Work) -> str:
    """How often each method is repeated."""
    fitted, plain = len(work[0][1].seeds), len({*work[0][1].seeds, *work[0][1].plain_seeds})
    if fitted == plain:
        return f"{plain} seeds"
    return f"{plain} seeds for the published methods and {fitted} for those that fit"


def _section(title: str, *parts: str) -> str:
    ready = (part if part[0] == "|" or "![" in part else prose(part) for part in parts)
    return "\n\n".join([f"## {title}", *ready])


def prose(text: str) -> str:
    """Paragraphs as the pages of docs/ have them."""
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _four(value: SupportsFloat | None) -> str:
    return DASH if value is None else f"{float(value) + 1e-12:.4f}"


def joined(sections: Iterable[str]) -> str:
    """One page."""
    return "\n\n".join(sections) + "\n"
