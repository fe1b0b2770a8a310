"""The cells of the table: what each method estimates at each budget, computed once and kept.

A *way* is a method and who reads its answers. One run of a method to its largest budget holds every
smaller one: the designs ask the same first questions whatever comes after, so the first K N answers are those
of a run with K queries an item, and two ways that ask alike share one run.

A cell is kept under a digest of all that it depends on: the source, the way, the budget, the bins, the seed
and the estimator's own version. That version is what the estimator computes on two small fixed
problems: a cell is computed again when the code computes something else, and not when a comment moves.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from blindcal import design
from blindcal.errors import InputError
from blindcal.estimate.latent import latent
from blindcal.estimate.truth import binned_ece
from blindcal.methods import blind_result, face_value
from blindcal.query_seeds import query_seeds, uniform_draws
from blindcal.records import INVALID, AnswerTable, IntArray, Semantics
from blindcal.reproduce.sources import Source, from_probabilities
from blindcal.simulation.simulate import generate

_FORMAT = 1  # of a kept cell


@dataclass(frozen=True, slots=True)
class Way:
    """A row of the table for each budget: which method asks, and which estimator reads the answers."""

    name: str
    method: str
    fitted: bool
    budgets: tuple[int, ...]

    def semantics(self, asked: Semantics) -> Semantics:
        """What its answers measure where the tokens are chosen under ``asked`` (METHOD 1)."""
        if self.method == "verbalized":  # whatever it states stands beside what was asked
            return asked
        found = design.method_of(self.method).semantics(asked)
        return "sum" if found == "sum" else asked


#: Every way by its name, in the order of the table.
WAYS: Mapping[str, Way] = {
    way.name: way
    for way in (
        Way("blind", "blind", False, (1,)),
        Way("verbalized", "verbalized", False, (1,)),
        Way("sampling", "sampling", False, tuple(range(1, 9))),
        Way("extraction", "extraction", False, tuple(range(1, 9))),
        Way("latent", "latent", True, tuple(range(1, 9))),
        Way("sampling+latent", "sampling", True, tuple(range(1, 9))),
        Way("temperature", "temperature", True, tuple(range(2, 9))),
    )
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One estimate: the ECE, its signed gaps, and what was asked for it."""

    ece: float
    gaps: tuple[float, ...]
    queries: int
    invalid: int


@dataclass(frozen=True, slots=True)
class Cell:
    """A way at a budget on a source, with one seed."""

    way: str
    queries: int
    seed: int
    bins: int


