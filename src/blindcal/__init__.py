"""How well calibrated is a black-box LLM? One query an item, no logprobs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from blindcal.errors import BlindcalError

if TYPE_CHECKING:
    from blindcal.auditing.audit import audit, audit_async
    from blindcal.estimate.blind import BlindResult, blind
    from blindcal.estimate.counts import Counts
    from blindcal.estimate.latent import LatentFit, latent
    from blindcal.estimate.truth import BinnedCalibration, binned_ece
    from blindcal.progress_bar import ProgressBar
    from blindcal.results.result import AuditResult
    from blindcal.results.run import Run, open_run
    from blindcal.settings import Settings

__all__ = [
    "AuditResult",
    "BinnedCalibration",
    "BlindResult",
    "BlindcalError",
    "Counts",
    "LatentFit",
    "ProgressBar",
    "Run",
    "Settings",
    "audit",
    "audit_async",
    "binned_ece",
    "blind",
    "latent",
    "open_run",
]

# Everything is imported when it is first asked for: estimating needs no HTTP client, and the command line
# starts without numpy.
_LATER = {
    "AuditResult": "results.result",
    "ProgressBar": "progress_bar",
    "BinnedCalibration": "estimate.truth",
    "BlindResult": "estimate.blind",
    "Counts": "estimate.counts",
    "Run": "results.run",
    "LatentFit": "estimate.latent",
    "Settings": "settings",
    "audit": "auditing.audit",
    "audit_async": "auditing.audit",
    "binned_ece": "estimate.truth",
    "blind": "estimate.blind",
    "latent": "estimate.latent",
    "open_run": "results.run",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'blindcal' has no attribute {name!r}")
    return getattr(importlib.import_module(f"blindcal.{_LATER[name]}"), name)
