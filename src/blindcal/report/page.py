"""A result as a self-contained HTML page, or as the output of a notebook cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from blindcal.atomic_write import write_file
from blindcal.estimate.findings import CostCurve
from blindcal.methods import METHODS
from blindcal.report import sentences
from blindcal.report.judge import judge_sentences, judge_warnings
from blindcal.report.next_steps import next_steps, verdict
from blindcal.report.wording import (
    Numbers,
    least_confidence,
    word,
    wording_of,
)
from blindcal.results.judge_result import JudgeResult
from blindcal.results.result import AuditResult
from blindcal.text import visible

if TYPE_CHECKING:
    from jinja2 import Environment


PAGE_FILE = "report.html"
ROWS = (2, *range(4, 37, 4), 38)
"""Rows of the table of operating points: thresholds 0.05, 0.1, 0.2, ..., 0.9, 0.95."""


def render(result: AuditResult | JudgeResult) -> str:
    """The page of a result; text from outside is escaped, and hidden or reordering characters are shown."""
    templates = environment()
    numbers = Numbers(result)
    templates.globals.update(
        show=numbers.show, estimate=numbers.estimate, between=numbers.between, value=numbers.value
    )
    if result.judge is not None:
        judged = judge_sentences(numbers, result.judge), judge_warnings(result.judge)
        templates.globals.update(judge_headline=judged[0], judge_warnings=judged[1])
    if isinstance(result, JudgeResult):
        return templates.get_template("judge.html").render(result=result, css=style("page.css"))
    return templates.get_template("page.html").render(
        result=result,
        css=style("page.css"),
        figures=_figures(result),
        yes=word(result, "positive"),
        no=word(result, "negative"),
        words=wording_of(result),
        # whether the options were shown in a random order, and whether they are numbered A, B, C, ...
        permuted=result.settings.get("permute") is not None,
        lettered="".join(result.answers) == ascii_uppercase[: len(result.answers)],
        headline=sentences.headline(result),
        verdict=verdict(result),
        steps=next_steps(result),
        cautions=sentences.cautions(result),
        alpha=sentences.ALPHA,
        # a shift is a bias on single tokens, not on a sum of spellings or on a confidence stated in words
        shifted=not result.answers and METHODS[result.method].biased and result.semantics in ("pair", "max"),
        shown_rows=ROWS,
        curve_rows=[] if result.curve is None else _every_twentieth(result.curve.f, least_confidence(result)),
        cheapest=[_cheapest(costs) for costs in result.costs],
        settings=_settings(result.settings),
    )


def environment() -> Environment:
    """The Jinja environment of this folder: it escapes all values, and undefined names are errors."""
    import jinja2  # slow to import

    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("blindcal.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(visible=visible)
    return templates


def style(*names: str) -> str:
    """The colours of all pages, followed by the named style sheets of this folder."""
    from blindcal.report.style import theme_css  # slow to import, like all plotting code

    return theme_css() + "".join(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in names)


def write_page(result: AuditResult | JudgeResult, path: Path) -> None:
    page = render(result)
    write_file(path, page)


def _figures(result: AuditResult) -> dict[str, str]:
    from blindcal.report import plots

    return {drawing.name: drawing.svg() for drawing in plots.draw(result)}


def _cheapest(costs: CostCurve) -> int:
    values = [math.inf if cost.value is None else cost.value for cost in costs.expected]
    return values.index(min(values))


def _every_twentieth(f: Sequence[float], least: float) -> list[int]:
    return [place for place, at in enumerate(f) if at >= least and abs(20 * at - round(20 * at)) < 1e-6]


def _settings(settings: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in settings.items() if value not in (None, {}, [], "")]
