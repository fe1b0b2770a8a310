"""Every command and example in README and docs runs, and the tutorial prints what it says.

The tutorial runs over HTTP against the recorded logprobs of its model; bench/tutorial.py ran it against the
model itself, wrote the page, and kept the recording.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tutorial
from blindcal.items.catalogue import open_items
from blindcal.items.record_format import RecordFormat
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from doc_pages import PAGES, blocks, run_page
from docs_world import World, docs_world
from misbehaving import Behaviour, Server
from paths import ROOT

#: The tutorial has a world of its own.
WITH_BLOCKS = [
    page
    for page in PAGES
    if page.name != "tutorial.md" and any(block.kind in ("sh", "python") for block in blocks(page))
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with docs_world(tmp_path_factory.mktemp("docs")) as laid_out:
        yield laid_out


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: page.name)
def test_everything_on_a_page_runs(
    page: Path, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a reader copies from a page works, from its first block to its last."""
    run_page(page, world, tmp_path / "here", monkeypatch)


# The tutorial

STEPS = list(tutorial.steps(tutorial.PAGE.read_text()))
DEMO = next(step for step in STEPS if "blindcal demo" in step.text)
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e-\d+)?")
#: Numbers that may differ: the recording counts tokens its own way, a probe samples answers until they tell
#: enough, and the address is another one.
FREE = re.compile(r"^(queries|cost) .*$|(?<=127\.0\.0\.1:)\d+", re.MULTILINE)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each step prints, by its commands, with the recording in place of the model."""
    folder, found = tmp_path_factory.mktemp("tutorial"), {}
    writing = next(step for step in STEPS if step.kind == "python" and tutorial.QUESTIONS in step.text)
    tutorial.run(writing, folder, "")
    (template,) = {text for step in STEPS for text in tutorial.TEMPLATE.findall(step.text)}
    (model,) = {text for step in STEPS for text in re.findall(r"--model (\S+)", step.text)}
    recording = replace(Recording.load(tutorial.LOGITS), name=model)
    reading = RecordFormat(template=template.replace("\\n", "\n"))
    items = open_items(folder / tutorial.QUESTIONS, reading)
    with running(Server(recording, items, Behaviour(logprobs=True))) as server:
        for step in STEPS:
            if step is not DEMO:  # tests/flow/test_demo.py runs it
                found[step.text] = tutorial.run(step, folder, server.base_url)
    return found


def test_the_tutorial_prints_what_it_shows(printed: dict[str, str]) -> None:
    """From the first command to the last: the same words, and the same numbers but for rounding."""
    shown = [step for step in STEPS if step.output is not None and step is not DEMO]
    assert len(shown) >= 8
    for step in shown:
        assert step.output is not None
        page, here = step.output, printed[step.text]
        assert NUMBER.sub("0", here) == NUMBER.sub("0", page), step.text
        fixed = (NUMBER.findall(FREE.sub("", text)) for text in (here, page))
        for ours, theirs in zip(*fixed, strict=True):
            assert near(ours, theirs), f"{ours} is not {theirs}: {step.text}"


def near(ours: str, theirs: str) -> bool:
    """Whether two printed numbers are the same but for what another BLAS may change; of p-values, roughly."""
    a, b = (float(text.replace(",", "")) for text in (ours, theirs))
    if "e-" in theirs:
        return abs(math.log(a) - math.log(b)) < 1
    return math.isclose(a, b, rel_tol=0.01, abs_tol=0.005)


def test_the_demo_is_the_one_that_readme_shows() -> None:
    """The tutorial and README show one run of the demo, and both show it as it was printed."""
    assert DEMO.output is not None
    readme = (ROOT / "README.md").read_text()
    assert f"```text\n{DEMO.output.partition(chr(10) * 2)[0]}\n```" in readme


def test_readme_shows_lines_of_the_demo_of_decisions() -> None:
    """README shows a part of what the page about decision APIs shows."""
    readme, page = ((ROOT / name).read_text() for name in ("README.md", "docs/decision-apis.md"))
    lines = readme.partition("`blindcal demo --decisions` audits")[2].split("```")[1].splitlines()[1:]
    assert len(lines) >= 4
    assert [line for line in lines if line not in page.splitlines()] == []
