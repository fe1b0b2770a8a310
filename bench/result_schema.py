"""Write the JSON Schema of result.json.

    python bench/result_schema.py [--check]

``--check`` writes nothing, and fails if something would be written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from blindcal.results import result

SCHEMA = Path(result.__file__).with_name("result.schema.json")


def main() -> int:
    """Write the schema, or check it."""
    text = json.dumps(result.schema(), indent=2) + "\n"
    if "--check" in sys.argv[1:]:
        return 0 if SCHEMA.read_text() == text else 1
    SCHEMA.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
