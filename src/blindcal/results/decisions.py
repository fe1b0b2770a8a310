"""Decisions by a certificate: one per item, the files of them, and a summary with what is promised.

An item is accepted if the answer at the upper threshold is positive. Otherwise it is rejected or, if there is
a lower threshold, only if the answer there is negative too. Between the thresholds, and without a valid
answer, the rule abstains. A probability that is shown answers at both.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from scipy.special import expit

from blindcal.atomic_write import atomic_write, write_file
from blindcal.estimate.noise import ControlCounts
from blindcal.json_form import json_line, json_page
from blindcal.records import INVALID, NEGATIVE, POSITIVE, level_percent
from blindcal.results.certificate import PREFIX, Certificate, CertifiedSide
from blindcal.results.recalibration import Recalibration
from blindcal.results.result import Spend
from blindcal.store.run_store import Store
from blindcal.text import csv_cell

DECISIONS_TABLE, DECISIONS_LINES, SUMMARY_FILE = "decisions.csv", "decisions.jsonl", "summary.json"
Verdict: TypeAlias = Literal["accept", "reject", "abstain"]

BETWEEN, BELOW, NO_WORD = "between the thresholds", "below the threshold", "neither answer word"
NOT_SHOWN = "no probability"
"""Reasons to abstain, besides those why a query has no usable reply."""
MOST_REASONS = 5
"""A summary names at most this many reasons to abstain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision on one item; ``reason`` says why the rule abstains.

    ``at_accept`` and ``at_reject`` are the answers at the two thresholds, ``None`` if not asked or unusable;
    where a ``probability`` is shown, ``at_accept`` is what shows it. With more than two answers it is that
    of the ``answer``, which the rule accepts. ``recalibrated`` is the probability to show instead.
    ``audited`` items were in the certified audit.
    """

    id: str
    decision: Verdict
    at_accept: str | None
    at_reject: str | None = None
    reason: str | None = None
    audited: bool = False
    probability: float | None = None
    answer: str | None = None
    recalibrated: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DecisionResult:
    """A summary of decisions; iterate to read each of them from ``folder``.

    ``undecided`` items have no decision because the run was ``stopped``. ``reasons`` counts why the rule
    abstained. ``audited`` items were in the certified audit, and the promise is about others. The certificate
    may have ``expired`` after the run. ``doubts`` say why nothing is promised; ``accept`` and ``reject`` are
    then ``None``.
    """

    folder: str
    model: str
    items: int
    accepted: int
    rejected: int
    abstained: int
    undecided: int
    reasons: dict[str, int]
    stopped: str | None
    doubts: tuple[str, ...]
    level: float
    accept: CertifiedSide | None
    reject: CertifiedSide | None
    expires: date
    expired: bool
    audited: int
    controls: ControlCounts
    spend: Spend
    labels_ignored: bool = False

    def __repr__(self) -> str:
        counts = f"{self.accepted:,} accepted, {self.rejected:,} rejected, {self.abstained:,} abstained"
        return f"DecisionResult({self.folder!r}, {self.items:,} items: {counts})"

    def __iter__(self) -> Iterator[Decision]:
        decoder = msgspec.json.Decoder(Decision)
        with (Path(self.folder) / DECISIONS_LINES).open("rb") as lines:
            for line in lines:
                yield decoder.decode(line)

    @property
    def complete(self) -> bool:
        """Whether every item has its decision."""
        return self.stopped is None

    def promise(self, verdict: Literal["accept", "reject"]) -> str:
        """What is promised of the items that are accepted or rejected, in words."""
        side = self.accept if verdict == "accept" else self.reject
        if self.doubts:
            return f"nothing is promised: {'; '.join(self.doubts)}"
        if side is None:
            return "nothing is promised: the certificate is about accepted items only"
        return (
            f"precision at least {rounded_down(side.bound):g}, {level_percent(self.level)} sure; when it was "
            f"certified, {side.right:,} of {side.decided:,} were right"
            + (f"; the certificate has expired since, on {self.expires}" if self.expired else "")
        )

    def save(self) -> None:
        """Write the summary into the folder."""
        write_file(Path(self.folder) / SUMMARY_FILE, json_page(self))


def rounded_down(bound: float) -> float:
    """Round a lower bound to four digits so that it still holds."""
    return math.floor(1e4 * bound + 1e-9) / 1e4


def stored_decisions(store: Store, certificate: Certificate) -> Iterator[Decision]:
    """The decisions so far; the first round asks every item in order, the second some of them."""
    rounds = store.rounds()
    if not rounds:
        return
    first = len(rounds[0])
    again = rounds[1].items.tolist() if len(rounds) > 1 else []
    unread = NOT_SHOWN if certificate.shown else NO_WORD
    unusable = set(store.unusable(0, first + len(again)).tolist())

    def answers(begin: int, size: int) -> Iterator[tuple[int, int, str | None, str]]:
        for query, answer, text, _ in store.texts(begin, size):
            refused = query in unusable
            why = text.removeprefix("(").removesuffix(")") if refused else unread
            yield query, answer, None if refused else text, why

    lower = {
        again[query - first]: (answer, text, why) for query, answer, text, why in answers(first, len(again))
    }
    items, audited = store.items(), certificate.audited_prompts
    bounds = store.shown_bounds(first) if certificate.shown else None
    for query, answer, text, why in answers(0, first):
        known = items.digests[query][:PREFIX] in audited
        upper = Decision(id=items.ids[query], decision="abstain", at_accept=text, audited=known)
        if answer == INVALID:
            yield replace(upper, reason=why)
        elif bounds is not None:
            word = certificate.request.positive[answer] if certificate.several else None
            yield _compared(replace(upper, answer=word), certificate, *bounds[query].tolist())
        elif answer == POSITIVE:
            yield replace(upper, decision="accept")
        elif certificate.reject is None:
            yield replace(upper, decision="reject")
        elif query in lower:
            below, lower_text, why = lower[query]
            if below == NEGATIVE:
                yield replace(upper, decision="reject", at_reject=lower_text)
            else:
                reason = BETWEEN if below == POSITIVE else why
                yield replace(upper, at_reject=lower_text, reason=reason)


def _compared(decision: Decision, certificate: Certificate, low: float, high: float) -> Decision:
    """The decision by bounds of the log-odds, as certified: what they leave open is not decided."""
    accept, reject = certificate.accept, certificate.reject
    shown = replace(decision, probability=float(expit((low + high) / 2)))
    if low >= -accept.shift:
        return replace(shown, decision="accept")
    if certificate.several:
        return replace(shown, reason=BELOW)
    if reject is None or high < -reject.shift:
        return replace(shown, decision="reject")
    return replace(shown, reason=BETWEEN)


@dataclass(frozen=True, slots=True)
class DecisionCounts:
    """How often each decision was made, how often about an audited item, and why the rule abstained."""

    verdicts: Counter[str]
    audited: int
    reasons: dict[str, int]


def write_decisions(
    store: Store, certificate: Certificate, folder: Path, recalibration: Recalibration | None = None
) -> DecisionCounts:
    """Write the decisions so far as CSV that is safe to open in a spreadsheet, and as JSON lines."""
    verdicts, reasons, audited = Counter[str](), Counter[str](), 0
    with (
        atomic_write(folder / DECISIONS_TABLE) as table_draft,
        atomic_write(folder / DECISIONS_LINES) as lines_draft,
        table_draft.open("w", newline="", encoding="utf-8") as table_file,
        lines_draft.open("wb") as lines,
    ):
        table = csv.writer(table_file)
        table.writerow(Decision.__slots__)
        for decision in stored_decisions(store, certificate):
            if recalibration is not None and decision.probability is not None:
                shown = recalibration.at(decision.probability).value
                decision = replace(decision, recalibrated=shown)
            verdicts[decision.decision] += 1
            audited += decision.audited
            if decision.reason is not None:
                reasons[decision.reason] += 1
            cells = (getattr(decision, name) for name in Decision.__slots__)
            table.writerow(csv_cell(cell) if isinstance(cell, str) else cell for cell in cells)
            lines.write(json_line(decision) + b"\n")
    named = dict(reasons.most_common(MOST_REASONS))
    others = reasons.total() - sum(named.values())
    return DecisionCounts(verdicts, audited, named | ({"other reasons": others} if others else {}))
