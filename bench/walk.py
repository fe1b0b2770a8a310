"""The walk of a command through the modules, counted from a trace of a real run against a replayed model.

A *stop* is a module that is entered from another room and, before it returns, brings at least two further
rooms together; in the room that conducts (auditing, certifying, watching), also one that is entered from that
same room. What only computes, reads or keeps something is no stop, nor is a call on a record (a dataclass),
nor are the rooms that all others use. Every request goes the same way, from the governor to the client and
the store: this way is walked once, at the first request, and so is whatever a loop repeats. Coming back to a
caller is no entry; being called again, after another stop, is.

    python bench/walk.py              # writes the walks into docs/decisions/packages.md
    python bench/walk.py certify      # prints one
"""

from __future__ import annotations

from record import ROOT

import asyncio
import dataclasses
import importlib
import json
import re
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from click.testing import CliRunner

from blindcal.cli import app
from serving import replaying

PAGE = ROOT / "docs" / "decisions" / "packages.md"
WALKS = re.compile(r"(?<=<!-- walks -->\n).*?(?=<!-- /walks -->)", re.DOTALL)
#: Rooms that every other one uses: they are no part of any walk.
USED_BY_ALL = {
    *("errors", "records", "text", "json_form", "field_rules", "atomic_write", "prices"),
    *("query_seeds", "progress_bar"),
}
CONDUCTORS = {"auditing", "certifying", "watching"}
SEAM = "blindcal.asking.governor"
ROOMS_TOGETHER = 2


@dataclass
class Call:
    """A call of a function of blindcal, and the calls that it made."""

    module: str
    name: str
    record: bool
    calls: list[Call] = field(default_factory=list)
    reached: set[str] = field(default_factory=set)

    @property
    def room(self) -> str:
        """The room of the function."""
        return [*self.module.split("."), ""][1]


