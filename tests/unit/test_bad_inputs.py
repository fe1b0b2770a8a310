"""Files that nobody should have: every command ends with one line that names the file and what is wrong."""

from __future__ import annotations

import contextlib
import csv
import gzip
import os
import re
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow  # type: ignore[import-untyped]  # ships no types
import pytest
from pyarrow import parquet

from blindcal.endpoints import replies
from blindcal.errors import EndpointError
from blindcal.items import eval_logs, question_files
from blindcal.items.record_files import LARGEST_RECORD, numbered_records
from blindcal.records import Reply
from blindcal.results.certificate import CERTIFICATE_FILE
from blindcal.results.decisions import SUMMARY_FILE
from blindcal.results.result import RESULT_FILE
from blindcal.results.watch_result import WATCH_FILE
from blindcal.store.run_store import RESULT_FILES, RUN_FILE, Store
from commanding import blindcal, refusal

ROWS = b"".join(b'{"id": "%d", "prompt": "p%d", "label": 1}\n' % (k, k) for k in range(500))
TABLE = b"id,prompt,label\n" + b"".join(b"%d,p%d,1\n" % (k, k) for k in range(500))
DEEP = b"[" * 100_000 + b"]" * 100_000
CUT_OFF = "ended before the end-of-stream marker was reached); it may be damaged or cut off"
LONG = b"x" * (LARGEST_RECORD + 1)
TOO_LARGE = "has more than 16 MB, and no prompt is that long; leave it out"
ITEMS: dict[str, tuple[bytes, str]] = {
    "empty.jsonl": (b"", "holds no items"),
    "zeros.jsonl": (bytes(100), "line 1: is not JSON"),
    "latin.jsonl": ('{"prompt": "é", "label": 1}'.encode("latin-1"), "is not UTF-8 text; convert it first"),
    "latin.csv": ("prompt,label\né,1\n".encode("latin-1"), "is not UTF-8 text; convert it first"),
    "excel.csv": ("prompt,label\né,1\n".encode("utf-16"), "is UTF-16, as Excel saves Unicode text; save it"),
    "deep.jsonl": (b'{"prompt": ' + DEEP + b"}", "line 1: is nested more than 100 levels deep"),
    "deep.csv": (b'messages,label\n"' + DEEP + b'",1\n', "field 'messages' is not JSON"),
    "list.jsonl": (b"[1, 2]\n", "must be a JSON object with named fields"),
    "long-number.jsonl": (b'{"id": ' + b"9" * 5000 + b"}", "line 1: Integer value out of range"),
    "no-text.jsonl": (b'{"prompt": null, "label": 1}', "field 'prompt' must be text, not None"),
    "number.jsonl": (b'{"prompt": 5, "label": 1}', "not 5: put it into a question with --template"),
    "nan.jsonl": (b'{"prompt": NaN, "label": 1}', "field 'prompt' must be text, not nan"),
    "many.jsonl": (b'{"prompt": ["a"], "label": 1}', "field 'prompt' must be text, not ['a']"),
    "blank.jsonl": (b'{"prompt": " \\n", "label": 1}', "the prompt is empty"),
    "label.jsonl": (b'{"prompt": "p", "label": NaN}', "must be 0/1, true/false, yes/no or y/n, not 'nan'"),
    "roles.jsonl": (b'{"messages": [{"role": 1, "content": ""}], "label": 1}', "a text 'role'"),
    "cut.jsonl.gz": (gzip.compress(ROWS)[:-20], CUT_OFF),
    "cut.csv.gz": (gzip.compress(TABLE)[:-20], CUT_OFF),
    "torn.jsonl.gz": (gzip.compress(ROWS)[:200] + b"x" * 50, "it may be damaged or cut off"),
    "plain.jsonl.gz": (ROWS, "cannot be read (Not a gzipped file"),
    "wide.csv": (b"prompt,label\na,1,2,3\n", "line 2: has more fields than the header"),
    "quote.csv": (b'prompt,label\n"a,1\n', "cannot be read (unexpected end of data)"),
    "header.csv": (b"prompt,label\n", "holds no items"),
    "not.parquet": (b"PAR1 and no more", "is not a Parquet file that can be read"),
    "zipped.parquet.gz": (b"", "Parquet is compressed inside; unzip it first"),
    "words.txt": (b"hello", "its name must end in .jsonl"),
    "line.jsonl.gz": (gzip.compress(ROWS + LONG, 1), f"line 501: {TOO_LARGE}"),
    "line.csv.gz": (gzip.compress(TABLE + LONG, 1), f"line 502: {TOO_LARGE}"),
    "row.csv.gz": (gzip.compress(b"a,prompt,label\n" + b'"%b\n",' % LONG[:1000] * 17_000, 1), TOO_LARGE),
    "twice.jsonl": (ROWS.splitlines(keepends=True)[0] * 2, "items 1 and 2 share the id '0'"),
}


