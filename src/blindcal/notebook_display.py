"""HTML display of results and fits in a running IPython.

The classes are registered by name, and the report is imported when one of them is first shown.
"""

from __future__ import annotations

import sys

SHOWN = (
    ("blindcal.results.result", "AuditResult"),
    ("blindcal.results.run", "Run"),
    ("blindcal.estimate.latent.fit", "LatentFit"),
    ("blindcal.estimate.published.blind", "BlindResult"),
)


def register() -> None:
    """Register the HTML display of the classes in `SHOWN`; does nothing outside IPython."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = None if get_ipython is None else get_ipython()
    formatter = getattr(shell, "display_formatter", None)
    if formatter is None:
        return
    for module, name in SHOWN:
        formatter.formatters["text/html"].for_type_by_name(module, name, _html)


def _html(found: object) -> str:
    from blindcal.report.notebook import html  # imports matplotlib

    return html(found)
