"""What an audit with no method named makes of endpoints that allow little or mislead.

    python bench/endpoints.py [--repeats 20]

Every audit asks 300 random items of a recorded model, over real HTTP, of a server that behaves in one way. It
counts which method was chosen, how often the 95% interval of the ECE contains the ECE of all of the model's
items, and how often the audit was refused for the right reason. Repeat r has seed r.
"""

from __future__ import annotations

from record import RESAMPLES, options, record, run_all, score_files, table

import json
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.special import expit, logit

from accuracy import load
from blindcal.auditing.audit import audit
from blindcal.errors import UnfitError
from blindcal.estimate.truth import binned_ece
from blindcal.records import FloatArray, Item, Message
from blindcal.settings import Settings
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from misbehaving import Behaviour, Server

ITEMS = 300


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


def as_configured(p: FloatArray, behaviour: Behaviour) -> FloatArray:
    """The probabilities with the penalty that a server always applies to the word in the prompt."""
    if behaviour.penalty_fields == "honoured":
        return p
    odds = logit(np.clip(p, 1e-12, 1 - 1e-12))
    yes, penalty = odds / 2, behaviour.repetition_penalty
    return np.asarray(expit(np.where(yes > 0, yes / penalty, yes * penalty) + odds / 2))


def audited(job: tuple[Endpoint, Path, int]) -> tuple[str, bool, int]:
    """The method, whether its interval holds the truth, and queries; or "refused", and whether rightly."""
    kind, path, seed = job
    labels, p = load(path)
    chosen = np.random.default_rng([seed, 23]).choice(labels.size, min(ITEMS, labels.size), replace=False)
    truth = float(binned_ece(labels, as_configured(p, kind.behaviour), 5).ece)
    items = [
        Item(str(k), int(labels[k]), (Message("user", f"Say Yes if statement {k} holds."),))
        for k in chosen.tolist()
    ]
    rows = ({"id": item.id, "label": item.label, "prompt": item.messages[0].content} for item in items)
    recording = Recording.from_probabilities([item.id for item in items], p[chosen])
    with (
        tempfile.TemporaryDirectory() as name,
        running(Server(recording, items, replace(kind.behaviour, seed=seed))) as server,
    ):
        file = Path(name, "items.jsonl")
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        settings = Settings(model="replay", base_url=server.base_url, seed=seed, resamples=RESAMPLES)
        try:
            result = audit(file, settings, out=Path(name, "run"))
        except UnfitError as error:
            return "refused", kind.refused in str(error), 0
    return result.method, truth in result.ece, result.spend.queries


def main() -> None:
    """Audit every kind of endpoint, and record what came of it."""
    arguments = options(__doc__, repeats=20)
    paths = score_files(arguments.data)
    rows = []
    for kind in ENDPOINTS:
        jobs = [(kind, paths[seed % len(paths)], seed) for seed in range(arguments.repeats)]
        each = run_all(audited, jobs, arguments)
        methods = Counter(method for method, *_ in each if method != "refused")
        finished = [(held, queries) for method, held, queries in each if method != "refused"]
        refused = [right for method, right, _ in each if method == "refused"]
        rows.append(
            [
                kind.name,
                ", ".join(f"`{name}` {many}" for name, many in methods.most_common()) or "none",
                sum(held for held, _ in finished) if finished else None,
                len(refused),
                sum(refused) if refused else None,
                float(np.mean([queries for _, queries in finished])) if finished else None,
            ]
        )
    columns = {
        "endpoint": "{}",
        "method": "{}",
        "interval holds": "{}",
        "refused": "{}",
        "for the right reason": "{}",
        "queries": "{:.0f}",
    }
    record("endpoints", {"endpoints": table(columns, rows)}, arguments)


if __name__ == "__main__":
    main()
