"""Watch finished audits instead of a stream: their answers count, and nothing is asked.

The alarms rely on thresholds that are spread evenly over (0, 1), whatever was answered before. In an audit by
``latent`` these are the queries of the first round: a quarter of the items. The other answers do not
serve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import expit

from blindcal.auditing.watch_looks import Watch
from blindcal.auditing.watch_reference import WatchReference, open_reference
from blindcal.design import make_round
from blindcal.errors import ConfigError, StoreError
from blindcal.records import Arrival, FloatArray, Item, Position
from blindcal.results.certificate import prompt_digest
from blindcal.results.run import Run
from blindcal.results.watch_result import WatchResult
from blindcal.store.run_store import RUN_FILE, UNASKED, SavedAnswer, Store
from blindcal.store.watch_store import Look, WatchStore
from blindcal.text import printable

_RUNS = "runs"


@dataclass(frozen=True, slots=True)
class ServingAnswer:
    """An answer of a run at an evenly spread threshold."""

    arrival: Arrival
    shift: float
    answer: int
    text: str


@dataclass(frozen=True, slots=True)
class ServingRun:
    """The answers of a finished audit that serve, of ``answers`` in all."""

    folder: Path
    digest: str
    serving: list[ServingAnswer]
    answers: int


def open_serving(
    path: str | Path, reference: WatchReference, by_field: str | None, *, force: bool
) -> ServingRun:
    """Read the answers of a run that serve; an error says why none does."""
    found = open_reference(path, force=True)  # what is wrong with it is what a watch is to see
    run = found.run
    if found.digest == reference.digest:
        raise ConfigError(
            f"{run.folder}: is the reference itself, and changes nothing against it",
            remedy="name later audits with {from_runs}",
            options={"from_runs": ...},
        )
    if not force and _asked_as(found) != _asked_as(reference):
        raise ConfigError(
            f"{run.folder}: asks another model, or in other words, than the reference {reference.run.folder}",
            remedy="name audits of the same model and prompt; or {force} goes on",
            options={"force": True},
        )
    if by_field is not None and run.result.by != by_field:
        raise ConfigError(
            f"{run.folder}: is not broken down by {printable(by_field, 40)}",
            remedy="run its audit again with {by_field}, which asks nothing",
            options={"by_field": by_field},
        )
    if run.result.method != "latent":
        raise ConfigError(
            f"{run.folder}: a run of method {run.result.method} has no answers at thresholds that are spread "
            "evenly, on which all alarms rely",
            remedy="audit with {method}",
            options={"method": "latent"},
        )
    return ServingRun(run.folder, found.digest, _first_round(run), len(run.answered))


def _asked_as(found: WatchReference) -> tuple[str, str]:
    return found.settings.endpoint.model, prompt_digest(found.run.settings, found.run.result.targets)


def _first_round(run: Run) -> list[ServingAnswer]:
    """The answers of the first round, in the order of the items."""
    with Store.read(run.folder / RUN_FILE) as store:
        asked = store.rounds()[0]
        answers = store.answers(0, len(asked))
        texts = {query: text for query, _, text, _ in store.texts(0, len(asked))}
    found = []
    for query in np.argsort(asked.items, kind="stable").tolist():
        item, answer = int(asked.items[query]), int(answers[query])
        if answer != UNASKED:
            name, label = run.ids[item], int(run.labels[item])
            about = Item(name, label, (), part=run.parts[item])
            arrival = Arrival(name, about, run.digests[item], label)
            found.append(ServingAnswer(arrival, float(asked.shifts[query]), answer, texts[query]))
    return found


def thresholds_of(store: WatchStore) -> Callable[[int, list[str]], FloatArray]:
    """The thresholds of items as they were asked in the runs."""

    def found(first: int, ids: list[str]) -> FloatArray:
        shifts = np.concatenate([np.empty(0), *(one.shifts for one in store.rounds())])
        return np.asarray(expit(-shifts[first : first + len(ids)]))

    return found


async def look_at_runs(
    watching: Watch, runs: Sequence[ServingRun], on_look: Callable[[WatchResult], None]
) -> WatchResult:
    """Look at runs, one after the other; those that were looked at before count once."""
    store = watching.store
    pending = watching.replay()
    known = {one.arrival.id: one for run in reversed(runs) for one in run.serving}
    result = None
    if pending is not None:
        result = await _look(watching, pending, known, more=True)
    for number, run in enumerate(runs):
        if run.digest in store.positions(_RUNS):
            continue
        watching.tell(
            f"{run.folder}: {len(run.serving):,} of {run.answers:,} answers serve, those of the first round, "
            "whose thresholds are spread evenly"
        )
        look = watching.begin_look(
            [one.arrival for one in run.serving], {_RUNS: {run.digest: Position(1)}}, all_chosen=True
        )
        result = await _look(watching, look, known, more=number + 1 < len(runs))
        on_look(result)
    if result is None:
        last = store.last_look()
        assert last is not None, "there is at least one run"
        result = watching.result(last, None, window=True)
        on_look(result)
    return result


async def _look(watching: Watch, look: Look, known: dict[str, ServingAnswer], *, more: bool) -> WatchResult:
    """Copy the answers of a look's items from their runs, and look."""
    store, first = watching.store, watching.feed.answered
    ids = [name for name, _ in store.names_between(first, look.items)]
    if any(name not in known for name in ids):
        raise StoreError(
            f"{store.path}: was interrupted while it took answers of a run that is not named now",
            remedy="name the same runs again",
        )
    if store.asked_items() < look.items:
        shifts = np.array([known[name].shift for name in ids])
        store.add_round(make_round(np.arange(first, look.items), shifts))
    left = first + np.flatnonzero(store.answers(first, len(ids)) == UNASKED)
    taken = [(int(query), known[ids[query - first]]) for query in left]
    if taken:
        await store.save(*(SavedAnswer(query, one.answer, one.text, 0, 0, 0, 0, 0.0) for query, one in taken))
    return watching.conclude(look, None, more)
