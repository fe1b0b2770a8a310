"""Settings that all tests share."""

import arithmetic  # noqa: F401 - before numpy is loaded

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A shell that starts us in the background lets Ctrl-C be ignored, by us and so by every process that the
# tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# the same examples every time, and no clock: a test passes or fails by what it checks, not by its luck
settings.register_profile(
    "fixed", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fixed")

# servers of the tests are on this machine, whatever proxy leads out of it
for name in ("no_proxy", "NO_PROXY"):
    os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1", "localhost")))

from finished_runs import FinishedRun, FinishedRuns, without_page  # noqa: E402 - after the settings above
from keys import KEY  # noqa: E402

os.environ["OPENAI_API_KEY"] = KEY
os.environ.pop("OPENAI_BASE_URL", None)


@pytest.fixture(scope="session")
def finished_runs(tmp_path_factory: pytest.TempPathFactory) -> FinishedRuns:
    """Finished runs, made once for all workers: `finished_runs.original("plain")` is for reading only."""
    folder = tmp_path_factory.getbasetemp()
    return FinishedRuns((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "finished")


@pytest.fixture
def finished(finished_runs: FinishedRuns, tmp_path: Path) -> Callable[[str], FinishedRun]:
    """A finished run of the test's own: `finished("plain")` copies it into its folder."""
    return lambda name: finished_runs.copy(name, tmp_path)


@pytest.fixture
def no_page() -> Iterator[None]:
    """Audits write an empty report page."""
    with without_page():
        yield
