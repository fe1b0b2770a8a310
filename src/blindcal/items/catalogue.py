"""Named sets: the paper's two, the built-in questions, and any data set on the Hugging Face Hub.

A set that blindcal knows is a :class:`DataSet`: where it is, what its files are called, one template,
and how a row becomes labelled questions. Its items are the same whatever the source: ids count the
rows of the split in order, so that scores and logits recorded elsewhere can be joined.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from blindcal.errors import InputError, MissingExtraError
from blindcal.items import hub
from blindcal.items.answers import LETTERS
from blindcal.items.choices import CHOICES_FIELD, QUESTION_TEMPLATE
from blindcal.items.eval_logs import log_reader
from blindcal.items.files import Items, collect, load
from blindcal.items.hub import HubDataSet
from blindcal.items.record_files import READERS, Record, csv_rows, read_records
from blindcal.items.record_format import WORDS_FIELD, RecordFormat
from blindcal.text import listed, printable

MMLU_LETTERS = LETTERS[:4]
BUILTIN, BUILTIN_SIZE = "builtin", 1000
FAMILIES = ("numbers", "letters", "dates", "lists", "logic", "kinds", "facts", "events", "reviews")


@dataclass(frozen=True, slots=True)
class DataSet:
    """A public data set: where it is, and how its rows become items.

    ``files`` are patterns of the file names under which it is distributed, tried in this order in a
    folder; ``rows`` is its number of rows. ``words`` are the answers that ``template`` asks for: two words,
    the positive one first, or the letters of its options.
    """

    name: str
    about: str
    hosted: HubDataSet
    files: tuple[str, ...]
    rows: int
    template: str
    words: tuple[str, ...]
    questions: Callable[[Iterable[Record]], Iterator[Record]]

    def records(self, data_dir: str | Path | None = None) -> Iterator[Record]:
        """Every question as a record with id, label, the template's fields and two answer words."""
        named = {WORDS_FIELD: "/".join(self.words)} if len(self.words) == 2 else {}
        source = self._hosted() if data_dir is None else self._local(Path(data_dir))
        try:
            for record in self.questions(_counted(source, self.rows)):
                yield {**record, **named}
        except InputError as error:
            raise error.prefixed(f"{self.name}: ") from None

    def _hosted(self) -> Iterator[Record]:
        try:
            yield from hub.records(self.hosted)
        except MissingExtraError as error:
            raise MissingExtraError(
                error.message,
                remedy=f"{error.remedy}, or name the folder of its files with {{data_dir}}",
                options={"data_dir": ...},
            ) from None

    def _local(self, folder: Path) -> Iterator[Record]:
        for path in self._files(folder):
            yield from _headless(path) if _is_headless(path) else read_records(path)

    def _files(self, folder: Path) -> list[Path]:
        if folder.is_file():
            return [folder]
        if not folder.is_dir():
            raise InputError("{data_dir}: no such folder", options={"data_dir": str(folder)})
        for pattern in self.files:
            if found := [path for path in sorted(folder.glob(pattern)) if _readable(path)]:
                return found
        raise InputError(
            "{data_dir}: holds none of the set's files; blindcal looks for "
            f"{', '.join(self.files)} ({', '.join(READERS)}, .gz)",
            options={"data_dir": str(folder)},
        )


def _boolq(rows: Iterable[Record]) -> Iterator[Record]:
    for number, row in enumerate(rows):
        yield {
            "id": f"boolq_val/{number}",
            "label": _first(row, "label", "answer"),
            "question": _first(row, "question"),
            "passage": _first(row, "passage"),
        }


def _mmlu_choices(rows: Iterable[Record]) -> Iterator[Record]:
    subjects: dict[str, list[Record]] = {}
    for row in rows:
        subjects.setdefault(str(_first(row, "subject")), []).append(row)
    for subject in sorted(subjects):
        for number, row in enumerate(subjects[subject]):
            yield {
                "id": f"{subject}/{number}",
                "label": _letter(_first(row, "answer")),
                "subject": subject,
                "topic": subject.replace("_", " "),
                "question": _first(row, "question"),
                CHOICES_FIELD: _choices(row),
            }


def _mmlu(rows: Iterable[Record]) -> Iterator[Record]:
    for one in _mmlu_choices(rows):
        for letter, choice in zip(MMLU_LETTERS, one[CHOICES_FIELD], strict=True):
            yield {
                "id": f"{one['id']}/{letter}",
                "label": int(letter == one["label"]),
                "group": one["id"],
                "subject": one["subject"],
                "question": one["question"],
                "choice": choice,
            }


_MMLU_FILES = (
    *("mmlu_test.*", "mmlu/all/test*", "mmlu/test*", "all/test*", "test.*", "test-*"),
    *("mmlu/data/test/*_test.csv", "data/test/*_test.csv", "test/*_test.csv", "*_test.csv"),
)


#: The sets that are known by name, besides the built-in questions.
SETS = {
    one.name: one
    for one in (
        DataSet(
            "boolq",
            "BoolQ, validation: 3,270 yes/no questions about a passage (CC BY-SA 3.0)",
            HubDataSet("google/boolq", None, "validation"),
            (
                *("boolq_validation.*", "boolq/validation*", "boolq/data/validation*", "BoolQ/val.jsonl*"),
                *("boolq/dev.jsonl*", "data/validation*", "validation*", "dev.jsonl*", "val.jsonl*"),
            ),
            3270,
            "Passage: {passage}\nQuestion: {question}?\nAnswer True or False.",
            ("True", "False"),
            _boolq,
        ),
        DataSet(
            "mmlu",
            "MMLU, test: 14,042 questions of 57 subjects, each split in four: 56,168 items (MIT)",
            HubDataSet("cais/mmlu", "all", "test"),
            _MMLU_FILES,
            14042,
            "Question: {question}\nProposed answer: {choice}\n"
            "Is the proposed answer correct? Reply only with Yes or No.",
            ("Yes", "No"),
            _mmlu,
        ),
        DataSet(
            "mmlu-choices",
            "MMLU, test: 14,042 questions of 57 subjects, with four options each (MIT)",
            HubDataSet("cais/mmlu", "all", "test"),
            _MMLU_FILES,
            14042,
            f"The following is a multiple choice question about {{topic}}.\n\n{QUESTION_TEMPLATE}\nAnswer:",
            MMLU_LETTERS,
            _mmlu_choices,
        ),
    )
}

