"""Questions with several options, a model whose logits are known, and runs that ask it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from blindcal.auditing.audit import audit
from blindcal.items.catalogue import open_items
from blindcal.records import FloatArray, IntArray, Round
from blindcal.results.result import AuditResult
from blindcal.settings import Settings
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from misbehaving import Behaviour, Server

LETTERS = tuple("ABCDEF")


def write_choices(
    path: Path, labels: IntArray, choices: Sequence[int] | IntArray, **columns: Sequence[Any]
) -> Path:
    """Questions with so many options each."""
    rows = [
        {
            "id": f"q{k}",
            "question": f"Which is {k}?",
            "choices": [f"{letter.lower()}{k}" for letter in LETTERS[:count]],
            "label": int(label),
            **{name: values[k] for name, values in columns.items()},
        }
        for k, (label, count) in enumerate(zip(labels, choices, strict=True))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def serving(
    items: Path, logits: FloatArray, behaviour: Behaviour | None = None
) -> AbstractContextManager[Server]:
    """A server that answers the questions of a file by these logits."""
    loaded = open_items(items)
    asked = list(loaded)
    known = Recording.of_choices([item.id for item in asked], logits, LETTERS[: logits.shape[1]])
    return running(Server(known, asked, behaviour or Behaviour()))


def audited(items: Path, server: Server, out: Path, **more: Any) -> AuditResult:
    """The result of an audit, with few resamples."""
    options = {"model": "replay", "base_url": server.base_url, "method": "latent", "resamples": 40, **more}
    return audit(items, Settings(**options), out=out)


def greedy(logits: FloatArray) -> Callable[[Round, int], IntArray]:
    """What a model with these logits answers to the rounds of a design, at T = 0."""

    def answer(asked: Round, _: int) -> IntArray:
        assert asked.biases is not None
        return np.asarray((logits[asked.items] + asked.biases).argmax(axis=1))

    return answer