@pytest.mark.parametrize("name", ITEMS)
def test_bad_items_are_refused_before_anything_is_asked(name: str, tmp_path: Path) -> None:
    """The line names the file, where it breaks, the rule and what to do; no folder is made."""
    content, message = ITEMS[name]
    (tmp_path / name).write_bytes(content)
    nowhere = ("--model", "m", "--base-url", "http://127.0.0.1:9/v1", "--out", tmp_path / "run")
    text = refusal(blindcal("audit", tmp_path / name, *nowhere))
    assert text.startswith(str(tmp_path / name))
    assert message in text
    assert not (tmp_path / "run").exists()


def test_a_small_file_that_unpacks_to_gigabytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parquet may repeat one long entry in every row, and a log may hold an entry of any size."""
    text = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 1000), pyarrow.array([LONG.decode()]))
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table({"prompt": text, "label": [1] * 1000}), path)
    assert f"{path}, row 1: {TOO_LARGE}" in refusal(blindcal("plan", path))
    monkeypatch.setattr(eval_logs, "LARGEST_ENTRY", 2**20)
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w") as log:
        log.writestr("samples/1_epoch_1.json", LONG)
    assert f"{path}, samples/1_epoch_1.json: has more than 1 MB" in refusal(blindcal("plan", path))
    monkeypatch.setattr(question_files, "MOST_CHARACTERS", 1000)
    path = tmp_path / "many.jsonl"
    path.write_bytes(ROWS)
    assert "have more than 1,000 characters; split the file" in refusal(blindcal("plan", path))


def test_no_memory_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no limit foresees ends with a cause and a cure, too."""

    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("blindcal.cli.plan.open_items", full)
    path = tmp_path / "items.jsonl"
    path.write_bytes(ROWS)
    assert "not enough memory: use a smaller file" in refusal(blindcal("plan", path))


def test_reading_a_table_leaves_the_limit_of_other_readers(tmp_path: Path) -> None:
    """The limit of Python's reader of CSV is global: between two rows it is what it was."""
    path, usual = tmp_path / "table.csv", csv.field_size_limit()
    path.write_bytes(b"id,prompt,label\n" + b"1,%b,1\n" % (b"x" * 200_000) * 2)
    records = numbered_records(path)
    assert len(next(records)[1]["prompt"]) == 200_000
    assert csv.field_size_limit() == usual


def test_bad_scores_are_refused_as_bad_items_are(tmp_path: Path) -> None:
    """The line names the file and where it breaks."""
    path = tmp_path / "scores.csv.gz"
    path.write_bytes(gzip.compress(b"id,label,p\n" + b"a,1,.5\n" * 3000)[:-15])
    text = refusal(blindcal("simulate", path))
    assert text.startswith(str(path))
    assert CUT_OFF in text


@pytest.mark.parametrize("command", [("audit", "--model", "m"), ("plan", "--half-width", "0.1"), ("items",)])
@pytest.mark.parametrize("kind", ["folder", "circle", "nowhere", "pipe", "too long"])
def test_what_is_no_file_is_no_items(kind: str, command: tuple[str, ...], tmp_path: Path) -> None:
    """A path that leads to no regular file is one line, whatever there is."""
    path = tmp_path / ("x" * 300 if kind == "too long" else "items.jsonl")
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind != "too long":
        path.symlink_to({"circle": path.name, "nowhere": "none.jsonl"}[kind])
    text = refusal(
        blindcal(command[0], path, *command[1:], *(("--base-url", "http://x/v1") * (command[0] == "audit")))
    )
    assert "no such file" in text or "the name is too long: choose a shorter one" in text


@pytest.mark.parametrize("arguments", [("audit", "\udcff.jsonl"), ("audit", "x.jsonl", "--model", "\udcff")])
def test_arguments_are_text(arguments: tuple[str, ...]) -> None:
    """A name that is not UTF-8 could be in no result: it is refused before anything is asked."""
    assert "'\\udcff" in refusal(blindcal(*arguments))
    assert "is not UTF-8 text; if it is a path, rename it" in refusal(blindcal(*arguments))


def foreign(path: Path) -> None:
    """A database of another program."""
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE x (y)")
    db.close()


def cut(path: Path) -> None:
    """A run file of which half was copied."""
    with Store.open(path) as store:
        store.begin({"model": "m"}, [])
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


