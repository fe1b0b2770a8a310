"""Write the JSON Schema of result.json.

python bench/result_schema.py            # rewrite it
python bench/result_schema.py --check    # end with status 1 if it would change
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from blindcal.results import result
from docs import write_or_check

if __name__ == "__main__":
    schema = Path(result.__file__).with_name("result.schema.json")
    sys.exit(write_or_check(schema, json.dumps(result.schema(), indent=2) + "\n"))
