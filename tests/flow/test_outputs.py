"""What cannot be written, files or streams: one line with a cause and a cure, and nothing paid is lost."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from blindcal.asking.run_context import OTHER_FILES
from blindcal.atomic_write import atomic_write
from blindcal.auditing.audit import audit
from blindcal.errors import FileError, StoreError
from blindcal.records import INVALID, Item, Message, Round
from blindcal.results.run import open_run
from blindcal.settings import Settings
from blindcal.simulation.replay import Server
from blindcal.store.run_file import StoredReply, in_use
from blindcal.store.run_store import RUN_FILE, Store
from commanding import blindcal, refusal
from paths import ROOT
from serving import replaying, write_items

N = 60


@contextmanager
def small_disk(at: Path, size: str) -> Iterator[Path]:
    """A file system of this size, mounted on a new folder; it takes root."""
    at.mkdir()
    with _mounted(at, ["-t", "tmpfs", "-o", f"size={size}", "none", str(at)]):
        yield at


@contextmanager
def read_only(folder: Path) -> Iterator[Path]:
    """A path to the same folder where nothing can be written, not even by root."""
    if os.geteuid() != 0:
        folder.chmod(0o500)
        try:
            yield folder
        finally:
            folder.chmod(0o700)
        return
    at = folder.with_name(folder.name + "-read-only")
    at.mkdir()
    with _mounted(at, ["--bind", str(folder), str(at)]):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(at)], check=True, capture_output=True)
        yield at


@contextmanager
def _mounted(at: Path, arguments: list[str]) -> Iterator[None]:
    try:
        subprocess.run(["mount", *arguments], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a file system is not permitted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(at)], check=True, capture_output=True)


@dataclass(frozen=True)
class World:
    """A finished run, its questions, their true probabilities, and the model that answered."""

    items: Path
    scores: Path
    run: Path
    server: Server

    def audit(self, out: Path) -> tuple[object, ...]:
        return (
            *("audit", self.items, "--model", "replay", "--base-url", self.server.base_url),
            *("--out", out, "--set", "resamples=20", "--quiet"),
        )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A small world in which every command has something to do."""
    folder = tmp_path_factory.mktemp("world")
    p = np.random.default_rng(1).beta(0.5, 0.5, N)
    items, scores = write_items(folder / "items.jsonl", np.arange(N) % 2), folder / "scores.csv"
    scores.write_text("id,label,p\n" + "".join(f"q{k},{k % 2},{p[k]:.6f}\n" for k in range(N)))
    with replaying(items, p, logprobs=True) as server:
        made = World(items, scores, folder / "run", server)
        assert blindcal(*made.audit(made.run)).exit_code == 0
        yield made


PLACES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "under a file": (lambda tmp: tmp / "file" / "x" / "y", "a part of the path is a file|something else is"),
    "too long": (lambda tmp: tmp / ("x" * 300), "the name is too long"),
    "a circle": (lambda tmp: tmp / "circle", "lead in a circle|something else is"),
    "beyond a circle": (lambda tmp: tmp / "circle" / "x", "lead in a circle|something else is"),
}
WRITERS: dict[str, Callable[[World, Path], tuple[object, ...]]] = {
    "audit": lambda world, path: world.audit(path),
    "report": lambda world, path: ("report", world.run, "--out", path),
    "figures": lambda world, path: ("report", world.run, "--figures", path),
    "junit": lambda world, path: ("check", world.run, "--max-ece", 1, "--estimate", "--junit", path),
    "summary": lambda world, path: ("check", world.run, "--max-ece", 1, "--estimate", "--summary", path),
    "compare": lambda world, path: ("compare", world.run, world.run, "--resamples", 20, "--html", path),
    "merge": lambda world, path: ("merge", world.run, "--resamples", 20, "--out", path),
    "counts": lambda world, path: (
        *("merge", world.run, "--resamples", 20, "--out", path.parents[2] / "merged", "--counts", path),
    ),
    "items": lambda _, path: ("items", "builtin", "--n", 20, "--out", path),
    "reproduce": lambda world, path: (
        *("reproduce", world.scores, "--method", "blind", "--budgets", 1, "--seeds", 1, "--jobs", 1),
        *("--out", path),
    ),
}


