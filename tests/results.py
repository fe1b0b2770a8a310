"""A finished result without an audit, for tests of what is made from one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from blindcal.estimate.findings import (
    NOTHING,
    Bin,
    ConfidenceHistogram,
    CostCurve,
    Curve,
    OperatingPoint,
    Part,
    RiskPoint,
)
from blindcal.records import Estimate, Targets, Token
from blindcal.results.result import AnswerCounts, AuditResult, Spend

__all__ = ["NOTHING", "around", "bins", "confidence", "cost", "curve", "operating", "part", "result"]

GAPS = (-0.04, -0.01, 0.005, 0.02, 0.05)


def around(value: float, by: float = 0.02, level: float = 0.95) -> Estimate:
    """An estimate with an interval."""
    return Estimate(value, value - by, value + by, level)


def bins() -> tuple[Bin, ...]:
    """Five bins, overconfident at both ends."""
    return tuple(
        Bin(k / 5, (k + 1) / 5, around(gap), 0.2, (k + 0.5) / 5, (k + 0.5) / 5 - gap / 0.2)
        for k, gap in enumerate(GAPS)
    )


def curve() -> Curve:
    """A flat-ish reliability curve with a band."""
    f = [k / 100 for k in range(1, 100)]
    value = [0.15 + 0.7 * one for one in f]
    low, high = (tuple(one + by for one in value) for by in (-0.05, 0.05))
    return Curve(tuple(f), tuple(value), low, high, 0.95)


def confidence() -> ConfidenceHistogram:
    """Twenty bins; positives are surer than negatives."""
    rising = np.arange(1, 21) / 210
    edges = tuple(k / 20 for k in range(21))
    return ConfidenceHistogram(edges, tuple(rising[::-1].tolist()), tuple(rising.tolist()))


def operating() -> tuple[OperatingPoint, ...]:
    """Precision rises with the threshold and recall falls; half of the items are positive."""
    return tuple(_decided(k / 20) for k in range(1, 20))


def _decided(threshold: float) -> OperatingPoint:
    precision, recall = 0.5 + 0.45 * threshold, 1 - 0.9 * threshold
    said_yes = 0.5 * recall / precision
    wrong, missed = said_yes * (1 - precision), 0.5 * (1 - recall)
    return OperatingPoint(
        threshold,
        -float(np.log(threshold / (1 - threshold))),
        precision=around(precision),
        recall=around(recall),
        accuracy=around(1 - wrong - missed),
        positive_rate=around(said_yes),
        false_positive=around(wrong),
        false_negative=around(missed),
        negative_precision=around(1 - missed / (1 - said_yes)),
    )


def cost(cost_fp: float, cost_fn: float) -> CostCurve:
    """What those decisions cost."""
    rates = [(row.false_positive.value or 0.0, row.false_negative.value or 0.0) for row in operating()]
    return CostCurve(cost_fp, cost_fn, tuple(around(cost_fp * fp + cost_fn * fn) for fp, fn in rates))


def part(name: str, ece: Estimate, items: int = 400) -> Part:
    """A part with this number of items; fewer than a hundred are few."""
    return Part(name, items, items // 2, ece, around(0.8), around(0.01), around(0.02), items < 100)


def spend(queries: int, probe_queries: int, **changes: Any) -> Spend:
    """What these queries cost, in a hundred tokens each."""
    usual = Spend(
        queries=queries,
        probe_queries=probe_queries,
        attempts=queries,
        prompt_tokens=100 * (queries - probe_queries),
        completion_tokens=queries,
        cached_tokens=0,
        cost=None,
    )
    return replace(usual, **changes)


def result(**changes: Any) -> AuditResult:
    """A complete result of `latent`."""
    found = AuditResult(
        blindcal="0",
        created="2026-01-02T03:04:05+00:00",
        complete=True,
        stopped=None,
        items="questions.csv",
        model="gpt-4o-mini",
        method="latent",
        estimator="latent",
        semantics="pair",
        measures="a probability",
        level=0.95,
        ece=around(0.125),
        overconfidence=around(0.06),
        leaning=around(0.025),
        auroc=around(0.8),
        accuracy=around(0.75),
        brier=around(0.2),
        log_loss=around(0.5),
        tce=around(0.12),
        smece=around(0.11),
        atb=around(0.02),
        miscalibration=around(0.03),
        discrimination=around(0.08),
        uncertainty=around(0.25),
        aurc=around(0.1),
        coverage=around(0.4),
        risk=tuple(RiskPoint(k / 40, around(k / 160)) for k in range(1, 41)),
        calibrated_pvalue=0.001,
        bins=bins(),
        curve=curve(),
        confidence=confidence(),
        operating=operating(),
        by="subject",
        parts=(part("law", around(0.1)), part("physics", around(0.2, 0.1), 60)),
        parts_pvalue=0.3,
        ece_if_invalid=(0.125, 0.125),
        invalid_reasons={},
        counts=AnswerCounts(
            items=1000, positive_labels=500, positive=520, negative=480, invalid=0, unanswered=0
        ),
        spend=spend(queries=1080, probe_queries=80),
        seconds=12.0,
        targets=Targets((Token(1, "Yes"),), (Token(2, "No"),)),
        example=None,
        probe=None,
        oracle=None,
        settings={},
        costs=(cost(1, 1), cost(5, 1), cost(1, 5)),
    )
    return replace(found, **changes)
