"""Decisions by a certificate, compared with the certified rule, and killed again and again.

    python bench/decided.py [--n 1000] [--embedded-n 240] [--kills 20]

A replay of a real model on BoolQ is audited on 2,000 items and certified with two thresholds, and decides
about ``n`` other items. The embedded model decides about built-in questions. It knows too little for a useful
certificate, so its thresholds are set by hand: they split the items in thirds. The rule is applied to the
hidden log-odds, those recorded and those that the embedded server computes. Then the same is decided by
processes that are killed (SIGKILL) when a random request arrives, until there were enough kills. A proxy
counts the answers to each request.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import blindcal as bc
from blindcal.endpoints.local_server import ServerSettings, serve
from blindcal.items import catalogue
from blindcal.items.record_format import RecordFormat
from blindcal.records import FloatArray, Item
from blindcal.reproduce import sources
from blindcal.simulation import replay
from record import ROOT, Cell, parser, record, table

sys.path.append(str(ROOT / "tests"))

from certified_runs import near, read_lines, ruled
from decide_killing import DecisionKiller
from killing import CONCURRENCY
from local_ruling import ruling, write_questions

MODEL, DATA, PRECISION, NEGATIVE_PRECISION = "qwen", "boolq", 0.85, 0.75
AUDITED = 2000
A_RUN = 10  # kills in one run


def write(items: Sequence[Item], path: Path, *, labelled: bool) -> Path:
    """Write items to a file, with or without labels."""
    rows: list[dict[str, object]] = [{"id": one.id, "prompt": one.messages[0].content} for one in items]
    if labelled:
        rows = [{**row, "label": one.label} for row, one in zip(rows, items, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def measured(
    name: str, rule: bc.Certificate, items: Path, p: FloatArray, url: str, folder: Path, kills: int
) -> list[Cell]:
    """Decide, compare with the rule, kill, and compare again; one row of the table."""
    killer = DecisionKiller(rule, items, folder, random.Random(0))
    queries = killer.whole(url).total()
    found = [one["decision"] for one in read_lines(folder / "whole")]
    wanted = ruled(p, rule)
    other = sum(one != two for one, two in zip(found, wanted, strict=True))
    print(f"{name}: {len(found)} decisions, {other} other than the rule", flush=True)
    while (left := kills - killer.kills.total()) > 0:
        killer.run(url, min(A_RUN, left))
        print(f"{name}: {dict(killer.kills)}", flush=True)
    counts = [found.count(verdict) for verdict in ("accept", "reject", "abstain")]
    total = killer.kills.total()
    at = near(p, rule, within=1e-4)
    # decisions that differ after a kill end this script with an AssertionError
    return [name, len(found), *counts, at, other, queries, total, killer.again, total * CONCURRENCY, 0]


def replayed(data: Path, n: int, kills: int) -> list[Cell]:
    """A recorded model: audited and certified on some items, deciding about others."""
    source = sources.read(data / "logits" / f"{MODEL}__{DATA}__logits.csv.gz")
    loaded = catalogue.open_items(DATA, RecordFormat(data_dir=str(data / "data")))
    items = list(loaded)
    order = np.random.default_rng(0).permutation(len(items)).tolist()
    mine, theirs = ([items[k] for k in part] for part in (order[:AUDITED], order[AUDITED : AUDITED + n]))
    positive, negative = source.targets.positive[0], source.targets.negative[0]
    columns = [source.recording.tokens.index(one) for one in (positive, negative)]
    rows = [source.recording.ids.index(one.id) for one in theirs]
    logits = source.recording.logits[np.ix_(rows, columns)]
    with (
        tempfile.TemporaryDirectory() as name,
        replay.running(replay.Server(source.recording, items)) as server,
    ):
        folder = Path(name)
        settings = bc.Settings(
            model=source.recording.name,
            base_url=server.base_url,
            positive=positive.text,
            negative=negative.text,
            positive_ids=(positive.id,),
            negative_ids=(negative.id,),
            method="latent",
        )
        bc.audit(write(mine, folder / "labelled.jsonl", labelled=True), settings, out=folder / "run")
        rule = bc.certify(folder / "run", PRECISION, negative_precision=NEGATIVE_PRECISION)
        print(rule, flush=True)
        new = write(theirs, folder / "new.jsonl", labelled=False)
        p = 1 / (1 + np.exp(logits[:, 1] - logits[:, 0]))
        return measured("replay of a real model", rule, new, p, server.base_url, folder, kills)


def embedded(n: int, threads: int, kills: int) -> list[Cell]:
    """The embedded model, deciding about built-in questions."""
    with tempfile.TemporaryDirectory() as name, serve(settings=ServerSettings(threads=threads)) as served:
        folder = Path(name)
        items = write_questions(folder / "new.jsonl", n)
        rule, p = ruling(served, items)
        return measured("embedded model", rule, items, p, served.base_url, folder, kills)


def main() -> None:
    """Decide with both, and record the table."""
    options = parser(__doc__)
    options.add_argument("--n", type=int, default=1000, help="items that the replay decides about")
    options.add_argument(
        "--embedded-n", type=int, default=240, help="items that the embedded model decides about"
    )
    options.add_argument("--kills", type=int, default=20, help="kills of each")
    options.add_argument("--threads", type=int, default=0)
    arguments = options.parse_args()
    rows = [
        replayed(arguments.data, arguments.n, arguments.kills),
        embedded(arguments.embedded_n, arguments.threads, arguments.kills),
    ]
    columns = {
        "endpoint": "{}",
        "items": "{:,}",
        "accept": "{:,}",
        "reject": "{:,}",
        "abstain": "{:,}",
        "at a threshold": "{}",
        "other than the rule": "{}",
        "queries": "{:,}",
        "kills": "{}",
        "asked again": "{}",
        "in flight at most": "{}",
        "changed by kills": "{}",
    }
    tables = {"decided": table(columns, rows)}
    record(
        "decided",
        tables,
        folder=arguments.results,
        repeats=arguments.kills,
        seeds="moments of the kills seeded",
    )


if __name__ == "__main__":
    main()
