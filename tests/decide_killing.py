"""Decisions whose process is killed again and again; a test and a study share it.

A proxy between the process and its endpoint counts what is answered, and kills the process (SIGKILL) when a
chosen request arrives. So kills hit the check of the endpoint and every round at any place, without any
clock. One more kill hits the process while it writes the files.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp
from aiohttp import web

from blindcal.asking import governor
from blindcal.asking.limits import Limits
from blindcal.certifying.decide import decide
from blindcal.results.certificate import Certificate
from blindcal.results.decisions import DECISIONS_LINES, DECISIONS_TABLE
from certified_runs import at
from killing import CONCURRENCY, CONTEXT

WRITING = "writing the decisions"
_FINAL = (200, 400)  # statuses of an answer, and of an item that is refused for good


class KillingProxy:
    """Passes requests on to an endpoint, counts the final answers by request, and kills who asks.

    An endpoint that resets a connection looks as it does without the proxy.
    """

    def __init__(self, target: str) -> None:
        self._target = target.removesuffix("/v1")
        self._aim: tuple[int, int] | None = None
        self.answered: Counter[bytes] = Counter()
        self.base_url = ""

    def aim(self, pid: int, requests: int) -> None:
        """Kill a process when so many more requests have arrived."""
        self._aim = pid, requests

    def _shoot(self) -> None:
        if self._aim is None:
            return
        pid, left = self._aim
        self._aim = (pid, left - 1) if left > 1 else None
        if left <= 1:
            os.kill(pid, signal.SIGKILL)

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if request.method == "POST":
            self._shoot()
        kept = {
            name: request.headers[name]
            for name in ("Content-Type", "Authorization")
            if name in request.headers
        }
        url = self._target + request.path_qs
        try:
            async with self._client.request(request.method, url, data=body, headers=kept) as found:
                content, status, kind = await found.read(), found.status, found.content_type
        except (aiohttp.ClientError, OSError):
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=502)
        if status in _FINAL and request.path.endswith("/completions"):
            self.answered[body] += 1
        return web.Response(status=status, body=content, content_type=kind)

    @contextlib.contextmanager
    def serving(self) -> Iterator[KillingProxy]:
        """Serve during the block."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            runner = asyncio.run_coroutine_threadsafe(self._open(), loop).result()
            yield self
            asyncio.run_coroutine_threadsafe(self._close(runner), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def _open(self) -> web.AppRunner:
        self._client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300))
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        return runner

    async def _close(self, runner: web.AppRunner) -> None:
        await runner.cleanup()
        await self._client.close()


def run_decide(certificate: Path, items: Path, out: Path, told: Connection) -> None:
    """Decide in a process of its own, and tell the parent when the files are written."""
    governor.backoff = lambda *_: 0.005  # the waits of the check

    def stage(text: str) -> None:
        if text == WRITING:
            told.send(text)

    limits = Limits(concurrency=CONCURRENCY, backoff=0.005)
    decide(certificate, items, out=out, limits=limits, stage=stage, timeout=300)


@dataclass
class DecisionKiller:
    """Kills decisions by a certificate about items, and compares them with those of a run left alone.

    ``kills`` counts the kills by what had been written by then, and ``again`` the requests that had a final
    answer more often than in the run that was left alone.
    """

    rule: Certificate
    items: Path
    folder: Path
    moments: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    again: int = 0

    def whole(self, target: str) -> Counter[bytes]:
        """Decide without a kill; returns how often each request was answered."""
        with KillingProxy(target).serving() as proxy:
            assert self._go(proxy, "whole", None) == 0
            self.expected = self._files("whole")
            self.requests = proxy.answered
        return proxy.answered

    def run(self, target: str, kills: int) -> None:
        """Begin a run at an endpoint, kill it so often, let it finish, and check what it came to."""
        name = f"run{self.runs}"
        often = max(1, self.requests.total() // (kills + 1))
        begun = self.kills.total()
        with KillingProxy(target).serving() as proxy:
            for _ in range(kills):
                if self._go(proxy, name, self.moments.randint(1, 2 * often)) == 0:
                    break
                self.kills["asking"] += 1
            else:
                if self._go(proxy, name, WRITING) != 0:
                    self.kills["writing"] += 1
            assert self._go(proxy, name, None) == 0
            extra = proxy.answered - self.requests
            assert not self.requests - proxy.answered
        killed = self.kills.total() - begun
        assert extra.total() <= killed * CONCURRENCY
        assert self._files(name) == self.expected
        self.runs, self.again = self.runs + 1, self.again + extra.total()

    def _files(self, name: str) -> list[bytes]:
        return [(self.folder / name / file).read_bytes() for file in (DECISIONS_TABLE, DECISIONS_LINES)]

    def _go(self, proxy: KillingProxy, name: str, moment: int | str | None) -> int:
        """Go on with a run until it ends or is killed, at a request or when it writes; returns its status."""
        certificate = self.folder / f"{name}.json"
        at(self.rule, proxy.base_url).save(certificate)
        ours, theirs = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(
            target=run_decide, args=(certificate, self.items, self.folder / name, theirs)
        )
        process.start()
        theirs.close()
        assert process.pid is not None
        if isinstance(moment, int):
            proxy.aim(process.pid, moment)
        elif moment is not None:
            with contextlib.suppress(EOFError):
                ours.recv()
                os.kill(process.pid, signal.SIGKILL)
        process.join()
        ours.close()
        assert process.exitcode in (0, -signal.SIGKILL)
        return int(process.exitcode or 0)
