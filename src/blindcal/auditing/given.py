"""Audit the confidences that a file or arrays give: nothing is asked, so no endpoint is needed."""

from __future__ import annotations

import contextlib
import gc
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from blindcal.asking.given_answers import answer_from_file
from blindcal.asking.run_context import RunContext
from blindcal.atomic_write import make_folder
from blindcal.auditing.conclude import conclude
from blindcal.auditing.prepare import ReadyAudit, begun, designed_rounds, words_as_targets
from blindcal.auditing.prepared import Prepared, Session
from blindcal.errors import InputError, errors_at
from blindcal.estimate.checks import ArrayLike
from blindcal.estimate.verdicts import judge
from blindcal.items.exports import exported_records
from blindcal.items.question_files import Items
from blindcal.items.record_files import Record, as_numbered, numbered_records
from blindcal.items.verdicts import labelled_only, read_judged
from blindcal.report.page import PAGE_FILE, write_page
from blindcal.results.judge_result import JudgeResult
from blindcal.results.result import RESULT_FILE, AuditResult
from blindcal.settings import Settings
from blindcal.store.run_store import RUN_FILE, Store
from blindcal.text import encodable


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector, which would go through all records again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_uncollected()
def audit_given(
    path: Path,
    settings: Settings,
    folder: Path,
    run: RunContext,
    records: list[Record] | None = None,
) -> AuditResult:
    """Audit the confidences in a file, or in ``records`` that stand for one."""
    run.tell("reading items")
    exported = exported_records(path) if records is None else None
    if exported is not None:
        records = [record for record in exported if settings.prompt.is_complete(record)]
        if left_out := len(exported) - len(records):
            run.tell(f"{left_out:,} of {len(exported):,} records have no label or no confidence: left out")
    judged = None if settings.prompt.verdict_field is None else audit_verdicts(path, settings).judge
    found = numbered_records(path) if records is None else as_numbered(records)
    rows = list(found if judged is None else labelled_only(found, settings.prompt))
    with errors_at(path):
        reading = settings.prompt.surveyed(rows)
    items = Items(path, reading, rows)
    del rows, exported, records
    settings = settings.replace(prompt=reading)
    with Store.open(folder / RUN_FILE) as store:
        session = begun(Session(items, settings, store, run))
        prepared = Prepared(
            targets=words_as_targets(session.settings), max_shift=settings.design.limit, method="given"
        )
        store.set_note("ready", msgspec.to_builtins(prepared))
        design, stages, planned = designed_rounds(session)
        ready = ReadyAudit(**vars(session), prepared=prepared, design=design, stages=stages, planned=planned)
        outcome = answer_from_file(design, items, store)
        run.tell("estimating")
        return conclude(ready, outcome, 0.0, folder, judged)


def audit_verdicts(path: Path, settings: Settings, folder: Path | None = None) -> JudgeResult:
    """Audit the verdicts in a file; write the result and its page into a ``folder``, if given."""
    reading, exported = settings.prompt, exported_records(path)
    records = numbered_records(path) if exported is None else as_numbered(exported)
    items = read_judged(records, reading, str(path))
    found = judge(items.verdicts, items.labels, items.groups, items.strata, level=settings.estimation.level)
    result = JudgeResult(
        blindcal=version("blindcal"),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        items=encodable(str(path)),
        verdict_field=reading.verdict_field or "",
        strata_field=reading.strata_field,
        unjudged=items.unjudged,
        judge=found,
    )
    if folder is not None:
        make_folder(folder)
        result.save(folder / RESULT_FILE)
        write_page(result, folder / PAGE_FILE)
    return result


def calibration(
    labels: ArrayLike,
    confidences: ArrayLike,
    *,
    answers: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    out: str | Path | None = None,
    **settings: Any,
) -> AuditResult:
    """Audit labels and confidences in arrays.

    Parameters
    ----------
    labels : array_like, shape (n,)
        0 or 1, words such as yes and no, or the right answers.
    confidences : array_like, shape (n,) or (n, answers)
        The probability of the positive answer, or of each answer; percentages are understood.
    answers : array_like, optional
        The answers given, if the confidences are those in them.
    groups : array_like, optional
        The group of each item; intervals then resample groups.
    out : path, optional
        Folder for the run, its result and its page; by default nothing is kept.
    **settings : optional
        Options of `Settings`, such as ``bins`` or ``level``.

    Examples
    --------
    >>> import numpy as np
    >>> p = np.random.default_rng(0).uniform(size=500)
    >>> result = calibration((p**2 > 0.3).astype(int), p, resamples=100)
    >>> result.method, result.direction
    ('given', 'underconfident')
    """
    shown = np.asarray(confidences)
    columns: dict[str, list[Any]] = {
        "label": np.asarray(labels).tolist(),
        "confidence": shown.tolist()
        if shown.ndim < 2
        else [dict(zip(map(str, range(shown.shape[1])), row, strict=True)) for row in shown.tolist()],
    }
    if answers is not None:
        columns["answer"] = np.asarray(answers).tolist()
        settings["answer_field"] = "answer"
    if groups is not None:
        columns["group"] = np.asarray(groups).tolist()
    sizes = {name: len(column) for name, column in columns.items()}
    if len(set(sizes.values())) > 1:
        counts = ", ".join(f"{size:,} {name}s" for name, size in sizes.items())
        raise InputError(f"confidences: must have one row per label, and there are {counts}")
    records = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    chosen = Settings(confidence_field="confidence", **settings)
    with tempfile.TemporaryDirectory() as folder:
        return audit_given(Path("arrays"), chosen, Path(out or folder), RunContext.of(), records)
