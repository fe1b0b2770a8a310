"""Processes that kill themselves (SIGKILL) at a step that they are given, so that no clock decides when."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from blindcal.asking import governor
from blindcal.asking.run_context import Limits
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.records import Reply, Request
from killing import CONCURRENCY, CONTEXT

LIMITS = Limits(concurrency=CONCURRENCY, backoff=0.005)


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

    def endpoint(self, base_url: str) -> MortalEndpoint:
        """An endpoint whose process may die before a request or after its reply; it never waits long."""
        governor.backoff = lambda *_: 0.005
        return MortalEndpoint(base_url, self)


class MortalEndpoint:
    """An endpoint that tells a fate of its requests and replies."""

    def __init__(self, base_url: str, fate: Fate) -> None:
        self._endpoint, self._fate = HttpEndpoint(Address(base_url, "replay")), fate

    async def ask(self, request: Request) -> Reply:
        self._fate.comes_to("request")
        reply = await self._endpoint.ask(request)
        self._fate.comes_to("reply")
        return reply

    async def close(self) -> None:
        await self._endpoint.close()


def killed(task: Callable[..., None], *arguments: Any) -> bool:
    """Run a task in a process of its own; returns whether it was killed, and otherwise it has ended."""
    process = CONTEXT.Process(target=task, args=arguments)
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0
