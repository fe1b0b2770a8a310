"""What a probe found: a finding for each question about the endpoint, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from blindcal.records import Targets

ProbeVerdict: TypeAlias = Literal["thresholds", "temperature", "not auditable"]
FindingOutcome: TypeAlias = Literal["good", "caution", "bad", "unknown"]

SCALE = "acts by the right amount"
QUESTIONS = (
    "answers at all",
    "one token out",
    "logit_bias accepted",
    "logit_bias acts",
    "one flip",
    "answers follow the bias",
    SCALE,
    "fractions honoured",
    "range",
    "repeatable alone",
    "repeatable under concurrency",
    "answers inside the targets",
    "temperature honoured",
    "logprobs",
)
LEAST_SHIFT = 7.0  # thresholds from 0.001 to 0.999


@dataclass(frozen=True, slots=True)
class Finding:
    """One question about the endpoint, its outcome, and the answer in words."""

    question: str
    outcome: FindingOutcome
    answer: str


@dataclass(frozen=True, slots=True)
class Probe:
    """What the probe found.

    ``max_shift`` is the largest usable |b| at ``offset``; ``clamp`` is the value at which the endpoint
    clamps the bias, ``integer_bias`` whether it rounds it. ``jitter`` and ``crowd_jitter`` are standard
    deviations in log-odds, alone and under concurrency; ``outside`` is the share of biased answers that
    were neither target. These three are NaN if they could not be measured. ``scale`` is a 95% interval of
    the factor by which the bias acts, ``None`` if it could not be measured. ``remedy`` and ``options``
    are those of the last reply that could not be read.
    """

    verdict: ProbeVerdict
    reason: str
    findings: tuple[Finding, ...]
    targets: Targets
    offset: float
    max_shift: float
    clamp: float | None
    integer_bias: bool
    jitter: float
    crowd_jitter: float
    scale: tuple[float, float] | None
    outside: float
    logprobs: bool
    queries: int
    prompt_tokens: int
    completion_tokens: int
    remedy: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def scale_unknown(self) -> bool:
        """Whether it is unknown by which factor the bias acts."""
        return not any(one.question == SCALE and one.outcome != "unknown" for one in self.findings)

    @property
    def within_clamp(self) -> dict[str, object]:
        """The offset and limit to try if the bias is clamped too low for the given ones; else empty."""
        if self.clamp is None or self.max_shift >= LEAST_SHIFT:
            return {}
        return {"offset": round(self.clamp / 2, 1), "limit": round(self.clamp, 1)}