class Trace:
    """Records the calls of functions of blindcal, across tasks and threads."""

    def __init__(self) -> None:
        self.root = Call("", "", record=False)
        self._known: dict[int, tuple[FrameType, Call]] = {}
        self._began: dict[int, tuple[object, Call]] = {}  # who began a task or a thread

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Take note of an event."""
        module = frame.f_globals.get("__name__") or ""
        name = frame.f_code.co_name
        if event != "call" or not module.startswith("blindcal.") or name[0] == "<" or name[:2] == "__":
            return
        if (known := self._known.get(id(frame))) is not None and known[0] is frame:
            return  # a coroutine goes on
        caller = self.calling(frame.f_back) or self._beginning()
        record = any(
            dataclasses.is_dataclass(owner)
            for owner in (type(frame.f_locals.get("self")), frame.f_locals.get("cls"))
        )
        call = Call(module, name, record)
        caller.calls.append(call)
        self._known[id(frame)] = frame, call

    def calling(self, frame: FrameType | None) -> Call | None:
        """The innermost call that a frame belongs to."""
        while frame is not None:
            if (known := self._known.get(id(frame))) is not None and known[0] is frame:
                return known[1]
            if frame.f_globals.get("__name__") == "asyncio.events":  # the event loop begins here
                return None
            frame = frame.f_back
        return None

    def _beginning(self) -> Call:
        try:
            task: object = asyncio.current_task()
        except RuntimeError:
            task = None
        for key in (id(task), threading.get_ident()):
            if key in self._began:
                return self._began[key][1]
        return self.root

    def run(self, command: Callable[[], Any]) -> None:
        """Run a command, all of whose steps are part of one event loop."""

        async def here(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            return function(*arguments, **named)

        to_thread, start = asyncio.to_thread, threading.Thread.start
        create = asyncio.base_events.BaseEventLoop.create_task

        def started(thread: threading.Thread) -> None:
            caller, run = self.calling(sys._getframe(1)) or self.root, thread.run

            def traced() -> None:
                self._began[threading.get_ident()] = thread, caller
                run()

            thread.run = traced  # type: ignore[method-assign]  # of this thread alone
            start(thread)

        def created(loop: Any, coroutine: Any, **named: Any) -> Any:
            task = create(loop, coroutine, **named)
            if (caller := self.calling(sys._getframe(1))) is not None:
                self._began[id(task)] = task, caller
            return task

        asyncio.to_thread = here  # type: ignore[assignment]  # for the time of the trace
        threading.Thread.start = started  # type: ignore[method-assign, assignment]  # for the time of the trace
        asyncio.base_events.BaseEventLoop.create_task = created  # type: ignore[method-assign, assignment]  # same
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            command()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            asyncio.to_thread, threading.Thread.start = to_thread, start  # type: ignore[method-assign]  # back
            asyncio.base_events.BaseEventLoop.create_task = create  # type: ignore[method-assign]  # back


def walk(trace: Trace) -> list[str]:
    """The modules at which a traced command stops, in order."""
    _reach(trace.root)
    stops: list[str] = []
    for call in trace.root.calls:
        _follow(call, trace.root, stops)
    return stops


def _reach(call: Call) -> set[str]:
    """All rooms that a call reaches; behind the seam there is one. Merges what a loop repeats."""
    merged: dict[tuple[str, str], Call] = {}
    for called in call.calls:
        if called.room not in USED_BY_ALL:
            first = merged.setdefault((called.module, called.name), called)
            first.calls += called.calls if called is not first else []
    call.calls, call.reached = list(merged.values()), {call.room}
    for called in call.calls:
        beyond = _reach(called)
        call.reached |= {called.room} if called.module == SEAM != call.module else beyond
    return call.reached


def _follow(call: Call, caller: Call, stops: list[str]) -> None:
    entered = call.room != caller.room or (call.room in CONDUCTORS and call.module != caller.module)
    again = call.module == SEAM and SEAM in stops
    if again:
        return
    if (
        entered
        and not call.record
        and len(call.reached - {call.room}) >= ROOMS_TOGETHER
        and stops[-1:] != [call.module]
    ):
        stops.append(call.module)
    for called in call.calls:
        _follow(called, call, stops)


def traced(*arguments: object) -> list[str]:
    """The walk of a command line."""
    trace, command = Trace(), [str(argument) for argument in arguments]

    def run() -> None:
        result = CliRunner().invoke(app, command)
        assert result.exit_code in (0, 5, 6), (command, result.output, result.exception)

    trace.run(run)
    return walk(trace)


def walks(folder: Path, last: str = "watch") -> dict[str, list[str]]:
    """The walk of each command, up to the ``last``."""
    items, run, model = folder / "items.jsonl", folder / "run", ("--model", "replay")
    chance = np.random.default_rng(1).beta(0.15, 0.15, 160)
    labels = np.random.default_rng(2).random(160) < chance
    rows = ({"id": f"q{k}", "prompt": f"Is {k} so?", "label": int(y)} for k, y in enumerate(labels))
    items.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = {}
    with replaying(items, chance) as server:
        address = (*model, "--base-url", server.base_url)
        commands: dict[str, tuple[object, ...]] = {
            "audit": (items, *address, "--out", run),
            "certify": (run, "--precision", 0.6),
            "decide": (run / "certificate.json", items, "--out", folder / "decisions"),
            "watch": (items, "--reference", run, "--out", folder / "watch"),
        }
        for name, arguments in commands.items():
            CliRunner().invoke(app, [name, "--help"])  # imports what it needs
            found[name] = traced(name, *arguments)
            if name == last:
                break
    return found


def described(name: str, stops: list[str]) -> str:
    """A walk as it is written on the page."""
    lines = [f"`blindcal {name}` makes {len(stops)} stops in {len(set(stops))} modules:", ""]
    for number, stop in enumerate(stops, 1):
        summary = (importlib.import_module(stop).__doc__ or "").split("\n\n")[0].replace("\n", " ")
        lines.append(f"{number}. `{stop.removeprefix('blindcal.')}`: {summary}")
    return "\n".join(lines)


def main() -> None:
    """Write all walks into the page, or print one."""
    with tempfile.TemporaryDirectory() as place:
        found = walks(Path(place), *sys.argv[1:])
    if sys.argv[1:]:
        print(described(sys.argv[1], found[sys.argv[1]]))
        return
    text = "\n\n".join(described(name, stops) for name, stops in found.items())
    PAGE.write_text(WALKS.sub(lambda _: f"{text}\n", PAGE.read_text()))


if __name__ == "__main__":
    main()
