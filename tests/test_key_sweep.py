"""The search for the API key finds what it is for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from key_sweep import KEY, forms, leaked

HERE = Path(__file__).parent
OTHER = "sk-other+Yp4/Mn8=Qa1-Ws2Ed3Rf5Tg6Yh7"

LEAKS = """
import gzip, os, subprocess, sys
from pathlib import Path
from click.testing import CliRunner
import click
from blindcal.errors import InputError
from key_sweep import KEY

def test_clean(tmp_path): (tmp_path / "a").write_text("fine"); print("fine")
def test_file(tmp_path): (tmp_path / "a.sqlite").write_bytes(b"\\x00" + KEY[:14].encode())
def test_zipped(tmp_path): (tmp_path / "a.gz").write_bytes(gzip.compress(KEY.encode()))
def test_stdout(): print("see", KEY)
def test_stderr(): print(KEY, file=sys.stderr)
def test_descriptor(): os.write(2, KEY.encode())
def test_captured(capsys): print(KEY); capsys.readouterr()
def test_error():
    try: raise InputError("bad", remedy=f"use {KEY}")
    except InputError: pass
def test_process(): subprocess.run([sys.executable, "-c", "import os; print(os.environ['OPENAI_API_KEY'])"],
    capture_output=True)
def test_pipe():
    code = "import os; print(os.environ['OPENAI_API_KEY'])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert len(list(child.stdout)) == 1
def test_command(): CliRunner().invoke(click.command()(lambda: click.echo(KEY, err=True)))
"""


def test_every_form_is_found() -> None:
    """The key is found in every encoding, at any place of a base64 text, and cut short; others are not."""
    assert all(leaked(b"<" + form + b">") for form in forms(KEY))
    assert leaked(KEY[:12])
    assert not leaked("nothing but sk-sweeping and sk-other things")
    assert not any(map(leaked, forms(OTHER)))


def test_each_leak_fails_its_test(tmp_path: Path) -> None:
    """A file, a stream, an error, a process or a command with the key fails the test that leaves it."""
    (tmp_path / "test_leaks.py").write_text(LEAKS)
    (tmp_path / "conftest.py").write_text("from key_sweep import pytest_runtest_makereport, sweep, swept\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    path = os.pathsep.join([str(HERE), *sys.path])
    environment = {**os.environ, "SWEPT_API_KEY": OTHER, "PYTHONPATH": path}
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "--basetemp=inner"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    failed = set(re.findall(r"^(?:FAILED|ERROR) test_leaks.py::(\w+)", done.stdout, re.MULTILINE))
    assert failed == set(re.findall(r"def (test_\w+)", LEAKS)) - {"test_clean"}, done.stdout
