"""``blindcal status``: where a run is."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import msgspec

from blindcal.auditing import RESULT_FILE, RUN_FILE
from blindcal.result import AuditResult
from blindcal.store import Batch, Store, in_use
from blindcal.text import printable


@click.command("status", short_help="Show where a run is.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(run: Path, as_json: bool) -> None:
    """Show where a run is: RUN is its folder, or the run file in it. Works while it is running.

    \b
    Exit status:
      0  the run could be read
      1  there is no run, or it cannot be read
      2  a wrong command line
    """
    found = _status(run / RUN_FILE if run.is_dir() else run)
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    batches = found.pop("batches", [])
    for name, value in found.items():
        if isinstance(value, dict):
            value = ", ".join(f"{k} {v:,}" for k, v in value.items())
        click.echo(f"{name:<10} {printable(str(value), 400)}")
    for number, batch in enumerate(batches, 1):
        click.echo(f"{f'batch {number}':<10} {_line(batch)}")


def _status(path: Path) -> dict[str, Any]:
    with Store.read(path) as store:
        settings: dict[str, Any] = store.note("config") or {}
        ready: dict[str, Any] = store.note("ready") or {}
        rounds = store.rounds()
        usage = store.usage()
        batches = store.batches()
    asked = sum(len(one) for one in rounds)
    finished = path.with_name(RESULT_FILE)
    found: dict[str, Any] = {
        "run": str(path),
        "state": _state(path, asked, usage.queries, finished, sum(not batch.ended for batch in batches)),
        "model": f"{settings.get('model')} at {settings.get('base_url')}",
        "method": "{method}, {queries} queries an item, seed {seed}".format_map(defaultdict(str, settings)),
        "items": settings.get("items", 0),
        "verdict": (ready.get("probe") or {}).get("verdict", "not probed yet"),
        "rounds": len(rounds),
        "answers": f"{usage.queries:,} of {asked:,} asked for so far, {usage.invalid:,} invalid",
        "usage": asdict(usage),
    }
    if finished.is_file():
        result = AuditResult.load(finished)
        found["result"] = (
            f"ECE {result.ece.value}, {result.created}, {'complete' if result.complete else 'partial'}"
        )
    if batches:
        found["batches"] = [described(batch) for batch in batches]
    return found


def described(batch: Batch) -> dict[str, Any]:
    """A batch as JSON tells of it; ``status`` is the provider's word when it was last looked at."""
    return {
        "id": batch.batch_id,
        "status": batch.status,
        "queries": int(batch.queries.size),
        "completed": batch.completed,
        "failed": batch.failed,
        "collected": batch.ended,
        "answers": batch.answered,
        "said": batch.said,
    }


def _line(batch: dict[str, Any]) -> str:
    name = printable(str(batch["id"] or "no id yet"), 80)
    if not batch["collected"]:
        done = f", {batch['completed']:,} answered when last looked at" if batch["completed"] else ""
        return f"{name}: {printable(batch['status'], 40)}, {batch['queries']:,} queries{done}"
    said = f" ({printable(batch['said'], 200)})" if batch["said"] else ""
    return (
        f"{name}: {printable(batch['status'], 40)}, "
        f"{batch['answers']:,} answers to {batch['queries']:,} queries{said}"
    )


def _state(path: Path, asked: int, answered: int, finished: Path, under_way: int) -> str:
    if in_use(path):
        return "running"
    if under_way:
        word = "batch" if under_way == 1 else "batches"
        return f"{under_way} {word} with the provider; its audit command collects"
    if finished.is_file() and asked and asked == answered:
        return "finished"
    return "not running; its audit command goes on with it"
