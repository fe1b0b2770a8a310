"""A server that keeps what is posted to it, as a webhook or a collector does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass(frozen=True)
class Posted:
    """One request that was received."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """What was posted, and the status that the next posts get."""

    url: str = ""
    status: int = 200
    location: str | None = None
    posts: list[Posted] = field(default_factory=list)


@contextmanager
def receiving(status: int = 200) -> Iterator[Receiver]:
    """A receiver on this machine, in a thread of its own."""
    found, ready, ended = Receiver(status=status), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def receive(request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        found.posts.append(Posted(request.path, headers, await request.read()))
        extra = {} if found.location is None else {"Location": found.location}
        return web.Response(status=found.status, headers=extra)

    async def serve() -> None:
        app = web.Application()
        app.router.add_post("/{path:.*}", receive)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        await ended.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield found
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(20)
        loop.close()
