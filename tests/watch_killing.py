"""Watches whose process is killed again and again, at any request and at every step of a look.

The process kills itself (SIGKILL) at a moment that it is given: before a request is sent or when its reply
has come, or before or after a look is begun or ended on disk. So no clock decides where it is hit.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from blindcal.asking import governor
from blindcal.asking.limits import Limits
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.records import Reply, Request
from blindcal.results.watch_result import WatchResult
from blindcal.store.watch_store import WatchStore
from blindcal.watching.watch import watch
from killing import CONCURRENCY, CONTEXT
from watching import Clock, copied_monitors

Step = Literal["request", "reply", "begin_look", "begun_look", "end_look", "ended_look", "save"]


@dataclass(frozen=True)
class Moment:
    """When a process is to die: at the so many-th time of a step, from 1 up."""

    step: Step
    nth: int


class _Fate:
    """Counts steps, and kills the process at its moment."""

    def __init__(self, moment: Moment | None) -> None:
        self._moment, self._left = moment, 0 if moment is None else moment.nth

    def reach(self, step: Step) -> None:
        if self._moment is not None and step == self._moment.step:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class _Mortal:
    """An endpoint whose process may die before a request or after its reply."""

    def __init__(self, base_url: str, fate: _Fate) -> None:
        self._endpoint, self._fate = HttpEndpoint(Address(base_url, "replay")), fate

    async def ask(self, request: Request) -> Reply:
        self._fate.reach("request")
        reply = await self._endpoint.ask(request)
        self._fate.reach("reply")
        return reply

    async def close(self) -> None:
        await self._endpoint.close()


def run_watch(run: Path, stream: Path, out: Path, base_url: str, moment: Moment | None, more: Any) -> None:
    """Watch in a process of its own, which dies at its moment."""
    governor.backoff = lambda *_: 0.005
    fate = _Fate(moment)

    def mortal(name: str, before: Step, after: Step) -> None:
        usual = getattr(WatchStore, name)

        def step(self: WatchStore, *args: Any, **more: Any) -> Any:
            fate.reach(before)
            found = usual(self, *args, **more)
            fate.reach(after)
            return found

        setattr(WatchStore, name, step)

    mortal("begin_look", "begin_look", "begun_look")
    mortal("end_look", "end_look", "ended_look")
    usual = WatchResult.save

    def save(self: WatchResult) -> None:
        fate.reach("save")
        usual(self)

    WatchResult.save = save  # type: ignore[method-assign]
    limits = Limits(concurrency=CONCURRENCY, backoff=0.005)
    with copied_monitors(run.parent):
        watch(stream, run, out=out, endpoint=_Mortal(base_url, fate), limits=limits, clock=Clock(), **more)


def go(run: Path, stream: Path, out: Path, base_url: str, moment: Moment | None, **more: Any) -> bool:
    """Go on with a watch; returns whether it was killed, and otherwise it has ended."""
    process = CONTEXT.Process(target=run_watch, args=(run, stream, out, base_url, moment, more))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def result_of(out: Path) -> WatchResult:
    """What a watch wrote, apart from where, and from how often requests failed."""
    found = WatchResult.load(out)
    return replace(found, folder="", spend=replace(found.spend, attempts=0))
