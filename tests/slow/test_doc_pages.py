"""Every command and every example in README and docs runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from doc_pages import PAGES, blocks, run_page
from docs_world import World, docs_world

#: test_tutorial.py runs the tutorial, in a world of its own.
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
