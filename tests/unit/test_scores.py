"""Score files: CSV and Parquet, gzip, and files that are not what they should be."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
from scipy.special import expit

from blindcal.errors import InputError
from blindcal.items.score_files import read_scores, stem
from blindcal.records import Targets, Token

TEXT = "id,label,p\na,0,0.25\nb,1,1.0\nc,1,1e-7\n"


def write(path: Path, text: str | bytes = TEXT) -> Path:
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_parquet(path: Path, columns: dict[str, list[object]]) -> Path:
    plain = path.with_name("plain.parquet")
    pyarrow.parquet.write_table(pyarrow.table(columns), plain)
    path.write_bytes(gzip.compress(plain.read_bytes()) if path.suffix == ".gz" else plain.read_bytes())
    return path


@pytest.mark.parametrize("name", ["s.csv", "s.csv.gz", "s.parquet"])
def test_every_form_reads_alike(tmp_path: Path, name: str) -> None:
    """CSV and Parquet, plain and gzipped, give the same ids, labels and probabilities."""
    columns: dict[str, list[object]] = {"id": ["a", "b", "c"], "label": [0, 1, 1], "p": [0.25, 1.0, 1e-7]}
    path = write_parquet(tmp_path / name, columns) if "parquet" in name else write(tmp_path / name)
    found = read_scores(path)
    assert found.ids == ("a", "b", "c")
    assert found.labels.tolist() == [0, 1, 1]
    assert found.p.tolist() == [0.25, 1.0, 1e-7]


def test_columns_come_in_any_order_and_others_are_ignored(tmp_path: Path) -> None:
    """Columns are found by name."""
    found = read_scores(write(tmp_path / "s.csv", "p,model,label,id\n0.5,x,1,k\n"))
    assert (found.ids, found.labels.tolist(), found.p.tolist()) == (("k",), [1], [0.5])


def test_a_missing_id_is_the_rows_number(tmp_path: Path) -> None:
    """Files without ids are numbered from zero."""
    assert read_scores(write(tmp_path / "s.csv", "label,p\n0,0.1\n1,0.2\n")).ids == ("0", "1")


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


def test_dots_in_a_files_name_are_its_own() -> None:
    """Only what says how a file is written is taken off its name."""
    names = {"Llama-3.1-8B__boolq.csv.gz": "Llama-3.1-8B__boolq", "a.v2.jsonl": "a.v2", "b.tsv.gz": "b"}
    assert {name: stem(Path(name)) for name in names} == names


BAD = [
    ("", r"holds no rows"),
    ("id,label\na,0\n", r"lacks p, has id, label"),
    ("id,p\na,0\n", r"lacks label, has id, p"),
    ("id,label,p\n", r"holds no rows"),
    ("id,label,p\na,0,0.5\nb,2,0.5\n", r"row 2, label: must be 0 or 1, got '2'"),
    ("id,label,p\na,yes,0.5\n", r"row 1, label: must be 0 or 1, got 'yes'"),
    ("id,label,p\na,0.5,0.5\n", r"row 1, label: must be 0 or 1, got '0.5'"),
    ("id,label,p\na,0,1.5\n", r"row 1, p: must be a number in \[0, 1\], got '1.5'"),
    ("id,label,p\na,0,nan\n", r"row 1, p: must be a number in \[0, 1\], got 'nan'"),
    ("id,label,p\na,0,\n", r"row 1, p: must be a number in \[0, 1\], got ''"),
    ("id,label,p\na,0,-1e-9\n", r"row 1, p: must be a number in \[0, 1\], got '-1e-9'"),
    ("id,label,p\na,0,0.5\nb,0\n", r"line 3: lacks the field 'p'"),
    (b"\xff\xfe\x00\x80,\n", r"is not UTF-8 text; convert it first"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_bad_files_are_named_with_row_and_column(tmp_path: Path, text: str | bytes, message: str) -> None:
    """The error names the file, the row, the column, the rule and the value."""
    path = write(tmp_path / "bad.csv", text)
    with pytest.raises(InputError, match=message) as caught:
        read_scores(path)
    assert "bad.csv" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("missing.csv", None),
        ("missing.parquet", None),
        ("not.csv.gz", b"plain text"),
        ("cut.csv.gz", gzip.compress(TEXT.encode(), mtime=0)[:-9]),
        ("not.parquet", b"plain text"),
        ("empty.parquet", b""),
    ],
)
def test_unreadable_files_are_one_error(tmp_path: Path, name: str, data: bytes | None) -> None:
    """Missing, truncated and foreign files are an input error that names them, never a traceback's."""
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(InputError, match=name):
        read_scores(path)


def test_text_from_a_file_cannot_reach_the_terminal(tmp_path: Path) -> None:
    """Escape sequences in a bad value or a column's name are made printable."""
    for text in ("id,label,p\na,0,\x1b[31m1\x07\n", "id,\x1b[2J,p\na,0,1\n"):
        with pytest.raises(InputError) as caught:
            read_scores(write(tmp_path / "s.csv", text))
        assert "\x1b" not in str(caught.value)
        assert "\x07" not in str(caught.value)


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    """A CSV as Excel saves it keeps its ids, whatever the locale's encoding is."""
    path = tmp_path / "excel.csv"
    path.write_bytes("\ufeffid,label,p\nä,1,0.5\nb,0,0.25\n".encode())
    assert read_scores(path).ids == ("ä", "b")


def test_ids_that_are_bytes_are_text(tmp_path: Path) -> None:
    """Ids in a Parquet column of bytes are those of the items."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"id": [b"a"], "label": [1], "p": [0.5]}), tmp_path / "a.parquet")
    assert read_scores(tmp_path / "a.parquet").ids == ("a",)
