"""The page of a large run: full binarised MMLU, 56,168 items in 57 subjects, audited over real HTTP.

    python bench/report.py [--data ../shared] [--out runs/mmlu]

Prints how long asking, the estimate with its breakdown and the page take, and how large the page is.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import blindcal
from blindcal.report.page import PAGE_FILE, write
from blindcal.reproduce import sources
from replayed import served


def main() -> None:
    """Audit, make the page, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared")
    parser.add_argument("--out", type=Path, help="keep the run here")
    arguments = parser.parse_args()
    source = sources.read(arguments.data / "logits" / "qwen__mmlu__logits.csv.gz")
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch, served(source, arguments.data) as settings:
        out = arguments.out or Path(scratch)
        result = blindcal.audit(source.data, replace(settings, by_field="subject"), out=out)
        estimated = time.perf_counter()
        write(result, out / PAGE_FILE)
        written = time.perf_counter()
        size = (out / PAGE_FILE).stat().st_size
    print("| items | parts | asked in | read, estimated and broken down in | page made in | size |")
    print("|---|---|---|---|---|---|")
    print(
        f"| {result.counts.items:,} | {len(result.parts)} | {result.seconds:.0f} s | "
        f"{estimated - begin - result.seconds:.0f} s | {written - estimated:.1f} s | {size / 1000:,.0f} kB |"
    )


if __name__ == "__main__":
    main()
