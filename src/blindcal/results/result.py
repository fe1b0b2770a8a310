"""The result of an audit: a frozen record and its JSON form.

``result.schema.json`` describes the JSON (written by bench/result_schema.py), and docs/result-schema.md
explains it. Unknown numbers are ``null``, never zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from scipy.special import expit

from blindcal.atomic_write import write_file
from blindcal.errors import InputError
from blindcal.estimate.drift import Drift
from blindcal.estimate.findings import AnswerMargins, Findings
from blindcal.estimate.noise import ControlCounts
from blindcal.estimate.truth import binned_ece, drawn_answer_ece, top_label_ece
from blindcal.estimate.verdicts import JudgeFindings
from blindcal.items.question_files import Items, RepeatedPrompts
from blindcal.items.score_files import ChoiceScores, Scores, prompt_digest, read_choices, read_scores
from blindcal.json_form import json_page, read_saved
from blindcal.prices import Prices
from blindcal.probing.findings import Probe
from blindcal.records import Estimate, EstimatorName, FloatArray, IntArray, Message, Targets
from blindcal.results.tables import FrameLibrary, TableName, frame, tables_of
from blindcal.store.run_file import ServedModel
from blindcal.store.run_store import Store
from blindcal.text import listed, printable, spoken

SCHEMA_VERSION = 1
RESULT_FILE = "result.json"
_SAME, _LARGER = 1e-3, 1e-3  # a difference that decides nothing, and the level of a test of larger ones
Direction: TypeAlias = Literal["overconfident", "underconfident", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One query as it was sent; ``messages`` is empty if the run keeps no prompts.

    ``left_out`` is the number of characters that were cut from long messages. ``about`` is the number of the
    answer with the shift, if there are more than two; ``threshold`` is then about that answer.
    """

    messages: tuple[Message, ...]
    left_out: int
    logit_bias: dict[str, float]
    threshold: float
    temperature: float
    about: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCounts:
    """Counts of items and answers.

    ``items`` are those that the estimates are about: in a stopped run, the items with an answer.
    ``unanswered`` are the others, which the run would have asked. ``groups`` is the number of groups that
    ``items`` are in, if they are in groups. With more than two answers, ``each`` counts the queries that got
    each of them, and ``positive_labels``, ``positive`` and ``negative`` are 0.
    """

    items: int
    positive_labels: int
    positive: int
    negative: int
    invalid: int
    unanswered: int
    groups: int | None = None
    each: tuple[int, ...] = ()

    @property
    def answers(self) -> int:
        return self.valid + self.invalid

    @property
    def valid(self) -> int:
        return self.positive + self.negative + sum(self.each)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownProbabilities:
    """What the probabilities that an endpoint shows leave open, over ``readings`` replies.

    ``outside`` is the mean probability of first tokens that are neither answer, as far as the lists show, and
    ``most_outside`` the highest. Tokens that the lists lack leave each item's probability open by ``open`` on
    average, and by ``most_open`` at most.
    """

    readings: int
    outside: float
    most_outside: float
    open: float
    most_open: float

    @classmethod
    def of(cls, masses: FloatArray, bounds: FloatArray | None) -> ShownProbabilities | None:
        """Summarize what logprobs showed: the mass of both answers, and bounds of the log-odds."""
        if not masses.size:
            return None
        shown = np.empty((0, 2)) if bounds is None else bounds[~np.isnan(bounds).any(axis=1)]
        width = np.diff(expit(shown)).reshape(-1) if len(shown) else np.ones(1)
        rest = 1 - masses
        return cls(
            readings=masses.size,
            outside=float(rest.mean()),
            most_outside=float(rest.max()),
            open=float(width.mean()),
            most_open=float(width.max()),
        )

    @classmethod
    def together(cls, each: Sequence[ShownProbabilities]) -> ShownProbabilities:
        weights = [shown.readings for shown in each]
        return cls(
            readings=sum(weights),
            outside=float(np.average([shown.outside for shown in each], weights=weights)),
            most_outside=max(shown.most_outside for shown in each),
            open=float(np.average([shown.open for shown in each], weights=weights)),
            most_open=max(shown.most_open for shown in each),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerName(ServedModel):
    """A model and fingerprint that replies name, and from which query to which they do."""

    answers: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How far the probabilities shown for the same request differ: over ``pairs`` of requests."""

    pairs: int
    deviation: float  # standard deviation of one probability
    most: float  # the largest difference

    def exceeded_by(self, moves: FloatArray) -> bool:
        """Whether too many of other differences are larger than all of these to be of the same kind."""
        larger = np.arange(int((moves > self.most + _SAME).sum()))
        chance = np.prod((moves.size - larger) / (self.pairs + moves.size - larger))
        return bool(larger.size and chance < _LARGER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steadiness:
    """How steady the endpoint was during a run, and how noisy its answers were.

    ``controls`` counts the control queries. ``flip_rate`` is the estimated share of answers that are the
    opposite of what they should be, and ``jitter`` the noise of the log-odds. ``drift`` is the test for a
    change of the answers during the run, ``moved`` says whether the log-odds of items with known flips rose
    (1) or fell (-1), and ``repeated_share`` is the share of drawn answers that repeat an earlier one.
    ``spread`` is about the probabilities that are shown for the same question.
    ``bias_lost`` is the number of the answer from which on the forced answers were wrong, if the run was
    forced to go on. ``served`` are the models that the replies name.
    Queries are numbered from 1 in the order of asking. ``warnings`` and ``notes`` say what it means:
    ``warnings`` make all estimates doubtful.
    """

    queries: int
    controls: ControlCounts
    flip_rate: Estimate
    jitter: Estimate
    drift: Drift | None
    moved: int = 0
    repeated_share: float = 0.0
    spread: Spread | None = None
    bias_lost: int | None
    served: tuple[ServerName, ...]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """What an audit cost. Tokens are as the endpoint reported them; ``cost`` is in dollars, if known.

    ``queries`` includes those of the probe (``probe_queries``), of the controls during the run
    (``control_queries``), and replies that had to be asked for again. ``tokens_estimated`` says that the
    endpoint has not reported the tokens of every answer, so that tokens and cost are estimates.
    """

    queries: int
    probe_queries: int
    attempts: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cost: float | None
    tokens_estimated: bool = False
    control_queries: int = 0

    @classmethod
    def of(cls, store: Store, prices: Prices | None) -> Self:
        """The cost of everything in a run file."""
        paid = store.usage()
        return cls(
            queries=paid.served,
            probe_queries=store.usage("probe").queries,
            attempts=paid.attempts,
            prompt_tokens=paid.prompt_tokens,
            completion_tokens=paid.completion_tokens,
            cached_tokens=paid.cached_tokens,
            cost=None if prices is None else prices.cost(paid),
            tokens_estimated=bool(store.note("tokens_estimated")),
            control_queries=store.usage("control").queries,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """The truth from a score file, in the same bins, and how far the estimate is from it.

    ``other_model`` is the model that the file was scored with, if it has another name than the audited one.
    """

    path: str
    column: str
    ece: float
    difference: float | None
    inside_interval: bool | None
    gaps: tuple[float, ...]
    other_model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AuditResult(Findings):
    """The result of an audit: what was found, and how.

    ``method`` chose the queries, ``estimator`` read the answers, and ``measures`` says what the estimates are
    about. ``objection`` is the problem that the probe found, if the audit was forced, and ``unverified`` what
    it could not verify although the estimates depend on it. ``invalid_reasons`` counts why replies could not
    be read. ``by`` is the field that defines the ``parts``. ``seconds`` is the time spent asking, over all
    calls. ``repeated`` counts the items that share a prompt, if any do. ``steadiness`` says whether the
    endpoint stayed the same during the run. ``shown`` is about the probabilities that were read, if logprobs
    were. ``answers`` are the words of the answers, if there are more than two, and ``margins`` compares how
    often each was given with how often it is right. ``judge`` is about the verdicts beside the confidences.
    """

    schema_version: int = SCHEMA_VERSION
    blindcal: str
    created: str
    complete: bool
    stopped: str | None
    items: str
    model: str
    method: str
    estimator: EstimatorName
    semantics: str
    measures: str
    level: float
    by: str | None
    invalid_reasons: dict[str, int]
    counts: AnswerCounts
    spend: Spend
    seconds: float
    targets: Targets
    example: Example | None
    probe: Probe | None
    oracle: Oracle | None
    settings: dict[str, Any]
    objection: str | None = None
    unverified: str | None = None
    repeated: RepeatedPrompts | None = None
    steadiness: Steadiness | None = None
    shown: ShownProbabilities | None = None
    answers: tuple[str, ...] = ()
    margins: AnswerMargins | None = None
    judge: JudgeFindings | None = None

    def __repr__(self) -> str:
        return f"AuditResult({self.model!r}, {self.method}, {self.counts.items:,} items, ECE {self.ece:.4f})"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes all estimates doubtful, in sentences."""
        return () if self.steadiness is None else self.steadiness.warnings

    @property
    def direction(self) -> Direction:
        """Over- or underconfident; undecided if the interval contains zero or there is none."""
        over = self.overconfidence
        if over.value is None or not over.has_interval or 0 in over:
            return "undecided"
        return "overconfident" if over.value > 0 else "underconfident"

    def to_json(self) -> bytes:
        """The versioned JSON form."""
        return json_page(self)

    def to_frame(self, table: TableName = "metrics", library: FrameLibrary | None = None) -> Any:
        """A table of the result, such as ``bins``, as a ``DataFrame``; by default one row per metric.

        ``library`` is pandas if it is installed, else polars.
        """
        tables = tables_of(self, self.answers)
        if table not in tables:
            raise InputError(f"table: this result has {listed(list(tables))}, got {table!r}")
        return frame(tables[table], library)

    def save(self, path: Path) -> None:
        """Write the JSON form atomically."""
        write_file(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> AuditResult:
        """Read a result back."""
        return read_saved(Path(path), cls, "result", SCHEMA_VERSION, "schema_version")


# The truth that an audit is compared with

# A stated confidence is compared with the probability of the answer, for it has no truth of its own. Answers
# at an endpoint's own setting, of which scores know nothing, are compared with draws at T = 1.
_COLUMNS = {"pair": "p", "max": "p_max", "sum": "p_sum", "configured": "p_sum", "stated": "p", "shown": "p"}


@dataclass(frozen=True, slots=True)
class Truth:
    """The scores of the items of an audit; item k is in row ``rows[k]`` of the file.

    ``other_model`` is the scored model, if it has another name. ``drawn`` says that the answers, of more than
    two, are drawn rather than the likeliest ones.
    """

    scores: Scores | ChoiceScores
    rows: IntArray
    other_model: str | None = None
    drawn: bool = False

    def compare(self, labels: IntArray, ece: Estimate, bins: int, targets: Targets | None = None) -> Oracle:
        """The true ECE, and how far the estimate is from it (METHOD 8 for k answers)."""
        scores = self.scores
        if isinstance(scores, ChoiceScores):
            column = "drawn answer" if self.drawn else "top-label"
            true_ece = drawn_answer_ece if self.drawn else top_label_ece
            truth = true_ece(labels, scores.logits[self.rows], bins)
        else:
            scores = scores if targets is None else scores.about(targets)
            column, truth = scores.column, binned_ece(labels, scores.p[self.rows], bins)
        true = float(truth.ece)
        return Oracle(
            path=scores.path,
            column=column,
            ece=true,
            difference=None if ece.value is None else ece.value - true,
            inside_interval=true in ece if ece.has_interval else None,
            gaps=tuple(truth.gaps.tolist()),
            other_model=self.other_model,
        )


def read_truth(
    path: Path,
    items: Items,
    model: str,
    semantics: str = "pair",
    words: tuple[str, ...] | None = None,
    *,
    drawn: bool = False,
) -> Truth:
    """Read the probabilities of the items of an audit under its semantics (METHOD 1).

    The file may name ``model`` otherwise, but must have the same prompts. ``words`` are the answer words of a
    logit file.
    """
    if not items.answers:
        return _truth(path, read_scores(path, _COLUMNS[semantics], words), items, model)
    scores = read_choices(path)
    if tuple(map(spoken, scores.answers)) != tuple(map(spoken, items.answers)):
        has, wanted = (printable(", ".join(words), 80) for words in (scores.answers, items.answers))
        raise InputError(f"{path}: has the logits of {has}, and the answers of the items are {wanted}")
    return _truth(path, scores, items, model, drawn=drawn)


def _truth(
    path: Path, scores: Scores | ChoiceScores, items: Items, model: str, *, drawn: bool = False
) -> Truth:
    places = {name: row for row, name in enumerate(scores.ids)}
    rows = np.empty(len(items), np.int64)
    other_model = None
    for number, item in enumerate(items):
        name, row = printable(item.id, 60), places.get(item.id)
        if row is None:
            raise InputError(f"{path}: has no score for item {name!r}")
        label = int(scores.labels[row])
        if label != item.label:
            order = ", or of their options in another order" if items.answers else ""
            raise InputError(
                f"{path}: item {name!r} has label {label} there and {item.label} in the items: are these "
                f"scores of other questions{order}?"
            )
        digest, _, scored = scores.asked[row].partition(" ") if scores.asked else ("", "", "")
        if scored and digest != prompt_digest(item):
            raise InputError(
                f"{path}: item {name!r} was scored with another prompt",
                remedy="score the items with the same template, system message and API",
            )
        if scored and not f"{scored} ".startswith(f"{model} "):
            other_model = scored
        rows[number] = row
    return Truth(scores, rows, other_model, drawn)
