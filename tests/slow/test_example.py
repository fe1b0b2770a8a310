"""The example notebook runs as it is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from scipy.special import expit

from blindcal.endpoints.tokens import IDS
from blindcal.items.catalogue import open_items
from blindcal.items.record_format import RecordFormat
from blindcal.records import Token
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import Server, running
from paths import ROOT

NOTEBOOK = ROOT / "docs" / "example.ipynb"
MODEL = "gpt-4o-mini"
ASKED = 400


def written() -> Any:
    return nbformat.read(NOTEBOOK, 4)  # type: ignore[no-untyped-call]  # nbformat does not say


def outputs(notebook: Any) -> list[Any]:
    return [one for cell in notebook.cells if cell.cell_type == "code" for one in cell.outputs]


@contextmanager
def overconfident_model() -> Iterator[str]:
    """The base URL of a service that answers the built-in questions as the notebook's model."""
    items = open_items("builtin", RecordFormat())
    questions = list(items)
    labels = np.array([one.label for one in questions])
    p = expit(4 * (labels - 0.5) + 3 * np.random.default_rng(0).standard_normal(labels.size))
    known = Recording.from_probabilities([one.id for one in questions], p, name=MODEL)
    tokens = tuple(Token(IDS["o200k_base"][word], word) for word in ("Yes", "No"))
    with running(Server(replace(known, tokens=tokens), questions)) as server:
        yield server.base_url


def test_the_notebook_is_kept_without_outputs() -> None:
    """What is committed is what is written, and changes only when that does."""
    notebook = written()
    nbformat.validate(notebook)
    assert outputs(notebook) == []
    assert all(cell.get("execution_count") is None for cell in notebook.cells)


def test_the_notebook_uses_the_facade_alone() -> None:
    """It imports nothing from deeper than ``blindcal``."""
    code = "\n".join(cell.source for cell in written().cells if cell.cell_type == "code")
    assert "import blindcal as bc" in code
    assert "blindcal." not in code


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel runs every cell: a known model, an audit over HTTP with progress, figures, a threshold."""
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))  # neither the user's start-up files nor kernels
    notebook = written()
    where = {"metadata": {"path": str(tmp_path)}}
    with overconfident_model() as base_url:
        monkeypatch.setenv("OPENAI_BASE_URL", base_url)
        NotebookClient(notebook, timeout=None, kernel_name="python3", resources=where).execute()
    found = outputs(notebook)
    pages = [one.data["text/html"] for one in found if "text/html" in one.get("data", {})]
    assert sum(page.count("<svg") for page in pages) == 5
    printed = "".join(one.text for one in found if one.output_type == "stream" and one.name == "stdout")
    assert "true ECE 0." in printed
    assert "precision 0.8" in printed
    progress = "".join(one.text for one in found if one.output_type == "stream" and one.name == "stderr")
    assert f"{ASKED}/{ASKED}" in progress
    assert "IProgress" not in progress
    assert {"result.json", "answers.csv", "report.html"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }
    assert (tmp_path / "model.png").read_bytes().startswith(b"\x89PNG")
