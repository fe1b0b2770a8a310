"""What commands count with is a number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from commanding import blindcal


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("audit", "--max-cost"),
        ("audit", "--prices"),
        ("audit", "--queries"),
        ("plan", "--ece"),
        ("check", "--max-ece"),
        ("threshold", "--cost-fp"),
    ],
)
def test_no_number_is_no_limit(command: str, option: str, value: str, tmp_path: Path) -> None:
    """A price, a limit or a wish that is not a number is refused before anything is read or asked."""
    said = blindcal(command, tmp_path / "none", option, value)
    assert said.exit_code == 2
    assert f"'{option}'" in said.output
    assert re.search("not a number|not in the range|must be a number|not two prices", said.output)
