"""What an audit with no method named makes of endpoints that allow little or mislead.

    python bench/endpoints.py [--repeats 20] [--only PATTERN]

Every audit asks 300 random items of a recorded model, over real HTTP, of a server that behaves in one way. It
counts which method was chosen, how often the 95% interval of the ECE contains the ECE of all of the model's
items, and how often the audit was refused for the right reason. Repeat r has seed r.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from record import Cell, parser, record, table

import numpy as np
from scipy.special import expit, logit

from blindcal.auditing.audit import audit_async
from blindcal.errors import UnfitError
from blindcal.estimate.truth import binned_ece
from blindcal.items.score_files import read_table
from blindcal.records import FloatArray, IntArray, Item, Message
from blindcal.results.result import AuditResult
from blindcal.settings import Settings
from blindcal.simulation.recording import Recording
from misbehaving import Behaviour, Server

ITEMS = 300
REFITS = 300


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A kind of endpoint, and words that the reason of a refusal must have.

    Draws from a model that is sure of all items that the probe asks do not vary either.
    """

    name: str
    behaviour: Behaviour
    refused: str = "do not vary"


NEITHER = Behaviour(bias="rejected", temperature="rejected", sampler_fields="all rejected")
CUT = Behaviour(min_p=0.05)
ALWAYS_CUT = replace(CUT, sampler_fields="ignored")
DEAF = Behaviour(bias="ignored", temperature="ignored")
ENDPOINTS = (
    Endpoint("bias refused", Behaviour(bias="rejected")),
    Endpoint("bias ignored", Behaviour(bias="ignored")),
    Endpoint("temperature refused", Behaviour(temperature="rejected")),
    Endpoint("temperature ignored", Behaviour(temperature="ignored")),
    Endpoint(
        "both refused, answers in sentences, reasons, `max_completion_tokens` only",
        replace(NEITHER, wording="sentence", reasoning_tokens=64, limit_name="max_completion_tokens"),
    ),
    Endpoint("both refused, logprobs shown", replace(NEITHER, logprobs=True)),
    Endpoint("samples cut at `min_p` unless told otherwise", CUT),
    Endpoint("the same, bias refused", replace(CUT, bias="rejected")),
    Endpoint("samples always cut", ALWAYS_CUT),
    Endpoint("the same, bias refused", replace(ALWAYS_CUT, bias="rejected")),
    Endpoint("both refused, `n` honoured", NEITHER),
    Endpoint("both refused, `n` ignored", replace(NEITHER, n="ignored")),
    Endpoint("both refused, `n` identical", replace(NEITHER, n="identical")),
    Endpoint("both refused, `n` refused", replace(NEITHER, n="rejected")),
    Endpoint("replies cached by prompt", Behaviour(cached=True)),
    Endpoint("both refused, replies cached", replace(NEITHER, cached_requests=True)),
    Endpoint("penalty after the bias unless told otherwise", Behaviour(repetition_penalty=1.1)),
    Endpoint(
        "always a penalty after the bias",
        Behaviour(repetition_penalty=1.1, penalty_fields="ignored"),
    ),
    Endpoint("temperature fixed", Behaviour(temperature="fixed")),
    Endpoint("bias and temperature ignored", DEAF),
    Endpoint("everything, token ids unknown", Behaviour(tokenize="none")),
    Endpoint("everything", Behaviour(logprobs=True)),
    Endpoint("everything but logprobs", Behaviour()),
)


@cache
def recorded(path: Path) -> tuple[IntArray, FloatArray]:
    """The labels and probabilities in a file of scores."""
    columns = read_table(path)
    return np.array(columns["label"], np.int64), np.array(columns["p"], float)


def as_configured(p: FloatArray, behaviour: Behaviour) -> FloatArray:
    """The probabilities with the penalty that a server always applies to the word in the prompt."""
    if behaviour.penalty_fields == "honoured":
        return p
    odds = logit(np.clip(p, 1e-12, 1 - 1e-12))
    yes, penalty = odds / 2, behaviour.repetition_penalty
    return np.asarray(expit(np.where(yes > 0, yes / penalty, yes * penalty) + odds / 2))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one audit: the method, whether the interval holds the truth, the cost; or a refusal."""

    method: str
    holds: bool
    queries: int
    reason: str = ""


def audited(kind: Endpoint, paths: Sequence[Path], seed: int) -> Verdict:
    """Audit a sample of a model's items."""
    labels, p = recorded(paths[seed % len(paths)])
    rng = np.random.default_rng([seed, 23])
    chosen = rng.choice(labels.size, min(ITEMS, labels.size), replace=False)
    truth = float(binned_ece(labels, as_configured(p, kind.behaviour), 5).ece)
    items = [
        Item(str(k), int(labels[k]), (Message("user", f"Say Yes if statement {k} holds."),))
        for k in chosen.tolist()
    ]
    recording = Recording.from_probabilities([item.id for item in items], p[chosen])
    behaviour = replace(kind.behaviour, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = asyncio.run(_audit(recording, items, behaviour, seed, Path(folder)))
        except UnfitError as error:
            return Verdict("refused", kind.refused in str(error), 0, str(error))
    holds = truth in result.ece
    return Verdict(result.method, holds, result.spend.queries, f"{result.ece} {truth:.4f}")


async def _audit(
    recording: Recording, items: Sequence[Item], behaviour: Behaviour, seed: int, folder: Path
) -> AuditResult:
    file = folder / "items.jsonl"
    rows = ({"id": one.id, "label": one.label, "prompt": one.messages[0].content} for one in items)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    async with Server(recording, items, behaviour) as server:
        settings = Settings(model="replay", base_url=server.base_url, seed=seed, resamples=REFITS)
        return await audit_async(file, settings, out=folder / "run")


def main() -> None:
    """Audit every kind of endpoint, and record what came of it."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=20)
    options.add_argument("--only", default="", help="pattern of the endpoints; records nothing")
    arguments = options.parse_args()
    paths = sorted((arguments.data / "scores").glob("*.csv.gz"))
    rows: list[list[Cell]] = []
    with ProcessPoolExecutor(arguments.processes) as pool:
        for kind in ENDPOINTS:
            if not re.search(arguments.only, kind.name):
                continue
            found = list(pool.map(partial(audited, kind, paths), range(arguments.repeats)))
            counts = Counter(one.method for one in found)
            finished = [one for one in found if one.method != "refused"]
            refused = [one for one in found if one.method == "refused"]
            methods = ", ".join(
                f"`{name}` {many}" for name, many in counts.most_common() if name != "refused"
            )
            rows.append(
                [
                    kind.name,
                    methods or "none",
                    sum(one.holds for one in finished) if finished else None,
                    len(refused),
                    sum(one.holds for one in refused) if refused else None,
                    float(np.mean([one.queries for one in finished])) if finished else None,
                ]
            )
            if arguments.only:
                for one in found:
                    print("   ", one)
    named = {
        "endpoint": "{}",
        "method": "{}",
        "interval holds": "{}",
        "refused": "{}",
        "for the right reason": "{}",
        "queries": "{:.0f}",
    }
    if arguments.only:
        print(table(named, rows).markdown())
    else:
        record("endpoints", {"endpoints": table(named, rows)}, arguments)


if __name__ == "__main__":
    main()
