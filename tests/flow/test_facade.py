"""`import blindcal as bc` is quick, offers what the command line offers, and returns what can be shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import blindcal as bc
from blindcal.simulation.replay import Server
from commanding import blindcal
from deciding import TEMPLATE, model, serving, write_items

N = 120
FILES = {"answers.csv", "report.html", "result.json", "run.sqlite", "run.sqlite.lock"}


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions with their labels."""
    return write_items(tmp_path_factory.mktemp("facade") / "questions.jsonl", model(N, 3)[0])


@pytest.fixture(scope="module")
def server(items: Path) -> Iterator[Server]:
    """A model that answers them."""
    with serving(items, model(N, 3)[1]) as found:
        yield found


@pytest.fixture(scope="module")
def settings(server: Server) -> bc.Settings:
    """How it is asked."""
    return bc.Settings(model="replay", base_url=server.base_url, template=TEMPLATE, resamples=40)


@pytest.fixture(scope="module")
def run(items: Path, settings: bc.Settings) -> Path:
    """The folder of a finished audit."""
    bc.audit(items, settings, out=items.parent / "run")
    return items.parent / "run"


def test_what_the_command_line_has_is_offered() -> None:
    """The command line and Python offer the same things, by at most 45 names that all exist."""
    others = {"audit", "certify", "check", "compare", "decide", "merge", "plan", "probe", "simulate", "watch"}
    assert others <= set(bc.__all__)
    assert len(bc.__all__) <= 45
    assert all(hasattr(bc, name) for name in bc.__all__)
    assert others < set(dir(bc)) < set(bc.__all__)
    assert len(dir(bc)) <= 25


def test_an_audit_in_python_writes_what_the_command_writes(
    run: Path, items: Path, server: Server, tmp_path: Path
) -> None:
    """Both leave the same files with the same numbers, the page included."""
    base = ("--model", "replay", "--base-url", server.base_url, "--template", TEMPLATE)
    done = blindcal("audit", items, *base, "--set", "resamples=40", "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert {path.name for path in run.iterdir()} == FILES
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES
    one, two = (json.loads((folder / "result.json").read_text()) for folder in (run, tmp_path / "run"))
    for name in ("ece", "bins", "curve", "operating", "auroc", "settings"):
        assert one[name] == two[name], name


def test_everything_after_an_audit_works_in_python(run: Path, items: Path, settings: bc.Settings) -> None:
    """A probe, a plan, a comparison, a check and a merge, each by its own name."""
    assert bc.probe(items, settings).verdict == "thresholds"
    assert {plan.items for plan in bc.plan(items, settings).values()} == {N}
    assert all(float(one.difference) == 0 for one in bc.compare(run, run, resamples=40).differences)
    assert bc.check(run, max_ece=0.9, resamples=40).outcome == "passed"
    assert bc.merge([run], resamples=40).ece == bc.open_run(run).result.ece


def test_what_is_returned_fits_on_a_line(run: Path, items: Path, settings: bc.Settings) -> None:
    """The repr of anything public is short enough to be looked at."""
    opened = bc.open_run(run)
    labels, p = model(N, 3)
    thresholds = np.arange(N) % 5 / 5
    found = [
        opened,
        opened.result,
        opened.result.ece,
        opened.fit(resamples=0),
        settings,
        bc.blind(labels, thresholds, p >= thresholds),
        bc.binned_ece(labels, p),
        bc.Counts.of(labels, np.zeros(N), p >= 0.5),
        bc.simulate("latent", labels, p, repeats=2),
        bc.plan(items, settings)["latent"],
        bc.probe(items, settings),
        bc.check(run, max_ece=0.9, resamples=40),
        bc.compare(run, run, resamples=40),
        bc.Limits(),
        bc.Prices(1.0, 2.0),
    ]
    for one in found:
        assert "\n" not in repr(one)
        assert len(repr(one)) <= 200, repr(one)


HEAVY = (
    *("pyreqwest", "datasets", "pandas", "polars", "pyarrow", "torch", "transformers", "matplotlib"),
    *("xllamacpp", "scipy.stats"),
)


def python(*arguments: str, **environ: str) -> list[str]:
    """What a fresh interpreter prints, in words."""
    clean = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=clean | environ
    ).stdout.split()


def test_importing_is_quick_and_light() -> None:
    """`import blindcal` takes under a second of CPU and loads no client, reader, model or plot."""
    script = (
        "import time; begin = time.process_time(); import blindcal; spent = time.process_time() - begin\n"
        f"import sys; print(spent, *[name for name in {HEAVY!r} if name in sys.modules])\n"
        "print(*[name for name in blindcal.__all__ if not hasattr(blindcal, name)])"
    )
    (spent,) = python("-c", script)
    assert float(spent) < 1.0


def test_the_command_line_starts_without_numpy() -> None:
    """`blindcal --help` loads no numpy, so that its choice of threads holds; the user's own wins."""
    script = "import blindcal.cli, os, sys; print(os.environ['OPENBLAS_NUM_THREADS'], 'numpy' in sys.modules)"
    assert python("-c", script) == ["1", "False"]
    assert python("-c", script, OPENBLAS_NUM_THREADS="2") == ["2", "False"]


def test_the_package_runs_as_a_module() -> None:
    """`python -m blindcal` is the command line, where its command is not on the path."""
    assert "version" in python("-m", "blindcal", "--version")
