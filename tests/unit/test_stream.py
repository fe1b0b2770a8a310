"""Records that arrive over time: each is read once, whatever comes when, and the first of an id stays."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from blindcal.errors import InputError
from blindcal.items.record_format import RecordFormat
from blindcal.items.stream import ArrivalReader, FileStream, LineStream
from blindcal.records import UNLABELLED, Position
from blindcal.store.run_store import RUN_FILE
from blindcal.store.watch_store import StreamCounts, WatchStore
from watching import write

READER = ArrivalReader(RecordFormat(template="{n}?"), ("Yes", "No"))


class Follower:
    """Reads a file or a folder again and again, each time from where it was."""

    def __init__(self, path: Path) -> None:
        self._path, self._positions = path, dict[str, Position]()

    def read(self, most: int = 100) -> list[Any]:
        """The new records, as a process that has just begun reads them."""
        piece = FileStream(self._path).read(most, self._positions)
        self._positions |= piece.positions
        return [json.loads(line) for _, line in piece.lines]


def records(numbers: Iterable[int]) -> list[dict[str, Any]]:
    return [{"id": f"q{k}", "n": k} for k in numbers]


def test_a_line_that_is_not_complete_waits(tmp_path: Path) -> None:
    """The half of a record at the end of a growing file is read when the rest has come, and once."""
    path = write(tmp_path / "stream.jsonl", records(range(3)))
    follower, line = Follower(path), json.dumps(records([3])[0])
    assert len(follower.read(2)) == 2
    for text, count in ((line[:-5], 1), (line[-5:], 1), ("\n\n" + line + "\n", 1), ("", 0)):
        with path.open("a") as file:
            file.write(text)
        assert len(follower.read()) == count


def test_a_replaced_file_is_read_from_its_start(tmp_path: Path) -> None:
    """Logs rotate: a file that begins otherwise than before is another one."""
    path = write(tmp_path / "stream.jsonl", records(range(10)))
    follower = Follower(path)
    follower.read()
    write(path, records(range(20, 40)))
    assert [record["n"] for record in follower.read()] == list(range(20, 40))


def test_half_of_a_row_is_read_again(tmp_path: Path) -> None:
    """A table grows too: a last row without an end is read once more when more has come."""
    path, text = tmp_path / "labels.csv", "id,label\n" + "".join(f"q{k},1\n" for k in range(10))
    half = text.index("q5") + len("q5")
    path.write_text(text[:half])
    follower = Follower(path)
    *whole, part = follower.read()
    assert ([record["id"] for record in whole], part["id"]) == ([f"q{k}" for k in range(5)], "q5")
    assert not part.get("label")
    path.write_text(text.removesuffix("\n"))
    assert [record["id"] for record in follower.read()] == [f"q{k}" for k in range(5, 10)]
    path.write_text(text)
    assert [record["id"] for record in follower.read()] == ["q9"]  # complete, but its line had no end
    assert follower.read() == []


def test_a_folder_is_read_file_by_file(tmp_path: Path) -> None:
    """Files by name, of any format, also those that come later; what is no file of records is left alone."""
    write(tmp_path / "b.jsonl", records(range(5, 10)))
    (tmp_path / "a.csv").write_text("id,n\n" + "".join(f"q{k},{k}\n" for k in range(5)))
    (tmp_path / "notes.txt").write_text("not a record")
    follower = Follower(tmp_path)
    assert [record["id"] for record in follower.read(7)] == [f"q{k}" for k in range(7)]
    write(tmp_path / "aa.jsonl", records([20]))
    assert [record["id"] for record in follower.read()] == ["q20", "q7", "q8", "q9"]


def test_a_pipe_is_read_as_its_lines_come() -> None:
    """It gives what there is without waiting, and says when it is closed."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        pipe.writelines(json.dumps(record).encode() + b"\n" for record in records(range(5)))
    with os.fdopen(reading, "rb") as file:
        stream, lines, closed = LineStream(file), [], False
        while not closed:
            piece = stream.read(2, {})
            assert len(piece.lines) <= 2
            lines += piece.lines
            closed = piece.closed
    assert [where for where, _ in lines] == [f"standard input, line {k}" for k in range(1, 6)]


