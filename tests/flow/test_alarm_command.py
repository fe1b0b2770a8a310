"""The command that ``watch --on-alarm`` runs: what it gets, and what happens if it fails or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from blindcal.cli import alarm_command
from blindcal.cli.alarm_command import AlarmCommand
from blindcal.results.watch_result import WatchResult
from watched_streams import quiet_result


@pytest.fixture(autouse=True)
def raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WatchResult:
    """A look with an alarm; commands run in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    return replace(quiet_result(tmp_path), facts=("replies name another model",))


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


def test_the_look_is_on_standard_input(raised: WatchResult, capfd: pytest.CaptureFixture[str]) -> None:
    """A shell runs the command, which reads the look in one line; what it prints goes to standard error."""
    assert run("cat - > look.json && echo out; echo err >&2", raised) == (True, [])
    line = Path("look.json").read_text()
    assert line.count("\n") == 1
    assert msgspec.json.decode(line, type=WatchResult) == raised
    assert capfd.readouterr() == ("", "out\nerr\n")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("cat > /dev/null; exit 7", "failed with exit status 7"),
        ("./nothing-of-that-name 2> /dev/null", "failed with exit status 127"),
        ("kill -TERM $$", "was ended by SIGTERM"),
    ],
)
def test_a_failure_is_a_warning(raised: WatchResult, command: str, words: str) -> None:
    """It says how the command failed, and that the next look runs it again."""
    warning = f"the command of --on-alarm {words}; the next look runs it again"
    assert run(command, raised) == (False, [warning])


def test_a_command_that_hangs_is_killed_with_all_it_started(
    raised: WatchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the time limit the whole process group ends, whatever signals it ignores."""
    monkeypatch.setattr(alarm_command, "TIME_LIMIT", 1.0)
    command = "trap '' TERM INT; sleep 300 & echo $! $$ > processes; wait; sleep 300"
    succeeded, (warning,) = run(command, raised)
    assert not succeeded
    assert "was killed after 1 s" in warning
    for process in Path("processes").read_text().split():
        check_gone(int(process))


def test_the_event_loop_goes_on_and_may_kill_the_command(raised: WatchResult) -> None:
    """The command waits for something that the same event loop does; a watch that ends leaves none behind."""

    async def both() -> int:
        warnings: list[str] = []
        os.mkfifo("process")
        command = AlarmCommand("echo $$ > process; sleep 300", warnings.append)
        running = asyncio.create_task(command(raised))
        process = int(await asyncio.to_thread(Path("process").read_text))
        assert not running.done()
        command.kill()
        assert not await running
        assert "was ended by SIGKILL" in warnings[0]
        return process

    check_gone(asyncio.run(both()))
