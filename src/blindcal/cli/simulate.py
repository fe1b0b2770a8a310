"""``blindcal simulate``: methods against known probabilities."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
from tqdm import tqdm

from blindcal.cli import options
from blindcal.cli.console import print_table
from blindcal.items.score_files import is_choice_file, read_choices, read_scores
from blindcal.json_form import json_line
from blindcal.methods import SIMULABLE
from blindcal.records import FloatArray, IntArray
from blindcal.simulation.simulate import Simulation, generate, simulate
from blindcal.text import printable


@options.command("simulate")
@click.argument("scores", nargs=-1, type=options.PATH)
@click.option(
    "--method",
    "methods",
    multiple=True,
    type=click.Choice(SIMULABLE),
    help="Method to run; repeat to compare several.  [default: latent]",
)
@options.field("estimator", help="Estimator that reads the answers: the method's own, or that of latent.")
@options.field(
    "queries", help="Mean number of queries per item. By default 1; for k answers the method's own."
)
@options.field("bins", default=5, help="Number of bins of the ECE.")
@click.option(
    "--repeats",
    type=click.IntRange(1, 100_000),
    default=20,
    help="Number of audits per file, with seeds S, S+1, ...",
)
@options.field("seed", help="Random seed S of the first audit.")
@click.option(
    "--generate",
    "generated",
    type=click.IntRange(1, 10_000_000),
    metavar="N",
    help="Also audit N generated items of an overconfident model.",
)
@options.answer_pair_option
@options.json_option("Print one JSON object per file and method, one per line.")
def command(
    scores: tuple[Path, ...],
    methods: tuple[str, ...],
    repeats: int,
    seed: int,
    generated: int | None,
    answers: tuple[str, str] | None,
    as_json: bool,
    **design: Any,
) -> None:
    """Run methods against known probabilities, which answer exactly as an opaque endpoint would.

    SCORES are files (CSV, Parquet, JSON lines) with the columns id, label (0 or 1) and p, the
    probability of the positive answer; or with logits in columns named 'text|token id' instead of p, of which
    one spelling per answer counts. Each estimate of the expected calibration error is compared with the
    oracle, the binned ECE of the probabilities themselves.

    A file with the columns id, logit_A, logit_B, logit_C, ... (one per answer) and label (the number of the
    right answer, from 0 up) has more than two answers: the estimates are about the likeliest answer, and the
    plain answer counts as the first query.

    \b
    Example:
      blindcal simulate scores.csv --method blind --method latent --queries 1 --repeats 20
    """
    if not scores and generated is None:
        raise click.UsageError("give at least one score file, or --generate N")
    sets: list[tuple[str, IntArray, FloatArray]] = []
    for path in scores:
        name = printable(str(path), 200)
        if is_choice_file(path):
            chosen = read_choices(path)
            sets.append((name, chosen.labels, chosen.logits))
        else:
            known = read_scores(path, words=answers)
            sets.append((name, known.labels, known.p))
    if generated is not None:
        sets.append((f"generated {generated:,}", *generate(generated, seed)))
    rows: list[tuple[str, Simulation]] = []
    total = len(sets) * max(1, len(methods)) * repeats
    with tqdm(total=total, unit="audit", leave=False, delay=2, disable=None) as bar:
        for name, labels, p in sets:
            for method in methods or ("latent",):
                result = simulate(
                    method, labels, p, repeats=repeats, seed=seed, on_repeat=bar.update, **design
                )
                rows.append((name, result))
                if as_json:
                    bar.clear()
                    click.echo(json_line({"file": name, **asdict(result), "mae": result.mae}))
    if not as_json:
        _print(rows)


def _print(rows: list[tuple[str, Simulation]]) -> None:
    table = [["file", "n", "method", "queries", "oracle", "estimate", "sd", "mean |error|"]]
    for name, result in rows:
        mean, sd = np.mean(result.estimates), np.std(result.estimates)
        cells = [Path(name).name, f"{result.n:,}", _method_name(result), f"{result.queries:.3f}"]
        table.append([*cells, f"{result.oracle:.4f}", f"{mean:.4f}", f"{sd:.4f}", f"{result.mae:.5f}"])
    for method in dict.fromkeys(_method_name(result) for _, result in rows):
        of_method = [result for _, result in rows if _method_name(result) == method]
        queries = np.mean([result.queries for result in of_method])
        mae = np.mean([result.mae for result in of_method])
        table.append(["mean", "", method, f"{queries:.3f}", "", "", "", f"{mae:.5f}"])
    print_table(table, "<><>>>>>")


def _method_name(result: Simulation) -> str:
    return result.method if result.estimator == "own" else f"{result.method}+{result.estimator}"
