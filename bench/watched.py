"""What a run notices about its endpoint: dishonest and unsteady ones, each audited with several seeds.

    python bench/watched.py [--repeats 20] [--honest 200] [--items 1000]

The endpoint answers in the process, as METHOD 2 says, and misbehaves only after the probe, so that the probe
cannot see it. Each audit is a whole one: probe, run, controls, estimates.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import json
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import expit
from tqdm import tqdm

from blindcal.auditing.audit import audit
from blindcal.errors import UnfitError
from blindcal.estimate.truth import binned_ece
from blindcal.records import FloatArray, Reply, Request, Targets, Token
from blindcal.results.result import AuditResult
from blindcal.settings import Settings
from record import Cell, parser, record, table

PAIR = Targets((Token(1, "Yes"),), (Token(2, "No"),))


@dataclass(frozen=True)
class Fault:
    """How the endpoint misbehaves, from a share of the queries on."""

    words: str
    begins: float = 0.0
    ignores: float = 0.0
    drift: float = 0.0
    flips: float = 0.0
    jitter: float = 0.0


FAULTS = {
    "honest": Fault("nothing: an honest endpoint"),
    "ignored": Fault("bias ignored from query 120 on", 0.12, ignores=1.0),
    "ignored in part": Fault("30% of the requests ignore the bias", ignores=0.3),
    "drift": Fault("all log-odds + 1 half-way", 0.5, drift=1.0),
    "flips": Fault("3% of the answers flipped", flips=0.03),
    "jitter 0.5": Fault("jitter of 0.5", jitter=0.5),
    "jitter 1": Fault("jitter of 1", jitter=1.0),
}


class Unsteady:
    """An endpoint in the process, with known log-odds and a fault that begins after the probe."""

    def __init__(self, log_odds: FloatArray, fault: Fault, seed: int) -> None:
        self._s, self._fault = log_odds, fault
        self._rng = np.random.default_rng([seed, 1])
        self._requests = 0
        self._probe: int | None = None  # how many requests it took, once it has ended

    def follow(self, step: str) -> None:
        """Hear what the audit does now."""
        if step == "asking":
            self._probe = self._requests

    async def ask(self, request: Request) -> Reply:
        """Answer one request."""
        self._requests += 1
        fault, rng = self._fault, self._rng
        begins = fault.begins * self._s.size
        at_fault = self._probe is not None and self._requests > self._probe + begins
        s = float(self._s[int(request.messages[0].content.split()[1])])
        shift = request.logit_bias.get(1, 0.0) - request.logit_bias.get(2, 0.0)
        if at_fault:
            s += fault.drift + fault.jitter * rng.standard_normal()
            shift *= rng.random() >= fault.ignores
        if request.temperature:
            yes = bool(rng.random() < expit((s + shift) / request.temperature))
        else:
            yes = s + shift >= 0
        if at_fault and rng.random() < fault.flips:
            yes = not yes
        return Reply("Yes" if yes else "No", "length", 10, 1)

    async def close(self) -> None:
        """Nothing to close."""


def population(n: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Labels and log-odds of a slightly overconfident model."""
    rng = np.random.default_rng([seed, 2])
    s = 0.3 + 2.5 * rng.standard_normal(n)
    return (rng.random(n) < expit(0.8 * s)).astype(float), s


def run(fault: Fault, n: int, seed: int, folder: Path) -> AuditResult | None:
    """One audit; ``None`` if the run ended because the bias stopped acting."""
    labels, s = population(n, seed)
    items = folder / "items.jsonl"
    records = ({"id": str(k), "prompt": f"question {k}", "label": int(y)} for k, y in enumerate(labels))
    items.write_text("".join(json.dumps(one) + "\n" for one in records))
    settings = Settings(model="m", base_url="http://nowhere.invalid/v1", seed=seed, resamples=200)
    model = Unsteady(s, fault, seed)
    try:
        return audit(items, settings, out=folder / "run", endpoint=model, targets=PAIR, stage=model.follow)
    except UnfitError as error:
        if "no longer does" in str(error):
            return None
        return run(fault, n, seed + 10**6, folder)  # refused by the probe, before anything could happen


@dataclass(frozen=True)
class Outcome:
    """What one audit ended with."""

    name: str
    said: str
    ece_held: bool
    accuracy_held: bool
    controls: int


def outcome(task: tuple[str, int, int]) -> Outcome:
    """The outcome of the audit with one fault and seed."""
    name, n, seed = task
    labels, s = population(400_000, 10**6)
    ece = float(binned_ece(labels, expit(s), 5).ece)
    accuracy = float(((s >= 0) == (labels == 1)).mean())
    with tempfile.TemporaryDirectory() as folder:
        found = run(FAULTS[name], n, seed, Path(folder))
    if found is None or found.steadiness is None:
        return Outcome(name, "ended", False, False, 0)
    said = "warned" if found.warnings else "noted" if found.steadiness.notes else "silent"
    return Outcome(name, said, ece in found.ece, accuracy in found.accuracy, found.spend.control_queries)


def main() -> None:
    """Run the study, and record its table."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=20)
    options.add_argument("--honest", type=int, default=200)
    options.add_argument("--items", type=int, default=1000)
    options.add_argument("--kinds", nargs="*", default=list(FAULTS))
    chosen = options.parse_args()
    tasks = [
        (name, chosen.items, seed)
        for name in chosen.kinds
        for seed in range(chosen.honest if name == "honest" else chosen.repeats)
    ]
    with ProcessPoolExecutor(chosen.processes) as pool:
        found = list(tqdm(pool.map(outcome, tasks), total=len(tasks), disable=None))
    rows: list[list[Cell]] = []
    for name in chosen.kinds:
        own = [one for one in found if one.name == name]
        said = Counter(one.said for one in own)
        used = [one for one in own if one.said in ("noted", "silent")]
        held: list[Cell] = [
            (sum(flags), len(used)) if used else None
            for flags in ([one.ece_held for one in used], [one.accuracy_held for one in used])
        ]
        counts: list[Cell] = [said[each] for each in ("ended", "warned", "noted", "silent")]
        rows.append([FAULTS[name].words, len(own), *counts, *held])
    columns = {"endpoint, after the probe": "{}", "runs": "{}", "ended": "{}", "warning": "{}", "note": "{}"}
    columns |= {"no word": "{}", "ECE held": "{} of {}", "accuracy held": "{} of {}"}
    repeats = {"honest": chosen.honest, "each other": chosen.repeats}
    record("watched", {"watched": table(columns, rows)}, folder=chosen.results, repeats=repeats)


if __name__ == "__main__":
    main()
