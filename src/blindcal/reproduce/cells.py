"""The cells of the table: what each method estimates at each budget, computed once and cached.

A method of the table is one of `blindcal.methods`, or one whose answers are read by ``latent`` instead of its
own estimator ("sampling+latent"). One run with the largest budget contains all smaller ones: its first
queries do not depend on the budget, so its first K N answers are those of a run with K queries per item.
Methods with the same design share one run.

A cell is cached under a digest of everything it depends on: the source, the method, the budget, the bins, the
seed and the version of the estimator. That version is a hash of its estimates on two small fixed problems, so
a cell is computed again if the code computes something else, but not if a comment changes.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from blindcal.atomic_write import make_folder, writing
from blindcal.design import Design, answer_design
from blindcal.errors import InputError
from blindcal.evidence import Evidence, estimate
from blindcal.methods import METHODS, estimator_of, make_design
from blindcal.query_seeds import query_seeds, uniform_draws
from blindcal.records import INVALID, AnswerTable, IntArray, Round, Semantics
from blindcal.reproduce.sources import Source, from_probabilities
from blindcal.simulation.simulate import generate

_FORMAT = 1  # format version of a cached cell


@dataclass(frozen=True, slots=True)
class TableMethod:
    """A method of the table: ``base`` chooses the queries, ``estimator`` reads the answers."""

    base: str
    estimator: str = "own"

    def budgets(self, *, several: bool = False) -> tuple[int, ...]:
        """The numbers of queries per item that have a row in the table.

        With ``several`` answers the plain answer is the first query, and methods without one have no row.
        """
        method = METHODS[self.base]
        if not several:
            return method.budgets
        if method.several is None or not method.tempered or not method.budgets:
            return ()
        return (2,) if method.budgets == (1,) else tuple(k for k in method.budgets if k > 1)

    @property
    def fitted(self) -> bool:
        """Whether a fit reads its answers."""
        return estimator_of(self.base, self.estimator) == "latent"

    @property
    def simulable(self) -> bool:
        """Whether probabilities determine its answers, unlike a confidence stated in words."""
        return METHODS[self.base].simulable

    def semantics(self, asked: Semantics) -> Semantics:
        """The semantics that its answers measure if the targets have the semantics ``asked`` (METHOD 1).

        A stated confidence is compared with the oracle of ``asked``, and an endpoint at its own setting with
        draws at T = 1.
        """
        return "sum" if METHODS[self.base].semantics(asked) in ("sum", "configured") else asked


_ORDER = (
    *("blind", "verbalized", "sampling", "extraction"),
    *("latent", "sampling+latent", "temperature", "repeated"),
)

#: Every method of the table by its name, METHOD or METHOD+ESTIMATOR, in the order of the table.
TABLE_METHODS: Mapping[str, TableMethod] = {
    name: TableMethod(*name.split("+"))
    for name in dict.fromkeys((*_ORDER, *(name for name, method in METHODS.items() if method.budgets)))
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One estimate: the ECE, its signed gaps, and the numbers of queries and of invalid answers."""

    ece: float
    gaps: tuple[float, ...]
    queries: int
    invalid: int


@dataclass(frozen=True, slots=True)
class Cell:
    """A method of the table at a budget, with one seed."""

    method: str
    queries: int
    seed: int
    bins: int

    @property
    def base(self) -> str:
        """The method whose design chooses the queries."""
        return TABLE_METHODS[self.method].base


