"""A finished run read back: the items, answers and fit that the audit had."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blindcal.asking.limits import Limits
from blindcal.auditing.audit import audit
from blindcal.errors import InputError, NotIdentifiedError, StoreError
from blindcal.items.files import load
from blindcal.records import INVALID
from blindcal.results.result import AuditResult
from blindcal.results.run import open_result, open_run
from blindcal.settings import Settings
from blindcal.simulation.replay import Server
from blindcal.store.run_file import in_use
from serving import replaying

N = 300


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions, the first hundred in groups of five."""
    path = tmp_path_factory.mktemp("finished") / "items.jsonl"
    labels = np.random.default_rng(1).random(N) < truth() ** 2
    rows = [
        {
            "id": f"q{k}",
            "prompt": f"Is {k} so?",
            "label": int(labels[k]),
            "group": f"g{k // 5}" if k < 100 else "",
        }
        for k in range(N)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def truth() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.random.default_rng(0).beta(0.6, 0.5, N)


@pytest.fixture(scope="module")
def server(items: Path) -> Iterator[Server]:
    with replaying(items, truth()) as one:
        yield one


def audited(items: Path, server: Server, out: Path, limits: Limits | None = None, **more: Any) -> AuditResult:
    settings = Settings(model="replay", base_url=server.base_url, resamples=40, **more)
    return audit(items, settings, out=out, limits=limits)


@pytest.fixture(scope="module")
def folder(items: Path, server: Server) -> Path:
    """A finished run of two queries an item, whose prompts were not kept."""
    out = items.parent / "run"
    audited(items, server, out, queries=2, keep_prompts=False)
    return out


def test_a_run_is_read_back_as_it_was(items: Path, folder: Path) -> None:
    """Items, labels, groups and settings are the audit's; nothing is held."""
    run = open_run(folder)
    loaded = load(items)
    assert run.ids == tuple(item.id for item in loaded)
    assert (run.labels == loaded.labels).all()
    assert run.groups is not None
    assert loaded.groups is not None
    assert (run.groups == loaded.groups).all()
    assert len(set(run.digests)) == N
    assert run.settings["queries"] == 2
    assert run.result == AuditResult.load(folder / "result.json")
    assert len(run.answered) == 2 * N
    assert not in_use(folder / "run.sqlite")


def test_the_answers_are_those_of_the_hidden_probabilities(folder: Path) -> None:
    """Each answer stands beside the item and the shift that it was given to."""
    asked = open_run(folder).answered
    above = truth()[asked.items] >= 1 / (1 + np.exp(asked.shifts))
    assert (asked.answers != INVALID).all()
    assert (asked.answers == above).mean() > 0.995  # a tie at the threshold may fall either way


def test_the_fit_is_the_one_behind_the_result(folder: Path) -> None:
    """Refitted from the run file, figures equal the result's to the last digit, intervals too."""
    run = open_run(folder)
    fit = run.fit(resamples=40)
    assert fit.ece == run.result.ece
    assert fit.auroc == run.result.auroc
    assert fit.accuracy == run.result.accuracy
    assert run.fit().resampling.size == 1000


@pytest.mark.parametrize("name", ["", "run.sqlite", "result.json"])
def test_a_run_is_named_by_its_folder_or_a_file_in_it(folder: Path, name: str) -> None:
    """The folder, the run file and the result all name the run."""
    assert open_run(folder / name).folder == folder


def test_a_result_alone_can_be_opened_but_is_no_run(folder: Path, tmp_path: Path) -> None:
    """Where only the result was kept it can be read; a run needs its file and says so."""
    shutil.copy(folder / "result.json", tmp_path / "kept.json")
    assert open_result(tmp_path / "kept.json") == open_result(folder)
    with pytest.raises(StoreError, match="no such run"):
        open_run(tmp_path / "kept.json")


def test_a_run_without_a_result_is_refused(folder: Path, tmp_path: Path) -> None:
    """Before its first result a run says what is missing."""


def test_an_interrupted_run_holds_what_was_answered(items: Path, server: Server, tmp_path: Path) -> None:
    """Stopped by a limit, the run reads back the answers there are; gone on since, it is refused."""
    whole = audited(items, server, tmp_path / "whole", send_seed=True)
    limits = Limits(max_queries=whole.spend.probe_queries + 100)
    cut = audited(items, server, tmp_path / "run", limits, send_seed=True)
    run = open_run(tmp_path / "run")
    assert not run.result.complete
    assert 0 < len(run.answered) < N
    assert run.fit(resamples=40).ece == cut.ece
    before = (tmp_path / "run" / "result.json").read_bytes()
    audited(items, server, tmp_path / "run", send_seed=True)
    (tmp_path / "run" / "result.json").write_bytes(before)
    with pytest.raises(StoreError, match="the run has gone on since"):
        open_run(tmp_path / "run")


def test_a_method_without_a_fit_says_which_have_one(items: Path, server: Server, tmp_path: Path) -> None:
    """`blind` answers can be read back, but have no fit."""
    audited(items, server, tmp_path / "run", method="blind")
    run = open_run(tmp_path / "run")
    assert len(run.answered) == run.result.counts.positive + run.result.counts.negative
    with pytest.raises(NotIdentifiedError, match=r"'blind' has no fit.*audit again with estimator='latent'"):
        run.fit()


def test_a_run_that_is_not_there_is_named(tmp_path: Path) -> None:
    """A folder that is not there is named itself, not the one it would be in."""
    with pytest.raises(StoreError, match=r"nowhere/run\.sqlite: no such run"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no such result"):
        open_result(tmp_path / "nowhere")
