"""Counting and auditing on a real Ray."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from blindcal.results.merge import merge
from deciding import model, serving, write_items
from paths import ROOT


def test_ray_counts_as_one_machine_does(tmp_path: Path) -> None:
    """Shards counted on a real Ray, rows of an item apart, give the same counts, estimate and interval."""
    command = [sys.executable, str(ROOT / "bench" / "shards.py"), "--answers", "20000", "--shards", "3"]
    command += ["--queries", "1", "2", "--resamples", "50", "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| 20,000")]
    assert [(row[0], row[1], row[4]) for row in rows] == [("20,000", "1", "yes"), ("20,000", "2", "yes")]


def test_the_parts_of_a_file_are_audited_as_ray_tasks(tmp_path: Path) -> None:
    """The script of docs/scale.md, on two workers, prints the estimate of all answers together."""
    text = (ROOT / "docs" / "scale.md").read_text().partition("### On several machines")[2]
    script = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)[0]
    labels, p = model(600, 4)
    items = write_items(tmp_path / "questions.jsonl", labels)
    template = 'Is "{n}" one of them? Yes or No.'
    with serving(items, p) as server:
        for old, new in (
            ("PARTS = 20", "PARTS = 2"),
            ("http://my-server:8000/v1", server.base_url),
            ('"my-model"', f"'replay', template={template!r}, resamples=20"),
            ("ray.init()", 'ray.init(address="local", num_cpus=2, include_dashboard=False)'),
        ):
            assert old in script
            script = script.replace(old, new)
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=tmp_path,
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    merged = merge([tmp_path / "runs" / f"part-{number}" for number in range(2)])
    assert (merged.counts.items, merged.complete) == (600, True)
    assert str(merged.ece) in done.stdout
