"""A result as one self-contained HTML page: no network, no scripts, no other files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from blindcal.atomic_write import atomic_write
from blindcal.estimate.findings import CostCurve
from blindcal.evidence import FEW_ITEMS
from blindcal.methods import METHODS
from blindcal.report import narrative
from blindcal.report.sentences import Number, Numbers, all_answers, few_groups, one_label, word
from blindcal.report.wording import least_confidence, wording_of
from blindcal.results.result import AuditResult
from blindcal.text import visible

if TYPE_CHECKING:
    from jinja2 import Environment

PAGE_FILE = "report.html"
ROWS = (2, *range(4, 37, 4), 38)
"""Indices of the operating points in the table: thresholds 0.05, 0.1, 0.2, ..., 0.9, 0.95."""


def render(result: AuditResult) -> str:
    """The page of a result.

    Text from outside (model, file names, prompts, messages of the endpoint) is escaped, and characters that
    hide or reorder text are made visible.
    """
    templates = environment()
    numbers = Numbers(result)
    templates.globals.update(
        show=numbers.show, estimate=numbers.estimate, between=numbers.between, value=numbers.value
    )
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
        headline=narrative.headline(result),
        only_label=one_label(result),
        few_items=FEW_ITEMS,
        few_groups=few_groups(result),
        all_answers=all_answers(result).path,
        alpha=narrative.ALPHA,
        tested=any(part.calibrated_pvalue is not None for part in result.parts),
        # a shift is a bias on single tokens, not on a sum of spellings or on a confidence stated in words
        shifted=not result.answers and METHODS[result.method].biased and result.semantics in ("pair", "max"),
        shown_rows=ROWS,
        curve_rows=[] if result.curve is None else _every_twentieth(result.curve.f, least_confidence(result)),
        cheapest=[_cheapest(costs) for costs in result.costs],
        settings=_settings(result.settings),
    )


def environment() -> Environment:
    """The templates of this folder; all values are escaped, and undefined names are errors."""
    import jinja2  # slow to import

    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("blindcal.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(visible=visible)
    templates.tests["number"] = lambda piece: isinstance(piece, Number)
    return templates


def style(*names: str) -> str:
    """CSS: the colours of all pages, and the style sheets of this folder with these names."""
    from blindcal.report.style import theme_css  # slow to import, like all plotting code

    return theme_css() + "".join(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in names)


def write_page(result: AuditResult, path: Path) -> None:
    """Write the page."""
    page = render(result)
    with atomic_write(path) as draft:
        draft.write_text(page, encoding="utf-8")


def _figures(result: AuditResult) -> dict[str, str]:
    """Every figure as an SVG element, by name."""
    from blindcal.report import plots

    return {one.name: one.svg() for one in plots.draw(result)}


def _cheapest(costs: CostCurve) -> int:
    """Index of the operating point with the lowest expected cost."""
    values = [math.inf if one.value is None else one.value for one in costs.expected]
    return values.index(min(values))


def _every_twentieth(f: Sequence[float], least: float) -> list[int]:
    """Indices of the points of the reliability curve in its table: 0.05, 0.1, ... from ``least`` up."""
    return [place for place, at in enumerate(f) if at >= least and abs(20 * at - round(20 * at)) < 1e-6]


def _settings(settings: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in settings.items() if value not in (None, {}, [], "")]
