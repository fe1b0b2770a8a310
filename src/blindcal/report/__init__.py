"""Pages, figures and the sentences on them."""

from __future__ import annotations

import sys

_SHOWN = (
    ("blindcal.results.result", "AuditResult"),
    ("blindcal.results.run", "Run"),
    ("blindcal.estimate.fit", "Fit"),
    ("blindcal.estimate.published", "BlindResult"),
    ("blindcal.results.check", "CheckResult"),
    ("blindcal.results.compare", "RunComparison"),
    ("blindcal.estimate.latent.operating", "ChosenThreshold"),
)


def show_in_notebooks() -> None:
    """Show results as HTML in IPython, if it is running; plotting is imported on first use."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = None if get_ipython is None else get_ipython()
    formatter = getattr(shell, "display_formatter", None)
    if formatter is not None:
        for module, name in _SHOWN:
            formatter.formatters["text/html"].for_type_by_name(module, name, _html)


def _html(shown: object) -> str:
    from blindcal.report.notebook import html  # slow to import

    return html(shown)
