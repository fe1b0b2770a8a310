"""Data sets by name: the same items from every form in which they come, and helpful refusals."""

from __future__ import annotations

import csv
import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blindcal.errors import BlindcalError, InputError, MissingExtraError
from blindcal.items import catalogue
from blindcal.items.catalogue import SETS, DataSet, open_items
from blindcal.items.record_format import RecordFormat
from blindcal.text import listed
from commanding import blindcal, refusal
from paths import SHARED

BOOLQ: list[dict[str, Any]] = [
    {"question": f"is {k} odd", "passage": f"About, {k}.\nMore", "answer": k % 2 == 1} for k in range(6)
]
MMLU: list[dict[str, Any]] = [
    {"subject": subject, "question": f"{subject} {k}?", "choices": ["w", "x", "y", "z"], "answer": k % 4}
    for subject in ("virology", "anatomy")  # not in the order of the alphabet
    for k in range(3)
]


def small(name: str, **changes: Any) -> DataSet:
    """A known set of as few rows as the tests have."""
    return replace(SETS[name], rows=6, **changes)


def put(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows in the form that the file's name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if ".jsonl" in path.name:
        text = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    else:
        from pyarrow import Table, parquet  # type: ignore[import-untyped]  # ships no types

        parquet.write_table(Table.from_pylist(rows), path)


FORMS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "boolq_validation.jsonl.gz": ("boolq", BOOLQ),
    "data/validation-00000-of-00001.parquet": ("boolq", [{**row, "label": row["answer"]} for row in BOOLQ]),
    "mmlu_test.csv": ("mmlu", [{**row, "choices": json.dumps(row["choices"])} for row in MMLU]),
    "all/test-00000-of-00001.parquet": ("mmlu", MMLU),
    "test.jsonl": ("mmlu", [{**row, "answer": "ABCD"[row["answer"]]} for row in MMLU]),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_set_is_the_same_in_every_form(form: str, tmp_path: Path) -> None:
    """Ids, labels, groups and answer words do not depend on which distribution the rows come from."""
    name, rows = FORMS[form]
    put(tmp_path / form, rows)
    records = list(small(name).records(tmp_path))
    assert {record["answer_words"] for record in records} == {"True/False" if name == "boolq" else "Yes/No"}
    if name == "boolq":
        assert [record["id"] for record in records] == [f"boolq_val/{k}" for k in range(6)]
        assert (records[1]["question"], records[1]["passage"]) == ("is 1 odd", "About, 1.\nMore")
        assert [str(record["label"]).lower() in ("1", "true") for record in records] == [False, True] * 3
        return
    # four items of one group per question, subjects in the order of the alphabet, one Yes in each
    assert [record["id"] for record in records[:5]] == [*(f"anatomy/0/{x}" for x in "ABCD"), "anatomy/1/A"]
    assert records[12]["id"] == "virology/0/A"
    assert (records[5]["group"], records[5]["choice"]) == ("anatomy/1", "x")
    assert [record["label"] for record in records[:12]] == [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0]


# Hugging Face's datasets


@pytest.fixture
def hosted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the Hub's layout, with a class label, and a cache of its own for the library."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "sentences"
    folder.mkdir()
    label = datasets.ClassLabel(names=["not_entailment", "entailment"])
    features = datasets.Features({"text": datasets.Value("string"), "label": label})
    for split, n in (("train", 3), ("validation", 4)):
        rows = {"text": [f"{split} {k}" for k in range(n)], "label": [k % 2 for k in range(n)]}
        datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / f"{split}.parquet")
    return folder


