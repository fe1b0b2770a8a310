"""The shell command that ``blindcal watch --on-alarm`` runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable

from blindcal.results.watch_result import WatchResult

TIME_LIMIT = 60.0
"""Seconds after which the command is killed."""
_STANDARD_ERROR = 2  # where the command prints: looks go to standard output


class AlarmCommand:
    """Runs a shell command with a look as JSON on its standard input, and warns if it fails."""

    def __init__(self, command: str, warn: Callable[[str], None]) -> None:
        self._command, self._warn = command, warn
        self._running: Process | None = None
        self._killed = False

    async def __call__(self, result: WatchResult) -> bool:
        """Run the command, and return whether it succeeded."""
        problem = await self._problem(result.to_json() + b"\n")
        if problem is not None:
            self._warn(f"the command of --on-alarm {problem}; the next look runs it again")
        return problem is None

    async def _problem(self, look: bytes) -> str | None:
        self._killed = False
        try:
            process = await asyncio.create_subprocess_shell(
                self._command, stdin=PIPE, stdout=_STANDARD_ERROR, start_new_session=True
            )
        except OSError as error:
            return f"could not be run ({error.strerror})"
        self._running = process
        if self._killed:  # while it was being started
            self.kill()
        try:
            async with asyncio.timeout(TIME_LIMIT):
                await process.communicate(look)
        except TimeoutError:
            self.kill()
            await process.wait()
            return f"was killed after {TIME_LIMIT:g} s"
        finally:
            self._running = None
        status = process.returncode or 0
        if status < 0:
            return f"was ended by {signal.Signals(-status).name}"
        return f"failed with exit status {status}" if status else None

    def kill(self) -> None:
        """Kill the command and all processes in its group, if it is running."""
        self._killed = True
        if self._running is not None and sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._running.pid, signal.SIGKILL)
