"""Results to make pages of, from answers that are simulated and read as an audit reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from blindcal import design
from blindcal.estimate.truth import binned_ece
from blindcal.records import INVALID, AnswerTable, FloatArray, IntArray, Message, Targets, Token
from blindcal.results.figures import Estimation, figures
from blindcal.results.parts import break_down
from blindcal.results.result import SCHEMA_VERSION, AnswerCounts, AuditResult, Example, Oracle, Spend

PROBE = {
    "verdict": "thresholds",
    "reason": "logit_bias acts as it should",
    "findings": [
        {
            "question": "logit_bias acts",
            "outcome": "good",
            "answer": "6 of 6 forced both ways",
        },
        {"question": "repeatable under concurrency", "outcome": "caution", "answer": "jitter 0.04"},
        {"question": "logprobs", "outcome": "unknown", "answer": "not exposed"},
    ],
    "forced": False,
    "objection": None,
}


def population(n: int = 3000, seed: int = 0) -> tuple[IntArray, FloatArray]:
    """An overconfident model: labels and probabilities."""
    rng = np.random.default_rng(seed)
    p = np.clip(rng.beta(0.5, 0.5, n), 1e-6, 1 - 1e-6)
    return (rng.random(n) < 0.15 + 0.7 * p).astype(np.int64), p


def answers(
    method: str, labels: IntArray, p: FloatArray, queries: float, seed: int = 0, bins: int = 5
) -> tuple[Estimation, AnswerTable]:
    """What a model with these probabilities answers to a method's whole design."""
    rng = np.random.default_rng(seed)
    asking = design.make(method, labels, queries=queries, bins=bins, seed=seed)
    answered = AnswerTable.empty()
    s = np.log(p / (1 - p))
    while (asked := asking.next_round(answered)) is not None:
        shifted = s[asked.items] + asked.shifts
        heat = np.where(asked.temperatures > 0, asked.temperatures, 1.0)
        drawn = rng.random(len(asked)) < 1 / (1 + np.exp(-np.clip(shifted / heat, -500, 500)))
        said = np.where(asked.temperatures > 0, drawn, shifted >= 0)
        answered = answered.with_round(asked, said.astype(np.int64))
    return Estimation(design.read_by(method), asking, bins, 0.95, resamples=100), answered


def audited(
    labels: IntArray,
    p: FloatArray,
    method: str = "latent",
    *,
    invalid: float = 0.0,
    parts: Sequence[str | None] | None = None,
    truth: bool = False,
    **changes: Any,
) -> AuditResult:
    """The result of an audit of a model with these probabilities."""
    queries = 1.0 if method in ("latent", "blind") else 4.0
    how, answered = answers(method, labels, p, queries)
    wrong = np.random.default_rng(5).random(len(answered)) < invalid
    answered = replace(answered, answers=np.where(wrong, INVALID, answered.answers))
    found = figures(how, labels, None, answered)
    by_part, pvalue = ((), None) if parts is None else break_down(how, labels, None, parts, answered)
    counts = np.bincount(answered.answers + 1, minlength=3)
    true = binned_ece(labels, p, 5)
    ece = found.ece
    oracle = Oracle(
        "scores.csv",
        "p",
        true.ece,
        None if ece.value is None else ece.value - true.ece,
        None if ece.low is None or ece.high is None else ece.low <= true.ece <= ece.high,
        tuple(true.gaps.tolist()),
    )
    result = AuditResult(
        schema_version=SCHEMA_VERSION,
        blindcal="0.1.0",
        created="2026-11-15T08:00:00+00:00",
        complete=True,
        stopped=None,
        items="boolq.jsonl",
        model="org/model-7b-instruct",
        method=method,
        estimator=design.read_by(method),
        measures="a probability",
        semantics="sum" if method == "temperature" else "pair",
        level=0.95,
        ece=ece,
        overconfidence=found.overconfidence,
        leaning=found.leaning,
        auroc=found.auroc,
        accuracy=found.accuracy,
        brier=found.brier,
        log_loss=found.log_loss,
        tce=found.tce,
        calibrated_pvalue=found.calibrated_pvalue,
        bins=found.bins,
        curve=found.curve,
        confidence=found.confidence,
        operating=found.operating,
        costs=found.costs,
        by=None if parts is None else "topic",
        parts=by_part,
        parts_pvalue=pvalue,
        ece_if_invalid=found.ece_if_invalid,
        invalid_reasons={},
        counts=AnswerCounts(
            labels.size, int(labels.sum()), int(counts[2]), int(counts[1]), int(counts[0]), unanswered=0
        ),
        spend=Spend(labels.size + 83, 83, labels.size + 85, 412345, labels.size + 83, 1200, 0.0621),
        seconds=131.7,
        targets=Targets((Token(9642, "Yes"),), (Token(2822, "No"),)),
        example=Example(
            (
                Message("system", "You answer with one word."),
                Message("user", "Passage: Rain fell.\nQuestion: was it dry?\nAnswer Yes or No."),
            ),
            0,
            {"9642": 48.317, "2822": 50.0},
            0.8433,
            0.0,
        ),
        probe=PROBE,
        oracle=oracle if truth else None,
        settings={
            "model": "org/model-7b-instruct",
            "base_url": "https://api.example/v1",
            "positive": "Yes",
            "negative": "No",
            "queries": queries,
            "offset": 50.0,
            "seed": 0,
            "template": "Passage: {passage}\nQuestion: {question}?\nAnswer Yes or No.",
        },
    )
    return replace(result, **changes)
