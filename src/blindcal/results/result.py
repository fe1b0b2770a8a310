"""What an audit found: one frozen record, its JSON form and its table of answers.

``result.schema.json`` beside this file describes the JSON; docs/result-schema.md explains it. Numbers
that do not exist are ``null``, never a made-up zero.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
import numpy as np

from blindcal.atomic_write import atomic_write
from blindcal.errors import InputError
from blindcal.records import INVALID, NEGATIVE, POSITIVE, Estimator, Message, Targets
from blindcal.store.run_store import Store
from blindcal.text import csv_cell, printable

if TYPE_CHECKING:
    from blindcal.report.plots import Axes

SCHEMA_VERSION = 2
RESULT_FILE, ANSWERS_FILE = "result.json", "answers.csv"
FEW = 100
"""Items, below which figures come with a warning."""

Direction: TypeAlias = Literal["overconfident", "underconfident", "undecided"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and, where one could be had, its interval."""

    value: float | None
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> Estimate:
        """The same in another unit."""
        return Estimate(*(None if x is None else factor * x for x in (self.value, self.low, self.high)))


@dataclass(frozen=True, slots=True)
class Bin:
    """One bin of the positive class's probability; ``gap`` > 0 means predicted more than it happens.

    ``share`` of all items lie in it; ``predicted`` is their mean probability of the positive class and
    ``observed`` the share of them whose label is positive: gap = share * (predicted - observed).
    """

    low: float
    high: float
    gap: Estimate
    share: float | None = None
    predicted: float | None = None
    observed: float | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """The reliability curve: at confidence ``f`` the share ``value`` is positive, with a pointwise band."""

    f: tuple[float, ...]
    value: tuple[float, ...]
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Confidence:
    """Share of each label's items whose probability of the positive class lies between two edges."""

    edges: tuple[float, ...]
    negatives: tuple[float, ...]
    positives: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Operating:
    """What deciding "positive iff f >= threshold" does; ``shift`` on the positive answer deploys it.

    ``positive_rate``, ``false_positive`` and ``false_negative`` are shares of all decisions;
    ``negative_precision`` is the share of the negative ones that are right.
    """

    threshold: float
    shift: float
    precision: Estimate
    recall: Estimate
    accuracy: Estimate
    positive_rate: Estimate
    false_positive: Estimate = Estimate(None)
    false_negative: Estimate = Estimate(None)
    negative_precision: Estimate = Estimate(None)


