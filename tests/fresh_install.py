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
from contextlib import ExitStack
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
    return "".join([*shown, *_session(folder, env)])


def _session(folder: Path, env: dict[str, str]) -> Iterator[str]:
    """What a user sees of each command, with the command; a server runs until the end."""
    port = PORT
    with ExitStack() as servers:
        for line in SESSION:
            words = shlex.split(line.replace(f":{PORT}/", f":{port}/").replace(f"--port {PORT}", "--port 0"))
            process = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder, env=env
            )
            if "serve" in words:
                servers.callback(_stop, process)
                assert process.stdout is not None
                text = process.stdout.readline()
                port = text.partition("127.0.0.1:")[2].partition("/")[0]
            else:
                text, _ = process.communicate()
                assert process.returncode == 0, f"{line}\n{text}"
            text = re.sub(r"(?<=127\.0\.0\.1:)\d+", PORT, text)
            text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
            yield f"$ {line}{' &' if 'serve' in words else ''}\n{text}"


def _stop(server: subprocess.Popen[str]) -> None:
    server.send_signal(signal.SIGINT)
    server.communicate(timeout=60)


def wording(text: str) -> str:
    """A transcript without its numbers, which another processor or another version may change a little.

    The direction that so few items show hangs on them too.
    """
    text = re.sub(r"^direction  .*", "direction", text, flags=re.MULTILINE)
    return re.sub(r"(?<![\w.])[+-]?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?", "N", text)