NAMES = (*SETS, BUILTIN)


def is_name(source: str | Path) -> bool:
    """Whether this names a set and not a file; a file of the same name takes precedence."""
    named = str(source) in NAMES or str(source).startswith(hub.PREFIX)
    return named and not Path(source).is_file()


def check_there(source: str | Path) -> None:
    """Refuse what is neither a file nor the name of a set; the error lists the names."""
    if not is_name(source) and not Path(source).is_file():
        raise InputError(
            f"{printable(str(source))}: no such file, and no set of this name; "
            f"the sets are {', '.join(NAMES)} and {hub.PREFIX}NAME[:CONFIG][@SPLIT]"
        )


def open_items(
    source: str | Path,
    reading: RecordFormat | None = None,
    *,
    labelled: bool = True,
    keep_records: bool = False,
) -> Items:
    """Open the items of a file or a log, of a set in `NAMES`, or of ``hf:NAME[:CONFIG][@SPLIT]``.

    Known sets have their own template, which that of ``reading`` replaces. Unless items are to be
    ``labelled``, labels are not read. ``Items.lines`` needs the records to be kept.
    """
    reading = reading or RecordFormat()
    check_there(source)
    if not is_name(source):
        if (read_log := log_reader(Path(source))) is not None:
            records = read_log(Path(source), reading)
            return collect(str(source), records, reading, labelled=labelled, keep_records=keep_records)
        return load(source, reading, labelled=labelled, keep_records=keep_records)
    name, data_dir = str(source), reading.data_dir
    if name in SETS:
        reading = replace(reading, template=reading.template or SETS[name].template)
        records = SETS[name].records(data_dir)
    elif data_dir is not None:
        raise InputError(
            f"{{data_dir}} is for {listed(tuple(SETS))}, not for {printable(name)}", options={"data_dir": ...}
        )
    else:
        records = builtin() if name == BUILTIN else hub.records(HubDataSet.parse(name))
    return collect(name, records, reading, labelled=labelled, keep_records=keep_records)


def builtin(n: int = BUILTIN_SIZE) -> Iterator[Record]:
    """The first ``n`` built-in questions, which ship with the package.

    Their field ``family`` is not called ``group``, because items of a group count as repeats of one thing.
    """
    if not 1 <= n <= BUILTIN_SIZE:
        raise InputError(
            f"n must be between 1 and {BUILTIN_SIZE:,}, the number of built-in questions, not {n:,}"
        )
    return islice(read_records(Path(__file__).with_name("builtin.jsonl.gz")), n)


def _counted(rows: Iterable[Record], wanted: int) -> Iterator[Record]:
    """Yield the rows, and raise if their number is wrong: in another split the ids would mean nothing."""
    count = 0
    for count, row in enumerate(rows, 1):  # noqa: B007 - read after the loop
        yield row
    if count != wanted:
        raise InputError(
            f"has {wanted:,} rows and not {count:,}: this is another split, or not all of it",
            remedy="audit it as a file of your own, with a {template}",
            options={"template": ...},
        )


def _first(row: Record, *fields: str) -> Any:
    for field in fields:
        if field in row:
            return row[field]
    raise InputError(
        f"a row lacks {' or '.join(map(repr, fields))} (it has: {printable(', '.join(row), 120)})"
    )


def _letter(answer: Any) -> str:
    text = str(answer).strip()
    for number, letter in enumerate(MMLU_LETTERS):
        if text in (str(number), letter, letter.lower()):
            return letter
    raise InputError(f"an answer must be 0 to 3 or A to D, not {printable(text, 20)!r}")


def _choices(row: Record) -> list[str]:
    given = row["choices"] if "choices" in row else [_first(row, letter) for letter in MMLU_LETTERS]
    if isinstance(given, str):  # a CSV cell
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            raise InputError("field 'choices' must be a list, in CSV as JSON") from None
    if not isinstance(given, list) or len(given) != len(MMLU_LETTERS):
        raise InputError(f"field 'choices' must hold four answers, not {printable(str(given), 60)}")
    return [str(one) for one in given]


def _readable(path: Path) -> bool:
    return path.is_file() and path.name.lower().removesuffix(".gz").endswith(tuple(READERS))


def _is_headless(path: Path) -> bool:
    """Whether this is one subject's file as MMLU's authors publish it: no header, the subject in its name."""
    if path.suffix != ".csv" or not path.stem.endswith("_test") or path.stem == "mmlu_test":
        return False
    with csv_rows(path) as rows:
        return "question" not in next(rows, [])


def _headless(path: Path) -> Iterator[Record]:
    with csv_rows(path) as rows:
        for number, row in enumerate(rows, 1):
            if len(row) != 2 + len(MMLU_LETTERS):
                raise InputError(f"{path}, row {number}: must have six fields, not {len(row)}")
            yield {
                "subject": path.stem.removesuffix("_test"),
                "question": row[0],
                "choices": row[1:-1],
                "answer": row[-1],
            }
