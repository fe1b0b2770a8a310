"""The demo: a real model, real HTTP, a whole audit."""

from __future__ import annotations

import importlib.util
import json
import re
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from blindcal.cli.demo import command
from blindcal.endpoints import local_model as models
from blindcal.endpoints.local_model import ServerError
from blindcal.errors import MissingExtraError

real = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None
    or (models.installed_model() is None and not models.cached_model().is_file()),
    reason="the demo needs: pip install 'blindcal[local]', and the model: blindcal pull",
)


@real
def test_the_demo_audits_a_real_model_from_end_to_end(tmp_path: Path) -> None:
    """A real llama.cpp server is probed, asked one query per question over HTTP, and estimated from."""
    done = CliRunner().invoke(command, ["--n", "20", "--port", "0", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["complete"]
    assert result["probe"]["verdict"] == "thresholds"
    assert result["counts"]["positive"] + result["counts"]["negative"] == 20
    assert 0 <= result["ece"]["low"] <= result["ece"]["high"] <= 1
    assert len((tmp_path / "answers.csv").read_text().splitlines()) == 21
    assert "To audit your own model" in done.output


@real
def test_the_demo_of_decisions_shows_the_probabilities_of_the_logprobs(tmp_path: Path) -> None:
    """llama.cpp's own decision API is audited, and shows what the same model's logprobs show."""
    arguments = ["--decisions", "--n", "20", "--port", "0", "--out", str(tmp_path)]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["method"] == "decisions"
    assert result["counts"]["positive"] + result["counts"]["negative"] == 20
    assert result["oracle"]["ece"] == pytest.approx(result["ece"]["value"], abs=1e-6)
    apart = re.search(r"differ by (\S+) at most", done.output)
    assert apart is not None
    assert float(apart[1]) < 1e-6


def test_what_cannot_work_fetches_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, or on a taken port, 98 MB are not fetched first and no folder is made."""

    def fetched() -> Path:
        raise AssertionError("fetched")

    monkeypatch.setattr("blindcal.cli.demo.pull_with_progress", fetched)
    monkeypatch.setattr("blindcal.endpoints.local_model.installed_model", lambda: None)
    out = ["--out", str(tmp_path / "demo")]
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
        taken = CliRunner().invoke(command, ["--port", str(other.getsockname()[1]), *out])
    assert isinstance(taken.exception, ServerError)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    bare = CliRunner().invoke(command, ["--port", "0", *out])
    assert isinstance(bare.exception, MissingExtraError)
    assert not list(tmp_path.iterdir())
