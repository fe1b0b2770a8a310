"""``blindcal status``: where a run is."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import msgspec

from blindcal.cli import options
from blindcal.design import METHODS
from blindcal.results.result import RESULT_FILE, AuditResult
from blindcal.store.run_file import in_use
from blindcal.store.run_store import RUN_FILE, Batch, Store
from blindcal.text import printable


@click.command("status", short_help="Show where a run is.")
@click.argument("run", type=click.Path(path_type=Path), callback=options.existing_runs)
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
    for name, value in _in_words(found).items():
        click.echo(f"{name:<10} {printable(str(value), 400)}")
    for number, batch in enumerate(found["batches"], 1):
        click.echo(f"{f'batch {number}':<10} {_line(batch)}")


def _status(path: Path) -> dict[str, Any]:
    with Store.read(path) as store:
        settings: dict[str, Any] = store.note("config") or {}
        ready: dict[str, Any] = store.note("ready") or {}
        rounds = store.rounds()
        usage = store.usage()
        # Once it is over, what it found holds what it cost; until then, what was answered so far does.
        probed: dict[str, int] = ready.get("spent") or asdict(store.asides_usage())
        batches = store.batches()
    asked = sum(len(one) for one in rounds)
    finished = path.with_name(RESULT_FILE)
    found: dict[str, Any] = {
        "run": str(path),
        "state": _state(path, asked, usage.queries, finished, sum(not batch.ended for batch in batches)),
        **{name: settings.get(name) for name in ("model", "base_url", "method", "queries", "seed")},
        "items": settings.get("items", 0),
        "verdict": (ready.get("probe") or {}).get("verdict"),
        "rounds": len(rounds),
        "asked": asked,
        "usage": asdict(usage),
        "probe": probed,
        "result": None,
        "batches": [described(batch) for batch in batches],
    }
    if finished.is_file():
        result = AuditResult.load(finished)
        found["result"] = {"ece": result.ece.value, "created": result.created, "complete": result.complete}
    return found


def _in_words(found: dict[str, Any]) -> dict[str, Any]:
    usage, probed, result = found["usage"], found["probe"], found["result"]
    answered = f"{usage['queries']:,} of {found['asked']:,} asked for so far"
    queries = (
        "as many queries as the budget pays for"
        if found["queries"] is None
        else f"{found['queries']:g} {'query' if found['queries'] == 1 else 'queries'} an item"
    )
    told = {
        "run": found["run"],
        "state": found["state"],
        "model": f"{found['model']} at {found['base_url']}",
        "method": f"{found['method']}, {queries}, seed {found['seed']}",
        "items": found["items"],
        "verdict": found["verdict"] or _unprobed(found["method"]),
        "probe": f"{probed['queries']:,} queries, {_tokens(probed)}",
        "rounds": found["rounds"],
        "answers": f"{answered}, {usage['invalid']:,} invalid",
        "usage": f"{usage['attempts']:,} requests, {_tokens(usage)}; the probe's not counted",
    }
    if result is not None:
        state = "complete" if result["complete"] else "partial"
        ece = "unknown" if result["ece"] is None else f"{result['ece']:.4f}"
        told["result"] = f"ECE {ece}, {result['created']}, {state}"
    return told


def _unprobed(method: str | None) -> str:
    known = METHODS.get(method or "")
    if known is not None and known.reads == "stated":
        return "none needed: what is said in words is taken as it is"
    return "not there yet"


def _tokens(usage: dict[str, int]) -> str:
    return f"{usage['prompt_tokens']:,} tokens in, {usage['completion_tokens']:,} out"


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
