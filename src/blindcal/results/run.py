"""A finished run, read from disk: its result, its answers and its fit.

The run file is read once and closed, and another process can continue the run.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from blindcal.errors import InputError, NotIdentifiedError, StoreError
from blindcal.estimate.latent.excess import excess_of
from blindcal.estimate.problem import NoisePosterior, Problem
from blindcal.estimate.shown import AnswersFit, fit_answers
from blindcal.estimation import UNNAMED
from blindcal.items.question_files import items_digest, resampling_units
from blindcal.methods import METHODS
from blindcal.records import AnswerTable, Estimate, IntArray
from blindcal.results.recalibration import Recalibration
from blindcal.results.result import RESULT_FILE, AuditResult
from blindcal.results.tables import FrameLibrary, answer_table, frame
from blindcal.store.run_store import ANOTHER_COPY, RUN_FILE, Store

_TEXTS = ("id", "group", "about", "answer", "text", "part")  # columns of text, even if empty


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Run:
    """A run: its result, its items as columns, and all answers.

    ``parts`` are the values of the field of the breakdown, ``digests`` identify the prompts, even if these
    are not kept, and ``max_shift`` is the largest shift that the endpoint accepts. ``choices`` is the number
    of answers of each item; ``None`` if all have two.
    """

    folder: Path
    result: AuditResult
    settings: dict[str, Any]
    ids: tuple[str, ...]
    labels: IntArray
    group_names: tuple[str | None, ...]
    parts: tuple[str | None, ...]
    digests: tuple[bytes, ...]
    answered: AnswerTable
    noise: NoisePosterior
    max_shift: float
    choices: IntArray | None = None

    def __repr__(self) -> str:
        result, items = self.result, self.labels.size
        return f"Run({str(self.folder)!r}, {result.model!r}, {items:,} items, ECE {result.ece:.4f})"

    @property
    def digest(self) -> str:
        """A hash of the settings and all answers, which identifies the run wherever it is."""
        digest = hashlib.blake2b(msgspec.json.encode(self.settings), digest_size=16)
        answered = self.answered
        for column in (answered.items, answered.shifts, answered.answers, answered.bounds):
            digest.update(b"" if column is None else np.ascontiguousarray(column).tobytes())
        return digest.hexdigest()

    @property
    def shown(self) -> bool:
        """Whether probabilities were read that the endpoint shows."""
        return METHODS[self.result.method].shown

    @property
    def groups(self) -> IntArray | None:
        """A group number per item; items with the same prompt share one, as in `Items.groups`."""
        grouped = any(name is not None for name in self.group_names)
        keys = ((place,) if name is None else name for place, name in enumerate(self.group_names))
        names = np.array([hash(key) for key in keys], np.int64) if grouped else None
        return resampling_units(names, self.prompts)

    @property
    def prompts(self) -> IntArray:
        """A number per item, the same for the same prompt."""
        return np.array([hash(digest) for digest in self.digests], np.int64)

    @property
    def problem(self) -> Problem:
        """The estimation problem of all answers."""
        return Problem.of_answers(
            self.labels, self.answered, self.groups, choices=self.choices, noise=self.noise
        )

    @property
    def part_names(self) -> tuple[str, ...]:
        """The names of the parts that were asked about, sorted."""
        if self.result.by is None:
            raise InputError(
                f"{self.folder}: is not broken down into parts",
                remedy="run its audit again with {by_field}, which asks nothing",
                options={"by_field": ...},
            )
        named = self._part_of_each
        return tuple(sorted({named[item] for item in self.problem.items}))

    def members(self, part: str) -> IntArray:
        """The items of a part."""
        return np.flatnonzero([name == part for name in self._part_of_each])

    @property
    def _part_of_each(self) -> list[str]:
        return [UNNAMED if name is None else name for name in self.parts]

    def fit(
        self,
        *,
        part: str | None = None,
        bins: int | None = None,
        level: float | None = None,
        resamples: int = 1000,
    ) -> AnswersFit:
        """Fit the answers, of one ``part`` if given; intervals use ``resamples`` refits."""
        self.need_fit()
        problem = self.problem
        if part is not None:
            if part not in self.part_names:
                raise InputError(f"{self.folder}: has no part {part!r}")
            # the excess is that of all answers, not of the part alone
            excess = excess_of(problem, self.noise.best)
            problem = replace(problem.of(self.members(part)), excess=excess)
        bins = len(self.result.bins) if bins is None else bins
        level = self.result.level if level is None else level
        return fit_answers(problem, bins=bins, level=level, resamples=resamples)

    def recalibration_map(self, *, level: float | None = None, resamples: int = 1000) -> Recalibration:
        """The probability to show instead of each confidence."""
        return Recalibration.of_fit(self.fit(level=level, resamples=resamples), self.result.model)

    def recalibration(self, confidence: float) -> Estimate:
        """The probability to show instead of a confidence: the share of positive labels, or right answers.

        For many, ``recalibration_map()`` fits once.
        """
        return self.recalibration_map().at(confidence)

    def need_fit(self) -> None:
        """Raise `NotIdentifiedError` if the run's answers were not read by a fit."""
        if self.result.estimator == "latent":
            return
        reread = self.result.estimator != "stated"
        raise NotIdentifiedError(
            f"{self.folder}: a run of method {self.result.method!r} has no fit, and so no curve and no "
            "thresholds",
            remedy="audit again with {estimator}, which asks nothing" if reread else "audit with {method}",
            options={"estimator" if reread else "method": "latent"},
        )

    def answers(self, library: FrameLibrary | None = None) -> Any:
        """Every answer as a row of a ``DataFrame``, with the columns of answers.csv, and ``part`` if any.

        ``library`` is pandas if it is installed, else polars.
        """
        with Store.read(self.folder / RUN_FILE) as store:
            names, rows = answer_table(store, self.result.answers)
            listed = list(rows)
        columns = {name: [row[place] for row in listed] for place, name in enumerate(names)}
        if self.result.by is not None:
            columns["part"] = [self.parts[item] for item in self.answered.items]
        return frame(columns, library, texts=_TEXTS)


