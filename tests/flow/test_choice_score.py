"""White-box scores of questions with several answers: read from logprobs, written, and continued."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax

from blindcal.errors import InputError
from blindcal.items.question_files import load
from blindcal.items.score_files import read_choices
from blindcal.records import Token
from blindcal.scoring.score_items import score_items
from blindcal.scoring.score_writer import ScoreWriter
from blindcal.settings import Settings
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from commanding import blindcal
from misbehaving import Behaviour, Server

N = 40
LOGITS = np.random.default_rng(3).normal(0, 2, (N, 4))
LOGITS[::4, 3] = -np.inf
LABELS = np.random.default_rng(4).integers(0, 3, N)


@pytest.fixture
def items(tmp_path: Path) -> Path:
    """Questions with four options each, or three."""
    path = tmp_path / "questions.jsonl"
    rows = (
        {
            "id": f"q{k}",
            "question": f"Which is {k}?",
            "choices": [f"option {j}" for j in range(4 - (k % 4 == 0))],
            "label": int(LABELS[k]),
        }
        for k in range(N)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def server(items: Path) -> Iterator[Server]:
    """A model that shows logprobs and writes a space before its letters, mostly."""
    loaded = load(items)
    asked = list(loaded)
    known = Recording.of_choices([item.id for item in asked], LOGITS, (" A", " B", " C", " D"))
    tokens = (*known.tokens, *(Token(11 + k, letter) for k, letter in enumerate("ABCD")))
    logits = np.column_stack([known.logits, known.logits - 3])
    recording = Recording("replay", known.ids, tokens, logits, known.rest, known.others_first, 4)
    with running(Server(recording, asked, Behaviour(logprobs=True))) as served:
        yield served


def scored(items: Path, out: Path, server: Server, **options: Any) -> ScoreWriter:
    """Score the items."""
    settings = Settings(model="replay", base_url=server.base_url)
    return asyncio.run(score_items(items, settings, out, **options))


def test_every_answer_is_scored(items: Path, server: Server, tmp_path: Path) -> None:
    """The file is a choice file: the logprobs of the favourite spelling, and no others."""
    out = tmp_path / "scores.csv"
    writer = scored(items, out, server)
    assert writer.targets.words == (" A", " B", " C", " D")
    known = read_choices(out)
    assert known.answers == ("A", "B", "C", "D")
    assert known.ids == tuple(f"q{k}" for k in range(N))
    assert known.labels.tolist() == LABELS.tolist()
    assert known.choices.tolist() == [3 if k % 4 == 0 else 4 for k in range(N)]
    np.testing.assert_allclose(log_softmax(known.logits, axis=1), log_softmax(LOGITS, axis=1), atol=1e-4)
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert {row["tokens"] for row in rows} == {"1 2 3 4"}
    assert all(0 < float(row["mass"]) <= 1 for row in rows)
    assert rows[0]["asked"].endswith(" replay")


def test_a_file_is_continued_with_the_same_tokens(items: Path, server: Server, tmp_path: Path) -> None:
    """What is there is not asked again; other answers and other prompts start another file."""
    out, whole = tmp_path / "scores.csv", tmp_path / "whole.csv"
    scored(items, out, server, first=10)
    before = server.answered
    scored(items, out, server)
    assert server.answered - before < 2 * N
    scored(items, whole, server)
    assert out.read_text() == whole.read_text()
    lines = out.read_text().splitlines()
    out.write_text("\n".join([lines[0], lines[1].replace("1 2 3 4", "5 6 7 8")]) + "\n")
    with pytest.raises(InputError, match="other answer tokens"):
        scored(items, out, server)
    out.write_text(lines[0] + "\n")  # a crash after the header
    scored(items, out, server)
    assert out.read_text() == whole.read_text()


def test_the_command_says_what_it_wrote(items: Path, server: Server, tmp_path: Path) -> None:
    """The tokens are named, and the file can be replayed."""
    out = tmp_path / "scores.csv"
    done = blindcal("score", items, "--out", out, "--model", "replay", "--base-url", server.base_url)
    assert done.exit_code == 0, done.output
    assert "the answers are ' A' (1), ' B' (2), ' C' (3) and ' D' (4)" in done.stderr
    assert Recording.load(out).choices == 4
