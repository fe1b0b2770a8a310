"""Turn the answers of a run into the result of the audit and its files; how steady its endpoint was."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec
import numpy as np
from scipy.special import expit

from blindcal.asking.ask_design import RunOutcome
from blindcal.asking.controls import ControlAnswer, forced_in_vain, stored_controls
from blindcal.asking.job import answers_kept, asking_order, request_numbers
from blindcal.auditing.item_sample import members_of
from blindcal.auditing.prepare import ReadyAudit
from blindcal.endpoints.query_format import ConfidenceQuestion, QuestionFormat, VerbalAnswers
from blindcal.estimate.contradiction import DrawnAnswers
from blindcal.estimate.dependence import repeated_share
from blindcal.estimate.drift import anchors_moved, drift_test
from blindcal.estimate.findings import AnswerMargins, Findings
from blindcal.estimate.noise import ControlCounts, NoiseEstimate, estimate_noise, forced_noise
from blindcal.estimate.problem import NoisePosterior
from blindcal.estimate.shown import moved
from blindcal.estimate.verdicts import JudgeFindings
from blindcal.estimation import EstimationInput, estimate, measures
from blindcal.items.graded_answers import ANSWERED_BY, whose_answers
from blindcal.items.question_files import Items
from blindcal.methods import METHODS
from blindcal.records import (
    INVALID,
    NEGATIVE,
    PLAIN,
    POSITIVE,
    AnswerTable,
    FloatArray,
    IntArray,
    Message,
    Round,
)
from blindcal.report.page import PAGE_FILE, write_page
from blindcal.report.sentences import DRIFT_LEVEL, with_sentences
from blindcal.results.result import (
    RESULT_FILE,
    AnswerCounts,
    AuditResult,
    Example,
    ServerName,
    ShownProbabilities,
    Spend,
    Spread,
    Steadiness,
)
from blindcal.results.tables import ANSWERS_FILE, write_answers
from blindcal.settings import Settings
from blindcal.store.run_store import UNASKED, AnswerArray, Store
from blindcal.text import encodable, printable

EXAMPLE_CHARACTERS = 20_000
"""Longer messages are cut in the result's example."""
MOST_REASONS = 5
"""Reasons for unusable replies that the result names."""


def conclude(
    ready: ReadyAudit,
    outcome: RunOutcome,
    seconds: float,
    folder: Path,
    judge: JudgeFindings | None = None,
) -> AuditResult:
    """Compute the result of a run; write it, its answers and its page into a folder."""
    result = replace(_result(ready, outcome, seconds), judge=judge)
    ready.run.tell("writing the report")
    with answers_kept():
        write_answers(ready.store, folder / ANSWERS_FILE, result.answers)
        result.save(folder / RESULT_FILE)
        write_page(result, folder / PAGE_FILE)
    return result


def _result(ready: ReadyAudit, outcome: RunOutcome, seconds: float) -> AuditResult:
    settings, items, prepared, truth = ready.settings, ready.items, ready.prepared, ready.truth
    method = METHODS[settings.design.method]
    question = None if method.given else prepared.question(settings)
    about_answers = "" if question is None else question.about_answers
    answered, reasons = ready.store.answered(), ready.store.invalid_reasons()
    if isinstance(question, ConfidenceQuestion):
        stated = _stated(ready.store, question)
        answered, reasons = replace(answered, stated=stated.p), stated.reasons
    members = members_of(ready.stages, len(items))
    steady, noise = None, NoisePosterior()
    if not method.given:
        steady, estimated = check_steadiness(
            ready.store,
            items.labels,
            outcome.answered,
            prepared.jitter,
            slack=ready.run.limits.concurrency,
            at_once=prepared.at_once,
        )
        noise = estimated.posterior
    ready.store.set_note("noise", msgspec.to_builtins(noise))
    inputs = EstimationInput(
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
        noise=noise,
        resamples=settings.estimation.resamples,
        choices=items.choices,
    )
    findings = estimate(inputs)
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
        measures="; ".join(filter(None, (measured, about_answers, _whose(items, settings, members)))),
        level=settings.estimation.level,
        by=items.by_field,
        invalid_reasons=reasons | _unusable_reasons(ready.store),
        counts=_counts(inputs, members.size, stopped=outcome.stopped is not None),
        spend=Spend.of(ready.store, ready.run.prices),
        seconds=round(seconds, 3),
        targets=prepared.targets,
        example=None
        if question is None
        else _example(items, question, answered, settings.prompt.keep_prompts),
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


