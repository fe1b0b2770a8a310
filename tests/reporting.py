"""Results to make pages of, from answers that are simulated and read as an audit reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle

from blindcal.estimate.findings import NOTHING, AnswerPart, Findings
from blindcal.estimate.margins import AnswerMargins
from blindcal.estimate.problem import NoisePosterior
from blindcal.estimate.truth import binned_ece
from blindcal.evidence import Evidence, estimate
from blindcal.methods import estimator_of, make_design, method_of
from blindcal.probing.findings import Finding, Probe
from blindcal.records import INVALID, FloatArray, IntArray, Message, Targets, Token
from blindcal.report.sentences import Number, Numbers, Sentence
from blindcal.results.result import AnswerCounts, AuditResult, Example, Oracle, Spend
from blindcal.results.run import Run
from blindcal.simulation.simulate import ask
from results import around

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
) -> Evidence:
    """What a model with these probabilities answers to a method's whole design; some answers are invalid."""
    each = method_of(method).queries if queries is None else queries
    design = make_design(method, labels, queries=each, seed=seed)
    answers = ask(design, p, seed=seed, logprobs=method_of(method).logprobs)
    wrong = np.random.default_rng(5).random(len(answers)) < invalid
    answers = replace(answers, answers=np.where(wrong, INVALID, answers.answers))
    return Evidence(method, design, labels, answers, parts=parts, resamples=100)


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
    known = evidence(method, labels, p, invalid=invalid, parts=parts)
    found = estimate(known)
    counts = np.bincount(known.answers.answers + 1, minlength=3)
    true = binned_ece(labels, p, 5)
    ece = found.ece
    oracle = Oracle(
        path="scores.csv",
        column="p",
        ece=float(true.ece),
        difference=None if ece.value is None else ece.value - float(true.ece),
        inside_interval=float(true.ece) in ece if ece.has_interval else None,
        gaps=tuple(true.gaps.tolist()),
    )
    result = AuditResult(
        **{field.name: getattr(found, field.name) for field in fields(Findings)},
        blindcal="0.1.0",
        created="2026-11-15T08:00:00+00:00",
        complete=True,
        stopped=None,
        items="boolq.jsonl",
        model="org/model-7b-instruct",
        method=method,
        estimator=estimator_of(method),
        measures="a probability",
        semantics=method_of(method).semantics("pair"),
        level=0.95,
        by=None if parts is None else "topic",
        invalid_reasons={},
        counts=AnswerCounts(
            items=labels.size,
            positive_labels=int(labels.sum()),
            positive=int(counts[2]),
            negative=int(counts[1]),
            invalid=int(counts[0]),
            unanswered=0,
        ),
        spend=Spend(
            queries=labels.size + 83,
            probe_queries=83,
            attempts=labels.size + 85,
            prompt_tokens=412345,
            completion_tokens=labels.size + 83,
            cached_tokens=1200,
            cost=0.0621,
        ),
        seconds=131.7,
        targets=Targets((Token(9642, "Yes"),), (Token(2822, "No"),)),
        example=Example(
            messages=(
                Message("system", "You answer with one word."),
                Message("user", "Passage: Rain fell.\nQuestion: was it dry?\nAnswer Yes or No."),
            ),
            left_out=0,
            logit_bias={"9642": 48.317, "2822": 50.0},
            threshold=0.8433,
            temperature=0.0,
        ),
        probe=PROBE,
        oracle=oracle if truth else None,
        settings={
            "model": "org/model-7b-instruct",
            "base_url": "https://api.example/v1",
            "positive": "Yes",
            "negative": "No",
            "queries": method_of(method).queries,
            "offset": 50.0,
            "seed": 0,
            "template": "Passage: {passage}\nQuestion: {question}?\nAnswer Yes or No.",
        },
    )
    return replace(result, **changes)


def finished(folder: str, labels: IntArray, p: FloatArray, **settings: Any) -> Run:
    """A finished run of `latent`, as it would be read back from its folder."""
    result = audited(labels, p)
    nobody: tuple[None, ...] = (None,) * labels.size
    return Run(
        folder=Path(folder),
        result=result,
        settings=result.settings | settings,
        ids=tuple(f"q{k}" for k in range(labels.size)),
        labels=labels,
        group_names=nobody,
        parts=nobody,
        digests=tuple(b"%d" % k for k in range(labels.size)),
        answered=evidence("latent", labels, p).answers,
        noise=NoisePosterior(),
        max_shift=np.inf,
    )


