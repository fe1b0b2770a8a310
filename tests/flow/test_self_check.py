"""A model that is asked whether answers in a log are correct, its own and those of another."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from blindcal.items.catalogue import open_items
from blindcal.items.record_format import RecordFormat
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from commanding import blindcal
from misbehaving import Server

N = 120


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Results of promptfoo: two models answered each of the questions."""
    rows = [
        {
            "provider": {"id": f"openai:{model}"},
            "prompt": {"raw": f"Name river {k}."},
            "response": {"output": f"River {k} is called {model}."},
            "vars": {},
            "success": bool(success),
            "score": int(success),
            "testIdx": k,
        }
        for model, seed in (("replay", 1), ("other", 2))
        for k, success in enumerate(np.random.default_rng(seed).random(N) < 0.6)
    ]
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"results": {"version": 3, "results": rows}}))
    return path


@pytest.mark.usefixtures("no_page")
def test_a_self_check_tells_own_answers_from_others(results: Path, tmp_path: Path) -> None:
    """One command audits scored answers, broken down by model; new answers are decided unscored."""
    asked = list(open_items(results, RecordFormat(self_check=True)))
    p = np.random.default_rng(3).beta(2, 1, 2 * N)
    with running(Server(Recording.from_probabilities([item.id for item in asked], p), asked)) as server:
        done = blindcal(
            "audit", results, "--self-check", "--model", "replay", "--base-url", server.base_url,
            "--out", tmp_path / "run", "--set", "resamples=20",
        )  # fmt: skip
        assert done.exit_code == 0, done.output
        rule, table = tmp_path / "rule.json", tmp_path / "new.jsonl"
        table.write_text('{"question": "Name river 7.", "answer": "River 7 is called other."}\n')
        certified = blindcal("certify", tmp_path / "run", "--precision", 0.4, "--out", rule)
        assert certified.exit_code == 0, certified.output
        decided = blindcal("decide", rule, table, "--out", tmp_path / "decisions")
        assert decided.exit_code == 0, decided.output
    assert "by answered_by" in done.output
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    assert "120 of 240 are the model's own, of which models tend to be surer" in found["measures"]
    assert (found["by"], [part["name"] for part in found["parts"]]) == (
        "answered_by",
        ["openai:other", "openai:replay"],
    )
