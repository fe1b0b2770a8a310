"""Cells from an endpoint: each method is one audit to its largest budget, in a run folder of its own.

The folder is what is kept: a finished run is read back without asking or waiting for anybody, an interrupted
one is taken up again, and nothing is paid for twice. Smaller budgets are the beginning of the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from blindcal import design
from blindcal.auditing.audit import audit
from blindcal.auditing.job import Limits, Progress
from blindcal.errors import ConfigError, EndpointError, InputError, StoreError, UnfitError
from blindcal.items import catalogue
from blindcal.items.files import Items
from blindcal.records import INVALID
from blindcal.reproduce.cells import WAYS, Cell, CellSelection, Found, Measured, read
from blindcal.reproduce.sources import Source
from blindcal.reproduce.table import Column, known
from blindcal.results.result import RESULT_FILE
from blindcal.results.run import Run, open_run
from blindcal.settings import Settings
from blindcal.text import printable

_RESAMPLES = 20  # the table needs no intervals: as few refits as an audit takes


@dataclass(frozen=True, slots=True)
class EndpointRun:
    """One audit: the method, how far it goes, and with which seed."""

    method: str
    queries: int
    seed: int
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.method}-{self.queries}-seed{self.seed}"


def runs(wanted: CellSelection) -> Iterator[EndpointRun]:
    """The audits that hold every wanted cell, of methods that an endpoint can be asked by."""
    for seed in wanted.seeds:
        by_method: dict[str, list[Cell]] = {}
        for way in wanted.ways:
            if WAYS[way].method == "verbalized" and seed != wanted.seeds[0]:
                continue  # nothing in it depends on the seed
            for queries in WAYS[way].budgets:
                if queries in wanted.budgets:
                    mine = 0 if WAYS[way].method == "verbalized" else seed
                    cell = Cell(way, queries, mine, wanted.bins)
                    by_method.setdefault(WAYS[way].method, []).append(cell)
        for method, cells in by_method.items():
            yield EndpointRun(method, max(cell.queries for cell in cells), seed, tuple(cells))


def planned(wanted: CellSelection, n: int) -> int:
    """How many queries all that takes, without the probes."""
    share = {"blind": 1 - 1 / wanted.bins}
    return round(sum(share.get(run.method, run.queries) * n for run in runs(wanted)))


def measure(
    items: Path | str,
    settings: Settings,
    wanted: CellSelection,
    folder: Path,
    *,
    data: str,
    oracle: Source | None = None,
    limits: Limits | None = None,
    progress: Callable[[Progress], None] | None = None,
    stage: Callable[[str], None] | None = None,
) -> tuple[Column, list[str]]:
    """The column of a model behind an endpoint, and notes on what could not be measured.

    ``settings`` say who is asked and how; method, budget and seed are filled in. ``oracle`` are the
    model's known probabilities on the same items, if there are any.

    Raises
    ------
    UnfitError
        If not a single method can be used.
    """
    found: Found = {}
    notes: list[str] = []
    with catalogue.open_items(items, settings.reading, data_dir=settings.data_dir) as opened:
        labels = opened.labels
        if oracle is not None:
            _check_same(oracle, opened)
        for one in runs(wanted):
            chosen = replace(
                settings,
                method=one.method,
                queries=None if one.method == "blind" else float(one.queries),
                seed=one.seed,
                bins=wanted.bins,
                resamples=_RESAMPLES,
            )
            try:
                done = _finished(items, chosen, opened, folder / one.name, limits, progress, stage)
            except EndpointError as error:
                # A wrong key or address is everybody's; what one method asks may be refused to it alone.
                if not isinstance(error, UnfitError) and one.method != "verbalized":
                    raise
                notes.append(f"{settings.model} {data}, {one.method}: {error}")
                continue
            found |= _read(done, one)
    if not found:
        raise UnfitError("; ".join(notes) or f"{settings.model} {data}: no method to measure it by")
    asked = settings.semantics
    semantics = {asked} | {WAYS[cell.way].semantics(asked) for cell in found}
    oracles = {} if oracle is None else {one: known(oracle, wanted.bins, one) for one in semantics}
    return Column(settings.model, data, int(labels.size), asked, oracles, found), notes


def _finished(
    items: Path | str,
    settings: Settings,
    opened: Items,
    folder: Path,
    limits: Limits | None,
    progress: Callable[[Progress], None] | None,
    stage: Callable[[str], None] | None,
) -> Run:
    """A whole run: read back if it is there, else asked for."""
    if (folder / RESULT_FILE).exists():
        try:
            done = open_run(folder)
        except (StoreError, InputError):
            done = None  # it went on after its result was written, or an older version wrote it
        wanted = settings.resolved(len(opened), opened.words).fixed(opened)
        if done is not None and done.result.complete and done.settings == wanted:
            return done
    result = audit(items, settings, out=folder, limits=limits, progress=progress, stage=stage)
    if not result.complete:
        raise ConfigError(
            f"{folder}: stopped early ({printable(str(result.stopped), 200)}); the same command goes on"
        )
    return open_run(folder)


def _read(done: Run, run: EndpointRun) -> Found:
    if run.method == "verbalized":
        gaps = tuple(float("nan") if one.gap.value is None else one.gap.value for one in done.result.bins)
        value = done.result.ece.value
        counts = done.result.counts
        if value is None:
            return {}
        return {cell: Measured(value, gaps, len(done.answered), counts.invalid) for cell in run.cells}
    queries = 1 if run.method == "blind" else run.queries
    bins = run.cells[0].bins
    plan = design.make(run.method, done.labels, queries=queries, bins=bins, seed=run.seed)
    if not (done.answered.answers != INVALID).any():
        return {}
    return {
        cell: read(WAYS[cell.way], plan, done.labels, done.answered, cell.queries, bins, done.jitter)
        for cell in run.cells
    }


def _check_same(oracle: Source, items: Items) -> None:
    known = dict(zip(oracle.recording.ids, oracle.labels.tolist(), strict=True))
    for item in items:
        if known.get(item.id) != item.label:
            raise InputError(
                f"{oracle.name}: item {printable(item.id, 60)!r} with label {item.label} is not in the file "
                "of known probabilities: were they recorded on other questions?"
            )
    if len(known) != len(items):
        raise InputError(
            f"{oracle.name}: {len(known):,} items have known probabilities, {len(items):,} are asked"
        )
