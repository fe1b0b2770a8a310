"""Watches of endpoints that show probabilities: one request per item, and anchors asked again, over HTTP."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from blindcal.auditing.audit import audit
from blindcal.items.catalogue import open_items
from blindcal.report.watch_page import render_watch
from blindcal.results.watch_result import WatchResult
from blindcal.settings import Settings
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from blindcal.store.run_store import RUN_FILE
from blindcal.store.watch_store import WatchStore
from blindcal.watching.watch import watch
from deciding import model, write_items
from decision_server import Deciding, DecisionServer
from watching import write

pytestmark = pytest.mark.usefixtures("no_page")
N, REFERENCE = 500, 200
LABELS, P = model(N, 5)
WORDING = {"template": "Number {n}", "instructions": 'Is "{n}" one of them?'}


@contextlib.contextmanager
def serving(folder: Path, **behaviour: Any) -> Iterator[DecisionServer]:
    items = open_items(write_items(folder / "all.jsonl", LABELS), Settings(model="replay", **WORDING).prompt)
    recording = Recording.from_probabilities([item.id for item in items], P)
    with running(DecisionServer(recording, items, Deciding(**behaviour))) as server:
        yield server


def audited(folder: Path, server: DecisionServer, *, logprobs: bool = False, **more: Any) -> Path:
    first = write_items(folder / "first.jsonl", LABELS[:REFERENCE])
    asked = (
        {"method": "logprobs", "template": "\n".join(WORDING.values())} if logprobs else {"api": "decisions"}
    )
    about = Settings(
        model="replay",
        base_url=server.base_url,
        resamples=200,
        **{**({} if logprobs else WORDING), **asked, **more},
    )
    audit(first, about, out=folder / "run")
    return folder / "run"


def stream(folder: Path, numbers: range, mode: str = "w", *, inverted: bool = False) -> Path:
    labels = 1 - LABELS if inverted else LABELS
    rows = [{"id": f"q{k}", "n": k, "label": int(labels[k])} for k in numbers]
    return write(folder / "stream.jsonl", rows, mode)


@pytest.mark.parametrize("how", [{}, {"keep_prompts": False}, {"logprobs": True}], ids=str)
def test_probabilities_are_read_once_each_and_noise_is_no_alarm(tmp_path: Path, how: dict[str, Any]) -> None:
    """The server moves what it shows by .02; the values of the stream are its own, and nothing is raised."""
    with serving(tmp_path, moves=0.02, logprobs=True) as server:
        run, before = audited(tmp_path, server, **how), server.requests
        result = watch(stream(tmp_path, range(REFERENCE, N)), run, out=tmp_path / "watch", every=50)
        asked = server.requests - before
    assert not result.raised
    assert (result.answered, result.labelled, result.invalid) == (300, 300, 0)
    assert result.spend.queries == asked
    assert asked - 300 <= 6 * 4 + 100
    endpoint = result.state.alarm("endpoint")
    assert endpoint is not None
    assert endpoint.observations == 24
    assert result.window is not None
    assert "No alarm is raised" in render_watch(result)
    with WatchStore.read(tmp_path / "watch" / RUN_FILE) as store:
        odds = store.log_odds(300)
    assert odds is not None
    assert np.abs(1 / (1 + np.exp(-odds)) - P[REFERENCE:]).max() < 0.1


CHANGES: dict[str, dict[str, Any]] = {"endpoint": {"swapped_from": 0}, "calibration": {}}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_raised(tmp_path: Path, name: str) -> None:
    """Another model is found by anchors, also if it answers from the first look on; inverted labels soon."""
    with serving(tmp_path, moves=0.02) as server:
        run = audited(tmp_path, server)
        server.behaviour = replace(server.behaviour, **CHANGES[name])
        rows = stream(tmp_path, range(REFERENCE, N), inverted=name == "calibration")
        result = watch(rows, run, out=tmp_path / "watch", every=20)
    assert name in result.raised_names
    if name == "calibration":
        assert result.raised_names == ("calibration",)
    alarm = result.state.alarm(name)  # type: ignore[arg-type]
    assert alarm is not None
    assert alarm.raised_at is not None
    assert alarm.raised_at <= 40
    assert WatchResult.load(tmp_path / "watch") == result


# With more than two answers: about the given one, and whether it is right

WORDS = ("A", "B", "C")
LOGITS = 1.5 * np.random.default_rng(3).standard_normal((N, len(WORDS)))
RIGHT = (LOGITS + np.random.default_rng(4).gumbel(size=LOGITS.shape)).argmax(axis=1)


@pytest.mark.parametrize("way", ["decisions", "logprobs"])
@pytest.mark.parametrize("name", ["none", *CHANGES])
def test_the_given_of_several_answers_is_watched(tmp_path: Path, way: str, name: str) -> None:
    """A model that shows as much about other answers is found by its anchors, wrong answers by labels."""
    asked = {"method": way} if way == "logprobs" else {"api": way, "instructions": "Which is it?"}
    about: dict[str, Any] = {"model": "replay", "template": "A, B or C: {n}?", "answers": WORDS, **asked}
    items = open_items(write_items(tmp_path / "all.jsonl", RIGHT), Settings(**about).prompt)
    recording = Recording.of_choices([item.id for item in items], LOGITS, WORDS)
    with running(DecisionServer(recording, items, Deciding(logprobs=True))) as server:
        first = write_items(tmp_path / "first.jsonl", RIGHT[:REFERENCE])
        audit(first, Settings(base_url=server.base_url, resamples=200, **about), out=tmp_path / "run")
        if name == "endpoint":
            server.recording = Recording.of_choices(list(recording.ids), np.roll(LOGITS, 1, axis=1), WORDS)
        labels = (LOGITS.argmax(axis=1) + 1) % 3 if name == "calibration" else RIGHT
        rows = [{"id": f"q{k}", "n": k, "label": int(labels[k])} for k in range(REFERENCE, N)]
        stream = write(tmp_path / "stream.jsonl", rows)
        result = watch(stream, tmp_path / "run", out=tmp_path / "watch", every=50)
    assert (name in result.raised_names) == (name != "none")
    assert (result.answered, result.labelled) == (300, 300)
    page = render_watch(result)
    assert "share of right answers" in page
    assert "positive" not in page
    if name == "none":
        assert not result.raised
        assert result.window is not None
        right = (LOGITS.argmax(axis=1) == RIGHT)[REFERENCE:].mean()
        sure = softmax(LOGITS[REFERENCE:], axis=1).max(axis=1).mean()
        assert result.state.gaps[0].gap.value == pytest.approx(sure - right, abs=1e-3)
