"""Items from files: every form and rule, questions with several answers, and text that nobody vouches for."""

from __future__ import annotations

import csv
import gzip
import json
import string
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from blindcal.errors import InputError
from blindcal.items.answers import parse_answers, read_label
from blindcal.items.catalogue import open_items
from blindcal.items.question_files import Items, RepeatedPrompts
from blindcal.items.record_format import RecordFormat
from blindcal.records import Message
from blindcal.settings import Settings
from commanding import blindcal

EMOTIONS = ("joy", "anger", "fear")
CAPITALS: list[dict[str, Any]] = [
    {"question": "Capital of France?", "choices": ["Rome", "Paris", "Oslo"], "label": "B"},
    {"question": "Capital of Italy?", "choices": ["Rome", "Paris", "Oslo", "Bern"], "label": 0},
    {"question": "Capital of Norway?", "choices": ["Oslo", "Rome"], "label": "a"},
]

words = st.text(st.characters(categories=("L", "N", "P", "Zs")), min_size=1, max_size=6).filter(str.strip)
answer_sets = st.lists(words, min_size=3, max_size=8, unique_by=lambda word: folded(word))


def items_of(path: Path, records: list[dict[str, Any]], **reading: Any) -> Items:
    """The items of a JSON lines file with these records."""
    path = path / "items.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return open_items(path, RecordFormat(**reading))


def test_the_usual_labels_are_understood() -> None:
    """0/1, true/false, yes/no and y/n are labels in any case; a label map adds words."""

    def label(given: object, **reading: Any) -> int:
        return RecordFormat(**reading).item({"prompt": "a", "label": given}, 0).label

    assert [label(given) for given in (1, True, "yes", "TRUE", 1.0, "Y")] == [1] * 6
    assert [label(given) for given in (0, False, " No ", "0", "0.0", "n")] == [0] * 6
    assert (label("sure", label_map={"sure": 1}), label("yes", label_map={"sure": 1})) == (1, 1)
    assert label("1.0", label_map={"1": 0, "0": 1}) == 0


@pytest.mark.parametrize("given", ["maybe", 2, None, 0.5, [1], ""])
def test_other_labels_are_refused_by_name(tmp_path: Path, given: object) -> None:
    """What is not a label is an error that names file, line and field."""
    records = [{"prompt": "a", "label": 1}, {"prompt": "a", "label": given}]
    with pytest.raises(InputError, match=r"items\.jsonl, line 2: field 'label' must be"):
        items_of(tmp_path, records)


def test_messages_keep_their_roles(tmp_path: Path) -> None:
    """A system message goes first; for plain completions there are only prompts."""
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    chat = [{"messages": messages, "label": 1}]
    items = items_of(tmp_path, chat, system="Be brief.")
    assert [m.role for m in items[0].messages] == ["system", "user", "assistant"]
    with pytest.raises(InputError, match="needs a chat endpoint"):
        items_of(tmp_path, chat, role="prompt")
    assert items_of(tmp_path, [{"prompt": "a", "label": 1}], role="prompt")[0].messages == (
        Message("prompt", "a"),
    )


@pytest.mark.parametrize(
    "messages", ["[", "{}", [1], [{"role": "user"}], [{"role": "user", "content": [{"type": "image"}]}], 5]
)
def test_malformed_messages_are_refused(tmp_path: Path, messages: object) -> None:
    """Messages that are not a list of role and text are an error that names the field."""
    with pytest.raises(InputError, match="line 1: field 'messages'"):
        items_of(tmp_path, [{"messages": messages, "label": 1}])


def test_templates_fill_in_fields_once(tmp_path: Path) -> None:
    """A template replaces {field}; braces inside a field's text stay text."""
    record = {"q": "{label} {q.__class__} {{", "n": 3, "label": 1}
    items = items_of(tmp_path, [record], template="{{Q}}: {q}, {n}?")
    assert items[0].messages[0].content == "{Q}: {label} {q.__class__} {{, 3?"


