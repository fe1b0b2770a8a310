"""White-box scores: their semantics, and their files as a loaded model writes them and as they are read."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

from blindcal.errors import InputError
from blindcal.items.score_files import read_choices, read_scores
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


# What is read, and what is refused by row and column


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_another_column_can_be_asked_for(tmp_path: Path) -> None:
    """The wanted probability column is read where the file has it, else p."""
    path = write(tmp_path / "s.csv", "id,label,p,p_max\na,0,0.1,0.9\n")
    assert read_scores(path, "p_max").p.tolist() == [0.9]
    assert (read_scores(path, "p_sum").p.tolist(), read_scores(path, "p_sum").column) == ([0.1], "p")


LOGITS = """id,label,True|7, True|8,False|9, False|10,lse,argmax
a,0,1.0,3.0,0.0,0.5,4.0,8
b,1,2.0,1.0,3.0,0.0,4.0,9
"""


def test_logits_are_read_wherever_probabilities_are(tmp_path: Path) -> None:
    """A logit file gives one spelling a side, the likeliest or all of them, and says which these are."""
    path = write(tmp_path / "m__d__logits.csv", LOGITS)
    one = read_scores(path)
    assert one.p == pytest.approx(expit([1.0, -1.0]))
    assert one.column == "True|7 against False|9"
    assert read_scores(path, "p_max").p == pytest.approx(expit([2.5, -1.0]))
    total = np.logaddexp([1, 2], [3, 1]) - np.logaddexp([0, 3], [0.5, 0])
    assert read_scores(path, "p_sum").p == pytest.approx(expit(total))
    assert read_scores(path, words=("False", "True")).p == pytest.approx(1 - one.p)
    asked = Targets((Token(8, " True"),), (Token(9, "False"),))
    assert one.about(asked).p == pytest.approx(expit([3.0, -2.0]))
    assert one.about(Targets((Token(1, "Yes"),), (Token(2, "No"),))) is one


def test_logits_of_other_words_are_refused_with_those_there_are(tmp_path: Path) -> None:
    """A wrong word is answered with the spellings that the file has, a wrong number with its row."""
    path = write(tmp_path / "s.csv", LOGITS)
    with pytest.raises(InputError, match=r"no columns for Yes and No: .* among 'True', ' True', 'False'"):
        read_scores(path, words=("Yes", "No"))
    with pytest.raises(InputError, match=r"row 2, True\|7: must be a number, got 'x'"):
        read_scores(write(tmp_path / "bad.csv", LOGITS.replace("b,1,2.0", "b,1,x")))


BAD = [
    ("", r"holds no rows"),
    ("id,label\na,0\n", r"lacks p, has id, label"),
    ("id,\x1b[2J,p\na,0,1\n", r"lacks label, has id, \\x1b"),
    ("id,label,p\na,0,0.5\nb,2,0.5\n", r"row 2, label: must be 0 or 1, got '2'"),
    ("id,label,p\na,yes,0.5\n", r"row 1, label: must be 0 or 1, got 'yes'"),
    ("id,label,p\na,0,\x1b[31m1\x07\n", r"got .*x1b"),
    ("id,label,p\na,0,1.5\n", r"row 1, p: must be a number in \[0, 1\], got '1.5'"),
    ("id,label,p\na,0,nan\n", r"row 1, p: must be a number in \[0, 1\], got 'nan'"),
    ("id,label,p\na,0,\n", r"row 1, p: must be a number in \[0, 1\], got ''"),
    ("id,label,p\na,0,0.5\nb,0\n", r"line 3: lacks the field 'p'"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_bad_files_are_named_with_row_and_column(tmp_path: Path, text: str, message: str) -> None:
    """The error names the file, the row, the column, the rule and the value."""
    path = write(tmp_path / "bad.csv", text)
    with pytest.raises(InputError, match=message) as caught:
        read_scores(path)
    assert "bad.csv" in str(caught.value)


# Choice files

CHOICES = "id,logit_A,logit_B,logit_C,label\na,1.5,0,-2,0\nb,0,3,,1\nc,2,1,-inf,0\nd,1,2,NaN,1\n"


def test_a_choice_file_has_a_row_per_item_and_a_column_per_answer(tmp_path: Path) -> None:
    """Answers are the columns' names; a missing logit says that the item has fewer answers."""
    scores = read_choices(write(tmp_path / "c.csv", CHOICES))
    assert scores.answers == ("A", "B", "C")
    assert scores.ids == ("a", "b", "c", "d")
    assert scores.labels.tolist() == [0, 1, 0, 1]
    np.testing.assert_array_equal(scores.logits[:3], [[1.5, 0, -2], [0, 3, -np.inf], [2, 1, -np.inf]])
    assert scores.choices.tolist() == [3, 2, 2, 2]


def test_labels_may_be_names(tmp_path: Path) -> None:
    """A label is the name of an answer or its number; ids and what was asked are kept if they are there."""
    path = write(tmp_path / "c.csv", "logit_joy,logit_fear,label,asked\n1,2,fear,x m\n2,1,joy,y m\n")
    scores = read_choices(path)
    assert scores.labels.tolist() == [1, 0]
    assert (scores.ids, scores.asked) == (("0", "1"), ("x m", "y m"))


def test_answers_that_are_numbers(tmp_path: Path) -> None:
    """The labels that can only be read in one way decide how the others are read."""
    head = "id,logit_1,logit_2,logit_3,label\n"
    counted = read_choices(write(tmp_path / "c.csv", head + "a,1,2,3,1\nb,1,2,3,0\n"))
    assert counted.labels.tolist() == [1, 0]
    named = read_choices(write(tmp_path / "n.csv", head + "a,1,2,3,1\nb,1,2,3,3\n"))
    assert named.labels.tolist() == [0, 2]
    same = read_choices(write(tmp_path / "s.csv", "logit_0,logit_1,logit_2,label\n1,2,3,1\n"))
    assert same.labels.tolist() == [1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,logit_A,logit_B,label\na,1,2,2\n", "row 1, label: must be a number from 0 to 1 or one of 'A'"),
        ("id,logit_A,logit_B,label\na,1,x,0\n", "row 1, logit_B: must be a number, or empty .*got 'x'"),
        ("id,logit_A,logit_B,label\na,1,inf,0\n", "row 1, logit_B: .*got 'inf'"),
        ("id,logit_A,logit_B,label\na,1,,0\n", "row 1: must have the logits of at least two answers"),
        ("id,logit_A,logit_B,logit_C,label\na,1,2,,C\n", "row 1, logit_C: must be a number, since the label"),
        ("id,logit_1,logit_2,label\na,1,2,1\n", "row 1, label: '1' may be an answer or the number of"),
        ("id,logit_A,label\na,1,0\n", "must have the columns id, label, and logit_<answer>"),
    ],
)
def test_what_is_wrong_with_a_choice_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    """Errors name the row, the column, the rule and what came."""
    with pytest.raises(InputError, match=message):
        read_choices(write(tmp_path / "c.csv", text))
