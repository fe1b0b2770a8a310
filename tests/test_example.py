"""The example notebook runs as it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "docs" / "example.ipynb"


def written() -> Any:
    return nbformat.read(NOTEBOOK, 4)  # type: ignore[no-untyped-call]  # nbformat does not say


def outputs(notebook: Any) -> list[Any]:
    return [one for cell in notebook.cells if cell.cell_type == "code" for one in cell.outputs]


def test_the_notebook_is_kept_without_outputs() -> None:
    """What is committed is what is written, and changes only when that does."""
    notebook = written()
    nbformat.validate(notebook)
    assert outputs(notebook) == []
    assert all(cell.get("execution_count") is None for cell in notebook.cells)


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel runs every cell: simulated answers, an audit over HTTP with progress, figures, a threshold."""
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))  # neither the user's start-up files nor kernels
    notebook = written()
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=None, kernel_name="python3", resources=where).execute()
    found = outputs(notebook)
    pages = [one.data["text/html"] for one in found if "text/html" in one.get("data", {})]
    assert sum(page.count("<svg") for page in pages) == 6
    printed = "".join(one.text for one in found if one.output_type == "stream" and one.name == "stdout")
    assert "true ECE 0.1" in printed
    assert "deployed: 0.8" in printed
    progress = "".join(one.text for one in found if one.output_type == "stream" and one.name == "stderr")
    assert "600/600" in progress
    assert "IProgress" not in progress
    assert {"result.json", "answers.csv"} <= {path.name for path in (tmp_path / "run").iterdir()}
    assert (tmp_path / "model.png").read_bytes().startswith(b"\x89PNG")
