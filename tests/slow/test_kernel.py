"""Results and fits in a real kernel of Jupyter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from finished_runs import FinishedRuns
from paths import ROOT


def test_a_real_notebook_shows_results_and_fits(
    finished_runs: FinishedRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a kernel of Jupyter all four are HTML once registered, and drawing is imported when one is shown."""
    folder = finished_runs.original("plain").folder
    cells = [
        "import sys; import blindcal; from blindcal.report import show_in_notebooks; show_in_notebooks()\n"
        "assert 'matplotlib' not in sys.modules and 'numpy' not in sys.modules",
        f"sys.path.insert(0, {str(ROOT / 'tests')!r}); import results; results.result()",
        "from blindcal.estimate.published.blind import blind; blind([1, 0], [0.0, 0.5], [1, 1], bins=2)",
        "from blindcal.estimate.latent.fitting import latent\n"
        "latent([1, 0, 1], [0.0, 1.0, -1.0], [1, 1, 0], resamples=20)",
        f"blindcal.open_run({str(folder)!r})",
        "42",
    ]
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))  # neither the user's start-up files nor kernels
    code: list[Any] = [nbformat.v4.new_code_cell(cell) for cell in cells]  # type: ignore[no-untyped-call]
    book: Any = nbformat.v4.new_notebook(cells=code)  # type: ignore[no-untyped-call]  # nbformat has no types
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(book, timeout=None, kernel_name="python3", resources=where).execute()
    pages = [cell.outputs[0].data.get("text/html", "") for cell in book.cells[1:]]
    captions = ["gpt-4o-mini, latent", "blind", "latent fit", "replay, latent"]
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
