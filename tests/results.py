"""A finished result without an audit, for tests of what is made from one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from blindcal.records import Targets, Token
from blindcal.results.result import (
    SCHEMA_VERSION,
    AnswerCounts,
    AuditResult,
    Bin,
    Confidence,
    CostCurve,
    Curve,
    Estimate,
    Operating,
    Part,
    Spend,
)

NOTHING = Estimate(None)
GAPS = (-0.04, -0.01, 0.005, 0.02, 0.05)


def around(value: float, by: float = 0.02) -> Estimate:
    """An estimate with an interval."""
    return Estimate(value, value - by, value + by)


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
    return Curve(tuple(f), tuple(value), tuple(v - 0.05 for v in value), tuple(v + 0.05 for v in value))


def confidence() -> Confidence:
    """Twenty bins; positives are surer than negatives."""
    rising = np.arange(1, 21) / 210
    return Confidence(tuple(k / 20 for k in range(21)), tuple(rising[::-1].tolist()), tuple(rising.tolist()))


def operating() -> tuple[Operating, ...]:
    """Precision rises with the threshold and recall falls."""
    return tuple(
        Operating(
            t,
            -float(np.log(t / (1 - t))),
            around(0.5 + 0.45 * t),
            around(1 - 0.9 * t),
            around(0.6 + t * (1 - t) / 2),
            around(1 - t),
            around((1 - t) * (0.5 - 0.45 * t)),
            around(0.4 - t * (1 - t) / 2 - (1 - t) * (0.5 - 0.45 * t)),
        )
        for t in (k / 20 for k in range(1, 20))
    )


def cost(cost_fp: float, cost_fn: float) -> CostCurve:
    """What those decisions cost."""
    rates = [(row.false_positive.value or 0.0, row.false_negative.value or 0.0) for row in operating()]
    return CostCurve(cost_fp, cost_fn, tuple(around(cost_fp * fp + cost_fn * fn) for fp, fn in rates))


def part(name: str, ece: Estimate, items: int = 400) -> Part:
    """A part of so many items; under a hundred are few."""
    return Part(name, items, items // 2, ece, around(0.8), around(0.01), around(0.02), items < 100)


def result(**changes: Any) -> AuditResult:
    """A complete result of `latent`."""
    found = AuditResult(
        schema_version=SCHEMA_VERSION,
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
        counts=AnswerCounts(1000, 500, 520, 480, 0, 0),
        spend=Spend(1080, 80, 1080, 100_000, 1080, 0, None),
        seconds=12.0,
        targets=Targets((Token(1, "Yes"),), (Token(2, "No"),)),
        example=None,
        probe=None,
        oracle=None,
        settings={},
        costs=(cost(1, 1), cost(5, 1), cost(1, 5)),
    )
    return replace(found, **changes)