EMOTIONS = ("sadness", "joy", "love", "anger", "fear", "surprise")


def logits_of(answers: int, n: int = 3000, seed: int = 0) -> tuple[IntArray, FloatArray]:
    """An overconfident model of questions with several answers: labels and logits; it likes the first."""
    rng = np.random.default_rng(seed)
    known = 2.5 * rng.standard_normal((n, answers))
    chance = np.exp(0.6 * known)
    chance /= chance.sum(axis=1, keepdims=True)
    labels = (rng.random((n, 1)) > np.cumsum(chance, axis=1)).sum(axis=1)
    return labels, known + 0.8 * (np.arange(answers) == 0)


def audited_answers(
    words: Sequence[str] = ("A", "B", "C", "D"), n: int = 3000, **changes: Any
) -> AuditResult:
    """The result of an audit with several answers: about the answer given, and whether it is right."""
    labels, logits = logits_of(len(words), n)
    given = logits.argmax(axis=1)
    p = 1 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)
    result = audited((labels == given).astype(np.int64), np.clip(p, 0, 1 - 1e-6))
    confusion = np.zeros((len(words), len(words)), np.int64)
    np.add.at(confusion, (labels, given), 1)
    table = tuple(tuple(row) for row in confusion.tolist())
    tokens = tuple((Token(32 + k, f" {word}"),) for k, word in enumerate(words))
    found = replace(
        result,
        answers=tuple(words),
        items="questions.jsonl",
        leaning=NOTHING,
        by_answer=tuple(_by_answer(k, labels, given, p) for k in range(len(words))),
        confusion=table,
        margins=AnswerMargins.of(table),
        counts=replace(
            result.counts,
            items=n,
            positive_labels=0,
            positive=0,
            negative=0,
            invalid=0,
            unanswered=0,
            each=tuple((2 * confusion.sum(axis=0)).tolist()),
        ),
        targets=Targets((), (), answers=tokens),
        example=Example(
            messages=(
                Message("user", "Which of these is a fruit?\nA. brick\nB. pear\nReply with the letter."),
            ),
            left_out=0,
            logit_bias={str(32 + k): 50.0 + 0.37 * k for k in range(len(words))},
            threshold=0.8433,
            temperature=0.0,
            about=1,
        ),
        settings={
            name: value for name, value in result.settings.items() if name not in ("positive", "negative")
        }
        | {"answers": list(words), "queries": 2.0, "template": None},
    )
    return replace(found, **changes)


def _by_answer(answer: int, labels: IntArray, given: IntArray, p: FloatArray) -> AnswerPart:
    mine = given == answer
    right, sure = float((labels[mine] == answer).mean()), float(p[mine].mean())
    return AnswerPart(
        answer,
        int((labels == answer).sum()),
        int(mine.sum()),
        int((labels[mine] == answer).sum()),
        ece=around(abs(sure - right)),
        accuracy=around(right),
        confidence=around(sure),
        overconfidence=around(sure - right),
        few=False,
    )


def spelled_out(result: AuditResult, sentences: Sequence[Sentence]) -> str:
    """Sentences as a reader sees them."""
    numbers = Numbers(result)
    return " ".join(
        "".join(
            numbers.show(piece.path, piece.form).striptags()
            if isinstance(piece, Number)
            else (piece if isinstance(piece, str) else piece.text)
            for piece in sentence
        )
        for sentence in sentences
    )


def bars(axes: Axes) -> list[Rectangle]:
    return [
        patch for patch in axes.patches if isinstance(patch, Rectangle) and np.isfinite(patch.get_height())
    ]


def whiskers(axes: Axes) -> list[tuple[float, float]]:
    """Lower and upper end of every vertical or horizontal whisker that is not a cap."""
    lines = [
        line for one in axes.collections if isinstance(one, LineCollection) for line in one.get_segments()
    ]
    return [(float(line[0][1]), float(line[1][1])) for line in lines if line[0][0] == line[1][0]]


def texts(axes: Axes) -> str:
    words = [axes.get_title(loc="left"), axes.get_title(loc="right"), *(one.get_text() for one in axes.texts)]
    if (legend := axes.get_legend()) is not None:
        words += [one.get_text() for one in legend.get_texts()]
    return "\n".join(words)
