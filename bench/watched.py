"""What a run notices about its endpoint: dishonest and unsteady ones, each audited with several seeds.

    python bench/watched.py [--repeats 20] [--honest 200] [--items 1000]

The endpoint answers in the process, as METHOD 2 says, and misbehaves only after the probe, so that the probe
cannot see it. Each audit is a whole one: probe, run, controls, estimates.
"""

from __future__ import annotations

from record import Cell, options, record, run_all, table

import json
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import expit

from blindcal.auditing.audit import audit
from blindcal.errors import UnfitError
from blindcal.estimate.truth import binned_ece
from blindcal.records import FloatArray, Reply, Request, Targets, Token
from blindcal.results.result import AuditResult
from blindcal.settings import Settings

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
        return Reply("Yes" if yes else "No", "length", prompt_tokens=10, completion_tokens=1)

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


def outcome(task: tuple[str, int, int]) -> tuple[str, bool, bool]:
    """What one audit said, and whether the intervals of ECE and accuracy held."""
    name, n, seed = task
    labels, s = population(400_000, 10**6)
    ece = float(binned_ece(labels, expit(s), 5).ece)
    accuracy = float(((s >= 0) == (labels == 1)).mean())
    with tempfile.TemporaryDirectory() as folder:
        result = run(FAULTS[name], n, seed, Path(folder))
    if result is None or result.steadiness is None:
        return "ended", False, False
    word = "warned" if result.warnings else "noted" if result.steadiness.notes else "silent"
    return word, ece in result.ece, accuracy in result.accuracy


def main() -> None:
    """Run the study, and record its table."""
    arguments = options(__doc__, repeats=20, honest=200, items=1000)
    rows: list[list[Cell]] = []
    for name in FAULTS:
        many = arguments.honest if name == "honest" else arguments.repeats
        each = run_all(outcome, [(name, arguments.items, seed) for seed in range(many)], arguments)
        words = Counter(word for word, *_ in each)
        used = [held for word, *held in each if word in ("noted", "silent")]
        held: list[Cell] = [(sum(flags), len(used)) for flags in zip(*used, strict=True)]
        counts = [words[word] for word in ("ended", "warned", "noted", "silent")]
        rows.append([FAULTS[name].words, many, *counts, *(held or [None, None])])
    columns = {"endpoint, after the probe": "{}", "runs": "{}", "ended": "{}", "warning": "{}", "note": "{}"}
    columns |= {"no word": "{}", "ECE held": "{} of {}", "accuracy held": "{} of {}"}
    repeats = {"honest": arguments.honest, "each other": arguments.repeats}
    record("watched", {"watched": table(columns, rows)}, arguments, repeats=repeats)


if __name__ == "__main__":
    main()
