"""``blindcal reproduce``: the published table and figures for any models, with our methods in them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from blindcal.atomic_write import atomic_write
from blindcal.auditing.job import Limits
from blindcal.cli import options
from blindcal.endpoints.http import Api
from blindcal.errors import ConfigError
from blindcal.items import catalogue
from blindcal.items.score_files import stem
from blindcal.progress_bar import ProgressBar
from blindcal.records import Semantics
from blindcal.reproduce import folder, sources, table
from blindcal.reproduce import from_endpoint as audited
from blindcal.reproduce.cells import WAYS, Cache, CellSelection, compute
from blindcal.reproduce.names import file_name
from blindcal.reproduce.sources import Source
from blindcal.reproduce.table import Column, MethodTable
from blindcal.scoring.hf import HfSettings
from blindcal.scoring.logprobs import ScoreFile, marks
from blindcal.settings import Settings
from blindcal.text import printable

FILE_SEEDS, ENDPOINT_SEEDS = 20, 1
MOST = 8
INTERRUPTED = 130


class Budgets(click.ParamType[tuple[int, ...]]):
    """Numbers of queries an item: 1-8, or 1,2,4."""

    name = "K-K|K,K"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Parse the text of the option."""
        if isinstance(value, tuple):
            return value
        try:
            low, dash, high = value.partition("-")
            found = tuple(range(int(low), int(high) + 1)) if dash else tuple(map(int, value.split(",")))
        except ValueError:
            found = ()
        if not found or not all(1 <= k <= MOST for k in found):
            self.fail(
                f"{printable(value, 40)!r} is not a range 1-8 or a list 1,2,4 within 1 to {MOST}", param, ctx
            )
        return tuple(sorted(set(found)))