@pytest.mark.parametrize("field", ["x", "q.__class__", "q[0]", "0", "q!r"])
def test_a_template_reaches_nothing_but_fields(tmp_path: Path, field: str) -> None:
    """What is in braces must be the name of a field, never an expression."""
    with pytest.raises(InputError, match="template"):
        items_of(tmp_path, [{"q": "text", "label": 1}], template="{" + field + "}")


def test_every_format_reads_the_same(tmp_path: Path) -> None:
    """JSON lines, CSV, TSV and Parquet, zipped or not, hold the same items."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    records = [
        {"id": f"i{k}", "prompt": text, "label": str(k % 2), "group": "ab"[k % 2]}
        for k, text in enumerate(["plain", 'quote " and, comma', "two\nlines", "ünï {x}", "x" * 200_000])
    ]
    items, lines = items_of(tmp_path, records), tmp_path / "items.jsonl"
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.read_bytes()))
    for name, delimiter in (("c.csv", ","), ("d.tsv", "\t"), ("g.csv", ";"), ("h.csv", "\t")):
        with (tmp_path / name).open("w", newline="", encoding="utf-8-sig") as file:
            writer = csv.DictWriter(file, list(records[0]), delimiter=delimiter)
            writer.writeheader()
            writer.writerows(records)
    (tmp_path / "e.csv.gz").write_bytes(gzip.compress((tmp_path / "c.csv").read_bytes()))
    parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "f.parquet")
    expected, digest = list(items), items.digest
    assert [item.messages[0].content for item in expected] == [record["prompt"] for record in records]
    for name in ("b.jsonl.gz", "c.csv", "d.tsv", "e.csv.gz", "f.parquet", "g.csv", "h.csv"):
        items = open_items(tmp_path / name)
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
        items = open_items(path)
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
    items = open_items(tmp_path / "a.parquet")
    assert [(item.id, item.messages[0].content) for item in items] == [
        ("x", "Is \u00e9 a vowel?"),
        ("y", "Is b?"),
    ]
    parquet.write_table(pyarrow.table(table | {"prompt": [b"a", b"\xff\x00"]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"b.parquet, row 2: holds bytes that are not UTF-8 text"):
        open_items(tmp_path / "b.parquet")


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
    items = items_of(tmp_path, records)
    assert (None if items.groups is None else items.groups.tolist()) == groups


def test_blank_rows_are_skipped_and_doubts_are_named(tmp_path: Path) -> None:
    """A spreadsheet's empty rows are no items; blank questions and contradictory labels are doubtful."""
    path = tmp_path / "sheet.csv"
    path.write_text("q;note;label\r\na;x;Y\r\n;;\r\n;x;N\r\na;;0\r\n;;\r\n")
    with pytest.warns(UserWarning, match=r"sheet\.csv: blank rows that were skipped: 2"):
        items = open_items(path, RecordFormat(template="{q}?"))
    assert items.labels.tolist() == [1, 0, 0]
    assert items.doubts == (
        "items without a question: 1; the fields that the template names are blank",
        "items that share a prompt with one of another label: 2; check these labels",
    )
    with pytest.warns(UserWarning, match="blank rows"):
        shown = blindcal("audit", path, "--model", "gpt-4o", "--template", "{q}?", "--dry-run").output
    assert all(f"warning: {doubt}" in shown for doubt in items.doubts)


def test_repeated_prompts_are_counted(tmp_path: Path) -> None:
    """Items that are answered alike are counted, with those of both labels."""
    asked = [("a", 1), ("b", 0), ("a", 1), ("c", 1), ("c", 0), ("a", 1)]
    records = [{"prompt": prompt, "label": label} for prompt, label in asked]
    items = items_of(tmp_path, records)
    assert items.repeated(np.arange(6)) == RepeatedPrompts(items=3, conflicting=2)
    assert items.repeated(np.array([0, 1, 3])) is None


