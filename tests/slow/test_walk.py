"""Whoever reads along with a command meets few modules, and none of them twice."""

from __future__ import annotations

import re
from pathlib import Path

from walk import PAGE, WALKS, described, walks


def test_the_walk_of_a_command_is_short_and_the_one_on_the_page(tmp_path: Path) -> None:
    """At most 12 stops in 12 modules, as traced; docs/decisions/packages.md lists those of an audit."""
    shown = re.search(WALKS, PAGE.read_text())
    assert shown is not None
    for command, stops in walks(tmp_path).items():
        assert len(stops) == len(set(stops)) <= 12, stops
        if command == "audit":
            assert described(command, stops) in shown.group()