@dataclass(frozen=True)
class Cache:
    """Cells on disk: a file each, written whole or not at all, so that folders can be copied together."""

    folder: Path

    def key(self, source: Source, cell: Cell) -> str:
        """A digest of everything that the cell depends on."""
        what = {"format": _FORMAT, "source": source.digest, **asdict(cell), "version": version(cell.way)}
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:40]

    def get(self, key: str) -> Measured | None:
        """What was kept; ``None`` if nothing was, or if it is broken."""
        try:
            kept = json.loads(self._path(key).read_text())
            return Measured(kept["ece"], tuple(kept["gaps"]), kept["queries"], kept["invalid"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, key: str, found: Measured) -> None:
        """Keep a cell."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as file:
            json.dump(asdict(found), file)
        Path(file.name).replace(path)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


@lru_cache
def version(way: str) -> str:
    """What an estimator computes on two small problems, to six digits: its version."""
    chosen = WAYS[way]
    if chosen.method == "verbalized":
        return "1"
    said = []
    for n, queries in ((300, chosen.budgets[0]), (2000, min(3, chosen.budgets[-1]))):
        source = from_probabilities("version", str(n), *generate(n, seed=n))
        found = measure(source, chosen.method, 1, [Cell(way, queries, 1, 5)])
        said += [f"{gap:.5e}" for one in found.values() for gap in one.gaps]
    return hashlib.sha256(",".join(said).encode()).hexdigest()[:16]


def measure(source: Source, method: str, seed: int, cells: Sequence[Cell]) -> dict[Cell, Measured]:
    """Ask a source by a method once, as far as the largest budget needs, and read every cell from it."""
    if method == "verbalized":
        return {cell: _stated(source, cell.bins) for cell in cells}
    found = {}
    for bins in sorted({cell.bins for cell in cells}):  # blind asks other thresholds for other bins
        mine = [cell for cell in cells if cell.bins == bins]
        most = max(cell.queries for cell in mine)
        plan = design.make(method, source.labels, queries=most, bins=bins, seed=seed)
        answered = ask(plan, source, method, seed)
        for cell in mine:
            found[cell] = read(WAYS[cell.way], plan, source.labels, answered, cell.queries, bins)
    return found


def ask(plan: design.Design, source: Source, method: str, seed: int) -> AnswerTable:
    """Every answer of a run, as a replay of the source would give it over HTTP."""
    answered = AnswerTable.empty()
    while (asked := plan.next_round(answered)) is not None:
        draws = uniform_draws(query_seeds(seed, len(answered), len(asked)))
        biased = design.method_of(method).biased
        answers = source.recording.answers(asked, source.targets, draws, biased=biased)
        answered = answered.with_round(asked, answers)
    return answered


def read(
    way: Way,
    plan: design.Design,
    labels: IntArray,
    answered: AnswerTable,
    queries: int,
    bins: int,
    jitter: float = 0.0,
) -> Measured:
    """What a way makes of the first answers of a run, ``queries`` an item.

    ``jitter`` is the endpoint's own noise on the log-odds, as a probe found it.
    """
    rows = len(answered) if way.method == "blind" else min(len(answered), queries * labels.size)
    part = AnswerTable(
        answered.items[:rows], answered.shifts[:rows], answered.temperatures[:rows], answered.answers[:rows]
    )
    invalid = int((part.answers == INVALID).sum())
    if isinstance(plan, design.BlindDesign):
        gaps = blind_result(plan, labels, part).gaps
    elif way.fitted:
        asked = (labels[part.items], part.shifts, part.answers, part.temperatures, part.items)
        fit = latent(*asked, jitter=jitter)
        gaps = fit.gaps(bins)
    else:
        p = face_value(design.method_of(way.method).reads, labels.size, part)
        assert p is not None
        known = np.isfinite(p)
        gaps = binned_ece(labels[known], p[known], bins).gaps
    return Measured(float(np.abs(gaps).sum()), tuple(map(float, gaps)), rows, invalid)


def _stated(source: Source, bins: int) -> Measured:
    assert source.stated is not None
    known = np.isfinite(source.stated.p)
    if not known.any():
        return Measured(np.nan, (np.nan,) * bins, known.size, known.size)
    found = binned_ece(source.stated.labels[known], source.stated.p[known], bins)
    return Measured(found.ece, tuple(map(float, found.gaps)), known.size, int((~known).sum()))


@dataclass(frozen=True, slots=True)
class CellSelection:
    """Which cells a table needs.

    ``plain_seeds`` are more seeds for ways that fit nothing: these cost little and scatter most.
    """

    ways: tuple[str, ...] = tuple(WAYS)
    budgets: tuple[int, ...] = tuple(range(1, 9))
    seeds: tuple[int, ...] = tuple(range(20))
    bins: int = 5
    plain_seeds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        unknown = [way for way in self.ways if way not in WAYS]
        if unknown:
            raise InputError(f"methods: {unknown[0]!r} is none of {', '.join(WAYS)}")

    def cells(self, source: Source) -> Iterator[Cell]:
        """Every cell of a source; what a file cannot answer is left out."""
        for way in self.ways:
            if WAYS[way].method == "verbalized":
                if source.stated is not None:
                    yield Cell(way, 1, 0, self.bins)
                continue
            more = () if WAYS[way].fitted else self.plain_seeds
            for queries in WAYS[way].budgets:
                if queries in self.budgets:
                    yield from (Cell(way, queries, s, self.bins) for s in dict.fromkeys(self.seeds + more))


@dataclass(frozen=True, slots=True)
class _Task:
    """Cells that one run answers, and where each is kept; ``place`` is whose they are."""

    place: int
    source: Source
    method: str
    seed: int
    keys: dict[Cell, str]


Found = dict[Cell, Measured]


def compute(
    work: Sequence[tuple[Source, CellSelection]],
    cache: Cache,
    *,
    jobs: int = 1,
    progress: Callable[[int, int], object] | None = None,
) -> list[Found]:
    """The cells of each source in turn: those kept are read, the others computed and kept.

    ``jobs`` processes share the work; ``progress`` is told how many cells are there, of how many. It can be
    stopped at any moment, and the same call goes on.
    """
    found: list[Found] = [{} for _ in work]
    tasks = []
    for place, (source, wanted) in enumerate(work):
        missing: dict[tuple[str, int], dict[Cell, str]] = {}
        for cell in wanted.cells(source):
            key = cache.key(source, cell)
            kept = cache.get(key)
            if kept is None:
                missing.setdefault((WAYS[cell.way].method, cell.seed), {})[cell] = key
            else:
                found[place][cell] = kept
        tasks += [_Task(place, source, *which, keys) for which, keys in missing.items()]
    tasks.sort(key=lambda task: -task.source.n * len(task.keys))  # the longest first
    done = sum(map(len, found))
    total = done + sum(len(task.keys) for task in tasks)
    tell = progress or (lambda *_: None)
    tell(done, total)
    for task, values in _worked(tasks, cache, jobs):
        found[task.place] |= values
        done += len(values)
        tell(done, total)
    return found


def _worked(tasks: Sequence[_Task], cache: Cache, jobs: int) -> Iterator[tuple[_Task, Found]]:
    if jobs <= 1 or len(tasks) <= 1:
        for task in tasks:
            yield task, _work(task, cache)
        return
    # A fresh interpreter each: forked ones would keep each other's pipes open and outlive us.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), context, _follow_parent)
    try:
        running = {pool.submit(_work, task, cache): task for task in tasks}
        for future in as_completed(running):
            yield running[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _work(task: _Task, cache: Cache) -> Found:
    found = measure(task.source, task.method, task.seed, tuple(task.keys))
    for cell, value in found.items():
        cache.put(task.keys[cell], value)
    return found


def _follow_parent() -> None:
    """End this worker when its parent ends, however that comes about; Ctrl-C is for the parent alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
