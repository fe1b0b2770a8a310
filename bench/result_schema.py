"""Write the JSON Schema of result.json, and hold it to its promise.

    python bench/result_schema.py [--check]

A version of the schema keeps its fields: programs that read them go on working. ``bench/schemas`` records
every field and its type, a file per version. A field that is new is added to the record. If one is gone or
has another type, nothing is written, and ``SCHEMA_VERSION`` must be raised. ``--check`` writes nothing, and
fails if something would be written.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blindcal.results import result

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = Path(result.__file__).with_name("result.schema.json")
RECORDS = ROOT / "bench" / "schemas"


def fields(schema: dict[str, Any]) -> list[str]:
    """Every field of a schema and its type, a line for each; of a field of words, a line for each word."""
    return sorted(set(_fields(schema, schema, "")))


def _fields(schema: dict[str, Any], part: dict[str, Any], path: str) -> Iterator[str]:
    if "$ref" in part:
        yield from _fields(schema, schema["$defs"][part["$ref"].rpartition("/")[2]], path)
    elif "anyOf" in part:
        for one in part["anyOf"]:
            yield from _fields(schema, one, path)
    elif "enum" in part or "const" in part:
        for word in part.get("enum", [part.get("const")]):
            yield f"{path} = {json.dumps(word)}"
    elif part["type"] == "array":
        each = part["prefixItems"] if "prefixItems" in part else [part["items"]]
        for one in each:
            yield from _fields(schema, one, f"{path}[]")
    elif "properties" in part:
        for name, one in part["properties"].items():
            yield from _fields(schema, one, f"{path}.{name}" if path else name)
    else:
        yield f"{path}: {part['type']}"


def broken(recorded: list[str], now: list[str]) -> list[str]:
    """What a reader of the recorded fields would stumble over: a field that is gone, a type that is new.

    A new field is no obstacle, nor a new word in a field of words, nor a field that is always known now.
    """
    known = {place for line in recorded for place in _places(line)}
    gone = [f"gone: {line}" for line in recorded if line not in now and not line.endswith(": null")]
    other = [line for line in now if line not in recorded and ": " in line]
    return gone + [f"new type: {line}" for line in other if line.partition(": ")[0] in known]


def _places(line: str) -> Iterator[str]:
    """The field of a line, and everything that it is in."""
    path = line.partition(": ")[0].partition(" = ")[0]
    while path:
        yield path
        path = path.removesuffix("[]") if path.endswith("[]") else path.rpartition(".")[0]


def main() -> int:
    """Write the schema and the record of its fields, unless a promise is broken."""
    schema, version = result.schema(), result.SCHEMA_VERSION
    record, now = RECORDS / f"result-{version}.txt", fields(schema)
    recorded = record.read_text().splitlines() if record.exists() else []
    if problems := broken(recorded, now):
        print(f"version {version} promises other fields: raise SCHEMA_VERSION", *problems, sep="\n  ")
        return 1
    written = {SCHEMA: json.dumps(schema, indent=2) + "\n", record: "\n".join(now) + "\n"}
    changed = [path for path, text in written.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        for path in changed:
            print(f"{path.relative_to(ROOT)} is not up to date: run python bench/result_schema.py")
        return 1 if changed else 0
    for path in changed:
        path.parent.mkdir(exist_ok=True)
        path.write_text(written[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