RUNS: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda _: None, "no such run"),
    "a folder": (Path.mkdir, "no such run"),
    "text": (lambda path: path.write_text("hello, this is not a database" * 40), "not a run file"),
    "another program's": (foreign, "a database of another program, not a run file"),
    "half of it": (cut, "the file is damaged: use a copy of it, or audit into another folder"),
}


@pytest.mark.parametrize("command", ["status", "threshold", "compare", "merge"])
@pytest.mark.parametrize("kind", RUNS)
def test_what_is_no_run_is_refused(kind: str, command: str, tmp_path: Path) -> None:
    """Every command that reads a run says what is wrong with it."""
    make, message = RUNS[kind]
    make(tmp_path / RUN_FILE)
    more = {"compare": (tmp_path,), "merge": ("--out", tmp_path / "merged")}.get(command, ())
    text = refusal(blindcal(command, tmp_path, *more))
    assert text.startswith(str(tmp_path))
    assert message in text


@pytest.mark.parametrize("name", RESULT_FILES)
@pytest.mark.parametrize("empty", [True, False])
def test_a_result_whose_answers_are_gone_is_not_asked_again(name: str, empty: bool, tmp_path: Path) -> None:
    """An empty run file, or none, beside what a run wrote would pay for every answer once more."""
    (tmp_path / "items.jsonl").write_bytes(ROWS)
    out = tmp_path / "run"
    out.mkdir()
    (out / name).write_text("{}")
    if empty:
        (out / RUN_FILE).touch()
    nowhere = ("--model", "m", "--base-url", "http://127.0.0.1:9/v1", "--out", out)
    text = refusal(blindcal("audit", tmp_path / "items.jsonl", *nowhere))
    assert set(RESULT_FILES) == {RESULT_FILE, CERTIFICATE_FILE, SUMMARY_FILE, WATCH_FILE}
    assert text.startswith(f"{out / RUN_FILE} is missing or empty beside {name}")
    assert "restore it, or use another --out" in text


def edited(statement: str, *values: object) -> Callable[[Path], None]:
    """Edit a run file as another program could."""

    def edit(path: Path) -> None:
        with Store.open(path) as store:
            store.begin({"model": "m"}, [])
        with sqlite3.connect(path) as db:
            db.execute(statement, values)
        db.close()

    return edit


NOTE = "INSERT OR REPLACE INTO notes VALUES (?, ?)"
ROUND = "INSERT INTO rounds VALUES (0, 0, 1, ?, x'', x'', NULL, NULL)"
EDITS = {
    "config is a list": edited(NOTE, "config", "[1]"),
    "config is no JSON": edited(NOTE, "config", "{"),
    "config is deep": edited(NOTE, "config", DEEP.decode()),
    "ready is a number": edited(NOTE, "ready", "5"),
    "ready is text": edited(NOTE, "ready", '"x"'),
    "no notes": edited("DROP TABLE notes"),
    "no rounds": edited("DROP TABLE rounds"),
    "a round that is cut off": edited(ROUND, b"123"),
    "a round of text": edited(ROUND, "hello"),
    "a round of numbers": edited(ROUND, 5),
}


@pytest.mark.parametrize("kind", EDITS)
def test_an_edited_run_file_is_one_line(kind: str, tmp_path: Path) -> None:
    """The line names the file, and that it is not as blindcal wrote it."""
    EDITS[kind](tmp_path / RUN_FILE)
    text = refusal(blindcal("status", tmp_path))
    assert text.startswith(str(tmp_path / RUN_FILE))
    assert re.search(r"is damaged|did not write|no such table", text)


OPTIONS = {
    "audit": {
        **{f"--set bins={value}": "bins must be" for value in ("1" + "0" * 30, "1000000000", "0", "1.5")},
        **{f"--set resamples={value}": "resamples must be" for value in ("1" + "0" * 14, "1e14", "1")},
        **{f"--set offset={value}": "offset must be" for value in ("1e308", "-1", "inf", "100")},
        **{f"--set level={value}": "level must be" for value in (".9999999999999999", "1e-300", "95", "nan")},
        **{f"--set limit={value}": "limit must be" for value in ("1e308", "-5")},
        **{f"--set timeout={value}": "timeout must be" for value in ("0", "inf", "1e16")},
        **{f"--seed {value}": "seed must be" for value in ("1" + "0" * 30, "-1", "1.5")},
        **{f"--queries {value}": "queries must be" for value in ("1e-300", "101", "nan")},
        **{f"--rpm {value}": "rpm must be" for value in ("1e-300", "0", "nan")},
        **{f"--tpm {value}": "tpm must be" for value in ("1e-300", "-inf")},
        **{f"--concurrency {value}": "concurrency must be" for value in ("0", "1" + "0" * 30)},
        **{f"--max-queries {value}": "max_queries must be" for value in ("0", "many")},
        **{
            f"--extra-body {value}": "must be a JSON object"
            for value in ("[]", "null", "{", '{"a":' + "[" * 999)
        },
        **{
            f'--extra-body {{"{name}":1}}': "which blindcal sets" for name in ("model", "n", "stream", "seed")
        },
        '--extra-body {"headers":{"Cookie":"session=12345678"}}': "looks like a secret",
        **{f"--answers {value}": "answers: " for value in (",", "A", "A,a", "A,B,")},
        **{f"--template {value}": "template: names no field" for value in ("{", "{}", "none")},
        "--template {prompt.__class__}": "named in the template, is missing",
        **{f"--prices {value}": "is not two prices" for value in ("1", "nan,1", "-1,1", "1,2,3")},
    },
    "plan": {
        "--half-width 1e-300": "is not in the range",
        "--tokens 1e308": "is not in the range",
        "--sample 1000000000000000000000000000000": "is not in the range",
    },
    "simulate": {"--repeats 1000000000000000000000000000000": "is not in the range"},
}


