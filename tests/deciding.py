"""Finished runs that the tests of thresholds, comparisons and gates share."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from blindcal.asking.run_context import Limits
from blindcal.auditing.audit import audit
from blindcal.records import FloatArray, IntArray
from blindcal.settings import Settings
from blindcal.simulation import replay
from misbehaving import Server
from serving import replaying


def model(n: int, seed: int, steepness: float = 1.0) -> tuple[IntArray, FloatArray]:
    """Labels, and the probabilities of a model that knows something; below 1 the steepness makes it timid."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) < 0.5).astype(np.int64)
    log_odds = steepness * (2.0 * (2 * labels - 1) + 1.8 * rng.standard_normal(n))
    return labels, np.asarray(1 / (1 + np.exp(-log_odds)))


def write_items(path: Path, labels: IntArray, **columns: Any) -> Path:
    """Questions about numbers, each asked in its own words."""
    rows = [
        {"id": f"q{k}", "n": k, "label": int(label), **{name: values[k] for name, values in columns.items()}}
        for k, label in enumerate(labels)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


TEMPLATE = 'Is "{n}" one of them? Yes or No.'


def settings(server: replay.Server, **more: Any) -> Settings:
    """One query an item, few resamples."""
    base = {"model": "replay", "base_url": server.base_url, "template": TEMPLATE, "resamples": 40}
    return Settings(**{**base, **more})


def serving(
    items: Path, p: FloatArray, words: Mapping[str, Any] | None = None, **behaviour: Any
) -> AbstractContextManager[Server]:
    """A server that answers by these probabilities to the questions as ``words`` (settings) put them."""
    reading = Settings(**{"model": "replay", "template": TEMPLATE, **(words or {})}).prompt
    return replaying(items, p, reading=reading, **behaviour)


def audited(
    items: Path,
    server: replay.Server,
    out: Path,
    *,
    limits: Limits | None = None,
    force: bool = False,
    **more: Any,
) -> Path:
    """The folder of a finished run."""
    audit(items, settings(server, **more), out=out, limits=limits, force=force)
    return out


def decided(body: dict[str, Any], url: str, k: int) -> bool:
    """What the deployed model says to question k, asked with the printed body."""
    messages = [{**m, "content": m["content"].replace("{n}", str(k))} for m in body["messages"]]
    sent = json.dumps({**body, "messages": messages}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, sent)) as reply:
        answer = json.load(reply)["choices"][0]["message"]["content"]
    assert answer in ("Yes", "No")
    return bool(answer == "Yes")
