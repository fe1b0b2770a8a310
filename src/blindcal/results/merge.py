"""Merge runs of one model on different items: one fit of all answers, one result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from blindcal.errors import InputError
from blindcal.estimate.findings import AnswerMargins, Findings
from blindcal.estimate.problem import NoisePosterior
from blindcal.estimation import EstimationInput, estimate
from blindcal.items.question_files import repeated_prompts
from blindcal.methods import FITTED, METHODS, make_design
from blindcal.records import AnswerTable
from blindcal.results.result import AnswerCounts, AuditResult, ShownProbabilities, Spend
from blindcal.results.run import Run, opened
from blindcal.text import printable

# Settings that may differ between merged runs.
_FREE = {"items", "items_digest", "seed", "queries", "base_url", "bins"}

_Totals = TypeVar("_Totals", AnswerCounts, Spend)


def merge(runs: Sequence[Run | str | Path], *, resamples: int = 1000) -> AuditResult:
    """Estimate from the answers of all runs, as if one run had asked all items.

    Groups and parts with the same name are the same in all runs.
    """
    each = [opened(run) for run in runs]
    whole = together(each)
    result = whole.result
    queries = METHODS[result.method].usual_queries(several=whole.choices is not None)
    inputs = EstimationInput(
        method=result.method,
        design=make_design(result.method, whole.labels, queries=queries, choices=whole.choices),
        labels=whole.labels,
        answers=whole.answered,
        groups=whole.groups,
        parts=whole.parts if result.by is not None else None,
        estimator="latent",
        bins=len(result.bins),
        level=result.level,
        noise=whole.noise,
        resamples=resamples,
        choices=whole.choices,
    )
    findings = estimate(inputs)
    shown = [run.result.shown for run in each if run.result.shown is not None]
    return replace(
        result,
        **{field.name: getattr(findings, field.name) for field in fields(Findings)},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        items=" + ".join(run.result.items for run in each),
        counts=replace(result.counts, groups=inputs.group_count(inputs.items)),
        spend=_total([run.result.spend for run in each]),
        seconds=sum(run.result.seconds for run in each),
        shown=ShownProbabilities.together(shown) if len(shown) == len(each) else None,
        repeated=repeated_prompts(whole.prompts, whole.labels),
        margins=AnswerMargins.of(findings.confusion, grouped=whole.groups is not None),
        oracle=None,  # each run was compared with its own oracle
        settings={**result.settings, "items": whole.labels.size, "items_digest": None},
    )


def together(runs: Sequence[Run]) -> Run:
    """Combine runs on different items into one to fit: counts of all runs, but estimates of the first."""
    _check_alike(runs)
    first, results = runs[0], [run.result for run in runs]
    stopped = next((result.stopped for result in results if result.stopped is not None), None)
    unsteady = next((result for result in results if result.warnings), results[0])
    starts = np.cumsum([0, *(run.labels.size for run in runs)])
    tables = [
        replace(run.answered, items=run.answered.items + start)
        for run, start in zip(runs, starts, strict=False)
    ]
    choices = [run.choices for run in runs if run.choices is not None]
    return replace(
        first,
        result=replace(
            first.result,
            complete=stopped is None,
            stopped=stopped,
            # runs may share groups, so their numbers of groups do not add up
            counts=replace(_total([result.counts for result in results]), groups=None),
            objection=next(filter(None, (result.objection for result in results)), None),
            steadiness=unsteady.steadiness,
        ),
        ids=tuple(chain.from_iterable(run.ids for run in runs)),
        labels=np.concatenate([run.labels for run in runs]),
        group_names=tuple(chain.from_iterable(run.group_names for run in runs)),
        parts=tuple(chain.from_iterable(run.parts for run in runs)),
        digests=tuple(chain.from_iterable(run.digests for run in runs)),
        answered=reduce(AnswerTable.joined, tables),
        noise=NoisePosterior.together([run.noise for run in runs]),
        max_shift=min(run.max_shift for run in runs),
        choices=np.concatenate(choices) if choices else None,
    )


def _check_alike(runs: Sequence[Run]) -> None:
    first = runs[0]
    if first.result.estimator != "latent":
        raise InputError(
            f"{first.folder}: runs of method {first.result.method!r} cannot be merged; only those read by a "
            f"fit can ({', '.join(FITTED)})",
            remedy="run its audit again with {estimator}, which asks nothing",
            options={"estimator": "latent"},
        )
    for run in runs[1:]:
        if run.result.answers != first.result.answers:
            raise InputError(f"{run.folder} asked for other answers than {first.folder}")
        if run.result.by != first.result.by:
            raise InputError(f"{run.folder} is broken down by another field than {first.folder}")
        for name in sorted({*first.settings, *run.settings} - _FREE):
            mine, theirs = first.settings.get(name), run.settings.get(name)
            if mine != theirs:
                raise InputError(
                    f"{run.folder} asked otherwise than {first.folder}: {name} is "
                    f"{printable(repr(theirs), 80)} there and {printable(repr(mine), 80)} here"
                )
        if run.result.targets != first.result.targets:
            raise InputError(f"{run.folder} biased other tokens than {first.folder}")
    counts = Counter(chain.from_iterable(run.ids for run in runs))
    twice = [name for name, times in counts.items() if times > 1]
    if twice:
        raise InputError(
            f"item {printable(twice[0], 80)!r} is in more than one run, and {len(twice) - 1:,} others: "
            "only runs on different items can be put together"
        )


def _total(records: Sequence[_Totals]) -> _Totals:
    totals: dict[str, Any] = {}
    for field in fields(records[0]):
        values: list[Any] = [getattr(record, field.name) for record in records]
        if None in values:
            totals[field.name] = None
        elif isinstance(values[0], bool):
            totals[field.name] = any(values)
        elif isinstance(values[0], tuple):
            totals[field.name] = tuple(map(sum, zip(*values, strict=True)))
        else:
            totals[field.name] = sum(values)
    return type(records[0])(**totals)
