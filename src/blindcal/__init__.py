"""How well calibrated is a black-box LLM? One query per item, no logprobs.

The whole public API: ``audit`` and the steps around it, estimators for your own answers, records and errors.
"METHOD 3" in a docstring means section 3 of docs/method.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from blindcal.errors import (
    BlindcalError,
    EndpointError,
    FileError,
    InputError,
    MissingExtraError,
    NotCertifiedError,
    NotIdentifiedError,
    StoreError,
    UnfitError,
)
from blindcal.report import show_in_notebooks

if TYPE_CHECKING:
    from blindcal import plot
    from blindcal.asking.run_context import Limits
    from blindcal.auditing.audit import audit, audit_async
    from blindcal.auditing.given import calibration
    from blindcal.auditing.prepare import probe
    from blindcal.certifying.certify import certify, certify_async
    from blindcal.certifying.decide import decide, decide_async
    from blindcal.estimate.counts import Counts
    from blindcal.estimate.latent.estimator import latent
    from blindcal.estimate.latent.fit import LatentFit
    from blindcal.estimate.published import blind
    from blindcal.estimate.truth import binned_ece
    from blindcal.planning.plan import plan_audit as plan
    from blindcal.prices import Prices
    from blindcal.progress_bar import ProgressBar
    from blindcal.records import Estimate
    from blindcal.results.answer_counts import count_on_ray, read_counts, write_counts
    from blindcal.results.certificate import Certificate
    from blindcal.results.check import check
    from blindcal.results.compare import compare
    from blindcal.results.decisions import DecisionResult
    from blindcal.results.merge import merge
    from blindcal.results.result import AuditResult
    from blindcal.results.run import Run, open_run
    from blindcal.results.watch_result import WatchResult
    from blindcal.settings import Settings
    from blindcal.simulation.simulate import simulate
    from blindcal.watching.monitor import Monitor
    from blindcal.watching.watch import watch, watch_async

__all__ = [
    "AuditResult",
    "BlindcalError",
    "Certificate",
    "Counts",
    "DecisionResult",
    "EndpointError",
    "Estimate",
    "FileError",
    "InputError",
    "LatentFit",
    "Limits",
    "MissingExtraError",
    "Monitor",
    "NotCertifiedError",
    "NotIdentifiedError",
    "Prices",
    "ProgressBar",
    "Run",
    "Settings",
    "StoreError",
    "UnfitError",
    "WatchResult",
    "audit",
    "audit_async",
    "binned_ece",
    "blind",
    "calibration",
    "certify",
    "certify_async",
    "check",
    "compare",
    "count_on_ray",
    "decide",
    "decide_async",
    "latent",
    "merge",
    "open_run",
    "plan",
    "plot",
    "probe",
    "read_counts",
    "simulate",
    "watch",
    "watch_async",
    "write_counts",
]

# Everything but the errors is imported on first use: estimating needs no HTTP client, and the command line
# starts without numpy.
_MODULES = {
    "auditing.audit": ("audit", "audit_async"),
    "certifying.certify": ("certify", "certify_async"),
    "certifying.decide": ("decide", "decide_async"),
    "asking.run_context": ("Limits",),
    "auditing.given": ("calibration",),
    "auditing.prepare": ("probe",),
    "watching.watch": ("watch", "watch_async"),
    "estimate.published": ("blind",),
    "estimate.counts": ("Counts",),
    "estimate.latent.estimator": ("latent",),
    "estimate.latent.fit": ("LatentFit",),
    "estimate.truth": ("binned_ece",),
    "prices": ("Prices",),
    "progress_bar": ("ProgressBar",),
    "records": ("Estimate",),
    "results.answer_counts": ("count_on_ray", "read_counts", "write_counts"),
    "results.certificate": ("Certificate",),
    "results.check": ("check",),
    "results.compare": ("compare",),
    "results.decisions": ("DecisionResult",),
    "results.merge": ("merge",),
    "watching.monitor": ("Monitor",),
    "results.result": ("AuditResult",),
    "results.run": ("Run", "open_run"),
    "results.watch_result": ("WatchResult",),
    "settings": ("Settings",),
    "simulation.simulate": ("simulate",),
}
_RARE = {
    *("AuditResult", "Certificate", "Counts", "DecisionResult", "LatentFit", "Run", "WatchResult"),
    *("binned_ece", "count_on_ray", "read_counts", "write_counts"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

show_in_notebooks()


def __dir__() -> list[str]:
    """What most users need; the other names of ``__all__`` are results and errors, or for special cases."""
    return [name for name in __all__ if name not in _RARE and not name.endswith(("Error", "_async"))]


def __getattr__(name: str) -> Any:
    if name == "plot":
        return importlib.import_module("blindcal.plot")
    if name == "plan":
        return importlib.import_module("blindcal.planning.plan").plan_audit
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'blindcal' has no attribute {name!r}")
    return getattr(importlib.import_module(f"blindcal.{_MODULE_OF[name]}"), name)