def test_half_a_character_is_replaced(tmp_path: Path) -> None:
    """A lone surrogate, which no request could carry, becomes U+FFFD; without an id, the number is one."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"prompt": "a\\ud800b", "label": 1, "id": "\\udfff"}\n{"prompt": "b", "label": 0}\n')
    items = open_items(path)
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
        digests.add(items_of(tmp_path, [{**base, **change}]).digest)
    assert len(digests) == 6


# Several answers: how labels name one, what prompts show, and what is refused


def folded(text: object) -> str:
    """What is left of a word without case and spaces."""
    return "".join(str(text).split()).casefold()


@given(answer_sets, st.data())
def test_a_label_is_read_as_its_only_meaning_or_refused(answers: list[str], data: st.DataObject) -> None:
    """An answer, an index or a letter: what has one meaning is read, what has two or none is refused."""
    k = len(answers)
    forms = (st.sampled_from(answers), st.integers(0, 12), st.sampled_from("ABCDEFGHabcx"))
    label = data.draw(st.one_of(*forms))
    text = str(label).strip()
    meanings = {number for number, word in enumerate(answers) if folded(word) == folded(text)}
    if text in map(str, range(k)):
        meanings.add(int(text))
    if len(text) == 1 and text in string.ascii_letters and string.ascii_uppercase.index(text.upper()) < k:
        meanings.add(string.ascii_uppercase.index(text.upper()))
    assume(not text.endswith(".0"))
    if len(meanings) == 1:
        assert read_label(label, tuple(answers), "label") == meanings.pop()
    else:
        with pytest.raises(InputError, match="is ambiguous" if meanings else "field 'label' must be"):
            read_label(label, tuple(answers), "label")


def test_a_label_that_is_no_answer_is_refused(tmp_path: Path) -> None:
    """The error names the file, the line, the field, the answers and what came."""
    with pytest.raises(InputError, match=r"line 1: field 'label' must be one of joy, .*, not 'grief': corr"):
        items_of(tmp_path, [{"prompt": "b", "label": "grief"}], answers=EMOTIONS)


@pytest.mark.parametrize(("answers", "label"), [("1,2,3", 1), ("B,A,C", "A"), ("2,b,0", "0")])
def test_a_label_with_two_meanings_is_refused(answers: str, label: object, tmp_path: Path) -> None:
    """The error says what it may mean, and a label map says what it does."""
    record = {"prompt": "a", "label": label}
    with pytest.raises(InputError, match=r"line 1: field 'label': .* is ambiguous: it may .* \(as a word\)"):
        items_of(tmp_path, [record], answers=answers)
    items = items_of(tmp_path, [record], answers=answers, label_map={str(label): 2})
    assert items.labels.tolist() == [2]
    with pytest.raises(InputError, match="must map to an index from 0 to 2, not 3"):
        RecordFormat(answers=("a", "b", "c"), label_map={str(label): 3})


# Answers


@pytest.mark.parametrize("field", [["joy", "anger", "fear"], "joy,anger, fear", '["joy", "anger", "fear"]'])
def test_records_may_name_the_answers(field: object, tmp_path: Path) -> None:
    """A list or text in the field 'answers' is the same as the setting."""
    records = [
        {"prompt": text, "label": label, "answers": field} for text, label in (("a", "fear"), ("b", 0))
    ]
    items = items_of(tmp_path, records)
    assert (items.answers, items.labels.tolist()) == (EMOTIONS, [2, 0])


@pytest.mark.parametrize(
    ("answers", "rule"),
    [
        ("joy", "answers: must be 2 to 26, one per letter, not 1: add the others"),
        ("joy,,fear", "answers: number 2 is empty: fill it in"),
        ("joy,fear,joy", "answers: 'joy' is named twice: give each answer a word of its own"),
        (("no thing", "x", "nothing"), "answers: 'no thing' and 'nothing' differ only by case or spaces"),
        (",".join(map(str, range(30))), "answers: must be 2 to 26, one per letter, not 30: leave out"),
        ("[1, 2", "answers: must be a list of words such as A,B,C"),
        (7, "answers: must be a list of words such as A,B,C"),
    ],
)
def test_answers_that_cannot_be_told_apart_are_refused(answers: Any, rule: str, tmp_path: Path) -> None:
    """Before a file is read, by the setting; in a record, with the line and the field."""
    with pytest.raises(InputError) as refused:
        RecordFormat(answers=answers)
    assert rule in str(refused.value)
    if isinstance(answers, str | list):
        with pytest.raises(InputError, match=r"line 1: field 'answers': .*rename the field 'answers'"):
            items_of(tmp_path, [{"prompt": "a", "label": 0, "answers": answers}])


# Two answers, the special case


def test_two_answers_are_the_positive_and_the_negative_word(tmp_path: Path) -> None:
    """Named by answers, the first of two is the positive one, and labels may be the words."""
    records = [
        {"prompt": "a", "label": "Sure"},
        {"prompt": "b", "label": "never"},
        {"prompt": "c", "label": "A"},
    ]
    items = items_of(tmp_path, records, answers="Sure,Never")
    assert (items.words, items.answers, items.choices) == (("Sure", "Never"), (), None)
    assert items.labels.tolist() == [1, 0, 1]
    named = Settings(model="m", answers="Sure,Never").resolved(3, items.words)
    assert named.fixed(items) == Settings(model="m", positive="Sure", negative="Never").resolved(3).fixed(
        items
    )


@pytest.mark.parametrize(("answers", "label"), [("Sure,Never", 0), ("1,0", "1"), ("0,1", 0.0)])
def test_numbers_are_ambiguous_with_two_answers(answers: str, label: object, tmp_path: Path) -> None:
    """0 may be the first answer or the negative one: the error offers two cures."""
    with pytest.raises(InputError, match=r"ambiguous with two answers: .*: write the words as labels, or"):
        items_of(tmp_path, [{"prompt": "a", "label": label}], answers=answers)


def test_all_items_with_two_choices_are_questions_with_two_answers(tmp_path: Path) -> None:
    """The second option is the positive answer; the letters are the words."""
    records = [{"question": f"q{k}", "choices": ["w", "r"], "label": k % 2} for k in range(4)]
    items = items_of(tmp_path, records)
    assert (items.words, items.answers, items.choices) == (("B", "A"), (), None)
    assert items.labels.tolist() == [0, 1, 0, 1]


# Choices


def test_choices_become_lettered_options(tmp_path: Path) -> None:
    """Items may have different numbers of options; letters and indices name the right one."""
    items = items_of(tmp_path, CAPITALS)
    assert items.answers == ("A", "B", "C", "D")
    assert items.choices is not None
    assert items.choices.tolist() == [item.choices for item in items] == [3, 4, 2]
    assert items.labels.tolist() == [1, 0, 0]
    assert items[0].messages[0].content == (
        "Capital of France?\nA. Rome\nB. Paris\nC. Oslo\nReply only with the letter of the right answer."
    )


@pytest.mark.parametrize(
    ("record", "reading", "shown"),
    [
        ({"prompt": "Which?"}, {}, "Which?\nA. x\nB. y\nC. z"),
        ({"prompt": "Which?\nA. x\nB. y\nC. z\nSay!"}, {}, "Which?\nA. x\nB. y\nC. z\nSay!"),
        ({"messages": [{"role": "user", "content": "Which?"}]}, {}, "Which?\nA. x\nB. y\nC. z"),
        ({"q": "{choices}"}, {"template": "{choices}\n{q}"}, "A. x\nB. y\nC. z\n{choices}"),
        (
            {"question": "Which?", "q": "?"},
            {"template": "{q} {choices}", "answers": "A,B,C,D"},
            "? A. x\nB. y\nC. z",
        ),
    ],
)
def test_prompts_show_the_options_once(record: Any, reading: Any, shown: str) -> None:
    """Options follow a prompt that lacks them, and go where a template wants them."""
    item = RecordFormat(**reading).item({**record, "choices": ["x", "y", "z"], "label": 1}, 0)
    assert (item.messages[-1].content, item.choices, item.label) == (shown, 3, 1)


def test_choices_with_labels_of_their_own(tmp_path: Path) -> None:
    """Two lists, as some sets on the Hub have them: the label is one of theirs, not an index."""
    own = {"text": ["x", "y", "z"], "label": ["1", "2", "3"]}
    record = {"question": "q", "choices": own, "answerKey": "3"}
    items = items_of(tmp_path, [record], label_field="answerKey")
    assert items.labels.tolist() == [2]
    with pytest.raises(InputError, match="field 'answerKey' must be one of the labels in 'choices', 1, 2, 3"):
        items_of(tmp_path, [{**record, "answerKey": 0}], label_field="answerKey")
    uneven = {**record, "choices": {"text": ["x", "y"], "label": ["1", "2", "3"]}}
    with pytest.raises(InputError, match="must have one label per text"):
        items_of(tmp_path, [uneven], label_field="answerKey")


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"choices": ["x"]}, "field 'choices': must be 2 to 26, one per letter, not 1: add the others"),
        ({"choices": list(range(30))}, "field 'choices': must be 2 to 26, one per letter, not 30"),
        ({"choices": ["x", " ", "z"]}, "field 'choices': number 2 is empty: fill it in, or remove it"),
        ({"choices": "x or y"}, "field 'choices' must be a list of texts, in CSV as JSON, not 'x or y'"),
        ({"choices": {"text": ["x", "y"]}}, "field 'choices' must be a list of texts"),
        ({"choices": ["x", "y"], "label": 2}, "field 'label' must be a letter from A to B or an index"),
        ({"choices": None}, "has no field 'choices', unlike the records before it"),
        ({"question": "", "prompt": " "}, "the prompt is empty"),
    ],
)
def test_bad_choices_are_refused(changes: dict[str, Any], rule: str, tmp_path: Path) -> None:
    """The error names the file, the line, the field, the rule, what came, and the cure."""
    bad = {"question": "q", "prompt": "p", "choices": ["x", "y", "z"], "label": 1, **changes}
    if "question" in changes and "prompt" not in changes:
        del bad["prompt"]
    with pytest.raises(InputError) as refused:
        items_of(tmp_path, [CAPITALS[0], bad])
    assert f"items.jsonl, line 2: {rule}" in str(refused.value)


def test_a_table_has_choices_as_json(tmp_path: Path) -> None:
    """In CSV, choices are a list in JSON in a cell, and the items are those of JSON lines."""
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(CAPITALS[0]))
        table.writeheader()
        table.writerows({**one, "choices": json.dumps(one["choices"])} for one in CAPITALS)
    assert open_items(path).digest == items_of(tmp_path, CAPITALS).digest


# The order of options


def options_in(text: str) -> list[str]:
    """The texts of the options that a prompt shows."""
    return [line[3:] for line in text.splitlines() if line[1:3] == ". "]


@pytest.mark.parametrize("prompt", ["question", "prompt", "template"])
def test_permuted_options_take_the_label_along(prompt: str, tmp_path: Path) -> None:
    """Whatever the order, the label is where the right text is shown; the order depends on seed and item."""
    texts = ["w", "r", "x", "y"]
    shown = "Which?\n" + "\n".join(f"{letter}. {text}" for letter, text in zip("ABCD", texts, strict=True))
    record = {"question": "Which?", "choices": texts, "label": "B"}
    if prompt == "prompt":
        record["prompt"] = shown
    reading = {"template": "{question}\n{choices}"} if prompt == "template" else {}
    orders = {}
    for seed in (0, 1):
        items = items_of(tmp_path, [record] * 200, permute=seed, **reading)
        orders[seed] = [options_in(item.messages[0].content) for item in items]
        assert all(order[item.label] == "r" for order, item in zip(orders[seed], items, strict=True))
        assert [options_in(item.messages[0].content) for item in items] == orders[seed]
        assert items.labels.tolist() == [order.index("r") for order in orders[seed]]
    assert all(sorted(order) == sorted(texts) for order in orders[0])
    assert orders[0] != orders[1]
    # each of four places has 50 of 200 right answers, with a standard deviation of 6.1
    assert all(20 <= count <= 80 for count in Counter(order.index("r") for order in orders[0]).values())


def test_permuting_needs_choices(tmp_path: Path) -> None:
    """Answers that are words have no order in the prompt: the error says so."""
    with pytest.raises(
        InputError, match=r"line 1: permute: there are no options to permute.*: add the field"
    ):
        items_of(tmp_path, [{"prompt": "a", "label": 1}], answers=EMOTIONS, permute=0)
    with pytest.raises(InputError, match="permute must be a whole number from 0 to 1e15, not -1"):
        RecordFormat(permute=-1)


# Settings


def test_settings_take_the_answers_of_the_items(tmp_path: Path) -> None:
    """More than two answers are settings of the run; two remain the positive and the negative word."""
    items = items_of(tmp_path, CAPITALS)
    settings = Settings(model="m").resolved(3, items.words)
    assert settings.answer_words == ("A", "B", "C", "D")
    fixed = settings.fixed(items)
    assert (fixed["answers"], fixed["positive"], fixed["negative"]) == (["A", "B", "C", "D"], None, None)
    with pytest.raises(InputError, match="positive: is for two answers, and the items have 4: A, B"):
        Settings(model="m", positive="A").resolved(3, items.words)
    with pytest.raises(InputError, match="answers: names all answer words; leave out positive and negative"):
        Settings(model="m", answers=EMOTIONS, positive="joy")
    assert Settings(model="m", answers=EMOTIONS).answer_words == EMOTIONS
    assert Settings(model="m", answers=EMOTIONS).resolved(5).answer_words == EMOTIONS
    assert Settings(model="m").resolved(5).answer_words == ("Yes", "No")


@pytest.mark.parametrize("answers", ["joy,anger,fear", "1,2,3", "B,A,C", "Sure,Never"])
def test_converted_files_name_their_answers(answers: str, tmp_path: Path) -> None:
    """A file written from records with answers has the same items without any option."""
    named = parse_answers(answers)
    records = [{"text": f"t{k}", "label": f"l{k}", "note": "kept"} for k in range(len(named))]
    mapping = {f"l{k}": k for k in range(len(named))}
    reading = RecordFormat(template="{text}?", answers=named, label_map=mapping)
    items = [reading.item(record, number) for number, record in enumerate(records)]
    out = tmp_path / "out.jsonl"
    lines = (reading.line(item, record, 0) for item, record in zip(items, records, strict=True))
    out.write_bytes(b"".join(lines))
    again = open_items(out)
    assert (list(again), again.words) == (items, named)


def test_a_field_called_choices_may_mean_something_else(tmp_path: Path) -> None:
    """A template without {choices} shows none; other answers than letters do not go with options."""
    record = {"prompt": "Is it x?", "choices": ["x", "y", "z"], "label": 1}
    items = items_of(tmp_path, [record], template="{prompt}")
    assert (items[0].messages[0].content, items.words, items.choices) == ("Is it x?", None, None)
    items = items_of(tmp_path, [{**record, "answer_words": "Yes/No"}])
    assert (items[0].messages[0].content, items.words, items.choices) == ("Is it x?", ("Yes", "No"), None)
    for answers in ("joy,anger,fear", "A,B", "A,C,B"):
        with pytest.raises(InputError, match="options are answered with the letters A, B, C, not with"):
            items_of(tmp_path, CAPITALS, answers=answers)
