"""``blindcal reproduce``: the published table and figures for any models, with blindcal's methods added."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import click
from tqdm import tqdm

from blindcal.auditing.limits import Limits
from blindcal.cli import INTERRUPTED, options
from blindcal.cli.console import error_text, print_stage, print_warning
from blindcal.cli.param_types import BUDGETS
from blindcal.errors import ConfigError
from blindcal.items import catalogue
from blindcal.items.score_files import stem
from blindcal.planning.plan import PROBE_QUERIES
from blindcal.progress_bar import ProgressBar, count_bar
from blindcal.reproduce import from_endpoint, sources, table
from blindcal.reproduce.cells import TABLE_METHODS, Cache, CellSelection, compute
from blindcal.reproduce.sources import Source
from blindcal.reproduce.table import Column, MethodTable
from blindcal.scoring.hf import HfSettings
from blindcal.scoring.score_items import complete_scores
from blindcal.settings import Settings
from blindcal.text import file_name, printable

FILE_SEEDS, ENDPOINT_SEEDS = 20, 1
MOST_JOBS = 8

Key: TypeAlias = tuple[str, str]
"""The names of a model and of a data set."""


@click.command("reproduce")
@click.argument("files", nargs=-1, type=options.PATH)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME[@URL]",
    help="Model behind --base-url, or behind a URL of its own; repeat for more.",
)
@click.option(
    "--transformers",
    multiple=True,
    metavar="NAME",
    help="Model to load here (a folder, a Hugging Face name, a GGUF file) and score first; repeat for more.",
)
@click.option(
    "--data",
    multiple=True,
    metavar="SET",
    help=f"Data set to ask: {', '.join(catalogue.NAMES)}, hf:NAME with --template, or a file of items; "
    "repeat for more.",
)
@options.base_url_option
@options.api_option
@options.api_key_env_option
@options.extra_body_option
@options.send_seed_option
@options.concurrency_option()
@options.token_options
@options.prompt_options
@options.spellings_option
@click.option(
    "--method",
    "methods",
    multiple=True,
    type=click.Choice(list(TABLE_METHODS)),
    help="Method to include; repeat for more.  [default: all]",
)
@click.option("--budgets", type=BUDGETS, default="1-8", help="Numbers of queries per item to include.")
@click.option(
    "--seeds",
    type=click.IntRange(1),
    metavar="N",
    help="Number of repeats, with seeds from 0 up.  "
    f"[default: {FILE_SEEDS} for files, {ENDPOINT_SEEDS} for endpoints]",
)
@options.bins_option(5)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    help=f"Number of processes that compute.  [default: one per core, at most {MOST_JOBS}]",
)
@click.option(
    "--out",
    type=options.FOLDER,
    default=Path("reproduced"),
    help="Output folder; the same command continues what is in it.",
)
@click.option(
    "--cache", type=options.FOLDER, help="Folder of computed cells; may be shared.  [default: OUT/cache]"
)
@click.option("--dry-run", is_flag=True, help="Print the number of queries to endpoints, and stop.")
@options.json_option("Print the cells as JSON lines instead of the table.")
@options.quiet_option
def command(
    files: tuple[Path, ...],
    models: tuple[str, ...],
    transformers: tuple[str, ...],
    data: tuple[str, ...],
    base_url: str,
    concurrency: int,
    methods: tuple[str, ...],
    budgets: tuple[int, ...],
    seeds: int | None,
    bins: int,
    jobs: int | None,
    out: Path,
    cache: Path | None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    **chosen: Any,
) -> None:
    """Reproduce the published table (Plaud et al. 2026) and its figures for any models and data sets.

    The table holds every method of the paper and ours at every budget, and their errors against the oracle
    over several seeds. The folder --out gets index.html with everything, table.md, table.tex, cells.csv,
    estimates.csv and the figures: cost against error, and the calibration curves of each model beside its
    white-box reliability. What was computed or asked is kept: the same command costs nothing the second
    time, and continues after an interruption.

    FILES are scores (id,label,p) or logits (id,label,'text|token id',...,lse,argmax), or folders of them,
    named MODEL__DATASET.csv. The last two underscores separate the names, so that MODEL may contain some.
    They are the oracle of an endpoint with the same MODEL and DATASET.

    \b
    Examples:
      blindcal reproduce logits/ scores/
      blindcal reproduce --model gpt-4o-mini --data boolq --data mmlu
      blindcal reproduce --transformers Qwen/Qwen2.5-7B-Instruct --data boolq
      blindcal reproduce --data boolq \\
        --model llama@http://127.0.0.1:8000/v1 --model qwen@http://127.0.0.1:8001/v1
      blindcal reproduce --model llama --base-url http://127.0.0.1:8080/v1 --data mine.jsonl \\
        --template "{claim}\\nIs this true? Answer Yes or No."
    """
    if not files and not models and not transformers:
        raise click.UsageError("give score or logit files, --model NAME or --transformers NAME")
    if (models or transformers) and not data:
        names = ", ".join(catalogue.NAMES)
        raise click.UsageError(f"give the data sets to ask with --data: {names}, hf:NAME or a file")
    for one in data:
        catalogue.check_there(one)
    seeds = seeds or (ENDPOINT_SEEDS if models else FILE_SEEDS)
    wanted = CellSelection(methods or tuple(TABLE_METHODS), budgets, tuple(range(seeds)), bins)
    settings = {
        (model, one): Settings(model=model, base_url=url, **chosen)
        for model, url in _addresses(models, base_url).items()
        for one in data
    }
    if dry_run:
        _print_queries(settings, wanted)
        return
    for address in {each.endpoint.base_url: each.endpoint for each in settings.values()}.values():
        options.check_key(address, begun=(out / "runs").exists())
    try:
        paths = sources.find(list(files)) if files else []
        for model in transformers:
            local = Settings(model=model, base_url=base_url, **chosen)
            paths += [_score(one, local, out, quiet) for one in data]
        known = _read_sources(paths, chosen, quiet)
        columns, notes = _endpoint_columns(settings, known, wanted, out, concurrency, quiet)
        columns = _file_columns(known, wanted, Cache(cache or out / "cache"), jobs, quiet) + columns
    except KeyboardInterrupt:
        click.echo("interrupted; what was computed or asked is kept: the same command goes on", err=True)
        click.get_current_context().exit(INTERRUPTED)
    comparison = MethodTable(tuple(columns), bins, wanted.seeds)
    from blindcal.reproduce import page  # slow to import

    written = page.write(comparison, out, notes)
    for note in notes:
        print_warning(printable(note, 400))
    if as_json:
        click.echo(table.cells_json(comparison), nl=False)
    elif not quiet:
        click.echo(table.markdown(comparison))
        click.echo(f"everything is in {written}", err=True)


def _addresses(models: tuple[str, ...], base_url: str) -> dict[str, str]:
    """The URL of each model: its own (NAME@URL), or the common one."""
    found: dict[str, str] = {}
    for given in models:
        name, at, rest = given.partition("@http")  # the name of a model may contain an @
        if found.setdefault(name, url := f"http{rest}" if at else base_url) != url:
            raise ConfigError(
                f"--model {printable(name, 80)}: one name at two addresses",
                remedy="serve one as another name",
            )
    return found


def _score(one: str, settings: Settings, out: Path, quiet: bool) -> Path:
    """Write the score file of a model, loaded in this process, on a data set; returns its path."""
    model = settings.endpoint.model
    name = Path(model).stem if Path(model).exists() else model
    path = out / "scores" / f"{file_name(name, _set_name(one))}.csv"
    stage = None if quiet else print_stage
    with count_bar(unit="item", disable=quiet or None) as progress:
        complete_scores(one, settings, path, HfSettings(), stage=stage, progress=progress)
    return path


def _read_sources(paths: list[Path], chosen: Mapping[str, Any], quiet: bool) -> dict[str, Source]:
    """Read files, keyed by the names of their model and data set."""
    found: dict[str, Source] = {}
    for path in tqdm(paths, unit="file", leave=False, delay=2, disable=quiet or None):
        one = sources.read(path, positive=chosen["positive"], negative=chosen["negative"])
        key = file_name(one.model, one.data)
        if key in found:
            raise ConfigError(
                f"{path}: a second file of {one.name}; files are named MODEL__DATASET.csv, and the last two "
                "underscores separate the names"
            )
        every = chosen["semantics"] == "max" and one.choices is None
        found[key] = one.spelled("max") if every else one
    return found


def _endpoint_columns(
    settings: Mapping[Key, Settings],
    known: dict[str, Source],
    wanted: CellSelection,
    out: Path,
    concurrency: int,
    quiet: bool,
) -> tuple[list[Column], list[str]]:
    """The columns of endpoints, and notes on what failed; their oracles are removed from ``known``."""
    columns, notes = [], list[str]()
    for (model, one), each in settings.items():
        if not quiet:
            print_stage(f"{printable(model)} on {printable(one)}")
        name = _set_name(one)
        with ProgressBar(disable=quiet or None) as bar:
            column, failures = from_endpoint.measure(
                one,
                each,
                wanted,
                out / "runs" / file_name(model, name),
                data=name,
                oracle=known.pop(file_name(model, name), None),
                limits=Limits(concurrency),
                progress=bar,
                stage=None if quiet else bar.wrap_print(print_stage),
            )
        columns.append(column)
        notes += map(error_text, failures)
    return columns, notes


def _file_columns(
    known: Mapping[str, Source], wanted: CellSelection, cache: Cache, jobs: int | None, quiet: bool
) -> list[Column]:
    work = [(one, wanted) for one in known.values()]
    with count_bar(unit="cell", delay=2, disable=quiet or None) as progress:
        found = compute(work, cache, jobs=jobs or min(MOST_JOBS, os.cpu_count() or 1), progress=progress)
    return [table.column_of(one, cells, wanted.bins) for (one, _), cells in zip(work, found, strict=True)]


def _print_queries(settings: Mapping[Key, Settings], wanted: CellSelection) -> None:
    for (model, one), each in settings.items():
        items = catalogue.open_items(one, each.prompt)
        count = from_endpoint.planned(wanted, len(items))
        audits = sum(1 for _ in from_endpoint.runs(wanted))
        click.echo(
            f"{printable(model)} {printable(one)}: {len(items):,} items, {count:,} queries in {audits} "
            f"audits, and about {PROBE_QUERIES} queries to probe before each"
        )


def _set_name(one: str) -> str:
    """The name of a data set in the table: its own, or that of its file."""
    return one if catalogue.is_name(one) else stem(Path(one))
