"""Questions with several answers: how labels name one, what prompts show, and what is refused."""

from __future__ import annotations

import csv
import json
import string
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from blindcal.errors import InputError
from blindcal.items.answers import parse_answers, read_label
from blindcal.items.question_files import Items, load
from blindcal.items.record_format import RecordFormat
from blindcal.settings import Settings

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
    return load(path, RecordFormat(**reading))


# Labels


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
        ("joy", "answers: must name at least two answers, not 1"),
        ("joy,,fear", "answers: answer 2 is empty: give each answer a word"),
        ("joy,fear,joy", "answers: 'joy' is named twice: give each answer a word of its own"),
        (("no thing", "x", "nothing"), "answers: 'no thing' and 'nothing' differ only by case or spaces"),
        (",".join(map(str, range(30))), "answers: must be at most 26, one per letter, not 30: leave out"),
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
        ({"choices": ["x"]}, "field 'choices' must have at least two options, not 1: add the others"),
        ({"choices": list(range(30))}, "field 'choices': must be at most 26, one per letter, not 30"),
        ({"choices": ["x", " ", "z"]}, "field 'choices': option 2 is empty: fill it in, or remove it"),
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
    assert load(path).digest == items_of(tmp_path, CAPITALS).digest


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
    with pytest.raises(InputError, match="permute must be a whole number from 0 up, not -1"):
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
    again = load(out)
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
