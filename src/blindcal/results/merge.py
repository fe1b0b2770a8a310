"""Merge runs of one model on different items: one fit of all answers, one result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from blindcal.errors import InputError
from blindcal.estimate.findings import Findings
from blindcal.estimate.margins import AnswerMargins
from blindcal.estimate.problem import NoisePosterior
from blindcal.evidence import Evidence, estimate
from blindcal.items.repeated_prompts import repeated_prompts
from blindcal.methods import FITTED, METHODS, make_design
from blindcal.records import AnswerTable
from blindcal.results.result import AnswerCounts, AuditResult, ShownProbabilities, Spend
from blindcal.results.run import Run, opened
from blindcal.text import printable

# Settings that may differ between merged runs: which items were asked, how many times, where; the bins.
_FREE = {"items", "items_digest", "seed", "queries", "base_url", "bins"}


def merge(runs: Sequence[Run | str | Path], *, resamples: int = 1000) -> AuditResult:
    """The result of the answers of all runs, as if one run had asked all items.

    Groups and parts with the same name are the same in all runs.

    Raises
    ------
    InputError
        If the runs have different settings, their method has no fit, or an item is in more than one run.
    """
    each = [opened(run) for run in runs]
    one = together(each)
    result = one.result
    evidence = Evidence(
        result.method,
        make_design(
            result.method,
            one.labels,
            queries=METHODS[result.method].usual_queries(several=one.choices is not None),
            choices=one.choices,
        ),
        one.labels,
        one.answered,
        one.groups,
        one.parts if result.by is not None else None,
        estimator="latent",
        bins=len(result.bins),
        level=result.level,
        noise=one.noise,
        resamples=resamples,
        choices=one.choices,
        simultaneous=result.parts_level is not None,
    )
    found = estimate(evidence)
    return replace(
        result,
        **{field.name: getattr(found, field.name) for field in fields(Findings)},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        items=" + ".join(run.result.items for run in each),
        counts=replace(result.counts, groups=evidence.group_count(evidence.items)),
        spend=Spend(**_summed([asdict(run.result.spend) for run in each])),
        seconds=sum(run.result.seconds for run in each),
        shown=ShownProbabilities.together([run.result.shown for run in each]),
        repeated=repeated_prompts(one.prompts, one.labels),
        margins=AnswerMargins.of(found.confusion, grouped=one.groups is not None),
        oracle=None,  # each run was compared with its own oracle
        settings={**result.settings, "items": one.labels.size, "items_digest": None},
    )


def together(runs: Sequence[Run]) -> Run:
    """Combine runs on different items into one, which can be fitted.

    Its result has the counts of all runs but the estimates of the first; `merge` estimates from all.

    Raises
    ------
    InputError
        As in `merge`.
    """
    first = runs[0]
    _check_alike(runs)
    stopped = [run.result.stopped for run in runs if run.result.stopped is not None]
    return replace(
        first,
        result=replace(
            first.result,
            complete=not stopped,
            stopped=stopped[0] if stopped else None,
            counts=_counts([run.result.counts for run in runs]),
            objection=next((run.result.objection for run in runs if run.result.objection), None),
            steadiness=next(
                (run.result.steadiness for run in runs if run.result.warnings), first.result.steadiness
            ),
        ),
        ids=tuple(chain.from_iterable(run.ids for run in runs)),
        labels=np.concatenate([run.labels for run in runs]),
        group_names=tuple(chain.from_iterable(run.group_names for run in runs)),
        parts=tuple(chain.from_iterable(run.parts for run in runs)),
        digests=tuple(chain.from_iterable(run.digests for run in runs)),
        answered=_joined(runs),
        noise=NoisePosterior.together([run.noise for run in runs]),
        max_shift=min(run.max_shift for run in runs),
        choices=None
        if first.choices is None
        else np.concatenate([run.choices for run in runs if run.choices is not None]),
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
            raise InputError(
                f"{run.folder} asked for other answers than {first.folder}: {_answers(run, first)}"
            )
        for name in sorted({*first.settings, *run.settings} - _FREE):
            mine, theirs = first.settings.get(name), run.settings.get(name)
            if mine != theirs:
                raise InputError(
                    f"{run.folder} asked otherwise than {first.folder}: {name} is "
                    f"{printable(repr(theirs), 80)} there and {printable(repr(mine), 80)} here"
                )
        if run.result.targets != first.result.targets:
            raise InputError(f"{run.folder} biased other tokens than {first.folder}")
        if run.result.by != first.result.by:
            raise InputError(f"{run.folder} is broken down by another field than {first.folder}")
    twice = [
        name for name, times in Counter(chain.from_iterable(run.ids for run in runs)).items() if times > 1
    ]
    if twice:
        raise InputError(
            f"item {printable(twice[0], 80)!r} is in more than one run, and {len(twice) - 1:,} others: "
            "only runs on different items can be put together"
        )


def _answers(*runs: Run) -> str:
    """The answers of each run, in words."""
    return " there and ".join(printable(", ".join(run.result.answers) or "two", 80) for run in runs) + " here"


def _counts(counts: Sequence[AnswerCounts]) -> AnswerCounts:
    """The counts of all runs; they may share groups, so their numbers of groups do not add up."""
    each = tuple(map(sum, zip(*(one.each for one in counts), strict=True)))
    total = _summed([{**asdict(one), "groups": None, "each": 0} for one in counts])
    return AnswerCounts(**{**total, "each": each})


def _joined(runs: Sequence[Run]) -> AnswerTable:
    firsts = np.cumsum([0, *(run.labels.size for run in runs)])
    each = [
        replace(run.answered, items=run.answered.items + first)
        for run, first in zip(runs, firsts, strict=False)
    ]
    return reduce(AnswerTable.joined, each)


def _summed(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The sums of the fields of records; ``None`` if any of them is ``None``."""
    return {
        name: None if any(one[name] is None for one in records) else sum(one[name] for one in records)
        for name in records[0]
    }