def _whose(items: Items, settings: Settings, members: IntArray) -> str:
    if not settings.prompt.self_check:
        return ""
    parts = items.parts if items.by_field == ANSWERED_BY else None
    return whose_answers(parts and [parts[item] for item in members], settings.endpoint.model)


def _counts(inputs: EstimationInput, members: int, *, stopped: bool) -> AnswerCounts:
    items, choices = inputs.items, inputs.choices
    answers = 2 if choices is None else int(choices.max())
    invalid, *each = np.bincount(inputs.answers.answers - INVALID, minlength=1 + answers).tolist()
    two = choices is None
    return AnswerCounts(
        items=items.size,
        positive_labels=int(inputs.labels[items].sum()) if two else 0,
        positive=each[POSITIVE] if two else 0,
        negative=each[NEGATIVE] if two else 0,
        invalid=invalid,
        unanswered=members - items.size if stopped else 0,
        groups=inputs.group_count(items),
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
        temperature=temperature if asked.temperature is None else asked.temperature,
        about=None if about == PLAIN else about,
    )


def check_steadiness(
    store: Store, labels: IntArray, answered: AnswerTable, jitter: float, *, slack: int, at_once: int = 1
) -> tuple[Steadiness, NoiseEstimate]:
    """The steadiness of an endpoint, and the noise of its answers.

    ``jitter`` is the noise in the probe; at most ``slack`` queries were under way, ``at_once`` per request.
    """
    controls, rounds = stored_controls(store), store.rounds()
    answers, places = store.answers(0, sum(map(len, rounds))), _places(rounds, at_once)
    odds = store.log_odds(answers.size)
    counts, repeats = _control_counts(controls, rounds, answers)
    noise = (
        estimate_noise(labels, answered, repeats, counts, jitter)
        if answered.biases is None
        else forced_noise(counts, jitter)
    )
    lost, in_order = forced_in_vain(controls), _in_order(labels, rounds, answers, at_once, odds)
    steadiness = Steadiness(
        queries=places.size,
        controls=counts,
        flip_rate=noise.flip_rate,
        jitter=noise.jitter,
        drift=drift_test(*in_order),
        moved=_moved(controls, places.size),
        repeated_share=repeated_share(in_order[1]),
        spread=_spread(observed_moves(store)),
        bias_lost=lost[0].after + 1 if lost else None,
        served=_served(store, places),
    )
    drawn = DrawnAnswers.of(store.said(), several=answered.biases is not None)
    return with_sentences(steadiness, slack, drawn), noise


def _moved(controls: list[ControlAnswer], queries: int) -> int:
    """Whether the log-odds of the anchors have risen (1) or fallen (-1) since the probe."""
    rows = [(one.after / queries, one.control.off, one.answer) for one in controls if one.control.off]
    return anchors_moved(*np.array([row for row in rows if row[2] != INVALID]).reshape(-1, 3).T)


def observed_moves(store: Store) -> FloatArray:
    """How far the probabilities differ of the questions that a run has asked twice so far."""
    rounds, twice = store.rounds(), [one for one in stored_controls(store) if one.control.again >= 0]
    size, several = sum(map(len, rounds)), any(asked.about is not None for asked in rounds)
    if (odds := store.log_odds(size)) is None:
        return np.empty(0)
    first = np.array([one.control.again for one in twice], np.int64)
    same = store.answers(0, size)[first] == [one.answer for one in twice] if several else True
    moves = moved(expit(odds[first]), expit([one.log_odds for one in twice]), same)
    return np.abs(moves[~np.isnan(moves)])


def _spread(moves: FloatArray) -> Spread | None:
    if not moves.size:
        return None
    return Spread(pairs=moves.size, deviation=float(np.sqrt((moves**2).mean() / 2)), most=float(moves.max()))


def observed_controls(store: Store) -> tuple[ControlCounts, tuple[ServerName, ...]]:
    """The counts of a run's control queries so far, and the models that its replies name."""
    rounds = store.rounds()
    answers = store.answers(0, sum(map(len, rounds)))
    return _control_counts(stored_controls(store), rounds, answers)[0], _served(store, _places(rounds, 1))


