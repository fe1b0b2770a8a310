"""The command that ``watch --on-alarm`` runs: what it gets, and what happens if it fails or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import msgspec
import pytest

from blindcal.cli import alarm_command
from blindcal.cli.alarm_command import AlarmCommand
from blindcal.results.watch_result import WatchResult
from watched_streams import watch_result


@pytest.fixture(scope="module")
def raised(tmp_path_factory: pytest.TempPathFactory) -> WatchResult:
    """A watch whose calibration and slices are raised."""
    return watch_result(tmp_path_factory.mktemp("raised"), overconfident=True, window=True)


@pytest.fixture(autouse=True)
def within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in a folder of their own."""
    monkeypatch.chdir(tmp_path)


def run(command: str, result: WatchResult) -> tuple[bool, list[str]]:
    """Run a command; returns whether it succeeded, and the warnings."""
    warnings: list[str] = []
    return asyncio.run(AlarmCommand(command, warnings.append)(result)), warnings


def is_alive(process: int) -> bool:
    """Whether a process runs, and is not one that ended and waits for its parent."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def gone(process: int) -> bool:
    """Whether a process has ended, or does within some seconds."""
    until = time.monotonic() + 20
    while is_alive(process) and time.monotonic() < until:
        time.sleep(0.02)
    return not is_alive(process)


def test_the_look_is_on_standard_input(raised: WatchResult, tmp_path: Path) -> None:
    """A shell runs the command, which reads the content of watch.json in one line."""
    assert run("cat - > look.json && echo done >> look.txt", raised) == (True, [])
    line = (tmp_path / "look.json").read_text()
    assert line.count("\n") == 1
    assert msgspec.json.decode(line, type=WatchResult) == raised
    assert (tmp_path / "look.txt").read_text() == "done\n"


def test_what_it_prints_goes_to_standard_error(
    raised: WatchResult, capfd: pytest.CaptureFixture[str]
) -> None:
    """Standard output is for the looks; a command that reads nothing is fine."""
    assert run("echo out; echo err >&2", raised) == (True, [])
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
    assert run(command, raised) == (
        False,
        [f"the command of --on-alarm {words}; the next look runs it again"],
    )


def test_a_command_that_hangs_is_killed_with_all_it_started(
    raised: WatchResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the time limit the whole process group ends, whatever signals it ignores."""
    monkeypatch.setattr(alarm_command, "TIME_LIMIT", 1.0)
    command = "trap '' TERM INT; sleep 300 & echo $! $$ > processes; wait; sleep 300"
    succeeded, (warning,) = run(command, raised)
    assert not succeeded
    assert "was killed after 1 s" in warning
    assert all(gone(int(process)) for process in (tmp_path / "processes").read_text().split())


def test_the_event_loop_goes_on_meanwhile(raised: WatchResult, tmp_path: Path) -> None:
    """The command waits for something that the same event loop does."""

    async def both() -> bool:
        command = AlarmCommand("until [ -e go ]; do sleep 0.02; done", print)
        running = asyncio.create_task(command(raised))
        await asyncio.sleep(0.2)
        assert not running.done()
        (tmp_path / "go").touch()
        return await running

    assert asyncio.run(both())


def test_it_can_be_killed_before_its_time(raised: WatchResult, tmp_path: Path) -> None:
    """A watch that ends at once leaves no command behind."""

    async def ended() -> int:
        warnings: list[str] = []
        command = AlarmCommand("echo $$ > process; sleep 300", warnings.append)
        running = asyncio.create_task(command(raised))
        file = tmp_path / "process"
        while not file.exists() or not file.read_text():
            await asyncio.sleep(0.02)
        command.kill()
        assert not await running
        assert "was ended by SIGKILL" in warnings[0]
        return int(file.read_text())

    assert gone(asyncio.run(ended()))