def test_any_hosted_set_is_one_template(hosted: Path, tmp_path: Path) -> None:
    """hf:NAME@SPLIT with a template and a label map is a file of items; class numbers come as their names."""
    out = tmp_path / "out.jsonl"
    shown = blindcal(
        "items", f"hf:{hosted}@validation", "--template", "{text}?\\nAnswer Yes or No.",
        "--set", 'label_map={"entailment": 1, "not_entailment": 0}', "--out", out,
    )  # fmt: skip
    assert shown.exit_code == 0, shown.exception
    items = open_items(out)
    assert [(item.id, item.label) for item in items] == [("0", 0), ("1", 1), ("2", 0), ("3", 1)]
    assert items[3].messages[0].content == "validation 3?\nAnswer Yes or No."
    with pytest.raises(InputError, match="not 'not_entailment': map other words"):
        open_items(f"hf:{hosted}@validation", RecordFormat(template="{text}"))


def test_a_known_set_comes_through_the_library_too(hosted: Path) -> None:
    """The rows that `datasets` loads become the same items as the files do."""
    put(hosted.parent / "hub" / "validation.jsonl", BOOLQ)
    through = small("boolq", hosted=f"hf:{hosted.parent / 'hub'}@validation")
    assert list(through.records()) == list(through.records(hosted.parent / "hub"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hf:{}", r"has the splits train, validation; choose one, such as hf:.*sentences@train"),
        ("hf:{}@test", r"Unknown split \"test\""),
        ("hf:{}/none@train", "no such data set"),
        ("hf:", r"must have the form hf:NAME\[:CONFIG\]\[@SPLIT\]"),
    ],
)
def test_what_a_hosted_set_lacks_is_named(hosted: Path, source: str, message: str) -> None:
    """A missing set, configuration or split is refused in one line that lists what exists."""
    with pytest.raises(InputError, match=message) as refused:
        open_items(source.format(hosted), RecordFormat(template="{text}"))
    assert "\n" not in str(refused.value)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `datasets` is not installed, the error says what installs it, and the way without it."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'blindcal\[data\]', or name .* data_dir="):
        open_items("boolq")
    with pytest.raises(MissingExtraError, match=r"pip install 'blindcal\[data\]'"):
        open_items("hf:x/y")


# Names and words, in audits and on the command line


def test_unknown_names_list_what_exists(tmp_path: Path) -> None:
    """A name that is neither a file nor a set is answered with the sets there are, and leaves no run."""
    run = tmp_path / "run"
    for command in (("items", "boolk"), ("audit", "boolk", "--model", "m", "--out", str(run))):
        refused = blindcal(*command)
        assert isinstance(refused.exception, BlindcalError)
        names = "boolq, mmlu, mmlu-choices, builtin and hf:NAME[:CONFIG][@SPLIT]"
        assert f"the sets are {names}" in str(refused.exception)
    assert not run.exists()
    with pytest.raises(InputError, match="is for boolq, mmlu and mmlu-choices, not for builtin"):
        open_items("builtin", RecordFormat(data_dir="x"))


def test_the_list_names_every_set() -> None:
    """Without a name the command says which sets there are."""
    shown = blindcal("items").output
    assert all(name in shown for name in (*catalogue.NAMES, "hf:NAME[:CONFIG][@SPLIT]"))


