"""The example notebook runs as it is written, and a real kernel shows results and fits."""

from __future__ import annotations

import subprocess
import sys
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
from finished_runs import FinishedRuns
from paths import ROOT

NOTEBOOK = ROOT / "docs" / "example.ipynb"
MODEL = "my-model"
ASKED = 400


def written() -> Any:
    return nbformat.read(NOTEBOOK, 4)  # type: ignore[no-untyped-call]  # nbformat does not say


def outputs(notebook: Any) -> list[Any]:
    return [one for cell in notebook.cells if cell.cell_type == "code" for one in cell.outputs]


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Neither the user's start-up files nor kernels; where a notebook runs."""
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    return {"metadata": {"path": str(tmp_path)}}


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


def test_the_notebook_runs(folders: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel runs every cell: a known model, an audit over HTTP with progress, figures, a threshold."""
    notebook = written()
    assert outputs(notebook) == []  # what is committed changes only when it is written anew
    with overconfident_model() as base_url:
        monkeypatch.setenv("OPENAI_BASE_URL", base_url)
        NotebookClient(notebook, timeout=None, kernel_name="python3", resources=folders).execute()
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


def test_a_real_notebook_shows_results_and_fits(finished_runs: FinishedRuns, folders: dict[str, Any]) -> None:
    """In a kernel of Jupyter all four are HTML once registered, and drawing is imported when one is shown."""
    folder = finished_runs.original("plain").folder
    cells = [
        "import sys; import blindcal; from blindcal.report import show_in_notebooks; show_in_notebooks()\n"
        "assert 'matplotlib' not in sys.modules and 'numpy' not in sys.modules",
        f"sys.path.insert(0, {str(ROOT / 'tests')!r}); import results; results.result()",
        "from blindcal.estimate.published import blind; blind([1, 0], [0.0, 0.5], [1, 1], bins=2)",
        "from blindcal.estimate.latent.estimator import latent\n"
        "latent([1, 0, 1], [0.0, 1.0, -1.0], [1, 1, 0], resamples=20)",
        f"blindcal.open_run({str(folder)!r})",
        "42",
    ]
    code: list[Any] = [nbformat.v4.new_code_cell(cell) for cell in cells]  # type: ignore[no-untyped-call]
    book: Any = nbformat.v4.new_notebook(cells=code)  # type: ignore[no-untyped-call]  # nbformat has no types
    NotebookClient(book, timeout=None, kernel_name="python3", resources=folders).execute()
    pages = [cell.outputs[0].data.get("text/html", "") for cell in book.cells[1:]]
    captions = ["gpt-4o-mini, latent", "blind", "fit", "replay, latent"]
    for page, caption in zip(pages[:4], captions, strict=True):
        assert f"<b>{caption}</b>" in page
        assert "<svg" in page
    assert pages[4] == ""


def test_a_notebook_without_widgets_has_a_bar_and_no_warning() -> None:
    """Where ipywidgets is not installed progress is a line of text, without tqdm's advice to install it."""
    script = (
        "import sys, types, warnings; warnings.simplefilter('error')\n"
        "sys.modules['ipywidgets'] = None\n"
        "sys.modules['ipykernel.zmqshell'] = types.ModuleType('ipykernel.zmqshell')\n"
        "kernel = types.ModuleType('IPython'); kernel.get_ipython = lambda: object()\n"
        "sys.modules['IPython'] = kernel\n"
        "from blindcal.progress_bar import ProgressBar\n"
        "from blindcal.records import Progress, Usage\n"
        "with ProgressBar() as bar:\n"
        "    bar(Progress(done=3, total=10, usage=Usage(), cost=None, concurrency=1))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT / "tests"
    )
    assert "3/10" in done.stderr
