"""Write the JSON Schema of result.json.

    python bench/result_schema.py [--check]

``--check`` writes nothing, and fails if something would be written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from blindcal.results import result

FILE = Path(result.__file__).with_name("result.schema.json")


def schema() -> dict[str, Any]:
    """The JSON Schema of a result of this version."""
    # a round trip through JSON turns tuples, such as empty defaults, into lists
    described = json.loads(msgspec.json.encode(msgspec.json.schema(result.AuditResult)))
    described["$defs"]["AuditResult"]["properties"]["schema_version"] = {"const": result.SCHEMA_VERSION}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:blindcal:result:{result.SCHEMA_VERSION}",
        "title": "blindcal result",
        **described,
    }


def main() -> int:
    """Write the schema, or check it."""
    text = json.dumps(schema(), indent=2) + "\n"
    if "--check" in sys.argv[1:]:
        return 0 if FILE.read_text() == text else 1
    FILE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
