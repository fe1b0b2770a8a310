"""Everything that blindcal writes as JSON is JSON, and unknown numbers are the same in all of it."""

from __future__ import annotations

import ast
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from blindcal import cli
from blindcal.json_form import json_line, json_page
from blindcal.records import Estimate
from results import result

#: Where the command line writes JSON that is not its own output: requests to copy, and values of flags.
REQUESTS = ("threshold.py", "console.py")


def test_numbers_have_one_form() -> None:
    """There is no NaN in JSON, whatever a number is unknown as; records and their dictionaries agree."""
    for unknown in (None, float("nan"), float("inf"), np.float64("nan")):
        assert json_line({"value": unknown}) == b'{"value":null}'
    estimate = Estimate(0.1, float("nan"), None, 0.95)
    assert json_line(estimate) == json_line(asdict(estimate))
    assert json_line([np.float64(0.25), np.int64(3), np.bool_(True)]) == b"[0.25,3,true]"
    with pytest.raises(TypeError, match="has no form"):
        json_line({"what": object()})


def test_a_page_is_the_same_json() -> None:
    """A file is indented and ends with a line break."""
    assert json.loads(json_page(result())) == json.loads(json_line(result()))
    assert result().to_json() == json_page(result())
    assert json_page({"a": 1}) == b'{\n  "a": 1\n}\n'


def test_a_path_that_is_no_utf_8_can_be_written() -> None:
    """Its odd bytes are replaced, and everything else stays as it is."""
    odd = json.loads(json_line({"run": "caf\udce9", "é": ["\ud800", 1]}))
    assert odd == {"run": "caf\ufffd", "é": ["\ufffd", 1]}


def test_the_command_line_writes_json_in_one_way() -> None:
    """No command encodes its output by itself."""
    for path in sorted(Path(cli.__file__).parent.glob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        called = {ast.unparse(node.func) for node in calls}
        assert "msgspec.json.encode" not in called, path.name
        assert "json.dumps" not in called or path.name in REQUESTS, path.name
