"""The command ``blindcal watch``: what it prints, runs at an alarm and refuses, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from blindcal.cli import watch as watch_command
from blindcal.cli.watch import AlarmCommand
from blindcal.report.watch_page import look_line
from blindcal.results.watch_result import WatchResult
from commanding import blindcal, refusal
from deciding import audited, model, serving, write_items
from watching import overconfident_result, quiet_result

Look = Callable[[WatchResult], None]
Looks = Callable[..., dict[str, Any]]
ASKED, STREAMED = 200, 120


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A finished audit of some questions, at an endpoint that answers those of ``stream.jsonl`` too."""
    folder = tmp_path_factory.mktemp("reference")
    labels, p = model(ASKED + STREAMED, 0)
    items = write_items(folder / "items.jsonl", labels)
    lines = items.read_text().splitlines(keepends=True)
    first = folder / "first.jsonl"
    first.write_text("".join(lines[:ASKED]))
    (folder / "stream.jsonl").write_text("".join(lines[ASKED:]))
    with serving(items, p) as server:
        yield audited(first, server, folder / "run", method="latent")


@pytest.fixture(scope="module")
def folder(reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a watch in two looks."""
    folder = tmp_path_factory.mktemp("watch") / "out"
    stream = reference.parent / "stream.jsonl"
    done = blindcal("watch", stream, "--reference", reference, "--out", folder, "--every", STREAMED // 2)
    assert done.exit_code == 0, done.output
    assert re.findall(r"^[-\d]+ [:\d]+ (look \d):", done.stdout, re.M) == ["look 1", "look 2"]
    return folder


@pytest.fixture(scope="module")
def alarming(tmp_path_factory: pytest.TempPathFactory) -> WatchResult:
    """A watch whose calibration alarm is raised."""
    return overconfident_result(tmp_path_factory.mktemp("alarming"))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Looks:
    """Replace the watch by one that only looks at these results; returns what it was called with."""

    def install(*results: WatchResult, interrupted: bool = False) -> dict[str, Any]:
        called: dict[str, Any] = {}

        def fake(stream: Path, reference: Path, *, on_look: Look, out: Path, **more: Any) -> WatchResult:
            called.update(stream=stream, reference=reference, out=out, **more)
            out.mkdir(parents=True, exist_ok=True)
            for result in results:
                on_look(replace(result, folder=str(out)))
            if interrupted:
                raise KeyboardInterrupt
            return replace(results[-1], folder=str(out))

        monkeypatch.setattr(watch_command, "watch", fake)
        monkeypatch.setattr(watch_command, "write_watch_page", lambda _: None)
        monkeypatch.chdir(tmp_path)
        return called

    return install


def test_each_look_is_a_line(looks: Looks, reference: Path, alarming: WatchResult) -> None:
    """With counts and each alarm; what to do is printed once, on standard error; the exit status is 4."""
    raised = replace(alarming, look=8)
    watching = ("watch", "in.jsonl", "--reference", reference)
    looks(quiet_result(Path("x")), alarming, raised)
    done = blindcal(*watching)
    assert done.exit_code == 4
    alarm = alarming.state.alarm("calibration")
    assert alarm is not None
    assert alarm.since is not None
    first, *lines = done.stdout.splitlines()
    assert first.startswith("2026-11-16 12:30 look 7: 1,500 answers, 1,500 labelled, 28 waiting; endpoint")
    assert "calibration quiet (1 of 20)" in first
    assert len(lines) == 2
    assert "look 8:" in lines[1]
    for line in lines:
        assert f"calibration RAISED since about item {alarm.since + 1:,} (2026-11-14)" in line
    assert done.stderr.count("ALARM calibration: ") == 1
    assert done.stderr.count(f"Raised after {alarm.raised_at:,} labelled answers, since about item") == 1
    assert "Certificates from before the change no longer hold." in done.stderr
    assert re.search(r"^files +watches/.*: .*watch.html$", done.stderr, re.M)
    done = blindcal(*watching, "--quiet")
    assert (done.exit_code, done.output) == (4, "")
    done = blindcal(*watching, "--json", "--quiet", "--out", "here")
    shown = [msgspec.json.decode(line, type=WatchResult) for line in done.stdout.splitlines()]
    assert shown[2] == replace(raised, folder="here")
    assert done.stderr == ""


def test_how_it_ends(looks: Looks, reference: Path, tmp_path: Path) -> None:
    """Stopped early 3, a changed fact 4, Ctrl-C 130 after the last look: nothing is lost."""
    quiet = quiet_result(tmp_path)
    for results, more, status, words in (
        ({"stopped": "replies kept failing"}, {}, 3, "replies kept failing; the same command goes on"),
        ({"facts": ("replies name another.",)}, {}, 4, "endpoint RAISED replies name another;"),
        ({}, {"interrupted": True}, 130, "everything answered is kept"),
    ):
        looks(replace(quiet, **results), **more)
        done = blindcal("watch", "in.jsonl", "--reference", reference)
        assert done.exit_code == status
        assert words in done.output
        assert len(done.stdout.splitlines()) == 1


def test_a_watch_goes_on_and_is_shown(reference: Path, folder: Path, tmp_path: Path) -> None:
    """With nothing new the numbers stay; status shows the last line, and report writes page and figures."""
    before = WatchResult.load(folder)
    again = ["watch", reference.parent / "stream.jsonl", "--reference", reference, "--out", folder]
    done = blindcal(*again, "--json", "--quiet")
    assert done.exit_code == 0, done.output
    assert msgspec.json.decode(done.stdout, type=WatchResult) == before
    assert (before.answered, before.labelled) == (STREAMED, STREAMED)
    assert "level" in refusal(blindcal(*again, "--alpha", 0.01))
    done = blindcal("status", folder)
    assert done.exit_code == 0, done.output
    assert f"look       {look_line(before)}" in done.stdout
    assert "method     watches a stream" in done.stdout
    assert "None" not in done.stdout
    status = json.loads(blindcal("status", folder, "--json").stdout)
    assert (status["look"]["raised"], status["items"]) == (False, STREAMED)
    page, figures = tmp_path / "page.html", tmp_path / "figures"
    done = blindcal("report", folder, "--out", page, "--figures", figures)
    assert done.exit_code == 0, done.output
    assert page.read_bytes() == (folder / "watch.html").read_bytes()
    names = {path.name for path in figures.iterdir()}
    assert {"evidence-endpoint.svg", "evidence-calibration.png", "gaps.svg", "window.png"} <= names


def test_a_page_that_cannot_be_written_is_a_warning(reference: Path, folder: Path) -> None:
    """The watch goes on, and the next look tries again."""
    (folder / "watch.html").unlink()
    (folder / "watch.html").mkdir()
    stream = reference.parent / "stream.jsonl"
    done = blindcal("watch", stream, "--reference", reference, "--out", folder, "--quiet")
    assert done.exit_code == 0
    assert re.search(r"^warning: .*watch.html.*; the next look tries again$", done.stderr, re.M)


def test_options_reach_the_watch(looks: Looks, reference: Path, tmp_path: Path) -> None:
    """Options are parameters of the watch; what does not fit together is an error, and nothing is watched."""
    called = looks(quiet_result(tmp_path))
    for arguments, why in (
        ([], "Missing argument 'STREAM'"),
        (["in.jsonl", "--max-cost", "1"], "--max-cost requires --prices"),
        (["in.jsonl", "--rate", "0"], "--rate"),
        (["in.jsonl", "--alpha", "1"], "--alpha"),
    ):
        done = blindcal("watch", *arguments, "--reference", reference)
        assert done.exit_code == 2
        assert why in refusal(done)
    assert "no such run" in refusal(blindcal("watch", "in.jsonl", "--reference", tmp_path / "nothing"))
    assert called == {}
    options = "--rate 0.05 --alpha 0.01 --max-ece 0.1 --every 50 --rpm 90 --force"
    priced = "--max-cost 2 --prices 1,4 --labels l.csv --concurrency 3"
    done = blindcal("watch", "in.jsonl", "--reference", reference, *options.split(), *priced.split())
    assert done.exit_code == 0, done.output
    limits, prices = called["limits"], called["prices"]
    assert (limits.rpm, limits.concurrency, limits.max_cost) == (90, 3, 2)
    assert (prices.input, prices.output) == (1.0, 4.0)
    numbers = {"rate": 0.05, "level": 0.01, "max_ece": 0.1, "every": 50}
    others = {"force": True, "follow": False, "labels": Path("l.csv"), "on_alarm": None}
    assert {**called, **numbers, **others} == called


# The command of an alarm


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of the commands."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(command: str, result: WatchResult) -> tuple[bool, list[str]]:
    """Run a command; returns whether it succeeded, and the warnings."""
    warnings: list[str] = []
    return asyncio.run(AlarmCommand(command, warnings.append)(result)), warnings


def check_gone(process: int) -> None:
    """Wait until a process has ended, or only waits for its parent; at most 20 seconds."""
    until = time.monotonic() + 20
    with contextlib.suppress(OSError):
        while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < until
            os.sched_yield()


def test_the_look_is_on_standard_input(
    here: Path, alarming: WatchResult, capfd: pytest.CaptureFixture[str]
) -> None:
    """A shell runs the command, which reads the look in one line; what it prints goes to standard error."""
    assert run("cat - > look.json && echo out; echo err >&2", alarming) == (True, [])
    line = (here / "look.json").read_text()
    assert line.count("\n") == 1
    assert msgspec.json.decode(line, type=WatchResult) == alarming
    assert capfd.readouterr() == ("", "out\nerr\n")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("cat > /dev/null; exit 7", "failed with exit status 7"),
        ("./nothing-of-that-name 2> /dev/null", "failed with exit status 127"),
        ("kill -TERM $$", "was ended by SIGTERM"),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_failure_is_a_warning(
    looks: Looks, reference: Path, alarming: WatchResult, command: str, words: str
) -> None:
    """It says how the command failed, and that the next look runs it again; the exit status is the same."""
    warning = f"the command of --on-alarm {words}; the next look runs it again"
    assert run(command, alarming) == (False, [warning])
    called = looks(alarming)
    done = blindcal("watch", "in.jsonl", "--reference", reference, "--quiet", "--on-alarm", command)
    assert done.exit_code == 4
    assert not asyncio.run(called["on_alarm"](alarming))


def test_a_command_that_hangs_is_killed_with_all_it_started(
    here: Path, alarming: WatchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the time limit the whole process group ends, whatever signals it ignores."""
    monkeypatch.setattr(watch_command, "TIME_LIMIT", 1.0)
    command = "trap '' TERM INT; sleep 300 & echo $! $$ > processes; wait; sleep 300"
    succeeded, (warning,) = run(command, alarming)
    assert not succeeded
    assert "was killed after 1 s" in warning
    for process in (here / "processes").read_text().split():
        check_gone(int(process))


def test_the_event_loop_goes_on_and_may_kill_the_command(here: Path, alarming: WatchResult) -> None:
    """The command waits for something that the same event loop does; a watch that ends leaves none behind."""

    async def both() -> int:
        warnings: list[str] = []
        os.mkfifo(here / "process")
        command = AlarmCommand("echo $$ > process; sleep 300", warnings.append)
        running = asyncio.create_task(command(alarming))
        process = int(await asyncio.to_thread((here / "process").read_text))
        assert not running.done()
        command.kill()
        assert not await running
        assert "was ended by SIGKILL" in warnings[0]
        return process

    check_gone(asyncio.run(both()))
