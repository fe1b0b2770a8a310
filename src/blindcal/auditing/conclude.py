"""From the answers of a run to the result of its audit."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version

import numpy as np

from blindcal import design
from blindcal.auditing import budget
from blindcal.auditing.job import Job, RunOutcome
from blindcal.auditing.prepare import Ready
from blindcal.endpoints.query_format import ConfidenceQuestion, QuestionFormat
from blindcal.items.files import Items
from blindcal.methods import measures
from blindcal.prices import total_cost
from blindcal.records import INVALID, NEGATIVE, POSITIVE, AnswerTable, IntArray, Message
from blindcal.results.figures import Estimation, figures
from blindcal.results.oracle import Truth
from blindcal.results.parts import break_down
from blindcal.results.result import SCHEMA_VERSION, AnswerCounts, AuditResult, Example, Spend
from blindcal.settings import Settings
from blindcal.text import printable

EXAMPLE_CHARACTERS = 20_000
"""A longer message is cut in the result's example."""


def conclude(
    items: Items,
    settings: Settings,
    stages: list[IntArray] | None,
    ready: Ready,
    job: Job,
    asking: design.Design,
    outcome: RunOutcome,
    truth: Truth | None,
) -> AuditResult:
    """What a job's answers say of the items that took part (``stages``), with what it took to get them."""
    store, prices = job.store, job.prices
    reasons: dict[str, int] = {}
    if isinstance(job.question, ConfidenceQuestion):
        stated = job.question.stated(text for _, _, text, _ in store.texts())
        reasons = stated.reasons
        outcome = replace(outcome, answered=replace(outcome.answered, stated=stated.p))
    assert settings.bins is not None
    assert settings.queries is not None
    answered, labels = outcome.answered, items.labels
    how = Estimation(settings.reads, asking, settings.bins, settings.level, ready.jitter, settings.resamples)
    semantics = design.METHODS[settings.method].semantics(ready.targets.semantics)
    found = figures(how, labels, items.groups, answered)
    members = np.arange(len(items)) if stages is None else np.concatenate(stages)
    named = items.parts
    parts, parts_pvalue = (
        ((), None) if named is None else break_down(how, labels, items.groups, named, answered, members)
    )
    answers = np.bincount(answered.answers + 1, minlength=3)
    paid = ready.spent + outcome.usage + outcome.beside
    return AuditResult(
        schema_version=SCHEMA_VERSION,
        blindcal=version("blindcal"),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        complete=outcome.stopped is None,
        stopped=None if outcome.stopped is None else printable(outcome.stopped),
        items=str(items.path),
        model=settings.model,
        method=settings.method,
        estimator=settings.reads,
        semantics=semantics,
        measures=measures(settings.method, semantics, settings.reads, settings.queries),
        level=settings.level,
        ece=found.ece,
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
        by=settings.by_field,
        parts=parts,
        parts_pvalue=parts_pvalue,
        ece_if_invalid=found.ece_if_invalid,
        invalid_reasons=reasons,
        counts=AnswerCounts(
            items=members.size,
            positive_labels=int(labels[members].sum()),
            positive=int(answers[POSITIVE + 1]),
            negative=int(answers[NEGATIVE + 1]),
            invalid=int(answers[INVALID + 1]),
            unanswered=members.size - np.unique(answered.items).size if outcome.stopped else 0,
        ),
        spend=Spend(
            paid.queries,
            ready.spent.queries + outcome.beside.queries,
            paid.attempts,
            paid.prompt_tokens,
            paid.completion_tokens,
            paid.cached_tokens,
            None
            if prices is None
            else total_cost(prices, ready.spent, outcome.usage + outcome.beside, settings.batch),
            len(store.batches()),
        ),
        seconds=round(store.note("seconds") or 0.0, 3),
        targets=ready.targets,
        example=_example(items, job.question, answered, settings.keep_prompts),
        probe=ready.probe,
        oracle=None
        if truth is None
        else truth.compare(labels, found.ece, settings.bins, ready.targets if semantics == "pair" else None),
        settings=settings.fixed(items),
        next_dollar=None
        if prices is None or job.limits.max_cost is None or settings.method != "latent"
        else budget.next_dollar(
            found.ece, how, labels, members.size, outcome, prices.batched if settings.batch else prices
        ),
    )


def _example(items: Items, question: QuestionFormat, answered: AnswerTable, keep_prompts: bool) -> Example:
    """The first query that was answered, as it was sent."""
    shift, temperature = float(answered.shifts[0]), float(answered.temperatures[0])
    asked = question.request(items[int(answered.items[0])].messages, shift, temperature)
    shown = [(one, one.content[:EXAMPLE_CHARACTERS]) for one in asked.messages if keep_prompts]
    return Example(
        tuple(Message(one.role, cut) for one, cut in shown),
        sum(len(one.content) - len(cut) for one, cut in shown),
        {str(token): bias for token, bias in asked.logit_bias.items()},
        1 / (1 + math.exp(min(shift, 700))),
        temperature,
    )
