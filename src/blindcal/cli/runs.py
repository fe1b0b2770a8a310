"""Commands on runs: ``blindcal status``, ``report``, ``compare`` and ``merge``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from blindcal.atomic_write import write_file
from blindcal.cli import options
from blindcal.cli.console import WIDTH, colored, print_field, print_stage, print_table, print_warning
from blindcal.cli.result_summary import print_result
from blindcal.errors import InputError
from blindcal.json_form import json_line
from blindcal.methods import METHODS
from blindcal.records import Usage
from blindcal.report.comparison import (
    NAMES,
    OTHER_SEMANTICS,
    better,
    change,
    comparison_page,
    differing,
    headline,
    pairing,
    run_names,
)
from blindcal.report.page import PAGE_FILE, write_page
from blindcal.report.watch_page import WATCH_PAGE, look_line, write_watch_page
from blindcal.results.compare import RunComparison
from blindcal.results.compare import compare as compare_runs
from blindcal.results.merge import merge as merge_runs
from blindcal.results.result import RESULT_FILE, AuditResult
from blindcal.results.run import Run, open_result, open_run
from blindcal.results.watch_result import WATCH_FILE, WatchResult
from blindcal.store.run_file import in_use
from blindcal.store.run_store import RUN_FILE, Store
from blindcal.text import printable

# Status


@options.command("status")
@options.run_argument()
@options.json_option()
def status(run: Path, as_json: bool) -> None:
    """Show the state of RUN, the folder of an audit, of decisions or of a watch, while it runs or afterwards.

    It shows the settings, how many queries are answered, and what they cost.

    \b
    Example:
      blindcal status runs/boolq-my-model

    \b
    Exit status:
      0  the run could be read
      1  there is no run, or it cannot be read
      2  a wrong command line
    """
    state = _status(run / RUN_FILE if run.is_dir() else run)
    if as_json:
        click.echo(json_line(state))
        return
    for name, value in _fields(state).items():
        click.echo(f"{name:<{WIDTH}}{printable(str(value), 400)}")


def _status(path: Path) -> dict[str, Any]:
    with Store.read(path) as store:
        settings: dict[str, Any] = store.note("config") or {}
        ready: dict[str, Any] = store.note("ready") or {}
        rounds = store.rounds()
        usage, probe, controls = (store.usage(kind) for kind in ("design", "probe", "control"))
        decided = bool(store.note("finished"))
    looked, written = path.with_name(WATCH_FILE), path.with_name(RESULT_FILE)
    watched = WatchResult.load(looked) if looked.is_file() else None
    result = AuditResult.load(written) if written.is_file() else None
    asked = sum(map(len, rounds))
    finished = decided or (result is not None and 0 < asked == usage.queries)
    stopped = "finished" if finished else "not running; the same command goes on with it"
    return {
        "run": str(path),
        "state": "running" if in_use(path) else stopped,
        "certificate": settings.get("certificate"),
        **{name: settings.get(name) for name in ("model", "base_url", "method", "queries", "seed")},
        "watch": settings.get("watch"),
        "look": watched and {"line": look_line(watched), "raised": watched.raised, "number": watched.look},
        "items": settings.get("items", 0) if watched is None else watched.records,
        "verdict": (ready.get("probe") or {}).get("verdict"),
        "rounds": len(rounds),
        "asked": asked,
        "usage": usage,
        "probe": probe,
        "controls": controls,
        "result": result
        and {
            "ece": result.ece,
            "items": result.counts.items,
            "created": result.created,
            "complete": result.complete,
        },
    }


def _fields(state: dict[str, Any]) -> dict[str, Any]:
    usage, probe, controls, result = (state[part] for part in ("usage", "probe", "controls", "result"))
    certificate, watched = state["certificate"], state["watch"] is not None
    checked = "check" if watched or certificate is not None else "probe"
    if watched:
        method = "watches a stream"
    elif certificate is not None:
        method = f"decides by the certificate {certificate[:8]}"
    else:
        mean = state["queries"]
        unit = "query" if mean == 1 else "queries"
        queries = f"{unit} as usual" if mean is None else f"{mean:g} {unit} per item"
        method = f"{state['method']}, {queries}, seed {state['seed']}"
    given = state["base_url"] is None and (checked == "check" or state["method"] == "given")  # in a file
    model = f"{state['model']}, in a file" if given else f"{state['model']} at {state['base_url']}"
    fields = {"run": state["run"], "state": state["state"], "model": model, "method": method}
    fields["items"] = state["items"]
    if checked == "probe":
        known = METHODS.get(state["method"])
        unprobed = "not probed yet"
        if known is not None and known.estimator == "stated":
            unprobed = "no probe needed: a confidence stated in words is taken as it is"
        fields["verdict"] = state["verdict"] or unprobed
    fields[checked] = f"{probe.queries:,} queries, {_tokens(probe)}"
    if not watched:
        fields["rounds"] = state["rounds"]
    done = f"{usage.queries:,} of {state['asked']:,} queries so far"
    fields["answers"] = f"{done}, {usage.invalid:,} invalid"
    fields["usage"] = f"{usage.attempts:,} requests, {_tokens(usage)}, without the {checked}"
    if watched:
        fields["look"] = state["look"]["line"] if state["look"] else "none yet"
    if controls.queries:
        fields["controls"] = f"{controls.queries:,} queries, {_tokens(controls)}"
    if result is not None:
        complete = "complete" if result["complete"] else "partial"
        ece = f"ECE {result['ece']} of {result['items']:,} items"
        fields["result"] = f"{ece}, {result['created']}, {complete}"
    asked = {checked, "verdict", "rounds", "answers", "usage"} if given else ()
    return {name: text for name, text in fields.items() if name not in asked}


def _tokens(usage: Usage) -> str:
    return f"{usage.prompt_tokens:,} tokens in, {usage.completion_tokens:,} out"


# Reports


@options.command("report")
@options.run_argument()
@click.option(
    "--out",
    type=options.FILE,
    help=f"HTML file to write.  [default: {PAGE_FILE} or {WATCH_PAGE} in the folder of the run]",
)
@click.option(
    "--figures", type=options.FOLDER, metavar="FOLDER", help="Folder to write each figure to, as PNG and SVG."
)
@click.option("--open", "open_page", is_flag=True, help="Open the page in a browser.")
def report(run: Path, out: Path | None, figures: Path | None, open_page: bool) -> None:
    """Write the report of RUN, the folder of a finished audit or its result.json, or the folder of a watch.

    The report is one HTML file that needs no network and no script. An audit writes it when it finishes, and
    a watch at each look; this command writes it again or elsewhere, and its figures as separate files.

    \b
    Example:
      blindcal report runs/boolq-my-model --figures figures
    """
    from blindcal.report.plots import draw, save_drawings  # slow to import
    from blindcal.report.watch_figures import draw_watch

    if (run / WATCH_FILE).is_file():
        watched = WatchResult.load(run)
        page = out or run / WATCH_PAGE
        write_watch_page(watched, page)
        drawings = () if figures is None else draw_watch(watched)
    else:
        result = open_result(run)
        page = out or (run if run.is_dir() else run.parent) / PAGE_FILE
        write_page(result, page)
        drawings = () if figures is None else draw(result)
    print_field("page", str(page))
    if figures is not None:
        print_field("figures", ", ".join(map(str, save_drawings(drawings, figures))))
    if open_page:
        click.launch(page.resolve().as_uri())


# Comparisons


@options.command("compare")
@options.run_argument("run_a")
@options.run_argument("run_b")
@options.field("bins", help="Number of bins of the ECE. By default that of the runs.")
@options.fields("level", "resamples")
@click.option("--html", type=options.FILE, help="HTML file to write, with the table and the figures.")
@options.json_option()
def compare(
    run_a: Path,
    run_b: Path,
    bins: int | None,
    level: float,
    resamples: int,
    html: Path | None,
    as_json: bool,
) -> None:
    """Compare two finished runs: another model, another prompt, before and after a change.

    RUN_A and RUN_B are the folders of the runs. Items that both runs asked about are paired, so that what
    makes an item hard for both does not blur the difference. A difference is shown if its interval excludes
    zero.

    \b
    Example:
      blindcal compare runs/boolq-my-model runs/boolq-new-model --html compared.html

    \b
    Exit status:
      0  compared, whatever was found
      1  a run cannot be read or has no fit
      2  a wrong command line
    """
    runs = open_run(run_a), open_run(run_b)
    for run in runs:
        if not run.result.complete:
            print_warning(f"{run.folder} is not finished")
    if len({run.result.semantics for run in runs}) > 1:
        print_warning(f"{OTHER_SEMANTICS[0].lower()}{OTHER_SEMANTICS[1:]}")
    if sys.stderr.isatty():
        print_stage(f"refitting {2 * resamples:,} times")
    comparison = compare_runs(*runs, bins=bins, level=level, resamples=resamples)
    if html is not None:
        write_file(html, comparison_page(comparison, runs))
    if as_json:
        click.echo(json_line({**asdict(comparison), "paired": comparison.paired}))
        return
    _print_comparison(comparison, runs)
    if html is not None:
        click.echo(f"wrote {html}")


def _print_comparison(comparison: RunComparison, runs: tuple[Run, Run]) -> None:
    folders = comparison.first, comparison.second
    for letter, model, folder in zip("AB", comparison.models, folders, strict=True):
        click.echo(f"{letter}  {printable(model, 100)}  in {printable(folder, 300)}")
    for name, a, b in differing(*runs):
        if name not in ("model", "base_url"):
            print_field(name, f"{change(a, b)} in A, {change(b, a)} in B", width=max(WIDTH, len(name) + 2))
    click.echo(pairing(comparison))
    for sentence in headline(comparison):
        print_field("", sentence, width=0)
    names = (f"{letter} {name[:12]}" for letter, name in zip("AB", run_names(*runs), strict=True))
    table = [["", *names, "B - A", f"{comparison.level:.0%} interval", "B is"]]
    styled = {"A": colored("worse", "red"), "B": colored("better", "green"), None: "unclear"}
    for row in comparison.differences:
        numbers = [f"{float(row.first):.4f}", f"{float(row.second):.4f}", f"{float(row.difference):+.4f}"]
        interval = f"{row.difference.low:+.4f} to {row.difference.high:+.4f}"
        table.append([NAMES[row.quantity], *numbers, interval, styled[better(row)]])
    print_table(table, "<>>><<")


# Merged runs


@options.command("merge")
@options.run_argument("runs", nargs=-1, required=True)
@click.option("--out", type=options.FOLDER, required=True, help="Folder to write the merged result to.")
@options.field("resamples")
@click.option(
    "--counts",
    type=options.FILE,
    help="Parquet file to write the counted answers to, for blindcal.read_counts.",
)
@options.verbose_option
@options.json_option("Print the result as JSON.")
def merge(
    runs: tuple[Path, ...], out: Path, resamples: int, counts: Path | None, verbose: bool, as_json: bool
) -> None:
    """Merge finished RUNS of one model on different items into one result.

    A large file of questions can be split and its parts audited on different machines. The answers of all
    runs are then estimated together, as if one run had asked them all. No query is sent.

    \b
    Example:
      blindcal merge runs/part-1 runs/part-2 runs/part-3 --out runs/all
    """
    opened = [open_run(run) for run in runs]
    if (out / RUN_FILE).exists():
        raise InputError(f"--out {out}: holds a run of its own", remedy="choose a new folder")
    if sys.stderr.isatty():
        print_stage(f"estimating from {len(opened)} runs")
    result = merge_runs(opened, resamples=resamples)
    result.save(out / RESULT_FILE)
    write_page(result, out / PAGE_FILE)
    if counts is not None:
        from blindcal.estimate.counts import Counts
        from blindcal.results.answer_counts import of_run, write_counts

        write_counts(Counts.total(of_run(run) for run in opened), counts)
    if as_json:
        click.echo(result.to_json(), nl=False)
    else:
        print_result(result, out, verbose=verbose)
