"""A comparison as figures and as one small HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from blindcal.report.plots import Drawing, plot_calibration_curves, plot_reliabilities
from blindcal.report.style import file_bytes, root_figure, theme_css
from blindcal.results.comparing import NAMES, Comparison, pairing, verdict
from blindcal.results.result import AuditResult
from blindcal.text import printable

_CSS = """\
body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;
background:var(--bc-paper,#fff);color:var(--bc-ink,#1a1a1a)}
figure{margin:0}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.3rem .7rem .3rem 0;border-bottom:1px solid #8884}
.wide{overflow-x:auto}.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(18rem,1fr));gap:1rem}
"""


def draw_comparison(results: Sequence[AuditResult], names: Sequence[str]) -> tuple[Drawing, ...]:
    """Both runs' calibration curves and reliability curves over each other."""
    curves = {name: one.curve for name, one in zip(names, results, strict=True) if one.curve is not None}
    bins = {name: one.bins for name, one in zip(names, results, strict=True)}
    drawn = [
        Drawing(
            "calibration-curves",
            "Blind Calibration Curves of both runs: signed gap of each bin of confidence",
            root_figure(plot_calibration_curves(bins)),
        )
    ]
    if len(curves) == len(names):
        words = "Reliability curves of both runs: how often the label is positive at each confidence"
        drawn.append(Drawing("reliability-curves", words, root_figure(plot_reliabilities(curves))))
    return tuple(drawn)


def labels_of(found: Comparison) -> tuple[str, str]:
    """Short names for the legend."""
    one, two = (printable(model, 40) for model in found.models)
    return (f"A: {one}", f"B: {two}")


def save_comparison(drawn: Sequence[Drawing], folder: Path) -> list[Path]:
    """Write each figure as PNG and SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for one in drawn:
        for kind in ("png", "svg"):
            path = folder / f"{one.name}.{kind}"
            path.write_bytes(file_bytes(one.figure, kind))
            written.append(path)
    return written


def comparison_page(found: Comparison, drawn: Sequence[Drawing]) -> str:
    """One page with the table and the figures."""
    a, b = (escape(printable(name, 300)) for name in (found.first, found.second))
    rows = "\n".join(
        f"<tr><th scope=row>{NAMES[one.quantity]}</th><td>{one.first:.4f}</td><td>{one.second:.4f}</td>"
        f"<td>{one.value:+.4f}</td><td>{one.low:+.4f} to {one.high:+.4f}</td><td>{verdict(one)}</td></tr>"
        for one in found.differences
    )
    figures = "\n".join(f"<figure>{one.svg()}</figure>" for one in drawn)
    models = [escape(printable(model, 120)) for model in found.models]
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{models[0]} and {models[1]} compared</title><style>{theme_css()}{_CSS}</style></head><body><main>
<h1>Two audits compared</h1>
<p>A is {models[0]} ({a}), B is {models[1]} ({b}). {escape(pairing(found).capitalize())}.</p>
<div class="wide"><table><caption>Figures of both runs, and B minus A ({found.bins} bins)</caption>
<thead><tr><th scope="col"></th><th scope="col">A</th><th scope="col">B</th><th scope="col">B - A</th>
<th scope="col">{found.level:.0%} interval</th><th scope="col">shown</th></tr></thead><tbody>
{rows}
</tbody></table></div>
<div class="two">{figures}</div>
</main></body></html>
"""
