"""`--semantics sum` of threshold methods: numbers of our own make greedy answers follow all spellings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from blindcal.auditing.audit import audit
from blindcal.errors import InputError
from blindcal.estimate.truth import binned_ece
from blindcal.items.question_files import load
from blindcal.records import Token
from blindcal.settings import Settings
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from blindcal.store.run_store import RUN_FILE, Store
from misbehaving import Behaviour, Server

N = 900


def test_an_audit_measures_the_sum_of_all_spellings(tmp_path: Path) -> None:
    """Two spellings of each word, of which the likeliest says something else than the sum."""
    rng = np.random.default_rng(0)
    s = rng.normal(0.4, 1.5, N)
    f = 1 / (1 + np.exp(-s))
    labels = (rng.random(N) < 1 / (1 + np.exp(-0.5 * s))).astype(int)  # overconfident
    path = tmp_path / "items.jsonl"
    rows = ({"prompt": f"Is {k} so? Yes or No.", "label": int(y)} for k, y in enumerate(labels))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    # three tokens for Yes with equal weight, one for No: the greedy answer is off by log 3
    tokens = (Token(1, "Yes"), Token(2, " Yes"), Token(3, "yes"), Token(4, "No"))
    logits = np.column_stack([*([s - np.log(3)] * 3), np.zeros(N)])
    items = list(load(path))
    names = tuple(item.id for item in items)
    known = Recording("replay", names, tokens, logits, logits.max(axis=1) - 12, np.zeros(N, np.int64))
    with running(Server(known, items, Behaviour())) as server:
        settings = Settings(
            model="replay",
            base_url=server.base_url,
            method="latent",
            semantics="sum",
            queries=2,
            positive_ids=(1, 2, 3),
            negative_ids=(4,),
            resamples=100,
        )
        result, again = (audit(path, settings, out=tmp_path / "run") for _ in range(2))
    assert result.semantics == "sum"
    assert result.ece == again.ece
    assert float(binned_ece(labels, f).ece) in result.ece
    assert result.accuracy.value == pytest.approx(((s >= 0) == (labels == 1)).mean(), abs=0.05)
    with Store.read(tmp_path / "run" / RUN_FILE) as store:
        assert all((asked.temperatures == 1).all() for asked in store.rounds())


@pytest.mark.parametrize("method", ["blind", "extraction"])
def test_methods_that_read_exact_thresholds_refuse_it(method: str) -> None:
    """Answers that follow a sum are noisy, which their estimators do not allow for."""
    with pytest.raises(InputError, match=f"semantics: {method} reads exact thresholds"):
        Settings(model="m", method=method, semantics="sum")