@dataclass(frozen=True)
class Cache:
    """Cells on disk, one file each, written atomically; copying merges two caches."""

    folder: Path

    def key(self, source: Source, cell: Cell) -> str:
        """A digest of everything that the cell depends on."""
        what = {"format": _FORMAT, "source": source.digest, **asdict(cell), "version": version(cell.method)}
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:40]

    def get(self, key: str) -> Measured | None:
        """A cached cell; ``None`` if it is missing or broken."""
        try:
            kept = json.loads(self._path(key).read_text(encoding="utf-8"))
            return Measured(kept["ece"], tuple(kept["gaps"]), kept["queries"], kept["invalid"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def put(self, key: str, found: Measured) -> None:
        """Cache a cell."""
        path = self._path(key)
        make_folder(path.parent)
        with writing(path):
            with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
                file.write(json.dumps(asdict(found)).encode())
            Path(file.name).replace(path)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


@lru_cache
def version(method: str) -> str:
    """The version of an estimator: a hash of what it computes on two small problems, to six digits."""
    chosen = TABLE_METHODS[method]
    if not chosen.simulable:
        return "1"
    said = []
    for n, queries in ((300, chosen.budgets()[0]), (2000, min(3, chosen.budgets()[-1]))):
        source = from_probabilities("version", str(n), *generate(n, seed=n))
        cell = Cell(method, queries, 1, 5)
        said += [f"{gap:.5e}" for gap in measure(source, [cell])[cell].gaps]
    return hashlib.sha256(",".join(said).encode()).hexdigest()[:16]


def measure(source: Source, cells: Sequence[Cell]) -> dict[Cell, Measured]:
    """Estimate cells that share a run (`by_run`); the source is asked once, with their largest budget."""
    first, most = cells[0], max(cell.queries for cell in cells)
    labels, answers = source.labels, None
    if not METHODS[first.base].simulable:
        assert source.stated is not None
        labels, answers = source.stated.labels, source.stated.answers
    design = make_design(
        first.base, labels, queries=most, bins=first.bins, seed=first.seed, choices=source.choices
    )
    if answers is None:
        answers = ask(design, source, first.base, first.seed)
    return {cell: read(cell, design, labels, answers, choices=source.choices) for cell in cells}


def ask(design: Design, source: Source, base: str, seed: int) -> AnswerTable:
    """All answers of a run, as a replay of the source would give them over HTTP."""
    biased = METHODS[base].biased

    def answer(asked: Round, first: int) -> IntArray:
        draws = uniform_draws(query_seeds(seed, first, len(asked)))
        return source.recording.answers(asked, source.targets, draws, biased=biased)

    return answer_design(design, answer)


def read(
    cell: Cell,
    design: Design,
    labels: IntArray,
    answers: AnswerTable,
    *,
    jitter: float = 0.0,
    choices: IntArray | None = None,
) -> Measured:
    """The estimate of a cell from the first answers of a run, ``cell.queries`` per item.

    ``jitter`` is the endpoint's noise on the log-odds, as the probe found it.
    """
    method, used = TABLE_METHODS[cell.method], answers.rows(slice(cell.queries * labels.size))
    evidence = Evidence(
        method.base,
        design,
        labels,
        used,
        estimator=method.estimator,
        bins=cell.bins,
        jitter=jitter,
        resamples=0,
        choices=choices,
    )
    found = estimate(evidence, brief=True)
    gaps = tuple(float(one.gap) for one in found.bins)
    return Measured(float(found.ece), gaps, len(used), int((used.answers == INVALID).sum()))


@dataclass(frozen=True, slots=True)
class CellSelection:
    """Which cells a table needs.

    ``plain_seeds`` are additional seeds for methods without a fit, which are cheap and vary most.
    """

    methods: tuple[str, ...] = tuple(TABLE_METHODS)
    budgets: tuple[int, ...] = tuple(range(1, 9))
    seeds: tuple[int, ...] = tuple(range(20))
    bins: int = 5
    plain_seeds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        unknown = [name for name in self.methods if name not in TABLE_METHODS]
        if unknown:
            raise InputError(f"methods: must be among {', '.join(TABLE_METHODS)}, got {unknown[0]!r}")

    def cells(self, *, stated: bool, several: bool = False) -> Iterator[Cell]:
        """All cells; ``verbalized`` has one, and only if confidences were ``stated``.

        ``several`` says that there are more than two answers.
        """
        for name in self.methods:
            method = TABLE_METHODS[name]
            if not method.simulable:
                if stated:
                    yield Cell(name, 1, 0, self.bins)
                continue
            more = () if method.fitted else self.plain_seeds
            for queries in method.budgets(several=several):
                if queries in self.budgets:
                    yield from (Cell(name, queries, s, self.bins) for s in dict.fromkeys(self.seeds + more))


def by_run(cells: Iterable[Cell]) -> list[tuple[Cell, ...]]:
    """Group the cells that share a run: those with the same design and seed."""
    found: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.base, cell.seed), []).append(cell)
    return [tuple(run) for run in found.values()]


@dataclass(frozen=True, slots=True)
class _Task:
    """Cells that share a run, with their cache keys; ``place`` is the index of their source."""

    place: int
    source: Source
    keys: dict[Cell, str]


Found = dict[Cell, Measured]


def compute(
    work: Sequence[tuple[Source, CellSelection]],
    cache: Cache,
    *,
    jobs: int = 1,
    progress: Callable[[int, int], object] | None = None,
) -> list[Found]:
    """The cells of each source, from the cache if they are there; the others are computed and cached.

    ``jobs`` processes share the work; ``progress`` gets the number of finished cells and of all cells. It can
    be interrupted at any time, and the same call continues.
    """
    found: list[Found] = [{} for _ in work]
    tasks = []
    for place, (source, wanted) in enumerate(work):
        cells = wanted.cells(stated=source.stated is not None, several=source.choices is not None)
        keys = {cell: cache.key(source, cell) for cell in cells}
        for cell, key in keys.items():
            if (kept := cache.get(key)) is not None:
                found[place][cell] = kept
        missing = by_run(cell for cell in keys if cell not in found[place])
        tasks += [_Task(place, source, {cell: keys[cell] for cell in run}) for run in missing]
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
    # Not forked: forked workers would keep each other's pipes open and outlive this process.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), context, _follow_parent)
    try:
        running = {pool.submit(_work, task, cache): task for task in tasks}
        for future in as_completed(running):
            yield running[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _work(task: _Task, cache: Cache) -> Found:
    found = measure(task.source, tuple(task.keys))
    for cell, value in found.items():
        cache.put(task.keys[cell], value)
    return found


def _follow_parent() -> None:
    """End this worker when its parent ends for any reason; Ctrl-C is left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
