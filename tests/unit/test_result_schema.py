"""The JSON Schema of a result: it is what is shipped, and it names its version."""

from __future__ import annotations

import json
from importlib.resources import files

import jsonschema
import pytest

from blindcal.results.result import SCHEMA_VERSION
from result_schema import schema
from results import result


def test_the_shipped_schema_is_up_to_date_and_names_its_version() -> None:
    """A program can tell by ``$id`` which schema it has, and only results of this version fit it."""
    shipped = json.loads(files("blindcal").joinpath("results/result.schema.json").read_text())
    assert shipped == schema(), "run python bench/result_schema.py"
    assert shipped["$id"] == f"urn:blindcal:result:{SCHEMA_VERSION}"
    written = json.loads(result().to_json())
    jsonschema.validate(written, shipped)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(written | {"schema_version": SCHEMA_VERSION + 1}, shipped)
