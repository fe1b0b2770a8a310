"""A comparison of two runs: sentences, figures and one self-contained HTML page."""

from __future__ import annotations

from difflib import SequenceMatcher
from itertools import takewhile

from blindcal.estimate.latent.difference import Difference
from blindcal.estimation import FEW_ITEMS
from blindcal.records import level_percent
from blindcal.report.page import environment, style
from blindcal.report.wording import item_count, shown_curve, wording_of
from blindcal.results.compare import RunComparison
from blindcal.results.run import Run
from blindcal.text import listed, printable

NAMES = {
    "ece": "ECE",
    "accuracy": "accuracy",
    "auroc": "AUROC",
    "brier": "Brier score",
    "log_loss": "log loss",
}


OTHER_SEMANTICS = (
    "The runs measured different things: one spelling of each answer (pair), the likeliest one (max) or all "
    "together (sum). Part of a difference may be that."
)
#: For the other quantities, higher is better.
LOWER_IS_BETTER = ("ece", "brier", "log_loss")


def verdict(row: Difference) -> str:
    if 0 in row.difference:
        return "no difference shown"
    return "higher in B" if float(row.difference) > 0 else "lower in B"


def better(row: Difference) -> str | None:
    """The run that a significant difference favours, ``A`` or ``B``; ``None`` if it is not significant."""
    if 0 in row.difference:
        return None
    return "B" if (float(row.difference) < 0) == (row.quantity in LOWER_IS_BETTER) else "A"


def headline(comparison: RunComparison) -> tuple[str, ...]:
    """The result in words, with a warning of chance if only one quantity besides the ECE differs."""
    ece = next(row for row in comparison.differences if row.quantity == "ece")
    others = [row for row in comparison.differences if row.quantity != "ece"]
    a, b, off = float(ece.first), float(ece.second), float(ece.difference)
    ends = [100 * abs(end or 0.0) for end in (ece.difference.low, ece.difference.high)]
    sure = f"{comparison.level:.0%} sure"
    if better(ece) is None:
        first = (
            f"The runs do not differ significantly in calibration error: A has {a:.1%}, B has {b:.1%}, and "
            f"the difference is at most {max(ends):.1f} points ({sure})."
        )
    else:
        first = (
            f"B's calibration error is {100 * abs(off):.1f} points {'lower' if off < 0 else 'higher'} than "
            f"A's: {b:.1%} against {a:.1%} ({sure}: {min(ends):.1f} to {max(ends):.1f} points)."
        )
    shown = [row for row in others if better(row) is not None]
    if not shown:
        names = listed([NAMES[row.quantity] for row in others])
        return (first, f"{names[0].upper()}{names[1:]} do not differ significantly.")
    directions = []
    for side in ("higher", "lower"):
        those = [NAMES[row.quantity] for row in shown if verdict(row) == f"{side} in B"]
        if those:
            directions.append(f"{listed(those)} {'is' if len(those) == 1 else 'are'} {side}")
    text = f"{' and '.join(directions)} in B."
    sentences = [first, f"{text[0].upper()}{text[1:]}"]
    if better(ece) is None and len(shown) == 1:
        chance = min(1.0, (1 - comparison.level) * len(comparison.differences))
        sentences.append(
            f"This may be chance: with {len(comparison.differences)} quantities, up to {chance:.0%} of "
            "comparisons between identical models show at least one difference."
        )
    return tuple(sentences)


def differing(first: Run, second: Run) -> tuple[tuple[str, str, str], ...]:
    """The settings that differ: name, first value, second value."""
    a, b = (
        {
            **{name: value for name, value in run.settings.items() if name != "items_digest"},
            "items": run.result.counts.items,
            "estimator": run.result.estimator,
            "bins": len(run.result.bins),
            "semantics": run.result.semantics,
        }
        for run in (first, second)
    )
    names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    return tuple((name, str(a.get(name, "")), str(b.get(name, ""))) for name in names)


def run_names(first: Run, second: Run) -> tuple[str, str]:
    """What tells the runs apart: their models, else the ends of their folders' names."""
    a, b = (printable(run.result.model, 40) for run in (first, second))
    if a != b:
        return a, b
    a, b = (printable(run.folder.name, 80) for run in (first, second))
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
    start = a[:same].rfind("-") + 1
    return (a[start:], b[start:]) if a != b else ("", "")


def change(text: str, other: str) -> str:
    """The words of a setting that another value of it lacks; a short one in full."""
    words, others = text.split(), other.split()
    if len(words) + len(others) < 12:
        return printable(repr(text), 80)
    blocks = SequenceMatcher(None, words, others, autojunk=False).get_opcodes()
    own = [" ".join(words[start:end]) for kind, start, end, *_ in blocks if kind in ("delete", "replace")]
    return printable(repr(" ... ".join(own)), 200) if own else "nothing more"


def pairing(comparison: RunComparison) -> str:
    if not comparison.paired:
        return (
            "not paired: the runs have no item in common, so the intervals are those of independent samples"
        )
    text = f"paired on {comparison.common:,} items that both runs asked about"
    if comparison.reworded:
        text += f", {comparison.reworded:,} of them asked in other words"
    if comparison.only_first + comparison.only_second:
        text += f"; beside them A has {comparison.only_first:,} and B {comparison.only_second:,} of its own"
    return text


def _drawings(runs: tuple[Run, Run]) -> list[tuple[str, str]]:
    """The name and the SVG of each figure."""
    from blindcal.report.plots import plot_calibration_curves, plot_reliabilities  # slow to import
    from blindcal.report.style import root_figure, svg

    words = wording_of(runs[0].result)
    results = {
        f"{letter}: {name}": run.result
        for letter, name, run in zip("AB", run_names(*runs), runs, strict=True)
    }
    bins = {name: result.bins for name, result in results.items()}
    title = "Blind Calibration Curves of both runs: the signed gap of each bin of confidence."
    drawn = [("calibration-curves", svg(root_figure(plot_calibration_curves(bins, words=words)), title))]
    shown = {name: shown_curve(result) for name, result in results.items()}
    curves = {name: curve for name, curve in shown.items() if curve is not None}
    if len(curves) == len(runs):
        title = f"Reliability curves of both runs: the {words.share} at each confidence."
        drawn.append(("reliability-curves", svg(root_figure(plot_reliabilities(curves, words=words)), title)))
    return drawn


def comparison_page(comparison: RunComparison, runs: tuple[Run, Run]) -> str:
    """The comparison as an HTML page."""
    return (
        environment()
        .get_template("comparison.html")
        .render(
            comparison=comparison,
            headline=headline(comparison),
            pairing=pairing(comparison),
            few=FEW_ITEMS,
            measured=OTHER_SEMANTICS if len({run.result.semantics for run in runs}) > 1 else None,
            runs=tuple(zip("AB", runs, strict=True)),
            item_count=item_count,
            rows=[(row, NAMES[row.quantity], verdict(row), better(row)) for row in comparison.differences],
            words=wording_of(runs[0].result),
            names=run_names(*runs),
            settings=[(name, a, b, change(a, b), change(b, a)) for name, a, b in differing(*runs)],
            drawings=_drawings(runs),
            level=level_percent(comparison.level),
            chance=min(1.0, (1 - comparison.level) * len(comparison.differences)),
            css=style("page.css", "comparison.css"),
        )
    )
