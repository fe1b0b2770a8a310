"""The worked examples of CONTRIBUTING.md do what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import pytest

from blindcal.methods import METHODS, Method
from paths import ROOT

PAGE = ROOT / "CONTRIBUTING.md"


def test_a_new_method_and_a_new_endpoint_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page's Python, from its first block to its last, simulates a new method and audits a function."""
    monkeypatch.chdir(tmp_path)
    registry = cast(dict[str, Method], METHODS)
    monkeypatch.setitem(registry, "even", registry["latent"])  # so that the page's own entry is undone
    names: dict[str, object] = {"__name__": "contributing"}
    for number, text in enumerate(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S), 1):
        exec(compile(text, f"CONTRIBUTING.md, block {number}", "exec", dont_inherit=True), names)
    assert "Simulation(even, 2,000 items, 3 audits, error 0.0" in capsys.readouterr().out
    assert (tmp_path / "run" / "report.html").is_file()


def test_what_the_page_names_exists() -> None:
    """Files and make targets that the page names are there."""
    page = PAGE.read_text()
    root = PAGE.parent
    for name in re.findall(r"`((?:tests|bench|docs|\.github)/[\w./-]+)`", page):
        assert (root / name).exists(), name
    for name in re.findall(r"`(?!tests/|bench/|docs/)((?:[a-z_]+/)?[a-z_]+\.py|[a-z_]+/)`", page):
        assert (root / "src" / "blindcal" / name).exists(), name
    targets = re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.M)
    assert set(re.findall(r"make ([a-z-]+)", page)) <= set(targets)