def test_a_converted_set_has_the_same_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named, or written to a file first, a set has the same items, answer words and order of options."""
    put(tmp_path / "boolq_validation.jsonl", BOOLQ)
    put(tmp_path / "mmlu_test.jsonl", MMLU)
    for name, words in (("boolq", ("True", "False")), ("mmlu-choices", ("A", "B", "C", "D"))):
        monkeypatch.setitem(SETS, name, small(name))
        out = tmp_path / f"{name}.jsonl"
        written = blindcal("items", name, "--set", f"data_dir={tmp_path}", "--out", out)
        assert f"6 questions in {out}; the answers are {listed(words)}" in written.stderr
        for permute in (None, 5 if len(words) > 2 else None):
            named = open_items(name, RecordFormat(data_dir=str(tmp_path), permute=permute))
            filed = open_items(out, RecordFormat(permute=permute))
            assert (list(filed), filed.digest, filed.words) == (list(named), named.digest, words)
    assert open_items("mmlu-choices", RecordFormat(data_dir=str(tmp_path)))[3].messages[0].content == (
        "The following is a multiple choice question about virology.\n\nvirology 0?\n"
        "A. w\nB. x\nC. y\nD. z\nReply only with the letter of the right answer.\nAnswer:"
    )


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("boolq", BOOLQ, "boolq: has 3,270 rows and not 6: this is another split"),
        ("mmlu", BOOLQ, r"mmlu: a row lacks 'subject' \(it has: question, passage, answer"),
        (
            "mmlu",
            [{**row, "answer": "E"} for row in MMLU],
            "'answer' must be a letter from A to D .*, not 'E'",
        ),
        ("mmlu", [], r"holds none of the set.s files; blindcal looks for mmlu_test\.\*"),
        ("mmlu", None, r"^mmlu: data_dir=.*none': no such folder"),
    ],
)
def test_a_wrong_file_is_refused(
    name: str,
    rows: list[dict[str, Any]] | None,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another split, a row without what is needed, a missing folder: each is named with the set."""
    if name == "mmlu":
        monkeypatch.setitem(SETS, name, small(name))
    folder = tmp_path / "none" if rows is None else tmp_path
    if rows:
        put(folder / ("boolq_validation.jsonl" if name == "boolq" else "mmlu_test.jsonl"), rows)
    with pytest.raises(InputError, match=message):
        open_items(name, RecordFormat(data_dir=str(folder)))


@pytest.mark.parametrize(
    ("name", "recorded"),
    [
        ("boolq", "logits/smollm2__boolq__logits.csv.gz"),
        ("mmlu", "logits/smollm2__mmlu__logits.csv.gz"),
        ("mmlu-choices", "choices/Llama-3.1-8B__mmlu_test.csv.gz"),
    ],
)
def test_the_real_sets_join_recorded_logits(name: str, recorded: str) -> None:
    """Ids and labels of the full sets are those of logits recorded elsewhere, in the same order."""
    if not (SHARED / recorded).exists() or not (SHARED / "data").is_dir():
        pytest.skip("the full sets and recorded logits are not here (../shared)")
    with gzip.open(SHARED / recorded, "rt", newline="") as file:
        known = [(row["id"], int(row["label"])) for row in csv.DictReader(file)]
    items = open_items(name, RecordFormat(data_dir=str(SHARED / "data")))
    assert [(item.id, item.label) for item in items] == known
    begins, ends = PROMPTS[name]
    assert items[0].messages[0].content.startswith(begins)
    assert items[0].messages[0].content.endswith(ends)


PROMPTS = {
    "boolq": (
        "Passage: All biomass goes through",
        "\nQuestion: does ethanol take more energy make that produces?\nAnswer True or False.",
    ),
    "mmlu": (
        "Question: Find the degree for the given field extension Q(sqrt(2), sqrt(3), sqrt(18)) over Q.\n",
        "Proposed answer: 0\nIs the proposed answer correct? Reply only with Yes or No.",
    ),
    "mmlu-choices": (
        "The following is a multiple choice question about abstract algebra.\n\nFind the degree for",
        "\nReply only with the letter of the right answer.\nAnswer:",
    ),
}


def test_without_a_network_the_local_way_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the Hub cannot be reached, the command ends with one line that names data_dir."""
    datasets = pytest.importorskip("datasets")

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("no route to the host")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    line = refusal(blindcal("items", "boolq"))
    assert line.startswith("boolq: hf:google/boolq@validation: the Hugging Face Hub cannot be reached")
    assert "name their folder: --set data_dir=VALUE for a set that blindcal knows" in line


def test_a_file_goes_before_a_set_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies there under the very name is what is meant."""
    monkeypatch.chdir(tmp_path)
    assert catalogue.is_name("boolq")
    Path("boolq").write_text("")
    assert not catalogue.is_name("boolq")