def names(folder: Path) -> list[str]:
    """What is in a folder."""
    return sorted(path.name for path in folder.iterdir())


def odd_places(folder: Path) -> None:
    """A file and a link in a circle, to name as folders."""
    (folder / "file").write_text("mine")
    (folder / "circle").symlink_to("circle")


@pytest.mark.parametrize("writer", WRITERS)
def test_every_command_says_why_it_cannot_write(writer: str, world: World, tmp_path: Path) -> None:
    """Wherever a file stands in the place of a folder, each command names it, the cause and a cure."""
    odd_places(tmp_path)
    text = refusal(blindcal(*WRITERS[writer](world, tmp_path / "file" / "x" / "y")))
    assert str(tmp_path / "file") in text
    assert "a part of the path is a file" in text or "something else is in the place" in text
    assert "choose another path" in text
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("writer", ["audit", "items"])
@pytest.mark.parametrize("place", PLACES)
def test_every_odd_path_has_its_cause(place: str, writer: str, world: World, tmp_path: Path) -> None:
    """A folder and a file in every odd place: the cause is named, and nothing is left behind."""
    odd_places(tmp_path)
    where, cause = PLACES[place]
    text = refusal(blindcal(*WRITERS[writer](world, where(tmp_path))))
    assert any(one in text for one in cause.split("|")), text
    assert names(tmp_path) == ["circle", "file"]


def test_a_null_character_is_in_no_path(world: World) -> None:
    """Python can name a path that no system has; it is refused as every odd path is."""
    settings = Settings(model="replay", base_url=world.server.base_url)
    with pytest.raises(FileError, match="a path cannot have a null character"):
        audit(world.items, settings, out="a\0b")


def test_what_was_paid_for_is_kept_when_the_files_cannot_be_written(world: World, tmp_path: Path) -> None:
    """Results that cannot be written are an error that says so; the same command writes them for nothing."""
    (tmp_path / "run" / "answers.csv").mkdir(parents=True)
    text = refusal(blindcal(*world.audit(tmp_path / "run")))
    assert f"{tmp_path / 'run' / 'answers.csv'}: is a folder, not a file" in text
    assert "every answer is kept; run the same again to write the files, without asking anything" in text
    (tmp_path / "run" / "answers.csv").rmdir()
    asked = world.server.requests
    assert blindcal(*world.audit(tmp_path / "run")).exit_code == 0
    assert world.server.requests == asked
    assert len(open_run(tmp_path / "run").answered) == N


