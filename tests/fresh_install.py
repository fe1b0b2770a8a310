"""A release as its users meet it: the built wheel in an empty environment, and a session there.

The transcript of the session is the one that docs/install.md shows. Ports are replaced by the usual one, and
the model is in the cache, as after `blindcal pull`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blindcal.endpoints import local_model
from paths import ROOT

MODEL = Path(local_model.NAME).stem
PORT = "8080"

#: Commands of the session after the installation. ``serve`` runs beside those that follow it.
SESSION = (
    "blindcal --version",
    "blindcal demo --n 20 --port 0",
    "blindcal items builtin --n 40 --out questions.jsonl",
    f"blindcal serve --port {PORT}",
    f"blindcal audit questions.jsonl --model {MODEL} --base-url http://127.0.0.1:{PORT}/v1 --out run",
    "blindcal check run --max-ece 0.5",
)


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it; returns the wheel and the sdist."""
    command = [sys.executable, "-m", "build", "--installer", "uv", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=outside())
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def outside(**variables: str) -> dict[str, str]:
    """The environment without what leads to this clone or to other endpoints."""
    ours = ("PYTHON", "OPENAI_", "VIRTUAL_ENV")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    return {**kept, "COLUMNS": "100", **variables}


def cache_model(folder: Path) -> Path:
    """A cache folder with the default model in it."""
    target = folder / local_model.cached_model().relative_to(local_model.cache_dir().parent)
    target.parent.mkdir(parents=True)
    found = local_model.default_model()
    try:
        os.link(found, target)
    except OSError:  # another file system
        shutil.copyfile(found, target)
    return folder


def transcript(wheel: Path, folder: Path) -> str:
    """Install the wheel with pip in an empty environment, run the session, and return what a user sees."""
    install = f"pip install --quiet '{wheel.name}[local]'"
    shown = [f"$ python -m venv fresh && . fresh/bin/activate\n$ {install}\n"]
    subprocess.run([sys.executable, "-m", "venv", str(folder / "fresh")], check=True, env=outside())
    python = folder / "fresh" / "bin" / "python"
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[local]"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=outside(),
    )
    assert done.returncode == 0, f"{install} failed; it needs a package registry:\n{done.stderr}"
    env = outside(
        PATH=f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        XDG_CACHE_HOME=str(cache_model(folder / "cache")),
    )
    with _session(folder, env) as run:
        shown += [run(line) for line in SESSION]
    return "".join(shown)


@contextmanager
def _session(folder: Path, env: dict[str, str]) -> Iterator[_Shell]:
    shell = _Shell(folder, env)
    try:
        yield shell
    finally:
        shell.stop()


class _Shell:
    """Runs the lines of a session; a server that one of them starts runs until the end."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder = folder
        self._env = env
        self._port = PORT
        self._server: subprocess.Popen[str] | None = None

    def __call__(self, line: str) -> str:
        """What a user sees of a command, with the command."""
        if " serve " in line:
            return f"$ {line} &\n{self._usual(self._serve(line))}"
        words = shlex.split(line.replace(f":{PORT}/", f":{self._port}/"))
        done = subprocess.run(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            cwd=self._folder,
            env=self._env,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}"
        return f"$ {line}\n{self._usual(done.stdout)}"

    def _serve(self, line: str) -> str:
        self._server = subprocess.Popen(
            [*shlex.split(line.replace(PORT, "0"))],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self._folder,
            env=self._env,
        )
        assert self._server.stdout is not None
        said = self._server.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/v1", said)
        assert found is not None, said
        self._port = found[1]
        return said

    def _usual(self, text: str) -> str:
        """Output with the usual port, and without spaces at the ends of lines."""
        ports = re.sub(r"(?<=127\.0\.0\.1:)\d+", PORT, text)
        return re.sub(r"[ \t]+$", "", ports, flags=re.MULTILINE)

    def stop(self) -> None:
        """Stop the server."""
        if self._server is not None:
            self._server.send_signal(signal.SIGINT)
            self._server.communicate(timeout=60)


def wording(text: str) -> str:
    """A transcript without its numbers, which another processor or another version may change a little.

    The direction that so few items show hangs on them too.
    """
    text = re.sub(r"^direction  .*", "direction", text, flags=re.MULTILINE)
    return re.sub(r"(?<![\w.])[+-]?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?", "N", text)
