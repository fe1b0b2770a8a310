"""Results to make pages of, from answers that are simulated and read as an audit reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any
from unittest import mock

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle

import results
from blindcal.estimate.findings import Findings
from blindcal.estimate.truth import binned_ece
from blindcal.estimation import EstimationInput, estimate
from blindcal.methods import estimator_of, make_design, method_of
from blindcal.probing.findings import Finding, Probe
from blindcal.records import INVALID, FloatArray, IntArray, Message, Targets, Token
from blindcal.report import page
from blindcal.report.sentences import headline
from blindcal.results.result import AnswerCounts, AuditResult, Example, Oracle
from blindcal.simulation.simulate import ask

PROBE = Probe(
    verdict="thresholds",
    reason="logit_bias acts as it should",
    findings=(
        Finding("logit_bias acts", "good", "6 of 6 forced both ways"),
        Finding("repeatable under concurrency", "caution", "jitter 0.04"),
        Finding("logprobs", "unknown", "not exposed"),
    ),
    targets=Targets((Token(1, "Yes"),), (Token(2, "No"),)),
)


def population(n: int = 3000, seed: int = 0) -> tuple[IntArray, FloatArray]:
    """An overconfident model: labels and probabilities."""
    rng = np.random.default_rng(seed)
    p = np.clip(rng.beta(0.5, 0.5, n), 1e-6, 1 - 1e-6)
    return (rng.random(n) < 0.15 + 0.7 * p).astype(np.int64), p


def evidence(
    method: str,
    labels: IntArray,
    p: FloatArray,
    *,
    queries: float | None = None,
    invalid: float = 0.0,
    parts: Sequence[str | None] | None = None,
    seed: int = 0,
) -> EstimationInput:
    """What a model with these probabilities answers to a method's whole design; some answers are invalid."""
    each = method_of(method).queries if queries is None else queries
    design = make_design(method, labels, queries=each, seed=seed)
    answers = ask(design, p, seed=seed, logprobs=method_of(method).logprobs)
    wrong = np.random.default_rng(5).random(len(answers)) < invalid
    answers = replace(answers, answers=np.where(wrong, INVALID, answers.answers))
    return EstimationInput(
        method=method, design=design, labels=labels, answers=answers, parts=parts, resamples=100
    )


def audited(
    labels: IntArray,
    p: FloatArray,
    method: str = "latent",
    *,
    invalid: float = 0.0,
    parts: Sequence[str | None] | None = None,
    **changes: Any,
) -> AuditResult:
    """The result of an audit of a model with these probabilities."""
    answers = evidence(method, labels, p, invalid=invalid, parts=parts)
    found = estimate(answers)
    wrong, negative, positive = np.bincount(answers.answers.answers + 1, minlength=3).tolist()
    true = binned_ece(labels, p, 5)
    about: dict[str, Any] = {
        "blindcal": "0.1.0",
        "method": method,
        "estimator": estimator_of(method),
        "semantics": method_of(method).semantics("pair"),
        "by": None if parts is None else "topic",
        "counts": AnswerCounts(
            items=labels.size,
            positive_labels=int(labels.sum()),
            positive=positive,
            negative=negative,
            invalid=wrong,
            unanswered=0,
        ),
        "oracle": Oracle(
            path="scores.csv",
            column="p",
            ece=float(true.ece),
            difference=None if found.ece.value is None else found.ece.value - float(true.ece),
            inside_interval=float(true.ece) in found.ece if found.ece.has_interval else None,
            gaps=tuple(true.gaps.tolist()),
        ),
        "example": Example(
            messages=(Message("system", "One word."), Message("user", "Was it dry?\nAnswer Yes or No.")),
            left_out=0,
            logit_bias={"9642": 48.317, "2822": 50.0},
            threshold=0.8433,
            temperature=0.0,
        ),
        "probe": PROBE,
        "settings": {"positive": "Yes", "negative": "No", "queries": 1.0, "offset": 50.0, "seed": 0},
    }
    findings = {field.name: getattr(found, field.name) for field in fields(Findings)}
    return results.result(**findings | about | changes)


def logits_of(answers: int, n: int = 3000, seed: int = 0) -> tuple[IntArray, FloatArray]:
    """An overconfident model of questions with several answers: labels and logits; it likes the first."""
    rng = np.random.default_rng(seed)
    known = 2.5 * rng.standard_normal((n, answers))
    chance = np.exp(0.6 * known)
    chance /= chance.sum(axis=1, keepdims=True)
    labels = (rng.random((n, 1)) > np.cumsum(chance, axis=1)).sum(axis=1)
    return labels, known + 0.8 * (np.arange(answers) == 0)


def headline_of(result: AuditResult) -> str:
    """The headline as a reader sees it."""
    return " ".join(sentence.striptags() for sentence in headline(result))


def page_words(result: AuditResult) -> str:
    """The words of the page, drawn without its figures."""
    with mock.patch.object(page, "_figures", return_value={}):
        return str(Markup(page.render(result)).striptags())


def bars(axes: Axes) -> list[Rectangle]:
    return [bar for bar in axes.patches if isinstance(bar, Rectangle) and np.isfinite(bar.get_height())]


def whiskers(axes: Axes) -> list[tuple[float, float]]:
    """Lower and upper end of every vertical whisker."""
    collections = [each for each in axes.collections if isinstance(each, LineCollection)]
    lines = [line for each in collections for line in each.get_segments()]
    return [(float(line[0][1]), float(line[1][1])) for line in lines if line[0][0] == line[1][0]]


def texts(axes: Axes) -> str:
    words = [
        axes.get_title(loc="left"),
        axes.get_title(loc="right"),
        *(text.get_text() for text in axes.texts),
    ]
    legend = axes.get_legend()
    return "\n".join([*words, *([] if legend is None else [text.get_text() for text in legend.get_texts()])])