def open_run(path: str | Path) -> Run:
    """Read a run, given its folder, its run file or its result."""
    folder = Path(path)
    if folder.is_file():
        folder = folder.parent
    if not (folder / RUN_FILE).is_file() and (folder / RESULT_FILE).is_file():
        raise StoreError(
            f"{folder}: has a result but no answers, as a merged one has; name the runs that were merged"
        )
    with Store.read(folder / RUN_FILE) as store:
        result = open_result(folder)
        items, settings = store.items(), store.note("config") or {}
        ready: dict[str, Any] = store.note("ready") or {}
        noise = msgspec.convert(store.note("noise"), NoisePosterior)
        answered = store.answered()
    choices = [2] * len(items.ids) if items.choices is None else items.choices.tolist()
    each = zip(items.ids, items.labels.tolist(), items.groups, items.digests, choices, strict=True)
    if settings.get("items_digest") != items_digest(each):
        raise StoreError(
            f"{folder}: its labels, prompts or groups were changed after the audit", remedy=ANOTHER_COPY
        )
    if result.counts.answers != len(answered):
        raise StoreError(
            f"{folder}: {len(answered):,} answers, of which its result knows {result.counts.answers:,}: the "
            "run has gone on since; let its audit finish first"
        )
    return Run(
        folder=folder,
        result=result,
        settings=settings,
        ids=items.ids,
        labels=items.labels,
        group_names=items.groups,
        parts=items.parts,
        digests=items.digests,
        answered=answered,
        noise=noise,
        max_shift=float(ready.get("max_shift", np.inf)),
        choices=items.choices,
    )


def opened(run: Run | str | Path) -> Run:
    return run if isinstance(run, Run) else open_run(run)


def open_result(path: str | Path) -> AuditResult:
    """Read the result of a run, given its folder or the file itself."""
    path = Path(path)
    if path.is_dir() and (path / RUN_FILE).is_file() and not (path / RESULT_FILE).is_file():
        raise InputError(f"{path}: not finished yet; the same audit command goes on with it")
    return AuditResult.load(path / RESULT_FILE if path.is_dir() else path)
