"""What a probe found: a finding for each question about the endpoint, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from blindcal.endpoints.query_format import ConstraintName
from blindcal.records import AnswerFormat, Targets, Way

ProbeVerdict: TypeAlias = Way | Literal["not auditable"]
FindingOutcome: TypeAlias = Literal["good", "caution", "bad", "unknown"]

SCALE = "acts by the right amount"
QUESTIONS = (
    "answers at all",
    "one token out",
    "shows probabilities",
    "agrees with itself",
    "the model asked for",
    "token ids",
    "temperature accepted",
    "logit_bias accepted",
    "logit_bias acts",
    "one flip",
    "answers follow the bias",
    "a bias on every answer",
    "Gumbel queries",
    SCALE,
    "fractions honoured",
    "no penalty after the bias",
    "range",
    "repeatable alone",
    "repeatable under concurrency",
    "answers inside the targets",
    "temperature honoured",
    "only the answers allowed",
    "repeated answers differ",
    "several answers at once",
    "states its confidence",
    "logprobs",
)
LEAST_SHIFT = 7.0  # thresholds from 0.001 to 0.999


@dataclass(frozen=True, slots=True)
class Finding:
    """One question about the endpoint, its outcome, and the answer in words."""

    question: str
    outcome: FindingOutcome
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The result of a probe; ``None`` marks numbers that were not measured.

    ``ways`` says why each way that was tried is unusable, empty if it is usable. ``max_shift`` is the largest
    usable |b| at ``offset``; jitters are standard deviations in log-odds, alone and under concurrency.
    ``outside`` is the share of biased answers that were neither target, and ``scale`` a 95% interval of the
    factor by which the bias acts. ``remedy`` and ``options`` are those of the last unreadable reply; the user
    chooses values that are ``None``. ``at_once`` is the number of independent answers to one request.
    ``flips`` are the shifts at which the answers of a few items turn, by item id.
    """

    verdict: ProbeVerdict
    reason: str
    findings: tuple[Finding, ...]
    targets: Targets
    offset: float = 0.0
    max_shift: float = 0.0
    clamp: float | None = None
    jitter: float | None = None
    crowd_jitter: float | None = None
    scale: tuple[float, float] | None = None
    outside: float | None = None
    queries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    remedy: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    ways: dict[Way, str] = field(default_factory=dict)
    top_logprobs: int = 0
    at_once: int = 1
    tempered: bool = True
    answer_format: AnswerFormat = "word"
    constraint: ConstraintName | None = None
    flips: dict[str, float] = field(default_factory=dict)

    @property
    def noise(self) -> float:
        """The larger of the two jitters; 0 if neither was measured."""
        return max(self.jitter or 0.0, self.crowd_jitter or 0.0)

    @property
    def unreadable(self) -> bool:
        return ("answers at all", "bad") in ((one.question, one.outcome) for one in self.findings)

    @property
    def remedy_options(self) -> dict[str, object]:
        """The options that the remedy names, with an ellipsis for values that the user chooses."""
        return {name: ... if value is None else value for name, value in self.options.items()}

    @property
    def usable(self) -> tuple[Way, ...]:
        """The ways in which the endpoint can be audited, best first."""
        return tuple(way for way, trouble in self.ways.items() if not trouble)

    @property
    def scale_unknown(self) -> bool:
        return not any(one.question == SCALE and one.outcome != "unknown" for one in self.findings)

    @property
    def within_clamp(self) -> dict[str, object]:
        """The offset and limit to try if the bias is clamped too low for the given ones; else empty."""
        if self.clamp is None or self.max_shift >= LEAST_SHIFT:
            return {}
        return {"offset": round(self.clamp / 2, 1), "limit": round(self.clamp, 1)}
