"""Turn the answers of a run into the result of the audit and its files."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec
import numpy as np

from blindcal.asking.ask_design import RunOutcome
from blindcal.asking.opened_run import answers_kept
from blindcal.auditing.item_sample import members_of
from blindcal.auditing.prepare import ReadyAudit
from blindcal.auditing.steadiness_check import check_steadiness
from blindcal.endpoints.query_format import ConfidenceQuestion, QuestionFormat, VerbalAnswers
from blindcal.estimate.findings import AnswerMargins, Findings
from blindcal.evidence import Evidence, estimate, measures
from blindcal.items.question_files import Items
from blindcal.methods import METHODS
from blindcal.records import INVALID, NEGATIVE, PLAIN, POSITIVE, AnswerTable, Message
from blindcal.report.page import PAGE_FILE, write_page
from blindcal.results.result import RESULT_FILE, AnswerCounts, AuditResult, Example, ShownProbabilities, Spend
from blindcal.results.tables import ANSWERS_FILE, write_answers
from blindcal.store.run_store import Store
from blindcal.text import encodable, printable

EXAMPLE_CHARACTERS = 20_000
"""Longer messages are cut in the result's example."""
MOST_REASONS = 5
"""Reasons for unusable replies that the result names."""


def conclude(ready: ReadyAudit, outcome: RunOutcome, seconds: float, folder: Path) -> AuditResult:
    """Compute the result of a run; write it, its answers and its page into a folder."""
    result = _result(ready, outcome, seconds)
    ready.run.tell("writing the report")
    with answers_kept():
        write_answers(ready.store, folder / ANSWERS_FILE, result.answers)
        result.save(folder / RESULT_FILE)
        write_page(result, folder / PAGE_FILE)
    return result


def _result(ready: ReadyAudit, outcome: RunOutcome, seconds: float) -> AuditResult:
    settings, items, prepared, truth = ready.settings, ready.items, ready.prepared, ready.truth
    question = prepared.question(settings)
    answered, reasons = ready.store.answered(), ready.store.invalid_reasons()
    if isinstance(question, ConfidenceQuestion):
        stated = _stated(ready.store, question)
        answered, reasons = replace(answered, stated=stated.p), stated.reasons
    members = members_of(ready.stages, len(items))
    steady, noise = check_steadiness(
        ready.store,
        items.labels,
        outcome.answered,
        prepared.jitter,
        slack=ready.run.limits.concurrency,
        at_once=prepared.at_once,
    )
    ready.store.set_note("noise", msgspec.to_builtins(noise.posterior))
    evidence = Evidence(
        method=settings.design.method,
        design=ready.design,
        labels=items.labels,
        answers=answered,
        groups=items.groups,
        parts=items.parts,
        members=members,
        estimator=settings.estimation.estimator,
        bins=settings.bins,
        level=settings.estimation.level,
        noise=noise.posterior,
        resamples=settings.estimation.resamples,
        choices=items.choices,
    )
    findings = estimate(evidence)
    method = METHODS[settings.design.method]
    semantics = method.semantics(prepared.targets.semantics)
    targets = prepared.targets if method.biased and semantics == "pair" else None
    about = settings.design.method, semantics, settings.estimator_name, settings.queries
    measured = measures(*about, several=bool(items.answers))
    return AuditResult(
        **{field.name: getattr(findings, field.name) for field in fields(Findings)},
        blindcal=version("blindcal"),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        complete=outcome.stopped is None,
        stopped=None if outcome.stopped is None else printable(outcome.stopped.reason),
        items=encodable(str(items.path)),
        model=settings.endpoint.model,
        method=settings.design.method,
        estimator=settings.estimator_name,
        semantics=semantics,
        measures="; ".join(filter(None, (measured, question.about_answers))),
        level=settings.estimation.level,
        by=settings.prompt.by_field,
        invalid_reasons=reasons | _unusable_reasons(ready.store),
        counts=_counts(evidence, members.size, stopped=outcome.stopped is not None),
        spend=Spend.of(ready.store, ready.run.prices),
        seconds=round(seconds, 3),
        targets=prepared.targets,
        example=_example(items, question, answered, settings.prompt.keep_prompts),
        probe=prepared.probe,
        objection=prepared.objection,
        unverified=prepared.unverified,
        oracle=None if truth is None else truth.compare(items.labels, findings.ece, settings.bins, targets),
        settings=settings.fixed(items),
        repeated=items.repeated(members),
        steadiness=steady,
        shown=ShownProbabilities.of(ready.store.masses(), answered.bounds),
        answers=items.answers,
        margins=AnswerMargins.of(findings.confusion, grouped=items.groups is not None),
    )


def _unusable_reasons(store: Store) -> dict[str, int]:
    counts = list(store.unusable_reasons().items())
    named, others = counts[:MOST_REASONS], sum(count for _, count in counts[MOST_REASONS:])
    reasons = {text.removeprefix("(").removesuffix(")"): count for text, count in named}
    return reasons | ({"other reasons": others} if others else {})


def _stated(store: Store, question: ConfidenceQuestion) -> VerbalAnswers:
    unusable = set(store.unusable(0, sum(map(len, store.rounds()))).tolist())
    return question.stated(None if query in unusable else text for query, _, text, _ in store.texts())


def _counts(evidence: Evidence, members: int, *, stopped: bool) -> AnswerCounts:
    items, choices = evidence.items, evidence.choices
    answers = 2 if choices is None else int(choices.max())
    invalid, *each = np.bincount(evidence.answers.answers - INVALID, minlength=1 + answers).tolist()
    two = choices is None
    return AnswerCounts(
        items=items.size,
        positive_labels=int(evidence.labels[items].sum()) if two else 0,
        positive=each[POSITIVE] if two else 0,
        negative=each[NEGATIVE] if two else 0,
        invalid=invalid,
        unanswered=members - items.size if stopped else 0,
        groups=evidence.group_count(items),
        each=() if two else tuple(each),
    )


def _example(items: Items, question: QuestionFormat, answered: AnswerTable, keep_prompts: bool) -> Example:
    row = 0 if answered.about is None else int(np.argmax(answered.about != PLAIN))
    about = PLAIN if answered.about is None else int(answered.about[row])
    shift, temperature = float(answered.shifts[row]), float(answered.temperatures[row])
    biases = None if answered.biases is None else answered.biases[row]
    asked = question.request(items[int(answered.items[row])].messages, shift, temperature, row, biases)
    messages = asked.messages if keep_prompts else ()
    return Example(
        messages=tuple(Message(message.role, message.content[:EXAMPLE_CHARACTERS]) for message in messages),
        left_out=sum(max(0, len(message.content) - EXAMPLE_CHARACTERS) for message in messages),
        logit_bias={str(token): bias for token, bias in asked.logit_bias.items()},
        threshold=1 / (1 + math.exp(min(shift, 700))),
        temperature=temperature,
        about=None if about == PLAIN else about,
    )
