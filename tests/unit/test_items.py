"""Items from files: every form, every rule, and text that nobody vouches for."""

from __future__ import annotations

import csv
import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindcal.errors import InputError
from blindcal.items.question_files import RepeatedPrompts, load
from blindcal.items.record_format import RecordFormat
from blindcal.records import Message


def write_jsonl(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_the_usual_labels_are_understood() -> None:
    """0/1, true/false and yes/no are labels in any case; a label map adds words."""

    def label(given: object, **reading: Any) -> int:
        return RecordFormat(**reading).item({"prompt": "a", "label": given}, 0).label

    assert [label(given) for given in (1, True, "yes", "TRUE", 1.0)] == [1] * 5
    assert [label(given) for given in (0, False, " No ", "0", "0.0")] == [0] * 5
    assert (label("sure", label_map={"sure": 1}), label("yes", label_map={"sure": 1})) == (1, 1)
    assert label("1.0", label_map={"1": 0, "0": 1}) == 0


@pytest.mark.parametrize("given", ["maybe", 2, None, 0.5, [1], ""])
def test_other_labels_are_refused_by_name(tmp_path: Path, given: object) -> None:
    """What is not a label is an error that names file, line and field."""
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "a", "label": 1}, {"prompt": "a", "label": given}])
    with pytest.raises(InputError, match=r"a\.jsonl, line 2: field 'label' must be"):
        load(path)


def test_messages_keep_their_roles(tmp_path: Path) -> None:
    """A system message goes first; for plain completions there are only prompts."""
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    chat = write_jsonl(tmp_path / "a.jsonl", [{"messages": messages, "label": 1}])
    items = load(chat, RecordFormat(system="Be brief."))
    assert [m.role for m in items[0].messages] == ["system", "user", "assistant"]
    with pytest.raises(InputError, match="needs a chat endpoint"):
        load(chat, RecordFormat(role="prompt"))
    plain = write_jsonl(tmp_path / "b.jsonl", [{"prompt": "a", "label": 1}])
    assert load(plain, RecordFormat(role="prompt"))[0].messages == (Message("prompt", "a"),)


@pytest.mark.parametrize(
    "messages", ["[", "{}", [1], [{"role": "user"}], [{"role": "user", "content": [{"type": "image"}]}], 5]
)
def test_malformed_messages_are_refused(tmp_path: Path, messages: object) -> None:
    """Messages that are not a list of role and text are an error that names the field."""
    path = write_jsonl(tmp_path / "a.jsonl", [{"messages": messages, "label": 1}])
    with pytest.raises(InputError, match="line 1: field 'messages'"):
        load(path)


def test_templates_fill_in_fields_once(tmp_path: Path) -> None:
    """A template replaces {field}; braces inside a field's text stay text."""
    record = {"q": "{label} {q.__class__} {{", "n": 3, "label": 1}
    items = load(write_jsonl(tmp_path / "a.jsonl", [record]), RecordFormat(template="{{Q}}: {q}, {n}?"))
    assert items[0].messages[0].content == "{Q}: {label} {q.__class__} {{, 3?"


@pytest.mark.parametrize("field", ["x", "q.__class__", "q[0]", "0", "q!r"])
def test_a_template_reaches_nothing_but_fields(tmp_path: Path, field: str) -> None:
    """What is in braces must be the name of a field, never an expression."""
    path = write_jsonl(tmp_path / "a.jsonl", [{"q": "text", "label": 1}])
    with pytest.raises(InputError, match="template"):
        load(path, RecordFormat(template="{" + field + "}"))