def observed_change(store: Store) -> int | None:
    """After how many queries the answers about unlabelled items changed; ``None`` if they did not."""
    rounds = store.rounds()
    answers = store.answers(0, sum(map(len, rounds)))
    unlabelled = np.zeros(1 + max((int(asked.items.max()) for asked in rounds), default=0), np.int64)
    drift = drift_test(*_in_order(unlabelled, rounds, answers, 1, store.log_odds(answers.size)))
    return None if drift is None or drift.pvalue >= DRIFT_LEVEL else drift.at


def _places(rounds: list[Round], at_once: int) -> IntArray:
    places, first = [np.empty(0, np.int64)], 0
    for asked in rounds:
        place = np.empty(len(asked), np.int64)
        place[asking_order(first, asked, at_once)] = np.arange(len(asked))
        places.append(first + 1 + place)
        first += len(asked)
    return np.concatenate(places)


def _in_order(
    labels: IntArray,
    rounds: list[Round],
    answers: AnswerArray,
    at_once: int,
    odds: FloatArray | None = None,
) -> tuple[IntArray, list[AnswerTable], list[IntArray]]:
    tables, requests, first = [], [], 0
    bounds = None if odds is None else np.column_stack([odds, odds])
    for asked in rounds:
        order, own = asking_order(first, asked, at_once), answers[first : first + len(asked)]
        order = order[own[order] != UNASKED]
        table = AnswerTable(
            asked.items,
            asked.shifts,
            asked.temperatures,
            own.astype(np.int64),
            about=asked.about,
            bounds=None if bounds is None else bounds[first : first + len(asked)],
        )
        tables.append(table.rows(order))
        requests.append(request_numbers(asked, at_once)[order])
        first += len(asked)
    if any(table.about is not None for table in tables):
        labels, tables = _as_two_answers(labels, tables)
    return labels, tables, requests


def _as_two_answers(labels: IntArray, rounds: list[AnswerTable]) -> tuple[IntArray, list[AnswerTable]]:
    """Make every query an item: is the answer the one it is about (the right one if plain), or not?"""
    right, tables, first = [np.empty(0, np.int64)], [], 0
    for table in rounds:
        label = labels[table.items]
        about = label if table.about is None else np.where(table.about == PLAIN, label, table.about)
        right.append((about == label).astype(np.int64))
        same = np.where(table.answers == INVALID, INVALID, table.answers == about).astype(np.int64)
        items = first + np.arange(len(table))
        tables.append(AnswerTable(items, table.shifts, table.temperatures, same, bounds=table.bounds))
        first += len(table)
    return np.concatenate(right), tables


def _control_counts(
    controls: list[ControlAnswer], rounds: list[Round], answers: AnswerArray
) -> tuple[ControlCounts, AnswerTable]:
    forced = [control for control in controls if control.forced]
    again = [control for control in controls if control.control.again >= 0 and control.answer != INVALID]
    again = [control for control in again if answers[control.control.again] not in (INVALID, UNASKED)]
    queries = np.array([control.control.again for control in again], np.int64)
    second = np.array([control.answer for control in again], np.int64)
    shifts = np.concatenate([np.empty(0), *(asked.shifts for asked in rounds)])
    items = np.concatenate([np.empty(0, np.int64), *(asked.items for asked in rounds)])
    repeated = AnswerTable(items[queries], shifts[queries], np.zeros(queries.size), second)
    disagreed = int((answers[queries] != second).sum())
    wrong = sum(control.wrong for control in forced)
    return ControlCounts(len(forced), wrong, len(again), disagreed), repeated


def _served(store: Store, places: IntArray) -> tuple[ServerName, ...]:
    rows, names = store.served(), []
    for number, name in enumerate(store.served_names(), 1):
        own = places[rows[rows[:, 1] == number, 0]]
        if own.size:
            names.append(
                ServerName(
                    model=name.model,
                    fingerprint=name.fingerprint,
                    answers=own.size,
                    first=int(own.min()),
                    last=int(own.max()),
                )
            )
    return tuple(sorted(names, key=lambda name: name.first))
