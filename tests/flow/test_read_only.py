"""Runs on media that cannot be written: an archive, another user's folder, a mounted image."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from blindcal.errors import StoreError
from blindcal.records import INVALID, Item, Message, Round
from blindcal.store.run_file import StoredReply, in_use
from blindcal.store.run_store import RUN_FILE, Store
from commanding import blindcal, refusal
from paths import ROOT
from places import read_only


def begun(path: Path) -> Store:
    """A run with one round of one query."""
    store = Store.open(path)
    store.begin({"model": "m", "items": 1}, [Item("a", 1, (Message("user", "?"),))])
    store.add_round(Round(np.array([0]), np.array([0.0]), np.array([0.0])))
    return store


def answered(store: Store) -> None:
    """The answer to that query, on disk."""
    store._insert([StoredReply(answer=INVALID, text="x")])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a run."""
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def test_a_closed_run_is_read_where_nothing_can_be_written(folder: Path) -> None:
    """Status and everything else that reads a run needs to write nothing, and leaves nothing."""
    with begun(folder / RUN_FILE) as store:
        answered(store)
    before = sorted(path.name for path in folder.iterdir())
    with read_only(folder) as there:
        with Store.read(there / RUN_FILE) as store:
            assert len(store.answered()) == 1
        assert not in_use(there / RUN_FILE)
        shown = blindcal("status", there)
        assert shown.exit_code == 0, shown.exception
        assert "1 of 1 queries so far" in shown.output
    assert sorted(path.name for path in folder.iterdir()) == before


def test_answers_that_a_crash_left_in_the_log_are_never_passed_over(folder: Path) -> None:
    """After a crash the last answers are in SQLite's log only: where that cannot be read, nothing is."""
    crash = (
        "import os, sys; sys.path[:0] = sys.argv[2:]; from pathlib import Path; import test_read_only as t;"
        "t.answered(t.begun(Path(sys.argv[1]))); os._exit(0)"
    )
    places = map(str, (Path(__file__).parent, ROOT / "tests"))
    subprocess.run([sys.executable, "-c", crash, str(folder / RUN_FILE), *places], check=True)
    assert (folder / f"{RUN_FILE}-wal").stat().st_size
    with read_only(folder) as there:
        with Store.read(there / RUN_FILE) as store:
            assert len(store.answered()) == 1
        (folder / f"{RUN_FILE}-shm").unlink()
        with pytest.raises(StoreError, match="copy"):
            Store.read(there / RUN_FILE)


def test_a_run_that_cannot_be_continued_says_so(folder: Path, tmp_path: Path) -> None:
    """An audit needs to write its run: on read-only media it names the file, the cause and a cure."""
    begun(folder / RUN_FILE).close()
    items = tmp_path / "items.jsonl"
    items.write_text('{"id": "a", "label": 1, "prompt": "?"}\n')
    with read_only(folder) as there:
        text = refusal(blindcal("audit", items, "--model", "m", "--base-url", "http://x/v1", "--out", there))
    assert f"{there / RUN_FILE}.lock: " in text
    assert "read-only: choose a place that can be written to" in text or "permission denied: change" in text


def test_only_what_is_no_database_is_no_run_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the disk says nothing about the file: it is shown as it is."""
    begun(folder / RUN_FILE).close()

    def fail(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(sqlite3, "connect", fail)
    with pytest.raises(StoreError, match="disk I/O error") as raised:
        Store.read(folder / RUN_FILE)
    assert "not a run file" not in str(raised.value)
