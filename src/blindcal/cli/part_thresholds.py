"""The thresholds of all parts on the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import click

from blindcal.cli.console import print_field
from blindcal.errors import NotIdentifiedError
from blindcal.json_form import json_line
from blindcal.records import level_percent
from blindcal.results.part_thresholds import PartThreshold
from blindcal.results.run import Run
from blindcal.text import printable


def print_part_thresholds(
    found: Sequence[PartThreshold],
    run: Run,
    goal: Mapping[str, float | None],
    confidence: float | None,
    *,
    simultaneous: bool,
    as_json: bool,
) -> None:
    """Print a line per part, and what is promised for them; one JSON object per part with ``as_json``."""
    if all(one.chosen is None for one in found):
        raise NotIdentifiedError(f"no part has such a threshold: {found[0].why}")
    if as_json:
        click.echo(json_line([_record(one) for one in found]))
        return
    wanted = ", ".join(
        f"{name.replace('_', ' ')} {value:g}" for name, value in goal.items() if value is not None
    )
    print_field("goal", f"{wanted}, in each part by {printable(str(run.result.by), 40)}")
    print_field("promise", _promise(found, confidence, simultaneous=simultaneous))
    names = [printable(one.part, 30) for one in found]
    width = max(len(name) for name in [*names, "part"])
    click.echo(f"{'part':{width}}    items  threshold    shift  {'precision':<22}  recall")
    for name, one in zip(names, found, strict=True):
        if one.chosen is None:
            click.echo(
                f"{name:{width}}  {one.items:>7,}  none: {printable(str(one.why).partition(';')[0], 200)}"
            )
            continue
        point = one.chosen.point
        # the level is the same for all, and is printed below the table
        cells = [f"{replace(each, level=None):.3f}" for each in (point.precision, point.recall)]
        where = f"{one.items:>7,}  {point.threshold:>9.4f}  {point.shift:>+7.3f}"
        click.echo(f"{name:{width}}  {where}  {cells[0]:<22}  {cells[1]}")
    level = next(one.chosen.threshold.level or 0.0 for one in found if one.chosen is not None)
    what = "expected of new questions like these"
    click.echo(f"{what}, with a {level_percent(level)} interval for each number by itself")


def _promise(found: Sequence[PartThreshold], confidence: float | None, *, simultaneous: bool) -> str:
    made = sum(one.chosen is not None for one in found)
    if confidence is None or all(one.chosen is None or one.chosen.confidence is None for one in found):
        return f"a threshold for {made:,} of {len(found):,} parts, by the estimate alone"
    sure = level_percent(confidence)
    if simultaneous:
        return f"all of {made:,} parts (of {len(found):,}) together reach it, {sure} sure"
    return f"each of {made:,} parts (of {len(found):,}) reaches it, {sure} sure of each by itself"


def _record(one: PartThreshold) -> dict[str, Any]:
    found: dict[str, Any] = {"part": one.part, "items": one.items, "why": one.why}
    if one.chosen is None:
        return found | {"threshold": None}
    cost = one.chosen.expected_cost
    return found | {
        **asdict(one.chosen.point),
        "threshold": asdict(one.chosen.threshold),
        "confidence": one.chosen.confidence,
        "expected_cost": None if cost is None else asdict(cost),
    }
