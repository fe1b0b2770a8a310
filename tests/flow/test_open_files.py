"""Few open files: an audit asks with what it may have, or says in one line what it needs."""

from __future__ import annotations

import math

import pytest
from pyreqwest.exceptions import ConnectError

from blindcal.asking import run_context
from blindcal.asking.run_context import OTHER_FILES, Limits
from blindcal.endpoints.http_client import from_exception
from blindcal.errors import FatalError, InputError


def allow(monkeypatch: pytest.MonkeyPatch, most: float) -> None:
    """Let the process have so many open files."""
    monkeypatch.setattr(run_context, "_most_open_files", lambda: most)


def test_the_concurrency_fits_the_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no more connections than files that may be open, and a warning says why."""
    allow(monkeypatch, OTHER_FILES + 8)
    with pytest.warns(
        UserWarning, match=r"the concurrency is 8 instead of 32, .* only 32 open files; ulimit"
    ):
        assert Limits().within_open_files() == Limits(concurrency=8)
    assert Limits(concurrency=8).within_open_files() == Limits(concurrency=8)
    allow(monkeypatch, math.inf)
    assert Limits(concurrency=5000).within_open_files() == Limits(concurrency=5000)


def test_too_few_open_files_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for one connection nothing is begun."""
    allow(monkeypatch, 20)
    with pytest.raises(InputError, match=r"only 20 open files, .* needs 25: raise the limit \(ulimit -n"):
        Limits().within_open_files()


def test_running_out_of_files_is_not_the_address() -> None:
    """An endpoint is not to blame if this process cannot open another connection."""
    causes = ("client error (Connect)", "tcp open error", "Too many open files (os error 24)")
    error = ConnectError("connection error", {"causes": [{"message": cause} for cause in causes]})
    found = from_exception(error, "x:80", reached=False)
    assert isinstance(found, FatalError)
    assert "too many open files to connect to x:80: raise the limit (ulimit -n)" in str(found)