@pytest.mark.parametrize(
    ("command", "option"), [(command, each) for command in OPTIONS for each in OPTIONS[command]]
)
def test_a_bad_option_is_refused_before_anything_is_asked(command: str, option: str, tmp_path: Path) -> None:
    """The line names the option and its rule; no folder is made, and nothing runs for ever."""
    (tmp_path / "items.jsonl").write_bytes(ROWS)
    source = () if command == "plan" else (tmp_path / "items.jsonl",)
    more = ("--model", "m", "--base-url", "http://127.0.0.1:9/v1", "--out", tmp_path / "run")
    name, value = option.split(" ", 1)
    text = refusal(blindcal(command, *source, *(more if command == "audit" else ()), name, value))
    assert OPTIONS[command][option] in text
    assert not (tmp_path / "run").exists()


SCORES = {
    "id,label\na,1\n": "lacks p",
    "id,label,p\na,2,.5\n": "row 1, label: must be 0 or 1, got '2'",
    "id,label,p\na,1,1e400\n": "row 1, p: must be a number in [0, 1]",
    "id,label,p\na,1,nan\n": "row 1, p: must be a number in [0, 1]",
    "id,label,p\na,1,\n": "row 1, p: must be a number in [0, 1]",
    "id,label,a|1,b|x\na,1,1,2\n": "column 'b|x' is not named",
    "id,label,logit_A,logit_B,logit_C\na,A,,,\n": "must have the logits of at least two answers",
    "id,label,logit_A,logit_B,logit_C\na,A,inf,1,2\n": "must be a number, or empty",
    "\ufeff\n\n": "holds no rows",
}


@pytest.mark.parametrize("text", SCORES)
def test_bad_scores_name_their_row(text: str, tmp_path: Path) -> None:
    """What is no score is named with its place."""
    path = tmp_path / "scores.csv"
    path.write_text(text, encoding="utf-8")
    said = refusal(blindcal("simulate", path, "--repeats", 1))
    assert said.startswith(str(path))
    assert SCORES[text] in said


CERTIFICATES = [
    "",
    "{",
    "[]",
    "null",
    "5",
    '{"format": 99}',
    '{"format": 1}',
    "[" * 500_000,
    "\ufeff{}",
    '{"a": 1e999}',
]


@pytest.mark.parametrize("text", CERTIFICATES)
def test_a_bad_certificate_is_refused(text: str, tmp_path: Path) -> None:
    """What is no certificate decides about nothing."""
    (tmp_path / "items.jsonl").write_bytes(ROWS)
    path = tmp_path / "certificate.json"
    path.write_text(text)
    said = refusal(blindcal("decide", path, tmp_path / "items.jsonl", "--out", tmp_path / "run"))
    assert said.startswith(str(path))
    assert not (tmp_path / "run").exists()


REPLIES = [
    b"",
    b"[",
    b"[" * 500_000,
    b"null",
    b"5",
    b'"x"',
    b"\xff\xfe",
    b'{"choices": {}}',
    b'{"choices": [[]]}',
]
REPLIES += [
    b'{"choices": [{"message": 5}]}',
    b'{"choices": [{"message": {"content": {}}}]}',
    b'{"choices": "' + LONG,
]


@pytest.mark.parametrize("raw", REPLIES, ids=range(len(REPLIES)))
def test_a_bad_reply_is_never_taken_for_an_answer(raw: bytes) -> None:
    """Whatever a server sends, it is an unusable reply or the status of an error."""
    with contextlib.suppress(EndpointError):
        assert not isinstance(replies.read(200, raw), Reply)
