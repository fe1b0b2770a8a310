"""Items that ask the same thing: answered alike, so counted as one observation, and said to be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from blindcal.items.question_files import RepeatedPrompts
from blindcal.report.page import render
from blindcal.results.merge import merge
from blindcal.results.result import AuditResult
from blindcal.results.run import open_run
from commanding import blindcal
from serving import replaying

PROMPTS, COPIES = 60, 4
N = PROMPTS * COPIES


def audited(folder: Path, *, copied: bool) -> AuditResult:
    """An audit of items of which four each have one prompt, or of the same items with their own prompts."""
    folder.mkdir()
    rng = np.random.default_rng(5)
    p = np.repeat(rng.beta(0.6, 0.6, PROMPTS), COPIES)
    labels = np.repeat(rng.uniform(size=PROMPTS) < 0.5, COPIES).astype(int)
    labels[0] = 1 - labels[1]  # one conflict
    prompts = [f"Is {k // COPIES if copied else k} odd? Yes or No." for k in range(N)]
    records = [{"id": f"q{k}", "prompt": prompts[k], "label": int(labels[k])} for k in range(N)]
    items = folder / "items.jsonl"
    items.write_text("".join(json.dumps(record) + "\n" for record in records))
    with replaying(items, p) as server:
        given = ("--model", "replay", "--base-url", server.base_url, "--set", "resamples=100")
        ended = blindcal("audit", items, *given, "--out", folder)
    assert ended.exit_code == 0, ended.output
    warning = f"180 of {N} items have the prompt of another item"
    output = " ".join(ended.output.split())
    assert (warning in output) == copied
    counted = "the intervals count items with the same prompt as one observation. 4 items share"
    assert (counted in output) == copied
    return AuditResult.load(folder / "result.json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where both audits are."""
    return tmp_path_factory.mktemp("repeated")


def test_items_with_one_prompt_are_one_observation(folder: Path) -> None:
    """Four copies of an item tell no more than one: the intervals say so, and so do all who show them."""
    copied, own = audited(folder / "copied", copied=True), audited(folder / "own", copied=False)
    assert own.repeated is None
    assert copied.repeated == RepeatedPrompts(items=N - PROMPTS, conflicting=COPIES)
    assert copied.accuracy.half_width > 1.5 * own.accuracy.half_width  # sqrt(4) of independent copies
    page = render(copied)
    assert "have the prompt of another item" in page
    assert "check these labels" in page
    assert "have the prompt of another item" not in render(own)
    run = open_run(folder / "copied")
    assert run.groups is not None
    assert run.groups.tolist() == np.repeat(np.arange(PROMPTS), COPIES).tolist()
    assert open_run(folder / "own").groups is None
    assert merge([run], resamples=20).repeated == copied.repeated
