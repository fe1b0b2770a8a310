"""The JSON Schema of a result has a version, and a version keeps its fields."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from blindcal.results.result import SCHEMA_VERSION, schema
from results import result

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "bench"))

from result_schema import broken, fields  # noqa: E402 - the one place that knows what a version promises


def test_the_schema_and_the_record_of_its_fields_are_up_to_date() -> None:
    """What is shipped describes what is written, and keeps what its version promises."""
    script = str(ROOT / "bench" / "result_schema.py")
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_shipped_schema_names_its_version() -> None:
    """A program can tell by ``$id`` which schema it has, and only results of this version fit it."""
    shipped = json.loads(files("blindcal").joinpath("results/result.schema.json").read_text())
    assert shipped["$id"] == f"urn:blindcal:result:{SCHEMA_VERSION}"
    written = json.loads(result().to_json())
    jsonschema.validate(written, shipped)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(written | {"schema_version": SCHEMA_VERSION + 1}, shipped)


def _rename(found: dict[str, Any]) -> None:
    found["overconfidence_"] = found.pop("overconfidence")


def _drop(found: dict[str, Any]) -> None:
    del found["spend"]


def _retype(found: dict[str, Any]) -> None:
    found["seconds"] = {"type": "string"}


def _unknown(found: dict[str, Any]) -> None:
    found["spend"] = {"anyOf": [found["spend"], {"type": "null"}]}


def _fewer_words(found: dict[str, Any]) -> None:
    found["estimator"]["enum"].remove("blind")


@pytest.mark.parametrize("change", [_rename, _drop, _retype, _unknown, _fewer_words])
def test_a_change_that_breaks_readers_needs_a_new_version(change: Callable[[dict[str, Any]], None]) -> None:
    """A field that is gone, has another type or may suddenly be unknown is noticed."""
    now = copy.deepcopy(schema())
    change(now["$defs"]["AuditResult"]["properties"])
    assert broken(fields(schema()), fields(now)) != []


def _add(found: dict[str, Any]) -> None:
    found["entropy"] = {"$ref": "#/$defs/Estimate"}


def _another_word(found: dict[str, Any]) -> None:
    found["estimator"]["enum"].append("oracle")


def _known(found: dict[str, Any]) -> None:
    found["by"] = {"type": "string"}


@pytest.mark.parametrize("change", [_add, _another_word, _known])
def test_a_change_that_breaks_nobody_needs_none(change: Callable[[dict[str, Any]], None]) -> None:
    """New fields and new words are allowed, and so is a field that is always known."""
    now = copy.deepcopy(schema())
    change(now["$defs"]["AuditResult"]["properties"])
    assert broken(fields(schema()), fields(now)) == []
