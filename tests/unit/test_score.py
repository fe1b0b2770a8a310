"""White-box scores: the semantics, the file, and scoring a set with a model that is loaded here."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blindcal.errors import InputError
from blindcal.items.score_files import read_choices
from blindcal.records import Item, Message, Targets, Token
from blindcal.scoring import score_items
from blindcal.scoring.hf import HfSettings, Score, in_order
from blindcal.scoring.score_items import PILOTS, ScoreWriter, log_odds, prefer, prompt_digests
from blindcal.simulation.recording import Recording
from commanding import blindcal, refusal

YES, SPACE_YES, LOWER_YES, NO, SPACE_NO = (
    Token(k, text) for k, text in enumerate(("Yes", " Yes", "yes", "No", " No"))
)
TARGETS = Targets((YES, SPACE_YES, LOWER_YES), (NO, SPACE_NO), "max")
DIGESTS = {name: f"digest of {name}" for name in "abc"}


def test_log_odds() -> None:
    """Pair compares the first spellings, max the likeliest, sum all of them."""
    p = {YES: 0.1, SPACE_YES: 0.2, LOWER_YES: 0.05, NO: 0.15, SPACE_NO: 0.1}
    pair, greatest, total = log_odds(TARGETS, [math.log(p[token]) for token in in_order(TARGETS)])
    assert pair == pytest.approx(math.log(0.1 / 0.15))
    assert greatest == pytest.approx(math.log(0.2 / 0.15))
    assert total == pytest.approx(math.log(0.35 / 0.25))


def test_prefer() -> None:
    """The spelling that is most often the likeliest of its side becomes the pair's."""
    order = in_order(TARGETS)
    rows = [[{SPACE_YES: -1.0, SPACE_NO: -2.0}.get(token, -5.0) for token in order]] * 2
    rows.append([-0.1] * len(order))
    chosen = prefer(TARGETS, rows)
    assert in_order(chosen)[:2] == (SPACE_YES, SPACE_NO)
    assert set(in_order(chosen)) == set(order)


# The file


def score(name: str, first: float = -1.0) -> Score:
    return Score(Item(name, 1, ()), (first, -2.0, -3.0, -4.0, -5.0), 0.5)


def test_file_reads_as_a_score_file(tmp_path: Path) -> None:
    """A finished file is in the items' order and has id, label and p as its first columns."""
    writer = ScoreWriter(tmp_path / "new" / "scores.csv", TARGETS, DIGESTS)
    writer.add([score("b"), score("a", -2.0)])
    writer.finish()
    with writer.path.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["id"] for row in rows] == ["a", "b"]
    assert [float(row["p"]) for row in rows] == pytest.approx([0.5, 1 / (1 + math.exp(-1))])
    assert list(rows[0])[:8] == ["id", "label", "p", "p_max", "p_sum", "mass", "Yes|0", "No|3"]


def test_file_is_continued_after_a_crash(tmp_path: Path) -> None:
    """A row cut off in the middle is dropped, and whole ones stay."""
    path = tmp_path / "scores.csv"
    ScoreWriter(path, TARGETS, DIGESTS).add([score("a"), score("b")])
    whole = path.read_bytes()
    path.write_bytes(whole + b"c,1,0.73,0.7")
    assert ScoreWriter(path, TARGETS, DIGESTS).done == {"a", "b"}
    assert path.read_bytes() == whole


def test_file_of_something_else_is_not_continued(tmp_path: Path) -> None:
    """Rows of other tokens, another model, prompt or label are not mixed with new ones."""
    path = tmp_path / "scores.csv"
    items = [Item(name, 1, (Message("user", f"Is {name} true?"),)) for name in "abc"]
    asked = prompt_digests(items, "m float32")
    ScoreWriter(path, TARGETS, asked).add([score("a"), score("b")])
    others = [
        prompt_digests(items, "another float32"),
        prompt_digests([replace(item, messages=(Message("user", "Is it?"),)) for item in items], "m float32"),
        prompt_digests([replace(item, label=0) for item in items], "m float32"),
    ]
    for other in others:
        with pytest.raises(InputError, match="another model, prompt or label"):
            ScoreWriter(path, TARGETS, other)
    for targets, content in ((Targets((YES,), (NO,)), path.read_text()), (TARGETS, "something,else\n1,2\n")):
        path.write_text(content)
        with pytest.raises(InputError, match="is not a score file, or was scored for other answer tokens"):
            ScoreWriter(path, targets, asked)


# Several answers

N = 40
LOGPROBS = np.random.default_rng(3).normal(-4, 2, (N, 4))
WORDS = (" A", " B", " C", " D", "A", "B", "C", "D")


class LetterModel:
    """Stands in for a loaded model, which writes a space before its letters."""

    scored = 0

    def __init__(self, source: str, settings: HfSettings) -> None:
        assert (source, settings.dtype) == ("letters", "float32")

    async def encode(self, text: str) -> Sequence[int]:
        return [1 + WORDS.index(text)]

    def scores(self, items: Iterable[Item], targets: Targets) -> Iterator[list[Score]]:
        for item in items:
            type(self).scored += 1
            known = [*LOGPROBS[int(item.id)], *(LOGPROBS[int(item.id)] - 3)]
            values = tuple(float(known[token.id - 1]) for token in in_order(targets))
            yield [Score(item, values, float(np.exp(values).sum()))]


def test_questions_with_several_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They make a choice file of the favourite spelling, which is continued and can be replayed."""
    monkeypatch.setattr(score_items, "HfModel", LetterModel)
    items, out, whole = (tmp_path / name for name in ("questions.jsonl", "scores.csv", "whole.csv"))
    rows = (
        {"id": k, "question": f"Which is {k}?", "choices": list("wxyz")[: 4 - (k % 4 == 0)], "label": k % 3}
        for k in range(N)
    )
    items.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(out: Path, *more: object) -> str:
        done = blindcal("score", items, "--model", "letters", "--out", out, *more)
        assert done.exit_code == 0, done.output
        return done.stderr

    assert "the answers are ' A' (1), ' B' (2), ' C' (3) and ' D' (4)" in run(whole)
    run(out, "--first", 10)
    before = LetterModel.scored
    run(out)
    assert LetterModel.scored - before == PILOTS + N - 10
    assert out.read_text() == whole.read_text()
    known = read_choices(out)
    assert known.answers == ("A", "B", "C", "D")
    assert known.labels.tolist() == [k % 3 for k in range(N)]
    assert known.choices.tolist() == [3 if k % 4 == 0 else 4 for k in range(N)]
    np.testing.assert_allclose(known.logits[1::4], LOGPROBS[1::4], rtol=1e-6)
    assert known.asked[0].endswith(" letters float32")
    assert Recording.load(out).choices == 4
    header, first, *_ = out.read_text().splitlines()
    out.write_text(f"{header}\n{first.replace('1 2 3 4', '9 9 9 9')}\n")
    assert "other answer tokens" in refusal(blindcal("score", items, "--model", "letters", "--out", out))
    out.write_text(f"{header}\n")  # a crash after the header
    run(out)
    assert out.read_text() == whole.read_text()
