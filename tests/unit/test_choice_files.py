"""Choice files: the logits of several answers, and files that are not what they should be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest

from blindcal.errors import InputError
from blindcal.items.score_files import is_choice_file, read_choices

TEXT = "id,logit_A,logit_B,logit_C,label\na,1.5,0,-2,0\nb,0,3,,1\nc,2,1,-inf,0\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_choice_file_has_a_row_per_item_and_a_column_per_answer(tmp_path: Path) -> None:
    """Answers are the columns' names; a missing logit says that the item has fewer answers."""
    found = read_choices(write(tmp_path / "c.csv", TEXT))
    assert found.answers == ("A", "B", "C")
    assert found.ids == ("a", "b", "c")
    assert found.labels.tolist() == [0, 1, 0]
    np.testing.assert_array_equal(found.logits, [[1.5, 0, -2], [0, 3, -np.inf], [2, 1, -np.inf]])
    assert found.choices.tolist() == [3, 2, 2]


def test_parquet_reads_like_csv(tmp_path: Path) -> None:
    """Nulls and NaN in a Parquet file are missing answers."""
    columns = {
        "id": ["a", "b", "c"],
        "label": [0, 1, 0],
        "logit_A": [1.5, 0.0, 2.0],
        "logit_B": [0.0, 3.0, 1.0],
        "logit_C": [-2.0, None, float("nan")],
    }
    path = tmp_path / "c.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    assert is_choice_file(path)
    found, text = read_choices(path), read_choices(write(tmp_path / "c.csv", TEXT))
    np.testing.assert_array_equal(found.logits, text.logits)
    assert (found.ids, found.labels.tolist()) == (text.ids, text.labels.tolist())


def test_labels_may_be_names(tmp_path: Path) -> None:
    """A label is the name of an answer or its number; ids and what was asked are kept if they are there."""
    path = write(tmp_path / "c.csv", "logit_joy,logit_fear,label,asked\n1,2,fear,x m\n2,1,joy,y m\n")
    found = read_choices(path)
    assert found.labels.tolist() == [1, 0]
    assert (found.ids, found.asked) == (("0", "1"), ("x m", "y m"))


def test_answers_that_are_numbers(tmp_path: Path) -> None:
    """The labels that can only be read in one way decide how the others are read."""
    head = "id,logit_1,logit_2,logit_3,label\n"
    counted = read_choices(write(tmp_path / "c.csv", head + "a,1,2,3,1\nb,1,2,3,0\n"))
    assert counted.labels.tolist() == [1, 0]
    named = read_choices(write(tmp_path / "n.csv", head + "a,1,2,3,1\nb,1,2,3,3\n"))
    assert named.labels.tolist() == [0, 2]
    same = read_choices(write(tmp_path / "s.csv", "logit_0,logit_1,logit_2,label\n1,2,3,1\n"))
    assert same.labels.tolist() == [1]


def test_only_the_header_makes_a_choice_file(tmp_path: Path) -> None:
    """Score and logit files of two answers are none."""
    assert is_choice_file(write(tmp_path / "c.csv", TEXT))
    assert not is_choice_file(write(tmp_path / "s.csv", "id,label,p\na,0,.5\n"))
    assert not is_choice_file(write(tmp_path / "l.csv", "id,label,True|7,False|9\na,0,1,2\n"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "id,logit_A,logit_B,label\na,1,2,2\n",
            "row 1, label: must be a number from 0 to 1 or one of 'A', 'B'",
        ),
        ("id,logit_A,logit_B,label\na,1,2,0\nb,1,2,X\n", "row 2, label: .*got 'X'"),
        ("id,logit_A,logit_B,label\na,1,x,0\n", "row 1, logit_B: must be a number, or empty .*got 'x'"),
        ("id,logit_A,logit_B,label\na,1,inf,0\n", "row 1, logit_B: .*got 'inf'"),
        ("id,logit_A,logit_B,label\na,1,,0\n", "row 1: must have the logits of at least two answers"),
        ("id,logit_A,logit_B,logit_C,label\na,1,2,,C\n", "row 1, logit_C: must be a number, since the label"),
        (
            "id,logit_1,logit_2,label\na,1,2,1\n",
            "row 1, label: '1' may be an answer or the number of another",
        ),
        ("id,logit_A,label\na,1,0\n", "must have the columns id, label, and logit_<answer>"),
        ("id,logit_A,logit_B,label\n", "holds no rows"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, told: str) -> None:
    """Errors name the row, the column, the rule and what came."""
    with pytest.raises(InputError, match=told):
        read_choices(write(tmp_path / "c.csv", text))