@click.command("reproduce", short_help="The published table and figures, for any models.")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME[@URL]",
    help="A model behind --base-url, or behind a server of its own; repeat for more.",
)
@click.option(
    "--transformers",
    multiple=True,
    metavar="NAME",
    help="A model to load here (folder, Hugging Face name, GGUF) and score first; repeat for more.",
)
@click.option(
    "--data",
    multiple=True,
    metavar="SET",
    help=f"{', '.join(catalogue.NAMES)}, hf:NAME with --template, or a file of items; repeat for more.",
)
@click.option("--base-url", default=options.OPENAI, envvar="OPENAI_BASE_URL", show_default=True)
@click.option("--api", type=click.Choice(["chat", "completions"]), default="chat", show_default=True)
@click.option(
    "--api-key-env", default="OPENAI_API_KEY", show_default=True, help="The variable that holds the key."
)
@click.option("--extra-body", type=options.JsonObject(), default="{}", help="Fields added to every request.")
@click.option("--send-seed", is_flag=True, help="Send a seed with each sampled query.")
@click.option("--concurrency", type=click.IntRange(1), default=32, show_default=True)
@options.word_options
@options.reading_options
@click.option(
    "--semantics",
    type=click.Choice(["pair", "max"]),
    default="pair",
    show_default=True,
    help="One spelling a side, or all that are recorded.",
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    type=click.Choice(list(WAYS)),
    help="Only these rows; repeat for more.  [default: all]",
)
@click.option("--budgets", type=Budgets(), default="1-8", show_default=True, help="Queries an item.")
@click.option(
    "--seeds",
    type=click.IntRange(1),
    help=f"Repeats: seeds 0 and up.  [default: {FILE_SEEDS} from files, {ENDPOINT_SEEDS} from endpoints]",
)
@click.option("--bins", type=click.IntRange(1), default=5, show_default=True, help="Bins of the ECE.")
@click.option(
    "--jobs", type=click.IntRange(1), help="Processes that compute.  [default: one for each core, at most 8]"
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("reproduced"),
    show_default=True,
    help="The folder for everything; the same command again goes on with what is there.",
)
@click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where computed cells are kept; may be shared.  [default: OUT/cache]",
)
@click.option("--dry-run", is_flag=True, help="Only say how many queries an endpoint would be asked.")
@click.option("--json", "as_json", is_flag=True, help="Print the cells as JSON lines instead of the table.")
@click.option("--quiet", is_flag=True, help="No progress and no table; errors only (and --json).")
def command(
    files: tuple[Path, ...],
    models: tuple[str, ...],
    transformers: tuple[str, ...],
    data: tuple[str, ...],
    base_url: str,
    api: Api,
    api_key_env: str,
    extra_body: Mapping[str, Any],
    send_seed: bool,
    concurrency: int,
    semantics: Semantics,
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
    """Make the published table (Plaud et al. 2026) and its figures for any models and data sets.

    Every method of the paper and ours, at every budget, beside the oracle: how far each is from it, over
    several seeds. Into --out go index.html with everything, table.md, table.tex, cells.csv, estimates.csv
    and the figures: cost against error, and each model's calibration curves beside its white-box
    reliability. What was computed or asked is kept: the same command again is free, and an interrupted
    one goes on.

    FILES are scores (id,label,p) or logits (id,label,'text|token id',...,lse,argmax), or folders of them,
    named MODEL__DATASET.csv; the last two underscores divide the names, so that a MODEL may hold some too.
    Beside an endpoint of the same MODEL and DATASET they are its oracle.

    \b
    Examples:
      blindcal reproduce logits/ scores/                              files alone
      blindcal reproduce --model gpt-4o-mini --data boolq --data mmlu  an endpoint
      blindcal reproduce --transformers Qwen/Qwen2.5-7B-Instruct --data boolq
      blindcal reproduce --data boolq --model llama@http://127.0.0.1:8000/v1 \\
        --model qwen@http://127.0.0.1:8001/v1                         a server each
      blindcal reproduce --model llama --base-url http://127.0.0.1:8080/v1 --data mine.jsonl \\
        --template "{claim}\\nIs this true? Answer Yes or No."
    """
    if not files and not models and not transformers:
        raise click.UsageError("give score or logit files, --model NAME or --transformers NAME")
    if (models or transformers) and not data:
        raise click.UsageError(f"--data says what is asked: {', '.join(catalogue.NAMES)}, hf:NAME or a file")
    for one in data:
        catalogue.check_there(one)
    seeds = seeds or (ENDPOINT_SEEDS if models else FILE_SEEDS)
    wanted = CellSelection(methods or tuple(WAYS), budgets, tuple(range(seeds)), bins)
    where = _addresses(models, base_url)
    settings = {
        (model, one): Settings(
            model=model,
            base_url=url,
            api=api,
            api_key_env=api_key_env,
            extra_body=extra_body,
            send_seed=send_seed,
            semantics=semantics,
            **chosen,
        )
        for model, url in where.items()
        for one in data
    }
    if dry_run:
        _say_plan(settings, wanted)
        return
    say = (lambda _: None) if quiet else _say
    for address in {each.base_url: each.address for each in settings.values()}.values():
        options.check_key(address, begun=(out / "runs").exists())
    try:
        paths = sources.find(list(files)) if files else []
        paths += [_score(model, one, out, chosen, say) for model in transformers for one in data]
        known = _known(paths, chosen, semantics, quiet)
        columns, notes = _from_endpoints(settings, known, wanted, out, concurrency, quiet, say)
        columns = _from_files(known, wanted, Cache(cache or out / "cache"), jobs, quiet) + columns
    except KeyboardInterrupt:
        click.echo("interrupted; what was computed or asked is kept: the same command goes on", err=True)
        click.get_current_context().exit(INTERRUPTED)
    comparison = MethodTable(tuple(columns), bins, wanted.seeds)
    page = folder.write(comparison, out, notes)
    for note in notes:
        click.echo(f"warning: {printable(note, 400)}", err=True)
    if as_json:
        click.echo(table.cells_json(comparison), nl=False)
    elif not quiet:
        click.echo(table.markdown(comparison))
        click.echo(f"everything is in {page}", err=True)


def _addresses(models: tuple[str, ...], base_url: str) -> dict[str, str]:
    """Where each model answers: at an address of its own (NAME@URL), or at the common one."""
    found: dict[str, str] = {}
    for given in models:
        name, at, rest = given.partition("@http")  # names of models may hold an @ of their own
        if found.setdefault(name, url := f"http{rest}" if at else base_url) != url:
            raise ConfigError(
                f"--model {printable(name, 80)}: one name at two addresses; serve it under another"
            )
    return found


Key = tuple[str, str]


def _known(
    paths: list[Path], chosen: Mapping[str, Any], semantics: Semantics, quiet: bool
) -> dict[str, Source]:
    """The files by the name that one of their model and data set has."""
    words = {"positive": chosen["positive"], "negative": chosen["negative"]}
    found: dict[str, Source] = {}
    for path in tqdm(paths, unit="file", leave=False, delay=2, disable=quiet or None):
        one = sources.read(path, **words)
        key = file_name(one.model, one.data)
        if key in found:
            raise ConfigError(
                f"{path}: a second file of {one.name}; files are named MODEL__DATASET.csv, and the last two "
                "underscores divide them"
            )
        found[key] = one.spelled("max") if semantics == "max" else one
    return found


def _from_endpoints(
    settings: Mapping[Key, Settings],
    known: dict[str, Source],
    wanted: CellSelection,
    out: Path,
    concurrency: int,
    quiet: bool,
    say: Callable[[str], None],
) -> tuple[list[Column], list[str]]:
    """The columns of endpoints, and what they could not be asked; their files are taken out of ``known``."""
    columns, notes = [], []
    for (model, one), each in settings.items():
        say(f"{model} on {one}")
        short = _short(one)
        with ProgressBar(disable=quiet or None) as bar:
            column, said = audited.measure(
                one,
                each,
                wanted,
                out / "runs" / file_name(model, short),
                data=short,
                oracle=known.pop(file_name(model, short), None),
                limits=Limits(concurrency),
                progress=bar,
                stage=bar.giving_way(say),
            )
        columns.append(column)
        notes += said
    return columns, notes


def _from_files(
    known: Mapping[str, Source], wanted: CellSelection, cache: Cache, jobs: int | None, quiet: bool
) -> list[Column]:
    work = [(one, wanted) for one in known.values()]
    with tqdm(unit="cell", delay=2, disable=quiet or None, leave=False) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        found = compute(work, cache, jobs=jobs or min(8, os.cpu_count() or 1), progress=show)
    return [table.column_of(one, cells, wanted.bins) for (one, _), cells in zip(work, found, strict=True)]


def _say_plan(settings: Mapping[tuple[str, str], Settings], wanted: CellSelection) -> None:
    for (model, one), each in settings.items():
        with catalogue.open_items(one, each.reading, data_dir=each.data_dir) as items:
            count = audited.planned(wanted, len(items))
            runs = sum(1 for _ in audited.runs(wanted))
            click.echo(
                f"{printable(model)} {printable(one)}: {len(items):,} items, {count:,} queries in {runs} "
                "audits, and a few dozen to probe before each"
            )


def _score(model: str, one: str, out: Path, chosen: Mapping[str, Any], say: Callable[[str], None]) -> Path:
    """The score file of a transformers model on a set, made first if it is not there or of other prompts."""
    from blindcal.cli import score

    settings = Settings(model=model, **chosen)
    with catalogue.open_items(one, settings.reading, data_dir=settings.data_dir) as items:
        asked = marks(items, score.about(settings, HfSettings().dtype))
    name = Path(model).stem if Path(model).exists() else model
    path = out / "scores" / f"{file_name(name, _short(one))}.csv"
    if ScoreFile.of(path, asked) != "all":
        say(f"scoring {model} on {one}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft:
            if ScoreFile.of(draft, asked) == "none":
                draft.unlink(missing_ok=True)
            click.get_current_context().invoke(
                score.command, items=Path(one), out=draft, model=model, transformers=True, **chosen
            )
    return path


def _short(one: str) -> str:
    """A data set's name in the table: that of its file, or its own."""
    return stem(Path(one)) if not catalogue.is_name(one) else one


def _say(stage: str) -> None:
    click.echo(f"{printable(stage)} ...", err=True)
