"""Make the pictures in the documentation: a recorded model on BoolQ, audited over HTTP, with the truth.

    python bench/picture.py

Draws docs/images/audit.svg and a dark version, where rings are the truth that the audit did not see, and
takes a screenshot of the report, docs/report.png. Needs Chromium, like the tests of the report.
"""

from __future__ import annotations

from record import ROOT, options

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from playwright.sync_api import sync_playwright

import blindcal as bc
from blindcal.estimate.truth import bin_index
from blindcal.items import catalogue
from blindcal.items.record_format import RecordFormat
from blindcal.records import FloatArray, IntArray
from blindcal.report.page import PAGE_FILE
from blindcal.report.style import figure_style, file_bytes, ink
from blindcal.reproduce import sources
from blindcal.reproduce.sources import Source
from blindcal.simulation import replay

NAME = "Qwen2.5-Coder-1.5B-Instruct"  # the recorded model
TRUE_BINS = 10


@contextmanager
def served(source: Source, shared: Path) -> Iterator[bc.Settings]:
    """Serve a recorded model over HTTP, and yield the settings to audit it."""
    questions = catalogue.open_items(source.data, RecordFormat(data_dir=str(shared / "data")))
    with replay.running(replay.Server(source.recording, questions)) as server:
        yield bc.Settings(
            model=source.recording.name,
            base_url=server.base_url,
            data_dir=str(shared / "data"),
            positive_ids=(source.targets.positive[0].id,),
            negative_ids=(source.targets.negative[0].id,),
            by_field="subject" if source.data == "mmlu" else None,
        )


def draw(result: bc.AuditResult, labels: IntArray, p: FloatArray, *, dark: bool) -> Figure:
    """The Blind Calibration Curve and the reliability diagram, each with the truth on it."""
    with figure_style(dark=dark):
        figure = Figure(figsize=(9.2, 4.4), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
        bc.plot.calibration_curve(result, left)
        gaps = bc.binned_ece(labels, p, 5).gaps
        rings = {"facecolors": "none", "edgecolors": [ink()], "linewidths": 1.3, "zorder": 5}
        left.scatter(np.arange(0.5, 5) / 5 + 0.055, gaps, s=34, **rings)
        bc.plot.reliability(result, right)
        where = bin_index(p, TRUE_BINS)
        count = np.bincount(where, minlength=TRUE_BINS)
        predicted, observed = (np.bincount(where, x, minlength=TRUE_BINS) / count for x in (p, labels))
        right.scatter(predicted, observed, s=12 + 260 * count / p.size, label="hidden truth", **rings)
        right.legend(loc="lower right")
    return figure


def photograph(page: Path, out: Path, *, height: int = 1150) -> None:
    """Take a screenshot of the top of a page."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        sheet = browser.new_page(viewport={"width": 1200, "height": height})
        sheet.goto(page.as_uri())
        sheet.screenshot(path=out)
        browser.close()


def main() -> None:
    """Audit and draw."""
    arguments, docs = options(__doc__), ROOT / "docs"
    source = sources.read(arguments.data / "logits" / "qwen__boolq__logits.csv.gz")
    source = replace(source, recording=replace(source.recording, name=NAME))
    labels, p = source.labels, source.probabilities("pair")
    with tempfile.TemporaryDirectory() as folder, served(source, arguments.data) as settings:
        result = bc.audit(source.data, settings, out=folder)
        photograph(Path(folder) / PAGE_FILE, docs / "report.png")
    for name, dark in (("audit", False), ("audit-dark", True)):
        figure = draw(result, labels, p, dark=dark)
        (docs / "images" / f"{name}.svg").write_bytes(file_bytes(figure, "svg"))


if __name__ == "__main__":
    main()
