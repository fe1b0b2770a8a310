"""Does a deployed threshold keep the precision that was promised? Audit one part, deploy on another.

    python bench/deployed.py [--data ../shared] [--repeats 100] [--only boolq] [--raw runs/deployed.jsonl]

Repeat r splits a real model's items at random (seed r). One part is audited over HTTP, one query an item,
against a server that answers from the model's recorded logits; `blindcal threshold --precision` chooses the
threshold; the request it prints is sent for every item of the other part, which the audit never saw, and the
answers are counted against the labels. Interrupted, the same command goes on: the raw file keeps repeats.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tqdm import tqdm

import blindcal
from blindcal.endpoints.http import Address, HttpEndpoint
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.errors import NotIdentifiedError
from blindcal.items import catalogue
from blindcal.records import POSITIVE, FloatArray, IntArray, Item, Request
from blindcal.reproduce import sources
from blindcal.results.deployment import deployment
from blindcal.results.run import Run, open_run
from blindcal.simulation import replay

AT_ONCE = 32


@dataclass(frozen=True)
class Cell:
    """A recorded model on a set: how many items are audited and deployed on, and the precision asked for."""

    name: str
    audited: int
    deployed: int
    precision: float

    @property
    def words(self) -> tuple[str, str]:
        """The answers."""
        return ("True", "False") if "boolq" in self.name else ("Yes", "No")


CELLS = (
    Cell("qwen__boolq", 1635, 1635, 0.85),
    Cell("qwen__mmlu", 2000, 1500, 0.4),
)


@dataclass(frozen=True)
class Outcome:
    """One promise and what became of it; ``threshold`` is ``None`` where none could be made.

    ``low`` and ``high`` bound the share of right ones among ``decisions`` positive decisions, ``right`` of
    which were; ``beyond`` is the precision over everything not audited, computed from the logits.
    """

    cell: str
    seed: int
    confidence: float | None
    threshold: float | None = None
    estimate: float = 0.0
    interval: tuple[float, float] = (0.0, 1.0)
    low: float = 0.0
    high: float = 1.0
    decisions: int = 0
    right: int = 0
    recall: float = 0.0
    beyond: float = 0.0


async def decide(run: Run, items: Sequence[Item], shift: float) -> IntArray:
    """What the deployed model decides on each item, asked with the request that is printed."""
    made = deployment(run, shift)
    bias = {int(token): value for token, value in made.logit_bias.items()}
    question = TokenQuestion(run.result.targets, run.settings["offset"])
    answers = np.empty(len(items), np.int64)
    numbers = iter(range(len(items)))
    async with HttpEndpoint(Address(run.settings["base_url"], run.settings["model"])) as endpoint:

        async def worker() -> None:
            for number in numbers:
                reply = await endpoint.ask(Request(items[number].messages, bias, 0.0))
                answers[number] = question.answer(reply.text)

        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return answers


def repeat(
    cell: Cell,
    seed: int,
    everything: Sequence[Item],
    truth: tuple[IntArray, FloatArray],
    server: replay.Server,
    ids: tuple[tuple[int, ...], tuple[int, ...]],
) -> Iterator[Outcome]:
    """One split: the audit of one part, and both kinds of promise deployed on the other."""
    labels, p = truth
    order = np.random.default_rng([seed, 6]).permutation(labels.size)
    ours, theirs = order[: cell.audited], order[cell.audited :]
    there = theirs[: cell.deployed]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "items.jsonl"
        with path.open("w") as file:
            for k in ours:
                one = everything[int(k)]
                row = {"id": one.id, "label": one.label, "prompt": one.messages[0].content}
                file.write(json.dumps(row) + "\n")
        settings = blindcal.Settings(
            model=server.recording.name,
            base_url=server.base_url,
            positive=cell.words[0],
            negative=cell.words[1],
            positive_ids=ids[0],
            negative_ids=ids[1],
            seed=seed,
            resamples=20,  # of the audit's own figures, which are not used here
        )
        blindcal.audit(path, settings, out=Path(folder) / "run")
        run = open_run(Path(folder) / "run")
    fit = run.fit()
    asked = [everything[int(k)] for k in there]
    for confidence in (0.95, None):
        try:
            point = fit.operating_point(
                precision=cell.precision, confidence=confidence, max_shift=run.max_shift
            )
        except NotIdentifiedError:
            yield Outcome(cell.name, seed, confidence)
            continue
        positive = asyncio.run(decide(run, asked, point.shift)) == POSITIVE
        decisions, right = int(positive.sum()), int(labels[there][positive].sum())
        expected = fit.next_right(point.threshold, max(decisions, 1))
        beyond = labels[theirs][p[theirs] >= point.threshold]
        yield Outcome(
            cell.name,
            seed,
            confidence,
            point.threshold,
            point.precision,
            (point.precision_interval.low, point.precision_interval.high),
            expected.low,
            expected.high,
            decisions,
            right,
            right / max(int(labels[there].sum()), 1),
            float(beyond.mean()) if beyond.size else 1.0,
        )


def study(cell: Cell, folder: Path, repeats: int, raw: Path) -> list[Outcome]:
    """All repeats of one cell; those in the raw file are not run again."""
    done = [one for one in _kept(raw) if one.cell == cell.name and one.seed < repeats]
    seeds = sorted(set(range(repeats)) - {one.seed for one in done if one.confidence is None})
    if not seeds:
        return done
    logits = folder / "logits" / f"{cell.name}__logits.csv.gz"
    source = sources.read(logits)
    truth = (source.labels, source.probabilities("pair"))
    with catalogue.open_items(source.data, data_dir=folder / "data") as loaded:
        everything = list(loaded)
    assert [item.label for item in everything] == truth[0].tolist()
    ids = ((source.targets.positive[0].id,), (source.targets.negative[0].id,))
    with replay.running(source.recording, everything) as server, raw.open("a") as file:
        for seed in tqdm(seeds, desc=cell.name, leave=False):
            found = list(repeat(cell, seed, everything, truth, server, ids))
            file.write("".join(json.dumps(asdict(one)) + "\n" for one in found))
            file.flush()
            done += found
    return done


def _kept(raw: Path) -> list[Outcome]:
    if not raw.is_file():
        return []
    return [Outcome(**row) for row in map(json.loads, raw.read_text().splitlines())]


def row(cell: Cell, outcomes: list[Outcome], confidence: float | None) -> str:
    """A line of the table."""
    mine = [one for one in outcomes if one.confidence == confidence]
    made = [one for one in mine if one.threshold is not None]
    shares = np.array([one.right / max(one.decisions, 1) for one in made])
    inside = sum(one.low <= share <= one.high for one, share in zip(made, shares, strict=True))
    least = sum(share >= cell.precision for share in shares)
    beyond = sum(one.beyond >= cell.precision for one in made)
    wish = "the estimate" if confidence is None else f"{confidence:.0%} sure"
    return (
        f"| {cell.name.replace('__', ' ')} | {cell.audited:,} | {cell.precision:g}, {wish} | "
        f"{len(made)} of {len(mine)} | "
        f"{np.mean([one.threshold for one in made]):.3f} | {np.mean([one.decisions for one in made]):.0f} | "
        f"{shares.mean():.3f} | {np.mean([one.recall for one in made]):.3f} | {inside} | {least} | {beyond} |"
    )


def main() -> None:
    """Print a row for each cell and kind of promise."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--only", default="")
    parser.add_argument("--raw", type=Path, default=Path("runs/deployed.jsonl"))
    options = parser.parse_args()
    options.raw.parent.mkdir(parents=True, exist_ok=True)
    print(
        "| model and set | audited | precision asked for | promises | threshold | positive decisions "
        "| precision deployed | recall deployed | within the interval | at least as asked "
        "| over all not audited |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for cell in CELLS:
        if options.only in cell.name:
            outcomes = study(cell, options.data, options.repeats, options.raw)
            for confidence in (0.95, None):
                print(row(cell, outcomes, confidence), flush=True)


if __name__ == "__main__":
    main()