@dataclass(frozen=True, slots=True)
class CostCurve:
    """The expected cost of a decision at each operating point, if the two errors cost so much."""

    cost_fp: float
    cost_fn: float
    expected: tuple[Estimate, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """The figures of the items that share one value of a field; ``few`` where they are too few to trust."""

    name: str
    items: int
    positive_labels: int
    ece: Estimate
    accuracy: Estimate
    leaning: Estimate
    overconfidence: Estimate
    few: bool


@dataclass(frozen=True, slots=True)
class Example:
    """One query as it was sent; ``messages`` are left out where a run keeps none.

    ``left_out`` characters of long messages are not shown.
    """

    messages: tuple[Message, ...]
    left_out: int
    logit_bias: dict[str, float]
    threshold: float
    temperature: float


@dataclass(frozen=True, slots=True)
class AnswerCounts:
    """What was asked and what came back; ``unanswered`` is what a stopped run still lacks."""

    items: int
    positive_labels: int
    positive: int
    negative: int
    invalid: int
    unanswered: int


@dataclass(frozen=True, slots=True)
class Spend:
    """What it cost. Tokens are as the endpoint reported them; ``cost`` is in dollars, if prices are known.

    ``batches`` is how many of the provider's batches it was asked through; 0 is an audit asked live.
    """

    queries: int
    probe_queries: int
    attempts: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cost: float | None
    batches: int = 0


@dataclass(frozen=True, slots=True)
class Oracle:
    """The truth from a score file, in the same bins, and how far the estimate is from it."""

    path: str
    column: str
    ece: float
    difference: float | None
    inside_interval: bool | None
    gaps: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class NextDollar:
    """What one more dollar would buy: so many queries, and about this half-width of the ECE's interval."""

    queries: int
    half_width: float


@dataclass(frozen=True, slots=True)
class AuditResult:
    """Everything an audit says.

    ``overconfidence`` is the mean confidence in the predicted answer minus the share of right answers;
    ``leaning`` is the mean probability of the positive answer minus the share of positive labels.
    ``estimator`` read the answers that ``method`` asked for, and ``measures`` says what that is worth.
    ``ece_if_invalid`` bounds the ECE whatever the invalid answers would have been, and
    ``invalid_reasons`` counts why stated ones cannot be read. ``parts`` are the values
    of the field ``by``, and ``parts_pvalue`` is the p-value of "all parts are miscalibrated alike".
    ``costs`` are for three pairs of costs, at the thresholds of ``operating``.
    ``seconds`` were spent asking, in all calls together.
    """

    schema_version: int
    blindcal: str
    created: str
    complete: bool
    stopped: str | None
    items: str
    model: str
    method: str
    estimator: Estimator
    semantics: str
    measures: str
    level: float
    ece: Estimate
    overconfidence: Estimate
    leaning: Estimate
    auroc: Estimate
    accuracy: Estimate
    brier: Estimate
    log_loss: Estimate
    tce: Estimate
    calibrated_pvalue: float | None
    bins: tuple[Bin, ...]
    curve: Curve | None
    confidence: Confidence | None
    operating: tuple[Operating, ...]
    by: str | None
    parts: tuple[Part, ...]
    parts_pvalue: float | None
    ece_if_invalid: tuple[float, float]
    invalid_reasons: dict[str, int]
    counts: AnswerCounts
    spend: Spend
    seconds: float
    targets: Targets
    example: Example | None
    probe: dict[str, Any] | None
    oracle: Oracle | None
    settings: dict[str, Any]
    next_dollar: NextDollar | None = None
    costs: tuple[CostCurve, ...] = ()

    @property
    def direction(self) -> Direction:
        """Over- or underconfident; undecided where the interval holds both, or there is none."""
        over = self.overconfidence
        if over.value is None or over.low is None or over.high is None or over.low <= 0 <= over.high:
            return "undecided"
        return "overconfident" if over.value > 0 else "underconfident"

    def to_json(self) -> bytes:
        """The versioned JSON form."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    def save(self, path: Path) -> None:
        """Write the JSON form; a reader sees the old file or the new one, never half of one."""
        with atomic_write(path) as draft:
            draft.write_bytes(self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> AuditResult:
        """Read a result back."""
        try:
            content = Path(path).read_bytes()
            found = msgspec.json.decode(content, type=_Version).schema_version
        except FileNotFoundError:
            raise InputError(f"{path}: no such result") from None
        except (OSError, msgspec.MsgspecError) as error:
            raise InputError(f"{path}: not a result of blindcal ({printable(str(error))})") from None
        if found != SCHEMA_VERSION:
            cure = "upgrade to read it" if found > SCHEMA_VERSION else "run its audit again (it asks nothing)"
            raise InputError(f"{path}: has schema version {found}, this is {SCHEMA_VERSION}: {cure}")
        try:
            return msgspec.json.decode(content, type=cls)
        except msgspec.MsgspecError as error:
            raise InputError(f"{path}: not a result of blindcal ({printable(str(error))})") from None

    # Figures: each draws on ``ax``, or on a figure of its own, and returns the axes.

    def plot_curve(self, ax: Axes | None = None) -> Axes:
        """The Blind Calibration Curve: signed gaps with intervals, whose lengths add up to the ECE."""
        from blindcal.report import plots

        return plots.plot_calibration_curve(self.bins, ax, ece=self.ece, level=self.level)

    def plot_reliability(self, ax: Axes | None = None) -> Axes:
        """The reliability diagram with its band, and the bins as dots."""
        from blindcal.report import plots

        return plots.plot_reliability(self.curve, ax, bins=self.bins, level=self.level)

    def plot_confidence(self, ax: Axes | None = None) -> Axes:
        """The distribution of the confidence for each label."""
        from blindcal.report import plots

        return plots.plot_confidence(self.confidence, ax)

    def plot_operating(self, ax: Axes | None = None, *, threshold: float | None = None) -> Axes:
        """Precision, recall and accuracy against the threshold; ``threshold`` marks one."""
        from blindcal.report import plots

        return plots.plot_operating(self.operating, ax, threshold=threshold)

    def plot_cost(self, cost_fp: float, cost_fn: float, ax: Axes | None = None) -> Axes:
        """The expected cost of a decision against the threshold.

        With its band if ``costs`` has a pair in the same proportion; a fit's own ``plot_cost`` always has it.
        """
        from blindcal.report import plots

        return plots.plot_cost(self.operating, cost_fp, cost_fn, ax, costs=self._costs(cost_fp, cost_fn))

    def plot_parts(self, ax: Axes | None = None) -> Axes:
        """The ECE of each part with its interval."""
        from blindcal.report import plots

        return plots.plot_parts(self.parts, ax, overall=self.ece)

    def _costs(self, cost_fp: float, cost_fn: float) -> tuple[Estimate, ...] | None:
        for one in self.costs:
            if math.isclose(one.cost_fp * cost_fn, one.cost_fn * cost_fp):
                return tuple(each.times(cost_fp / one.cost_fp) for each in one.expected)
        return None

    def _repr_html_(self) -> str:
        from blindcal.report import notebook

        return notebook.result_html(self)


@dataclass(frozen=True, slots=True)
class _Version:
    schema_version: int


def schema() -> dict[str, Any]:
    """The JSON Schema of a result; ``result.schema.json`` is this, and a test keeps it so."""
    # there and back: a default of nothing is a list in JSON
    described = msgspec.json.decode(msgspec.json.encode(msgspec.json.schema(AuditResult)))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "blindcal result",
        **described,
    }


def number(value: float) -> float | None:
    """A float for JSON: ``None`` where there is no finite number."""
    return float(value) if math.isfinite(value) else None


def ece_if_invalid(ece: float, share: float) -> tuple[float, float]:
    """Bounds on the ECE if a ``share`` of the items had answered anything at all.

    An item moves the sum of |gaps| by at most 1/N, so the rest's ECE, scaled to its share, is off by
    at most the share of the invalid ones.
    """
    rest = (1 - share) * ece
    return max(0.0, rest - share), min(1.0, rest + share)


ANSWER_COLUMNS = (
    "id",
    "label",
    "group",
    "round",
    "threshold",
    "shift",
    "temperature",
    "answer",
    "text",
    "seconds",
)
_ANSWER_WORDS: Mapping[int, str] = {POSITIVE: "positive", NEGATIVE: "negative", INVALID: "invalid"}


def write_answers(store: Store, path: Path) -> None:
    """Write every answer of a run as CSV that is safe to open in a spreadsheet."""
    rounds = store.rounds()
    firsts = np.cumsum([0, *(len(asked) for asked in rounds)])
    with atomic_write(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(ANSWER_COLUMNS)
        for query, answer, text, seconds in store.texts():
            which = int(np.searchsorted(firsts, query, side="right")) - 1
            asked, place = rounds[which], query - int(firsts[which])
            name, label, group = store.item(int(asked.items[place]))
            shift = float(asked.shifts[place])
            threshold = f"{1 / (1 + math.exp(min(shift, 700))):.9g}"
            table.writerow(
                (
                    csv_cell(name),
                    label,
                    csv_cell(group or ""),
                    which + 1,
                    threshold,
                    f"{shift:.9g}",
                    f"{asked.temperatures[place]:g}",
                    _ANSWER_WORDS[answer],
                    csv_cell(text),
                    seconds,
                )
            )
