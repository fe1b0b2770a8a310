"""Cells from an endpoint: each method is one audit with its largest budget, in its own run folder.

The folders are the cache: a finished run is read without any request, an interrupted one is continued, and
nothing is paid for twice. Smaller budgets are the first answers of the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from blindcal.auditing.audit import audit
from blindcal.auditing.limits import Limits
from blindcal.errors import ConfigError, EndpointError, InputError, StoreError, UnfitError
from blindcal.items import catalogue
from blindcal.items.files import Items
from blindcal.methods import METHODS, count_queries, make_design
from blindcal.records import Progress
from blindcal.reproduce.cells import Cell, CellSelection, Found, Measured, by_run, read
from blindcal.reproduce.sources import Source
from blindcal.reproduce.table import Column, oracles_of
from blindcal.results.result import RESULT_FILE
from blindcal.results.run import Run, open_run
from blindcal.settings import Settings
from blindcal.text import printable

_RESAMPLES = 20  # the table needs no intervals: as few refits as an audit allows


@dataclass(frozen=True, slots=True)
class EndpointRun:
    """One audit: its method, queries per item and seed, and the cells that it covers."""

    method: str
    queries: int
    seed: int
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.method}-{self.queries}-seed{self.seed}"


def runs(wanted: CellSelection) -> list[EndpointRun]:
    """The audits that cover all wanted cells, ordered by seed."""
    cells = (cell for cell in wanted.cells(stated=True) if cell.queries in wanted.budgets)
    found = [
        EndpointRun(run[0].base, max(cell.queries for cell in run), run[0].seed, run) for run in by_run(cells)
    ]
    return sorted(found, key=lambda run: run.seed)


def planned(wanted: CellSelection, n: int) -> int:
    """The number of queries of all these audits, without the probes."""
    return sum(count_queries(run.method, n, run.queries, wanted.bins) for run in runs(wanted))


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
) -> tuple[Column, list[EndpointError]]:
    """The column of a model behind an endpoint, and the errors of methods that could not be measured.

    ``settings`` describe the endpoint and the prompt; method, budget and seed are replaced. ``oracle`` has
    the model's known probabilities on the same items, if there are any.

    Raises
    ------
    UnfitError
        If no method can be used.
    """
    found: Found = {}
    failures: list[EndpointError] = []
    model, asked = settings.endpoint.model, settings.target_semantics
    opened = catalogue.open_items(items, settings.prompt)
    labels = opened.labels
    if oracle is not None:
        _check_same(oracle, opened)
    for one in runs(wanted):
        chosen = settings.replace(
            method=one.method,
            queries=float(one.queries),
            seed=one.seed,
            bins=wanted.bins,
            resamples=_RESAMPLES,
        )
        try:
            done = _finished(items, chosen, opened, folder / one.name, limits, progress, stage)
        except EndpointError as error:
            # A wrong key or address fails all methods; free text may be refused where one word is not.
            if not isinstance(error, UnfitError) and METHODS[one.method].simulable:
                raise
            failures.append(error.prefixed(f"{model} {data}, {one.method}: "))
            continue
        found |= _read(done, one)
    if not found:
        raise failures[0] if failures else UnfitError(f"{model} {data}: no method to measure it by")
    oracles = {} if oracle is None else oracles_of(oracle, asked, found, wanted.bins)
    return Column(model, data, int(labels.size), asked, oracles, found), failures


def _finished(
    items: Path | str,
    settings: Settings,
    opened: Items,
    folder: Path,
    limits: Limits | None,
    progress: Callable[[Progress], None] | None,
    stage: Callable[[str], None] | None,
) -> Run:
    """A finished run: read from its folder if it is there, else audited now."""
    if (folder / RESULT_FILE).exists():
        try:
            done = open_run(folder)
        except (StoreError, InputError):
            done = None  # continued after its result was written, or written by an older version
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
    """The cells of a run; those without any valid answer are left out."""
    if METHODS[run.method].simulable:
        bins = run.cells[0].bins
        design = make_design(run.method, done.labels, queries=run.queries, bins=bins, seed=run.seed)
        found = {
            cell: read(cell, design, done.labels, done.answered, jitter=done.jitter) for cell in run.cells
        }
    else:
        found = {cell: _stated(done) for cell in run.cells}
    return {cell: one for cell, one in found.items() if one.invalid < one.queries}


def _stated(done: Run) -> Measured:
    """The estimate of a verbalized run: its own result, as there is no smaller budget."""
    found = done.result
    gaps = tuple(float(one.gap) for one in found.bins)
    return Measured(float(found.ece), gaps, len(done.answered), found.counts.invalid)


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