def arrival(record: Any) -> Any:
    return READER.record(json.dumps(record).encode())


def test_a_record_brings_a_question_a_label_or_both() -> None:
    """Labels are numbers or answer words; without an id the prompt stands for one; a bad label is dropped."""
    both = arrival({"id": "a", "n": 1, "label": "yes"})
    assert (both.id, both.label, both.item.messages[0].content) == ("a", 1, "1?")
    alone = arrival({"id": "a", "label": 0})
    assert (alone.id, alone.item, alone.label) == ("a", None, 0)
    nameless = arrival({"n": 1})
    assert nameless.id == arrival({"n": 1, "label": 1}).id != arrival({"n": 2}).id
    assert nameless.digest == both.digest
    assert nameless.label == UNLABELLED
    odd = arrival({"id": "a", "n": 1, "label": "maybe"})
    assert (odd.label, bool(odd.problem)) == (UNLABELLED, True)
    assert "=" not in odd.problem  # a watch has no option that would help


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"id": "x"}, "field 'n'"),
        ([1], "object"),
        ({"id": ["x"], "n": 1}, "must be text or a number"),
    ],
)
def test_what_is_no_question_is_an_error(record: Any, why: str) -> None:
    """The error says what is wrong with the record."""
    with pytest.raises(InputError, match=why):
        arrival(record)
    several = {"id": "a", "question": "Which?", "choices": ["a", "b", "c"]}
    with pytest.raises(InputError, match="has 3 answers, and the reference has questions with 2"):
        ArrivalReader(RecordFormat(), ("Yes", "No")).record(json.dumps(several).encode())


def test_one_of_several_answers_may_be_the_label() -> None:
    """As a letter or an index; options that are permuted need their own record to be read."""
    asked = {"id": "a", "question": "Which?", "choices": ["x", "y", "z"], "label": 2}
    reader = ArrivalReader(RecordFormat(answers=("A", "B", "C")), ("A", "B", "C"))
    arrived = reader.record(json.dumps(asked).encode())
    assert arrived.item is not None
    assert (arrived.item.choices, arrived.label) == (3, 2)
    assert reader.label(b'{"id": "a", "label": "B"}').label == 1
    permuted = ArrivalReader(RecordFormat(answers=("A", "B", "C"), permute=1), ("A", "B", "C"))
    with pytest.raises(InputError, match="permute"):
        permuted.label(b'{"id": "a", "label": "B"}')


@pytest.fixture
def store(tmp_path: Path) -> Iterator[WatchStore]:
    with WatchStore.open(tmp_path / RUN_FILE) as store:
        store.begin({}, ())
        yield store


def look(store: WatchStore, *arrived: Any) -> StreamCounts:
    store.begin_look("2026-11-16", map(arrival, arrived), chosen=lambda name: name != "left", positions={})
    return store.counts()


def test_the_first_prompt_and_the_first_label_of_an_id_stay(store: WatchStore) -> None:
    """Others are conflicts, and the same again a duplicate; a label counts if none was known."""
    look(store, {"id": "a", "n": 1, "label": 1}, {"id": "b", "n": 2}, {"id": "left", "n": 3})
    counts = look(
        store,
        {"id": "a", "n": 1, "label": 1},  # a duplicate
        {"id": "b", "n": 2, "label": 0},  # brings the label
        {"id": "b", "label": 0},  # a label that is known
        {"id": "a", "n": 1, "label": 0},  # another label
        {"id": "b", "n": 9},  # another prompt
    )
    assert (counts.records, counts.duplicates, counts.conflicts) == (3, 2, 2)
    assert store.ids_between(0, 9) == ["a", "b"]
    assert store.completed_labels(store.looks()[1], 0, 9) == {0: 1, 1: 0}
