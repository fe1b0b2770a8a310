"""Whether a deployed threshold keeps its promised precision: audited on one half, deployed on the other.

    python bench/deployed.py [--repeats 20]

Repeat r splits the items of BoolQ in two at random (seed r). One half is audited over HTTP, one query per
item, against a server that answers from a real model's recorded logits. A threshold is chosen for a given
precision, the request that deploys it is sent for every item of the other half, which the audit never saw,
and the answers are compared with the labels.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tqdm import tqdm

import blindcal as bc
from blindcal.certifying.decision_request import decision_request
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.items import catalogue
from blindcal.items.record_format import RecordFormat
from blindcal.records import POSITIVE, Estimate, IntArray, Item, Request
from blindcal.reproduce import sources
from blindcal.simulation import replay
from record import Cell, parser, record, table

AT_ONCE = 32
MODEL, DATA, PRECISION = "qwen", "boolq", 0.85
CONFIDENCES = (0.95, None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One promise and its outcome: ``right`` of ``decisions`` positive decisions were right.

    ``expected`` is the promised share of right ones among them; ``recall`` is measured on the other half.
    """

    threshold: float
    expected: Estimate
    decisions: int
    right: int
    recall: float

    @property
    def share(self) -> float:
        """The deployed precision."""
        return self.right / max(self.decisions, 1)


async def decide(run: bc.Run, items: Sequence[Item], shift: float) -> IntArray:
    """The decision of the deployed model on each item, with the printed bias."""
    bias = {int(token): value for token, value in decision_request(run, shift).ask["logit_bias"].items()}
    question = TokenQuestion(run.result.targets, run.settings["offset"])
    answers = np.empty(len(items), np.int64)
    numbers = iter(range(len(items)))
    async with HttpEndpoint(Address(run.settings["base_url"], run.settings["model"])) as endpoint:

        async def worker() -> None:
            for number in numbers:
                reply = await endpoint.ask(Request(items[number].messages, bias, 0.0))
                answers[number] = question.parse(reply).answer

        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return answers


def audited(items: Sequence[Item], settings: bc.Settings, folder: Path) -> bc.Run:
    """Audit one half."""
    path = folder / "items.jsonl"
    with path.open("w") as file:
        for one in items:
            row = {"id": one.id, "label": one.label, "prompt": one.messages[0].content}
            file.write(json.dumps(row) + "\n")
    bc.audit(path, settings, out=folder / "run")
    return bc.open_run(folder / "run")


def repeat(items: Sequence[Item], settings: bc.Settings, seed: int) -> Iterator[Outcome | None]:
    """Each kind of promise on one split; ``None`` if no promise could be made."""
    order = np.random.default_rng([seed, 6]).permutation(len(items))
    ours, theirs = ([items[int(k)] for k in half] for half in np.array_split(order, 2))
    with tempfile.TemporaryDirectory() as folder:
        # few refits: only the intervals of the fit below are used
        run = audited(ours, settings.replace(seed=seed, resamples=20), Path(folder))
    fit = run.fit()
    labels = np.array([item.label for item in theirs])
    for confidence in CONFIDENCES:
        try:
            chosen = fit.choose_threshold(precision=PRECISION, confidence=confidence, max_shift=run.max_shift)
        except bc.NotIdentifiedError:
            yield None
            continue
        positive = asyncio.run(decide(run, theirs, chosen.point.shift)) == POSITIVE
        decisions, right = int(positive.sum()), int(labels[positive].sum())
        expected = fit.next_precision(chosen.point.threshold, max(decisions, 1))
        yield Outcome(chosen.point.threshold, expected, decisions, right, right / int(labels.sum()))


def row(confidence: float | None, tried: Sequence[Outcome | None]) -> list[Cell]:
    """The row of one kind of promise."""
    made = [one for one in tried if one is not None]
    wish = "the estimate" if confidence is None else f"{confidence:.0%} sure"
    numbers = [(one.threshold, one.decisions, one.share, one.recall) for one in made]
    means: list[Cell] = [float(np.mean(each)) for each in zip(*numbers, strict=True)]
    inside = sum(one.share in one.expected for one in made)
    enough = sum(one.share >= PRECISION for one in made)
    return [f"{PRECISION:g}, {wish}", len(made), *(means or [None] * 4), inside, enough]


def main() -> None:
    """Split, audit, deploy, and record the table."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=20)
    arguments = options.parse_args()
    source = sources.read(arguments.data / "logits" / f"{MODEL}__{DATA}__logits.csv.gz")
    reading = RecordFormat(data_dir=str(arguments.data / "data"))
    loaded = catalogue.open_items(DATA, reading)
    items = list(loaded)
    with replay.running(replay.Server(source.recording, items)) as server:
        settings = bc.Settings(
            model=source.recording.name,
            base_url=server.base_url,
            positive=source.targets.positive[0].text,
            negative=source.targets.negative[0].text,
            positive_ids=(source.targets.positive[0].id,),
            negative_ids=(source.targets.negative[0].id,),
        )
        seeds = tqdm(range(arguments.repeats), disable=None)
        tried = [list(repeat(items, settings, seed)) for seed in seeds]
    by_confidence = zip(CONFIDENCES, zip(*tried, strict=True), strict=True)
    columns = {
        "precision asked for": "{}",
        "promises": "{}",
        "mean threshold": "{:.3f}",
        "positive decisions": "{:.0f}",
        "precision deployed": "{:.3f}",
        "recall deployed": "{:.3f}",
        "within the interval": "{}",
        "at least as asked": "{}",
    }
    tables = {"kept": table(columns, [row(confidence, mine) for confidence, mine in by_confidence])}
    record("deployed", tables, folder=arguments.results, repeats=arguments.repeats)


if __name__ == "__main__":
    main()
