"""Check that audits over HTTP find the same numbers as before the refactoring, to the last digit.

    python bench/same_audits.py [--data ../shared] [--only boolq] [--tolerance 0] [--record]

The four recorded cells, one query per item, from a replay of the recorded logits: every estimate with its
interval, a point of each curve, and the queries, against ``tests/data/audits_before.json``. It lists the
differences, and exits with status 1 if there are any. Other processors round differently: the last digits
may differ there, and ``--tolerance 1e-9`` accepts that. After a change of the estimates, ``--record`` records
them as they are now.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # more threads sum in another order

import blindcal as bc
from blindcal.reproduce import sources
from blindcal.reproduce.sources import Source
from replayed import served

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "tests" / "data" / "audits_before.json"


def audited(source: Source, shared: Path) -> dict[str, Any]:
    """What an audit of a recorded cell finds now, under the names in the file."""
    with served(source, shared) as settings, tempfile.TemporaryDirectory() as out:
        result = bc.audit(source.data, settings.replace(by_field=None), out=out)
    assert result.curve is not None
    assert result.curve.low is not None
    assert result.curve.high is not None
    curve = result.curve
    scalars = ("ece", "auroc", "accuracy", "brier", "log_loss", "tce", "overconfidence", "leaning")
    return {
        **{name: asdict(getattr(result, name)) for name in scalars},
        "calibrated_pvalue": result.calibrated_pvalue,
        "gaps": [asdict(one.gap) for one in result.bins],
        "operating_20": asdict(result.operating[19]),
        "curve_51": [
            column[50] for column in (curve.f, curve.value, curve.low, curve.high) if column is not None
        ],
        "cost_11": asdict(result.costs[1].expected[10]),
        "asked": result.spend.asked,
    }


def differences(name: str, before: Any, now: Any, tolerance: float) -> Iterator[str]:
    """A line per number that has changed; numbers that are not in the file are not compared."""
    if isinstance(before, dict):
        for key, value in before.items():
            yield from differences(f"{name}.{key}", value, now[key], tolerance)
    elif isinstance(before, list):
        for place, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from differences(f"{name}.{place}", one, other, tolerance)
    elif isinstance(before, float) and isinstance(now, float):
        if not abs(before - now) <= tolerance:
            yield f"{name}: {before!r} before, {now!r} now"
    elif before != now:
        yield f"{name}: {before!r} before, {now!r} now"


def main() -> int:
    """Print the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared")
    parser.add_argument("--only", default="", help="Only the cells whose file has this in its name.")
    parser.add_argument("--tolerance", type=float, default=0.0, help="Largest difference that is none.")
    parser.add_argument("--record", action="store_true", help="Record the numbers as they are now.")
    arguments = parser.parse_args()
    known, lines, cells = json.loads(RECORDED.read_text()), list[str](), 0
    for path in sources.find([arguments.data / "logits"]):
        if arguments.only in path.name:
            source = sources.read(path)
            cells += 1
            now = audited(source, arguments.data)
            lines += differences(source.name, known[source.name], now, arguments.tolerance)
            known[source.name] = now
    if arguments.record:
        RECORDED.write_text(json.dumps(known, indent=1) + "\n")
    print(*lines, f"{cells} audits over HTTP, {len(lines)} numbers differ", sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
