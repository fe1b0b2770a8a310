"""`blindcal simulate`: a method against known probabilities."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from tqdm import tqdm

from blindcal.design import ESTIMATORS
from blindcal.errors import InputError
from blindcal.items.score_files import read_scores
from blindcal.records import FloatArray, IntArray
from blindcal.simulation.simulate import SIMULATED, Simulation, generate, simulate
from blindcal.text import printable


@click.command("simulate")
@click.argument("scores", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--method", "methods", multiple=True, type=click.Choice(SIMULATED), help="Repeat to compare. [latent]"
)
@click.option(
    "--estimator",
    type=click.Choice(ESTIMATORS),
    default="own",
    show_default=True,
    help="Read the answers as the method does, or by the likelihood of latent, which takes any of them.",
)
@click.option("--queries", default=1.0, show_default=True, help="Mean queries an item; may be fractional.")
@click.option("--bins", default=5, show_default=True, help="Equal-width bins of the ECE.")
@click.option("--repeats", default=20, show_default=True, help="Audits of each file, with seeds S, S+1, ...")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="First seed.")
@click.option(
    "--generate", "generated", type=int, help="Also audit N generated items of an overconfident model."
)
@click.option("--positive", help="The positive answer in a logit file.  [default: True or Yes]")
@click.option("--negative", help="The negative answer in a logit file.  [default: False or No]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line instead of a table.")
def command(
    scores: tuple[Path, ...],
    methods: tuple[str, ...],
    estimator: str,
    queries: float,
    bins: int,
    repeats: int,
    seed: int,
    generated: int | None,
    positive: str | None,
    negative: str | None,
    as_json: bool,
) -> None:
    """Run a method against known probabilities, exactly as an opaque endpoint would answer.

    SCORES are files with the columns id, label (0/1) and p (probability of the positive class), or with
    logits in columns named 'text|token id' instead of p, of which one spelling a side counts: .csv or
    .parquet, gzip allowed. For each the method's estimates of the expected calibration error are compared
    with the oracle, the binned ECE of the probabilities themselves.

    \b
    Example:
      blindcal simulate scores.csv --method blind --method latent --queries 1 --repeats 20
    """
    if not scores and generated is None:
        raise click.UsageError("give at least one score file, or --generate N")
    if repeats < 1:
        raise InputError(f"repeats: must be at least 1, got {repeats}")
    if (positive is None) != (negative is None):
        raise click.UsageError("--positive and --negative go together")
    words = None if positive is None or negative is None else (positive, negative)
    sets = [_Set(printable(str(path), 200), *_load(path, words)) for path in scores]
    if generated is not None:
        sets.append(_Set(f"generated {generated:,}", *generate(generated, seed)))
    rows: list[tuple[str, Simulation]] = []
    total = len(sets) * max(1, len(methods)) * repeats
    with tqdm(total=total, unit="audit", leave=False, delay=2, disable=None) as bar:
        for one in sets:
            for method in methods or ("latent",):
                found = simulate(
                    method,
                    one.labels,
                    one.p,
                    estimator=estimator,
                    queries=queries,
                    bins=bins,
                    repeats=repeats,
                    seed=seed,
                    on_repeat=bar.update,
                )
                rows.append((one.name, found))
                if as_json:
                    bar.clear()
                    click.echo(json.dumps(_record(one.name, found)))
    if not as_json:
        click.echo(_table(rows))


@dataclass(frozen=True)
class _Set:
    name: str
    labels: IntArray
    p: FloatArray


def _load(path: Path, words: tuple[str, str] | None) -> tuple[IntArray, FloatArray]:
    scores = read_scores(path, words=words)
    return scores.labels, scores.p


def _record(name: str, found: Simulation) -> dict[str, object]:
    return {
        "file": name,
        "n": found.n,
        "method": found.method,
        "estimator": found.estimator,
        "queries": found.queries,
        "oracle": found.oracle,
        "estimates": list(found.estimates),
        "mae": found.mae,
    }


def _table(rows: list[tuple[str, Simulation]]) -> str:
    """A line a file and method, then the mean of each method over the files."""
    width = max(len("mean"), *(len(Path(name).name) for name, _ in rows))
    by = max(11, *(len(_by(found)) for _, found in rows))
    lines = [f"{'file':{width}}  {'n':>7}  {'method':{by}}  queries  oracle  estimate    sd    mean |error|"]
    for name, found in rows:
        estimates = np.array(found.estimates)
        said = f"{found.n:7,}  {_by(found):{by}}  {found.queries:7.3f}  {found.oracle:6.4f}"
        spread = f"{estimates.mean():8.4f}  {estimates.std():6.4f}  {found.mae:12.5f}"
        lines.append(f"{Path(name).name:{width}}  {said}  {spread}")
    for method in dict.fromkeys(_by(found) for _, found in rows):
        mine = [found for _, found in rows if _by(found) == method]
        queries, mae = np.mean([found.queries for found in mine]), np.mean([found.mae for found in mine])
        lines.append(f"{'mean':{width}}  {'':7}  {method:{by}}  {queries:7.3f}  {'':24}  {mae:12.5f}")
    return "\n".join(lines)


def _by(found: Simulation) -> str:
    return found.method if found.estimator == "own" else f"{found.method}+{found.estimator}"