def test_every_format_reads_the_same(tmp_path: Path) -> None:
    """JSON lines, CSV, TSV and Parquet, zipped or not, hold the same items."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    records = [
        {"id": f"i{k}", "prompt": text, "label": str(k % 2), "group": "ab"[k % 2]}
        for k, text in enumerate(["plain", 'quote " and, comma', "two\nlines", "ünï {x}", "x" * 200_000])
    ]
    lines = write_jsonl(tmp_path / "a.jsonl", records)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.read_bytes()))
    for name, delimiter in (("c.csv", ","), ("d.tsv", "\t")):
        with (tmp_path / name).open("w", newline="", encoding="utf-8-sig") as file:
            writer = csv.DictWriter(file, list(records[0]), delimiter=delimiter)
            writer.writeheader()
            writer.writerows(records)
    (tmp_path / "e.csv.gz").write_bytes(gzip.compress((tmp_path / "c.csv").read_bytes()))
    parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "f.parquet")
    items = load(lines)
    expected, digest = list(items), items.digest
    assert [item.messages[0].content for item in expected] == [record["prompt"] for record in records]
    for name in ("b.jsonl.gz", "c.csv", "d.tsv", "e.csv.gz", "f.parquet"):
        items = load(tmp_path / name)
        assert list(items) == expected, name
        assert items.digest == digest


@given(st.text(st.characters(), min_size=1))
def test_templates_keep_any_text(text: str) -> None:
    """Whatever a field holds stands in the prompt as it is, lone surrogates apart."""
    item = RecordFormat(template="[{q}]").item({"q": text, "label": 0}, 0)
    assert item.messages[0].content == f"[{text}]".encode("utf-16", "surrogatepass").decode(
        "utf-16", "replace"
    )


def test_an_item_takes_little_memory(tmp_path: Path) -> None:
    """Twenty thousand items take their prompts and less than 600 bytes each (docs/scale.md)."""
    path = tmp_path / "a.jsonl"
    with path.open("w") as file:
        for k in range(20_000):
            file.write(json.dumps({"prompt": "x" * 200, "label": k % 2, "group": str(k // 2)}) + "\n")
    tracemalloc.start()
    try:
        items = load(path)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(items) == 20_000
    assert held < (200 + 600) * 20_000


def test_bytes_in_parquet_are_text(tmp_path: Path) -> None:
    """A column of bytes is read as the UTF-8 text it holds; other bytes are refused with their row."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = {"id": [b"x", b"y"], "prompt": ["Is \u00e9 a vowel?".encode(), b"Is b?"], "label": [1, 0]}
    parquet.write_table(pyarrow.table(table), tmp_path / "a.parquet")
    items = load(tmp_path / "a.parquet")
    assert [(item.id, item.messages[0].content) for item in items] == [
        ("x", "Is \u00e9 a vowel?"),
        ("y", "Is b?"),
    ]
    parquet.write_table(pyarrow.table(table | {"prompt": [b"a", b"\xff\x00"]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"b.parquet, row 2: holds bytes that are not UTF-8 text"):
        load(tmp_path / "b.parquet")


@pytest.mark.parametrize(
    ("asked", "groups"),
    [
        ([("z", "0"), ("a", "1"), (None, "2"), ("z", "3"), (None, "4")], [0, 1, 2, 0, 3]),
        ([(None, "a"), (None, "b"), (None, "a"), (None, "c"), (None, "c")], [0, 1, 0, 2, 2]),
        (
            [("g", "a"), ("h", "a"), ("h", "b"), (None, "b"), ("i", "c"), (None, "d"), (None, "e")],
            [0, 0, 0, 0, 1, 2, 3],
        ),
        ([(float("nan"), "a"), (float("nan"), "b")], None),
    ],
)
def test_items_of_a_group_or_a_prompt_are_one_unit(
    asked: list[tuple[Any, str]], groups: list[int] | None, tmp_path: Path
) -> None:
    """Units are numbered as they appear; groups that share a prompt are one; a missing group is none."""
    records = [{"prompt": prompt, "label": 1, "group": group} for group, prompt in asked]
    items = load(write_jsonl(tmp_path / "a.jsonl", records))
    assert (None if items.groups is None else items.groups.tolist()) == groups


def test_repeated_prompts_are_counted(tmp_path: Path) -> None:
    """Items that are answered alike are counted, with those of both labels."""
    asked = [("a", 1), ("b", 0), ("a", 1), ("c", 1), ("c", 0), ("a", 1)]
    records = [{"prompt": prompt, "label": label} for prompt, label in asked]
    items = load(write_jsonl(tmp_path / "a.jsonl", records))
    assert items.repeated(np.arange(6)) == RepeatedPrompts(items=3, conflicting=2)
    assert items.repeated(np.array([0, 1, 3])) is None


def test_half_a_character_is_replaced(tmp_path: Path) -> None:
    """A lone surrogate, which no request could carry, becomes U+FFFD; without an id, the number is one."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"prompt": "a\\ud800b", "label": 1, "id": "\\udfff"}\n{"prompt": "b", "label": 0}\n')
    items = load(path)
    assert items[0].messages[0].content == "a\ufffdb"
    assert [item.id for item in items] == ["\ufffd", "1"]


def test_settings_that_fit_no_record_are_refused() -> None:
    """A template without a field would ask the same of every item; labels of two answers are 0 and 1."""
    with pytest.raises(InputError, match="names no field"):
        RecordFormat(template="Is it so?")
    with pytest.raises(InputError, match="must map to 0 or 1"):
        RecordFormat(label_map={"sure": 2})


def test_the_digest_covers_all_that_is_asked(tmp_path: Path) -> None:
    """Items that differ in id, prompt, label, group or number of answers have another digest."""
    base = {"prompt": "a", "label": 1, "group": "g"}
    digests = set()
    for change in ({}, {"prompt": "b"}, {"label": 0}, {"group": "h"}, {"id": "k"}, {"answers": "x,y,z"}):
        digests.add(load(write_jsonl(tmp_path / "a.jsonl", [{**base, **change}])).digest)
    assert len(digests) == 6
