"""The picture of a report in the documentation: a recorded model on BoolQ, audited over real HTTP.

    python bench/picture.py [--data ../shared] [--out docs/report.png]

Needs Chromium, as the tests of the report do.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from playwright.sync_api import sync_playwright

import blindcal
from blindcal.report.page import write
from blindcal.reproduce import sources
from replayed import served

NAME = "Qwen2.5-Coder-1.5B-Instruct"  # whose logits these are


def main() -> None:
    """Audit, make the page and take its picture; print the truth behind its first sentence."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "report.png")
    arguments = parser.parse_args()
    source = sources.read(arguments.data / "logits" / "qwen__boolq__logits.csv.gz")
    source = replace(source, recording=replace(source.recording, name=NAME))
    with tempfile.TemporaryDirectory() as folder, served(source, arguments.data) as settings:
        page = Path(folder) / "report.html"
        write(blindcal.audit(source.data, settings, out=folder), page)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
            sheet = browser.new_page(viewport={"width": 1200, "height": 1150})
            sheet.goto(page.as_uri())
            sheet.screenshot(path=arguments.out)
            browser.close()
    p = source.probabilities("pair")
    near = (p >= 0.87) & (p < 0.93)
    print(f"of the {near.sum()} items between 0.87 and 0.93, {source.labels[near].mean():.1%} are positive")


if __name__ == "__main__":
    main()
