"""``blindcal status``: the state of a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from blindcal.cli import options
from blindcal.cli.console import WIDTH
from blindcal.json_form import json_line
from blindcal.methods import METHODS
from blindcal.records import Estimate
from blindcal.report.watch_page import look_line
from blindcal.results.result import RESULT_FILE, AuditResult
from blindcal.results.watch_result import WATCH_FILE, WatchResult
from blindcal.store.run_file import in_use
from blindcal.store.run_store import RUN_FILE, Store
from blindcal.text import printable


@click.command("status")
@options.run_argument()
@options.json_option()
def command(run: Path, as_json: bool) -> None:
    """Show the state of RUN, the folder of an audit, of decisions or of a watch, while it runs or afterwards.

    It shows the settings, how many queries are answered, and what they cost.

    \b
    Example:
      blindcal status runs/boolq-gpt-4o-mini

    \b
    Exit status:
      0  the run could be read
      1  there is no run, or it cannot be read
      2  a wrong command line
    """
    status = _status(run / RUN_FILE if run.is_dir() else run)
    if as_json:
        click.echo(json_line(status))
        return
    for name, value in _fields(status).items():
        click.echo(f"{name:<{WIDTH}}{printable(str(value), 400)}")


def _status(path: Path) -> dict[str, Any]:
    with Store.read(path) as store:
        settings: dict[str, Any] = store.note("config") or {}
        ready: dict[str, Any] = store.note("ready") or {}
        rounds = store.rounds()
        usage = store.usage("design")
        probed, controls = asdict(store.usage("probe")), asdict(store.usage("control"))
        decided = bool(store.note("finished"))
    looked = path.with_name(WATCH_FILE)
    watched = WatchResult.load(looked) if looked.is_file() else None
    asked = sum(map(len, rounds))
    written = path.with_name(RESULT_FILE)
    result = AuditResult.load(written) if written.is_file() else None
    finished = decided or (result is not None and 0 < asked == usage.queries)
    return {
        "run": str(path),
        "state": _state(path, finished),
        "certificate": settings.get("certificate"),
        **{name: settings.get(name) for name in ("model", "base_url", "method", "queries", "seed")},
        "watch": settings.get("watch"),
        "look": watched and {"line": look_line(watched), "raised": watched.raised, "number": watched.look},
        "items": settings.get("items", 0) if watched is None else watched.records,
        "verdict": (ready.get("probe") or {}).get("verdict"),
        "rounds": len(rounds),
        "asked": asked,
        "usage": asdict(usage),
        "probe": probed,
        "controls": controls,
        "result": result
        and {
            "ece": asdict(result.ece),
            "items": result.counts.items,
            "created": result.created,
            "complete": result.complete,
        },
    }


def _fields(status: dict[str, Any]) -> dict[str, Any]:
    usage, probe, controls, result = (status[part] for part in ("usage", "probe", "controls", "result"))
    queries = "queries as usual"
    if (mean := status["queries"]) is not None:
        queries = f"{mean:g} {'query' if mean == 1 else 'queries'} per item"
    method, checked = f"{status['method']}, {queries}, seed {status['seed']}", "probe"
    if status["certificate"] is not None:  # decisions, whose endpoint is checked but not probed
        method, checked = f"decides by the certificate {status['certificate'][:8]}", "check"
    if status["watch"] is not None:
        method, checked = f"watches {'finished audits' if status['watch'] == 'runs' else 'a stream'}", "check"
    fields = {
        "run": status["run"],
        "state": status["state"],
        "model": f"{status['model']} at {status['base_url']}",
        "method": method,
        "items": status["items"],
    }
    if checked == "probe":
        fields["verdict"] = status["verdict"] or _verdict_without_probe(status["method"])
    fields[checked] = f"{probe['queries']:,} queries, {_tokens(probe)}"
    if status["watch"] is None:
        fields["rounds"] = status["rounds"]
    asked = status["asked"]
    fields["answers"] = f"{usage['queries']:,} of {asked:,} queries so far, {usage['invalid']:,} invalid"
    fields["usage"] = f"{usage['attempts']:,} requests, {_tokens(usage)}, without the {checked}"
    if status["watch"] is not None:
        fields["look"] = status["look"]["line"] if status["look"] else "none yet"
    if controls["queries"]:
        fields["controls"] = f"{controls['queries']:,} queries, {_tokens(controls)}"
    if result is not None:
        state = "complete" if result["complete"] else "partial"
        ece = f"ECE {Estimate(**result['ece'])} of {result['items']:,} items"
        fields["result"] = f"{ece}, {result['created']}, {state}"
    return fields


def _verdict_without_probe(method: str | None) -> str:
    known = METHODS.get(method or "")
    if known is not None and known.estimator == "stated":
        return "no probe needed: a confidence stated in words is taken as it is"
    return "not probed yet"


def _tokens(usage: dict[str, int]) -> str:
    return f"{usage['prompt_tokens']:,} tokens in, {usage['completion_tokens']:,} out"


def _state(path: Path, finished: bool) -> str:
    if in_use(path):
        return "running"
    return "finished" if finished else "not running; the same command goes on with it"
