"""A release: what the wheel and the sdist contain, and that they work where there is no clone."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from fresh_install import build, transcript, wording
from paths import ROOT

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the session is one of a POSIX shell")

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist."""
    return build(tmp_path_factory.mktemp("dist"))


def package_files() -> set[str]:
    """The files of the package in this clone."""
    source = ROOT / "src"
    found = (path.relative_to(source) for path in (source / "blindcal").rglob("*") if path.is_file())
    return {path.as_posix() for path in found if "__pycache__" not in path.parts}


def test_the_wheel_has_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    """Data that commands need is in, and neither tests nor benchmarks are."""
    with zipfile.ZipFile(built[0]) as wheel:
        inside = set(wheel.namelist())
    about = f"blindcal-{VERSION}.dist-info"
    extra = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    assert inside == package_files() | {f"{about}/{name}" for name in extra}
    needed = ("py.typed", "prices.csv", "items/builtin.jsonl.gz", "results/result.schema.json")
    pages = ("report/page.html", "report/page.css", "report/watch.html", "report/comparison.html")
    assert {f"blindcal/{name}" for name in (*needed, *pages)} <= inside


def test_the_sdist_builds_the_wheel_and_holds_no_test_data(built: tuple[Path, Path]) -> None:
    """The wheel was built from it; beside the package it has the files that describe the project."""
    with tarfile.open(built[1]) as sdist:
        inside = {name.partition("/")[2] for name in sdist.getnames()}
    describing = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "PKG-INFO"}
    assert inside - {".gitignore"} == {f"src/{name}" for name in package_files()} | describing


def test_the_registry_would_take_them(built: tuple[Path, Path]) -> None:
    """``twine check --strict`` finds nothing, and the metadata says what pyproject.toml says."""
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(built[0]) as wheel:
        about = Parser().parsestr(wheel.read(f"blindcal-{VERSION}.dist-info/METADATA").decode())
    assert (about["Version"], about["Requires-Python"]) == (VERSION, PROJECT["requires-python"])
    assert set(about.get_all("Provides-Extra") or ()) == set(PROJECT["optional-dependencies"])


def test_the_versions_of_python_are_the_ones_that_ci_runs() -> None:
    """The changelog's first section has the version; classifiers, workflow and page name the same Pythons."""
    assert (ROOT / "CHANGELOG.md").read_text().partition("\n## ")[2].startswith(f"{VERSION} (")
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    matrix = re.search(r"python: \[(.*)\]", (ROOT / ".github" / "workflows" / "test.yml").read_text())
    assert matrix is not None
    assert re.findall(r"3\.\d+", matrix[1]) == named
    assert f"tested with {', '.join(named[:-1])} and {named[-1]} on Linux" in page("install")


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


def test_the_wheel_works_in_an_empty_environment(built: tuple[Path, Path], tmp_path: Path) -> None:
    """Installed with pip, it does what docs/install.md shows, word for word but for the numbers."""
    shown = re.search(r"<!-- transcript -->\n```text\n(.*?)```\n<!-- /transcript -->", page("install"), re.S)
    assert shown is not None
    made = transcript(built[0], tmp_path)
    assert wording(made) == wording(shown[1]), "run python bench/transcript.py"
