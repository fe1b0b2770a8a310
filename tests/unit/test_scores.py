"""Score, logit and choice files: what is read, and what is refused by row and column."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

from blindcal.errors import InputError
from blindcal.items.score_files import read_choices, read_scores
from blindcal.records import Targets, Token


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
