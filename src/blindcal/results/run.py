"""A finished run read back: what it found, what it asked, and the fit behind its figures.

Nothing is held: the run file is read once and let go, so that another process may go on with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blindcal.errors import InputError, NotIdentifiedError, StoreError
from blindcal.estimate.latent import LatentFit, latent
from blindcal.methods import FITTED
from blindcal.records import AnswerTable, IntArray, Round
from blindcal.results.result import RESULT_FILE, AuditResult
from blindcal.store.run_store import RUN_FILE, UNASKED, Store

DEFAULT_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Run:
    """A run: its result, its items in columns, and every answer.

    ``groups`` are numbered in order of appearance (``group_names`` are their names), an item without one
    being a group of its own, and ``None`` if no item has one. ``parts`` are the values of the field that the
    result is broken down by. ``digests`` identify the prompts, kept or not. ``jitter`` is the endpoint's own
    noise on the log-odds and ``max_shift`` the largest shift it takes, as its probe found them.
    """

    folder: Path
    result: AuditResult
    settings: dict[str, Any]
    ids: tuple[str, ...]
    labels: IntArray
    groups: IntArray | None
    group_names: tuple[str | None, ...]
    parts: tuple[str | None, ...]
    digests: tuple[bytes, ...]
    answered: AnswerTable
    jitter: float
    max_shift: float

    def fit(self, resamples: int | None = None) -> LatentFit:
        """The fit whose figures the result holds; ``resamples`` (1,000) refits stand behind its intervals.

        Raises
        ------
        NotIdentifiedError
            If the run's method has no fit.
        """
        if self.result.estimator != "latent":
            anew = "" if self.result.estimator == "stated" else ", or --estimator latent (asks nothing more)"
            raise NotIdentifiedError(
                f"{self.folder}: a run of method {self.result.method!r} has no fit, and so no curve and no "
                f"thresholds; audit with --method {' or '.join(FITTED)}{anew}"
            )
        asked = self.answered
        return latent(
            self.labels[asked.items],
            asked.shifts,
            asked.answers,
            asked.temperatures,
            asked.items,
            None if self.groups is None else self.groups[asked.items],
            jitter=self.jitter,
            resamples=DEFAULT_RESAMPLES if resamples is None else resamples,
        )


def open_run(path: str | Path) -> Run:
    """Read a run back from its folder, or from the run file or the result in it.

    Raises
    ------
    StoreError
        If there is no run, or it has gone on since its result was written.
    InputError
        If there is no result yet.
    """
    folder = _folder(Path(path))
    if not (folder / RUN_FILE).is_file() and (folder / RESULT_FILE).is_file():
        raise StoreError(
            f"{folder}: has a result but no answers, as a merged one has; name the runs that were merged"
        )
    with Store.read(folder / RUN_FILE) as store:
        result = open_result(folder)
        items, settings = store.items(), store.note("config") or {}
        ready: dict[str, Any] = store.note("ready") or {}
        answered, first = AnswerTable.empty(), 0
        for asked in store.rounds():
            answers = store.answers(first, len(asked))
            have = answers != UNASKED
            reached = Round(asked.items[have], asked.shifts[have], asked.temperatures[have])
            answered = answered.with_round(reached, answers[have].astype(np.int64))
            first += len(asked)
    told = result.counts.positive + result.counts.negative + result.counts.invalid
    if told != len(answered):
        raise StoreError(
            f"{folder}: {len(answered):,} answers, of which its result knows {told:,}: the run has gone on "
            "since; let its audit finish first"
        )
    return Run(
        folder,
        result,
        settings,
        items.ids,
        items.labels,
        numbered(items.groups),
        items.groups,
        items.parts,
        items.digests,
        answered,
        float(ready.get("jitter", 0.0)),
        float(ready.get("max_shift", np.inf)),
    )


def open_result(path: str | Path) -> AuditResult:
    """The result of a run: ``path`` is its folder, or the file itself."""
    path = Path(path)
    if path.is_dir() and (path / RUN_FILE).is_file() and not (path / RESULT_FILE).is_file():
        raise InputError(f"{path}: not finished yet; the same audit command goes on with it")
    return AuditResult.load(path / RESULT_FILE if path.is_dir() else path)


def _folder(path: Path) -> Path:
    return path.parent if path.is_file() else path


def numbered(names: tuple[str | None, ...]) -> IntArray | None:
    """Groups as numbers, in the order of their first items."""
    if all(name is None for name in names):
        return None
    seen: dict[object, int] = {}
    keys = ((place,) if name is None else name for place, name in enumerate(names))
    return np.array([seen.setdefault(key, len(seen)) for key in keys], np.int64)
