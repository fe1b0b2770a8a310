"""The finished runs that tests share are what they are called."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blindcal.auditing.audit import audit
from finished_runs import KINDS, FinishedRun, FinishedRuns


@pytest.mark.parametrize("name", KINDS)
def test_each_run_is_there(name: str, finished_runs: FinishedRuns) -> None:
    """Every kind of run ends with a result that is read back."""
    made = finished_runs.original(name)
    assert made.result.method == made.kind.settings.get("method", "latent")
    assert made.result.complete == (name != "stopped")
    assert len(made.opened().labels) == made.kind.n


@pytest.mark.usefixtures("no_page")
def test_a_copy_can_go_on(finished: Callable[[str], FinishedRun]) -> None:
    """The endpoint of a run is served again at its address."""
    run = finished("stopped")
    with run.serving():
        assert audit(run.items, run.settings, out=run.folder).complete
    assert (run.folder / "report.html").read_text() == ""
