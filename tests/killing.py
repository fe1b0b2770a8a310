"""Services that fail now and then, and processes that kill themselves (SIGKILL) at a chosen step."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from blindcal.asking import governor
from blindcal.endpoints.http import HttpEndpoint
from blindcal.items.question_files import load
from blindcal.records import Item, Reply, Request
from blindcal.simulation.http_server import HttpResponse
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import error, running
from misbehaving import Behaviour, Reset, Server

FAILING = 0.2
REFUSED = b"about weapons"
REFUSAL = "blocked by the content filter"
IN_A_ROW = 3  # failures of one request; the probe tries six times
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["blindcal.auditing.audit", "blindcal.report.page"])


def write_items(path: Path, n: int) -> None:
    """Write questions to a file; the filter refuses one in twenty."""
    rng = np.random.default_rng(11)
    with path.open("w") as file:
        for k in range(n):
            prompt = f"question {k} about {'weapons' if k % 20 == 7 else 'numbers'}?"
            file.write(json.dumps({"id": f"q{k}", "prompt": prompt, "label": int(rng.random() < 0.5)}) + "\n")


def recorded(path: Path) -> tuple[Recording, list[Item]]:
    """A model that has an answer to each of the questions in a file, and these."""
    loaded = load(path)
    items = list(loaded)
    p = np.random.default_rng(12).beta(0.5, 0.5, len(items))
    return Recording.from_probabilities([item.id for item in items], p), items


class FailingServer(Server):
    """A service with a content filter that fails now and then.

    ``settled`` counts the requests that it answered or refused for good: what must not be asked again.
    """

    def __init__(self, recording: Recording, items: Sequence[Item], *, failing: float, seed: int) -> None:
        super().__init__(recording, items, Behaviour(latency=0.002))
        self.settled = 0
        self._failing, self._luck = failing, random.Random(seed)
        self._failures: Counter[bytes] = Counter()

    def _complete(self, body: bytes, *, chat: bool) -> HttpResponse:
        if self._luck.random() < self._failing and self._failures[body] < IN_A_ROW:
            self._failures[body] += 1
            status = self._luck.choice((503, 429, None))
            return Reset() if status is None else error(status, "not now", None)
        self._failures[body] = 0
        response = super()._complete(body, chat=chat)
        if REFUSED in body:
            self.settled += 1
            refusal = error(400, REFUSAL, None)
            return replace(response, status=refusal.status, body=refusal.body)
        self.settled += response.status == 200
        return response


@contextlib.contextmanager
def serving(path: Path, *, failing: float = FAILING, seed: int = 0) -> Iterator[FailingServer]:
    """A service that answers the questions of a file."""
    with running(FailingServer(*recorded(path), failing=failing, seed=seed)) as server:
        yield server


@dataclass
class Fate:
    """Kills its process when it comes to a step for the nth time; never without a step.

    Steps are ``request``, ``reply``, and ``before`` and ``after`` a method that it `surrounds`.
    """

    step: str = ""
    nth: int = 1

    def comes_to(self, step: str) -> None:
        if step == self.step:
            self.nth -= 1
            if not self.nth:
                os.kill(os.getpid(), signal.SIGKILL)

    def surrounds(self, kind: type, method: str) -> None:
        """Make what comes before and after a method two steps."""
        usual = getattr(kind, method)

        def surrounded(*args: Any, **more: Any) -> Any:
            self.comes_to(f"before {method}")
            found = usual(*args, **more)
            self.comes_to(f"after {method}")
            return found

        setattr(kind, method, surrounded)

    def begins(self) -> None:
        """Make requests and replies steps; requests that fail do not wait long."""
        governor.backoff = lambda *_: 0.005
        usual = HttpEndpoint.ask

        async def ask(endpoint: HttpEndpoint, request: Request) -> Reply:
            self.comes_to("request")
            reply = await usual(endpoint, request)
            self.comes_to("reply")
            return reply

        setattr(HttpEndpoint, "ask", ask)  # noqa: B010 - in a process of its own


def killed(task: Callable[..., None], *arguments: Any) -> bool:
    """Run a task in a process of its own; returns whether it was killed, and otherwise it has ended."""
    process = CONTEXT.Process(target=task, args=arguments)
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0
