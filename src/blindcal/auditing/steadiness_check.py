"""How steady an endpoint was during a run: its noise, its drift and the models it named."""

from __future__ import annotations

import numpy as np

from blindcal.asking.controls import ControlAnswer, bias_lost, stored_controls
from blindcal.asking.job import asking_order, request_numbers
from blindcal.estimate.noise import ControlCounts, NoiseEstimate, drift_test, estimate_noise, forced_noise
from blindcal.records import INVALID, PLAIN, AnswerTable, IntArray, Round
from blindcal.report.sentences import with_sentences
from blindcal.results.result import ServerName, Steadiness
from blindcal.store.run_store import UNASKED, AnswerArray, Store


def check_steadiness(
    store: Store, labels: IntArray, answered: AnswerTable, jitter: float, *, slack: int, at_once: int = 1
) -> tuple[Steadiness, NoiseEstimate]:
    """The steadiness of an endpoint, and the noise of its answers.

    ``jitter`` is the noise in the probe; at most ``slack`` queries were under way, ``at_once`` per request.
    """
    controls, rounds = stored_controls(store), store.rounds()
    answers, places = store.answers(0, sum(map(len, rounds))), _places(rounds, at_once)
    counts, repeats = _control_counts(controls, rounds, answers)
    noise = (
        estimate_noise(labels, answered, repeats, counts, jitter)
        if answered.biases is None
        else forced_noise(counts, jitter)
    )
    lost = bias_lost(controls)
    begun = None if lost is None else controls[lost].after + 1
    steadiness = Steadiness(
        queries=places.size,
        controls=counts,
        flip_rate=noise.flip_rate,
        jitter=noise.jitter,
        drift=drift_test(*_in_order(labels, rounds, answers, at_once)),
        bias_lost=begun,
        served=_served(store, places),
    )
    return with_sentences(steadiness, slack), noise


def count_controls(store: Store) -> tuple[ControlCounts, tuple[ServerName, ...]]:
    """The counts of a run's control queries so far, and the models that its replies name."""
    rounds = store.rounds()
    answers = store.answers(0, sum(map(len, rounds)))
    return _control_counts(stored_controls(store), rounds, answers)[0], _served(store, _places(rounds, 1))


def _places(rounds: list[Round], at_once: int) -> IntArray:
    places, first = [np.empty(0, np.int64)], 0
    for asked in rounds:
        place = np.empty(len(asked), np.int64)
        place[asking_order(first, asked, at_once)] = np.arange(len(asked))
        places.append(first + 1 + place)
        first += len(asked)
    return np.concatenate(places)


def _in_order(
    labels: IntArray, rounds: list[Round], answers: AnswerArray, at_once: int
) -> tuple[IntArray, list[AnswerTable], list[IntArray]]:
    tables, requests, first = [], [], 0
    for asked in rounds:
        order, own = asking_order(first, asked, at_once), answers[first : first + len(asked)]
        order = order[own[order] != UNASKED]
        table = AnswerTable(
            asked.items, asked.shifts, asked.temperatures, own.astype(np.int64), about=asked.about
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
        tables.append(AnswerTable(items, table.shifts, table.temperatures, same))
        first += len(table)
    return np.concatenate(right), tables


def _control_counts(
    controls: list[ControlAnswer], rounds: list[Round], answers: AnswerArray
) -> tuple[ControlCounts, AnswerTable]:
    forced = [control for control in controls if control.forced]
    again = [control for control in controls if control.control.forces is None and control.answer != INVALID]
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
