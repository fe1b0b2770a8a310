"""The style of every figure: colour-blind safe, narrow enough for a phone, in light and dark.

A figure uses one ink at several opacities and the colours of Okabe and Ito. ``svg`` writes these as CSS
variables, which ``theme_css`` sets, to let one drawing fit light and dark pages.
"""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.rcsetup import cycler
from matplotlib.textpath import text_to_path

INK, INK_DARK = "#1c1f23", "#e6e6e6"
PAPER, PAPER_DARK = "#ffffff", "#15181c"
#: Okabe and Ito (2008), ordered for the first four to differ in lightness; the dark row is lighter.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
SERIES_DARK = ("#56b4e9", "#f0853d", "#2fc79d", "#e3a0c6", "#f2b631", "#9fd3f4")
#: A second way to tell series apart, for print without colour.
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (1.2, 1.4)), (0, (6, 1.4, 1.2, 1.4)), (0, (3, 3)), "-")
WIDTH, HEIGHT = 4.8, 3.3  # inches: fits a phone with text at about its usual size
SQUARE = (4.5, 4.6)  # inches that leave square axes between the labels
DOTS = 300  # per inch, in a PNG file
FULL, FIRM, SOFT, FAINT = 1.0, 0.72, 0.35, 0.14  # opacities of the ink

_NO_GLYPH = "Glyph .* missing from"

_active: ContextVar[bool] = ContextVar("figure_style", default=False)


class ShownAxes(Axes):
    """Axes that a notebook shows as their figure, without any matplotlib set-up."""

    def _repr_html_(self) -> str:
        return in_notebook(f'<div style="max-width:30em">{svg(root_figure(self))}</div>')


@contextmanager
def figure_style(*, dark: bool = False) -> Iterator[None]:
    """Apply blindcal's style to the figures drawn in the block."""
    ink, paper = (INK_DARK, PAPER_DARK) if dark else (INK, PAPER)
    soft, firm, faint = (f"{ink}{round(255 * strength):02x}" for strength in (SOFT, FIRM, FAINT))
    colors: dict[Any, Any] = {
        **dict.fromkeys(("text.color", "axes.titlecolor"), ink),
        **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), soft),
        **dict.fromkeys(("axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), firm),
        "grid.color": faint,
        "figure.facecolor": paper,
        "axes.prop_cycle": cycler(color=SERIES_DARK if dark else SERIES),
    }
    style = Path(__file__).with_name("figures.mplstyle")
    token = _active.set(True)
    try:
        with mpl.rc_context({**mpl.rc_params_from_file(style, use_default_template=False), **colors}):
            yield
    finally:
        _active.reset(token)


@contextmanager
def drawing(ax: Axes | None, width: float = WIDTH, height: float = HEIGHT) -> Iterator[Axes]:
    """Yield ``ax``, or the axes of a new figure, which pyplot does not keep in memory."""
    if ax is not None:
        yield ax
        return
    with nullcontext() if _active.get() else figure_style():
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure.add_subplot(axes_class=ShownAxes)


def ink(strength: float = FULL) -> tuple[str, float]:
    return str(mpl.rcParams["text.color"]), strength


def series(which: int) -> str:
    colors = mpl.rcParams["axes.prop_cycle"].by_key()["color"] if _active.get() else SERIES
    return str(colors[which % len(colors)])


def text_width(text: str, size: float) -> float:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_NO_GLYPH)
        font = FontProperties(family="DejaVu Sans", size=size)
        return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0])


def svg(figure: Figure, title: str = "") -> str:
    """A figure as an SVG element to embed in a page; screen readers read ``title`` aloud.

    Text stays text in the page's font, ids are unique on the page, and the same figure gives the same SVG.
    """
    root = ElementTree.fromstring(file_bytes(figure, "svg", transparent=True))
    for parent in list(root.iter()):
        for child in list(parent):
            # a style sheet would apply to the whole page; the root element takes its rules instead
            if child.tag in (_SVG + "style", _SVG + "metadata"):
                parent.remove(child)
    own = "b" + hashlib.sha256(ElementTree.tostring(root)).hexdigest()[:8] + "-"
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        element.attrib = dict(_for_page(name, value, own) for name, value in element.attrib.items())
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "style": "display:block;width:100%;height:auto;stroke-linejoin:round;stroke-linecap:butt",
        **({"role": "img", "aria-label": title} if title else {"aria-hidden": "true"}),
    }
    return ElementTree.tostring(root, encoding="unicode")


def root_figure(axes: Axes) -> Figure:
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure


def theme_css() -> str:
    """CSS that sets the colours of ``svg`` for light and dark screens; print is light."""
    light, dark = _values(INK, PAPER, SERIES), _values(INK_DARK, PAPER_DARK, SERIES_DARK)
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


def in_notebook(content: str) -> str:
    """HTML that follows the theme of JupyterLab, VS Code and Colab, which may differ from the system's."""
    themes = ("[data-jp-theme-light=false]", ".vscode-dark", "html[theme=dark]")
    dark = ",".join(f"{theme} .blindcal" for theme in themes)
    colours = "".join(f"--bc-{k}:{color};" for k, color in enumerate(SERIES_DARK, 1))
    return f'<style>{dark}{{{colours}}}</style><div class="blindcal">{content}</div>'


def file_bytes(figure: Figure, kind: str, *, transparent: bool = False) -> bytes:
    """A figure as ``png`` or ``svg`` bytes; the same figure gives the same bytes."""
    metadata: dict[str, str | None] = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    into = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "blindcal"}), warnings.catch_warnings():
        # characters that the font lacks are drawn as boxes, without a warning
        warnings.filterwarnings("ignore", message=_NO_GLYPH)
        figure.savefig(into, format=kind, metadata=metadata, transparent=transparent, dpi=DOTS)
    return into.getvalue()


def _values(ink: str, paper: str, series: tuple[str, ...]) -> str:
    named = {"ink": ink, "paper": paper, **{str(k): color for k, color in enumerate(series, 1)}}
    return "".join(f"--bc-{name}:{color};" for name, color in named.items())


_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_VARIABLES = {
    **{color: f"var(--bc-{k},{color})" for row in (SERIES_DARK, SERIES) for k, color in enumerate(row, 1)},
    **dict.fromkeys((INK, INK_DARK), "var(--bc-ink,currentColor)"),
}


def _for_page(name: str, value: str, own: str) -> tuple[str, str]:
    """Prefix ids with ``own``, and turn colours into variables."""
    if name == "id":
        return name, own + value
    if name == _LINK:
        return "href", value.replace("#", "#" + own)
    if name == "clip-path":
        return name, value.replace("url(#", "url(#" + own)
    if name == "style":
        value = re.sub(r"#[0-9a-f]{6}", lambda color: _VARIABLES.get(color[0], color[0]), value)
        return name, re.sub(r"font-family: [^;]*", "font-family: var(--bc-font,system-ui,sans-serif)", value)
    return name, value
