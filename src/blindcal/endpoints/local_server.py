"""Serves a GGUF model on loopback with llama.cpp's OpenAI-compatible server.

The server runs in a child process, because llama.cpp aborts when it runs out of memory. The child exits when
its standard input closes, however this process ends.

With one slot and no prompt cache, a question is always computed in the same way. Without
``OMP_WAIT_POLICY=PASSIVE``, idle threads spin, and a busy machine answers several times more slowly.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from blindcal.endpoints.model_file import check_gguf, default_model
from blindcal.errors import EndpointError, MissingExtraError
from blindcal.field_rules import FromOne, FromZero, Port

HOST = "127.0.0.1"
_STOP_SECONDS = 10.0


class ServerError(EndpointError):
    """The embedded server did not start."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    port: Annotated[Port, "Port of the server on 127.0.0.1; 0 chooses a free one."] = 0
    context: Annotated[FromOne, "Maximum length of a prompt, in tokens."] = 4096
    threads: Annotated[FromZero, "Threads of the model; 0 is one per core."] = 0


@dataclass(frozen=True, slots=True)
class Served:
    base_url: str
    model: str
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def alive(self) -> bool:
        """Whether the server still runs; it may run out of memory at any time."""
        return self.process.poll() is None


@contextlib.contextmanager
def serve(model: Path | None = None, settings: ServerSettings | None = None) -> Iterator[Served]:
    """Serve ``model``, or the default one, during a ``with`` block; a failure leaves no process running."""
    settings = settings or ServerSettings()
    check_ready(settings.port)
    path = check_gguf(model) if model is not None else default_model()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        command = [sys.executable, "-m", "blindcal.endpoints.local_server"]
        child = subprocess.Popen(
            [*command, str(path), json.dumps(asdict(settings))],
            env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "GGML_NO_BACKTRACE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        try:
            assert child.stdout is not None
            address = child.stdout.readline().decode().strip()
            if not address:
                child.wait()
                log.seek(0)
                raise ServerError(_cause(log.read(), child.returncode, path, settings))
            yield Served(f"{address}/v1", path.stem, child)
        finally:
            _stop(child)


def check_ready(port: int) -> None:
    """Raise an error if the ``local`` extra is missing or the port is unusable."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise MissingExtraError("the embedded model needs xllamacpp: pip install 'blindcal[local]'")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ServerError(
                f"port {port} cannot be used ({reason}): choose another, or 0 for any free one"
            ) from None


def _stop(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.close()
    try:
        child.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    child.stdout.close()


def _cause(log: str, code: int, path: Path, settings: ServerSettings) -> str:
    if code == -9 or re.search(
        r"insufficient memory|llocate|bad_alloc|MemoryError|temporarily unavailable", log
    ):
        size = f"a context of {settings.context} tokens"
        return f"not enough memory for {path.name} with {size}: try a smaller one"
    if "couldn't bind" in log:
        return f"port {settings.port} was taken by another program: choose another, or 0 for any free one"
    if reason := re.search(r"error loading model: (.+)", log):
        return f"{path} cannot be loaded: {reason[1].strip()}"
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return f"the model server stopped with code {code}: {lines[-1] if lines else 'it gave no reason'}"


def _main(path: str, settings: ServerSettings) -> None:
    """Run the server in this process until standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent decides
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # everything that llama.cpp prints goes to the log

    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.model_alias = {Path(path).stem}
    params.hostnames = [HOST]
    params.port = settings.port
    params.n_ctx = settings.context
    params.n_parallel = 1
    params.cache_prompt = False
    params.cache_ram_mib = 0
    params.fit_params = False
    params.warmup = False
    params.ui = False
    params.verbosity = 2
    params.n_threads_http = 64  # each kept-alive connection holds one
    threads = settings.threads or _cores()
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    print(server.listening_address, file=answer, flush=True)
    sys.stdin.buffer.read()
    os._exit(0)  # the server's own shutdown can hang if it comes early, and there is nothing to save


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    _main(sys.argv[1], ServerSettings(**json.loads(sys.argv[2])))
