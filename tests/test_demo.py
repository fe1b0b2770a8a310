"""The demo: a real model, real HTTP, a whole audit."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from blindcal.cli.demo import command
from blindcal.endpoints import models

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None
    or (models.installed_model() is None and not models.cached_model().is_file()),
    reason="the demo needs: pip install 'blindcal[local]', and the model: blindcal pull",
)


def test_the_demo_audits_a_real_model_from_end_to_end(tmp_path: Path) -> None:
    """A real llama.cpp server is probed, asked one query a question over HTTP, and estimated from."""
    done = CliRunner().invoke(command, ["--n", "20", "--port", "0", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["complete"]
    assert result["probe"]["verdict"] == "thresholds"
    assert result["counts"]["positive"] + result["counts"]["negative"] == 20
    assert 0 <= result["ece"]["low"] <= result["ece"]["high"] <= 1
    assert len((tmp_path / "answers.csv").read_text().splitlines()) == 21
    assert "Your own model" in done.output