def test_no_character_of_a_part_breaks_a_file(world: World, tmp_path: Path) -> None:
    """Characters that XML, UTF-8 or a terminal lack are shown escaped in the page and the tables."""
    names = ["a\ufffeb", "a\uffffb", "a\ud800b", "a\0b", "a\x1b[31mb"]
    items = write_items(tmp_path / "items.jsonl", np.arange(N) % 2, part=names)
    given = ("--model", "replay", "--base-url", world.server.base_url, "--set", "resamples=20")
    ended = blindcal("audit", items, *given, "--by", "part", "--out", tmp_path)
    assert ended.exit_code == 0, ended.exception
    assert "a\\ufffeb " in ended.output
    written = blindcal("report", tmp_path, "--figures", tmp_path / "figures")
    assert written.exit_code == 0, written.exception
    ElementTree.parse(tmp_path / "figures" / "parts.svg")
    for name in ("report.html", "result.json"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert not {"\0", "\x1b"} & set(text)
        assert name == "result.json" or not {"\ufffe", "\uffff"} & set(text)


def test_a_full_disk_ends_a_run_that_goes_on_later(world: World, tmp_path: Path) -> None:
    """An audit on a full disk ends with one line; with more room the same command finishes it."""
    with small_disk(tmp_path / "disk", "100k") as disk:
        text = refusal(blindcal(*world.audit(disk / "run")))
        assert "disk is full" in text
        assert "free some space" in text
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        assert blindcal(*world.audit(disk / "run")).exit_code == 0
        assert len(open_run(disk / "run").answered) == N


def process(
    *arguments: object, environ: Mapping[str, str] = {}, **how: Any
) -> subprocess.CompletedProcess[str]:
    """A command that ran in a process of its own; ``how`` goes to ``subprocess.run``."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how}
    command = [sys.executable, "-m", "blindcal", *map(str, arguments)]
    return subprocess.run(command, env={**os.environ, **environ}, text=True, check=False, **streams)


def limited(limit: str, most: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A command that ran under a limit of the system."""
    resource = pytest.importorskip("resource")
    lower = partial(resource.setrlimit, getattr(resource, limit), (most, most))
    return process(*arguments, environ={"TMPDIR": "/dev/shm"}, preexec_fn=lower)


def test_a_file_beyond_the_size_limit_is_not_left_half_written(tmp_path: Path) -> None:
    """A write that the system cuts short leaves no partial file, and an older one as it was."""
    path = tmp_path / "items.jsonl"
    path.write_text("older\n")
    ended = limited("RLIMIT_FSIZE", 9000, "items", "builtin", "--out", path)
    assert ended.returncode == 1
    assert "the file would be larger than the system allows: raise the limit (ulimit -f)" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert path.read_text() == "older\n"
    assert names(tmp_path) == ["items.jsonl"]


def test_an_audit_asks_with_few_open_files(world: World, tmp_path: Path) -> None:
    """An audit under a low limit of open files asks with less concurrency, and ends as any other."""
    ended = limited("RLIMIT_NOFILE", OTHER_FILES + 4, *world.audit(tmp_path / "run"))
    assert ended.returncode == 0, ended.stderr
    assert "the concurrency is 4 instead of 32" in ended.stderr
    assert len(open_run(tmp_path / "run").answered) == N


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_an_error() -> None:
    """A result that nobody can have is one line on standard error."""
    with Path("/dev/full").open("w") as full:
        ended = process("items", "builtin", stdout=full)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: ")
    assert ended.stderr.endswith(": free some space, and run the same again\n")


@pytest.mark.parametrize("arguments", [("items", "builtin"), ("audit", "--help")])
def test_a_reader_that_has_seen_enough_ends_a_command_in_silence(arguments: tuple[str, ...]) -> None:
    """A pipe without a reader ends the command without a word."""
    read, write = os.pipe()
    os.close(read)
    ended = process(*arguments, stdout=write)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_a_terminal_of_few_characters_shows_the_others_escaped(tmp_path: Path) -> None:
    """A name that the terminal's encoding lacks is shown escaped, not as a traceback."""
    named = ("items", "builtin", "--n", 20, "--out", tmp_path / "日本.jsonl")
    ended = process(*named, environ={"PYTHONIOENCODING": "latin-1"})
    assert ended.returncode == 0
    assert "\\u65e5\\u672c.jsonl" in ended.stderr


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """A pipe or a device in the place of a file gets the content and stays what it is."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    assert blindcal("items", "builtin", "--n", 20, "--out", pipe).exit_code == 0
    reader.join()
    assert read[0].count("\n") == 20
    assert pipe.is_fifo()


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """A file is written where the link leads, even if nothing is there yet."""
    (tmp_path / "link").symlink_to("folder/file")
    (tmp_path / "folder").mkdir()
    with atomic_write(tmp_path / "link") as draft:
        draft.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "file").read_text() == "new"
    assert names(tmp_path / "folder") == ["file"]


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    """Whatever fails while a file is written, the older file stays and no draft is left."""
    path = tmp_path / "file"
    path.write_text("older")

    def write(fault: BaseException) -> None:
        with atomic_write(path) as draft:
            draft.write_text("partial")
            raise fault

    with pytest.raises(KeyError):
        write(KeyError())
    with pytest.raises(FileError, match="the disk is full: free some space"):
        write(OSError(errno.ENOSPC, "No space left on device"))
    assert path.read_text() == "older"
    assert names(tmp_path) == ["file"]


# Runs on media that cannot be written: an archive, another user's folder, a mounted image


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
        "import os, sys; sys.path[:0] = sys.argv[2:]; from pathlib import Path; import test_outputs as t;"
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
