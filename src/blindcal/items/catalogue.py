"""Named sets: the paper's two, the built-in questions, and any data set on the Hugging Face Hub.

Items are the same whatever the source: ids count the rows of the split in order, so that scores and logits
recorded elsewhere can be joined.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from blindcal.errors import BlindcalError, InputError, MissingExtraError, errors_at
from blindcal.items.answers import CHOICES_FIELD, LETTERS, QUESTION_TEMPLATE, Choices, read_label
from blindcal.items.confidences import Survey
from blindcal.items.eval_logs import log_records
from blindcal.items.exports import exported_records, graded_records
from blindcal.items.graded_answers import ANSWERED_BY, is_promptfoo
from blindcal.items.question_files import Items
from blindcal.items.record_files import (
    READERS,
    Numbered,
    Record,
    as_numbered,
    has_reader,
    numbered_records,
    plain,
)
from blindcal.items.record_format import (
    SCORE_FIELD,
    SELF_CHECK_TEMPLATE,
    WORDS_FIELD,
    RecordFormat,
    has_value,
)
from blindcal.items.verdicts import read_verdict
from blindcal.text import listed, printable

MMLU_LETTERS = LETTERS[:4]
BUILTIN, BUILTIN_SIZE = "builtin", 1000
FAMILIES = ("numbers", "letters", "dates", "lists", "logic", "kinds", "facts", "events", "reviews")

_SEEN = 1000  # records that show what the fields of a file are

PREFIX = "hf:"
_FORM = re.compile(r"hf:(?P<name>[^:@]+)(?::(?P<config>[^:@]+))?(?:@(?P<split>[^:@]+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """A public data set: its source, and how its rows become items.

    ``hosted`` is its place on the Hub, ``hf:NAME[:CONFIG][@SPLIT]``. ``files`` are patterns of file names to
    look for in a folder, in this order; ``rows`` is the expected number of rows. ``words`` are the two
    answers, the positive one first, or the letters of the options.
    """

    name: str
    about: str
    hosted: str
    files: tuple[str, ...]
    rows: int
    template: str
    words: tuple[str, ...]
    questions: Callable[[Iterable[Record]], Iterator[Record]]

    def records(self, data_dir: str | Path | None = None) -> Iterator[Record]:
        """Questions as records with id, label, the template's fields and any two answer words."""
        named = {WORDS_FIELD: "/".join(self.words)} if len(self.words) == 2 else {}
        with errors_at(self.name):
            source = hub_records(self.hosted) if data_dir is None else self._local(Path(data_dir))
            for record in self.questions(_counted(source, self.rows)):
                yield {**record, **named}

    def _local(self, folder: Path) -> Iterator[Record]:
        if not folder.exists():
            raise InputError("{data_dir}: no such folder", options={"data_dir": str(folder)})
        for pattern in self.files:
            if paths := [path for path in sorted(folder.glob(pattern)) if has_reader(path)]:
                return (record for path in paths for _, record in numbered_records(path))
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
                "label": MMLU_LETTERS[read_label(_first(row, "answer"), MMLU_LETTERS, "answer")],
                "subject": subject,
                "topic": subject.replace("_", " "),
                "question": _first(row, "question"),
                CHOICES_FIELD: list(Choices.read(_first(row, "choices")).texts),
            }


def _mmlu(rows: Iterable[Record]) -> Iterator[Record]:
    for question in _mmlu_choices(rows):
        for letter, choice in zip(MMLU_LETTERS, question[CHOICES_FIELD], strict=False):
            yield {
                "id": f"{question['id']}/{letter}",
                "label": int(letter == question["label"]),
                "group": question["id"],
                "subject": question["subject"],
                "question": question["question"],
                "choice": choice,
            }


_MMLU_FILES = ("mmlu_test.*", "all/test*", "test*")

#: Sets known by name, besides the built-in questions.
SETS = {
    known.name: known
    for known in (
        DataSet(
            name="boolq",
            about="BoolQ, validation: 3,270 yes/no questions about a passage (CC BY-SA 3.0)",
            hosted="hf:google/boolq@validation",
            files=("boolq_validation.*", "data/validation*", "validation*"),
            rows=3270,
            template="Passage: {passage}\nQuestion: {question}?\nAnswer True or False.",
            words=("True", "False"),
            questions=_boolq,
        ),
        DataSet(
            name="mmlu",
            about="MMLU, test: 14,042 questions of 57 subjects, each split in four: 56,168 items (MIT)",
            hosted="hf:cais/mmlu:all@test",
            files=_MMLU_FILES,
            rows=14042,
            template="Question: {question}\nProposed answer: {choice}\n"
            "Is the proposed answer correct? Reply only with Yes or No.",
            words=("Yes", "No"),
            questions=_mmlu,
        ),
        DataSet(
            name="mmlu-choices",
            about="MMLU, test: 14,042 questions of 57 subjects, with four options each (MIT)",
            hosted="hf:cais/mmlu:all@test",
            files=_MMLU_FILES,
            rows=14042,
            template="The following is a multiple choice question about {topic}.\n\n"
            f"{QUESTION_TEMPLATE}\nAnswer:",
            words=MMLU_LETTERS,
            questions=_mmlu_choices,
        ),
    )
}

NAMES = (*SETS, BUILTIN)


def is_name(source: str | Path) -> bool:
    """Whether this names a set; a file of the same name takes precedence."""
    named = str(source) in NAMES or str(source).startswith(PREFIX)
    return named and not Path(source).is_file()


def check_there(source: str | Path) -> None:
    """Raise an error that lists the sets unless this is a file or a set."""
    if not is_name(source) and not Path(source).is_file():
        raise InputError(
            f"{printable(str(source))}: no such file, and no set of this name; "
            f"the sets are {', '.join(NAMES)} and {PREFIX}NAME[:CONFIG][@SPLIT]"
        )


def open_records(source: str | Path, reading: RecordFormat) -> tuple[Numbered, RecordFormat]:
    """The records of a file, a log or a set, each with its place, and how to convert them to items."""
    check_there(source)
    if reading.self_check:
        return _graded(Path(source), replace(reading, template=reading.template or SELF_CHECK_TEMPLATE))
    if not is_name(source):
        path = Path(source)
        given = reading.confidence_field is not None
        records = exported_records(path) if given else log_records(path, reading)
        if records is None and not given and is_promptfoo(path):
            raise InputError(
                f"{path}: holds scored answers, not questions with a right answer",
                remedy="{self_check} asks whether each is correct, and {confidence_field} audits a field",
                options={"self_check": True, "confidence_field": ...},
            )
        return (numbered_records(path) if records is None else as_numbered(records)), reading
    name, data_dir = str(source), reading.data_dir
    if name in SETS:
        reading = replace(reading, template=reading.template or SETS[name].template)
        return as_numbered(SETS[name].records(data_dir)), reading
    if data_dir is not None:
        raise InputError(
            f"{{data_dir}} is for {listed(tuple(SETS))}, not for {printable(name)}", options={"data_dir": ...}
        )
    return as_numbered(builtin() if name == BUILTIN else hub_records(name)), reading


def _graded(path: Path, reading: RecordFormat) -> tuple[Numbered, RecordFormat]:
    """Scored answers; those of a log are broken down by the model that gave them, unless a field is named."""
    if is_name(path):
        raise InputError(
            f"{path}: holds questions without answers of a model",
            remedy="leave {self_check} out, or name a log with scored answers",
            options={"self_check": True},
        )
    logged = graded_records(path, reading.label_field)
    if logged is None:
        return numbered_records(path), reading
    by_field = reading.by_field or ANSWERED_BY
    return as_numbered(logged), replace(reading, label_field=SCORE_FIELD, by_field=by_field)


def open_items(source: str | Path, reading: RecordFormat | None = None, *, labelled: bool = True) -> Items:
    """Open the items of a file or a log, of a set in `NAMES`, or of ``hf:NAME[:CONFIG][@SPLIT]``.

    The template of ``reading`` replaces that of a known set. Labels are read only if ``labelled``.
    """
    records, reading = open_records(source, reading or RecordFormat())
    return Items(Path(source), reading, records, labelled=labelled)


def likely_confidences(source: str | Path, label_field: str) -> dict[str, str]:
    """The fields of a file that seem to hold confidences, each with what they look like."""
    records, likely = _first_records(source), {}
    for name in dict.fromkeys(name for _, record in records for name in record):
        survey = Survey(name)
        with contextlib.suppress(InputError):
            for where, record in records:
                if has_value(record, name):
                    survey.add(where, record)
            named = re.search("conf|prob|percent", name, re.IGNORECASE)
            if name != label_field and (survey.between or survey.signed or (named and survey.percent)):
                unit = "%" if survey.percent else ""
                likely[name] = f"({survey.low:g}{unit} to {survey.high:g}{unit})"
    return likely


def likely_verdict(source: str | Path) -> str | None:
    """The field of a file that seems to hold the verdicts of a judge."""
    records = _first_records(source)
    for name in dict.fromkeys(name for _, record in records for name in record):
        if re.search("verdict|judge|grade", name, re.IGNORECASE):
            with contextlib.suppress(InputError):
                if [read_verdict(record[name], name) for _, record in records if has_value(record, name)]:
                    return name
    return None


def _first_records(source: str | Path) -> list[tuple[str, Record]]:
    records: list[tuple[str, Record]] = []
    if not is_name(source):
        with contextlib.suppress(BlindcalError):  # the audit itself says what is wrong
            records += islice(open_records(source, RecordFormat(confidence_field=""))[0], _SEEN)
    return records


def builtin(n: int = BUILTIN_SIZE) -> Iterator[Record]:
    """The first ``n`` of the questions that ship with the package."""
    # The field is called `family`, not `group`: items of a group count as repeats of one thing.
    return (record for _, record in islice(numbered_records(Path(__file__).with_name("builtin.jsonl.gz")), n))


def hub_records(hosted: str) -> Iterator[Record]:
    """The rows of a split in order, with class names instead of numbers."""
    form = _FORM.fullmatch(hosted)
    if form is None:
        raise InputError(f"{printable(hosted)}: must have the form hf:NAME[:CONFIG][@SPLIT]")
    try:
        import datasets
    except ImportError:
        raise MissingExtraError(
            f"{hosted}: loading from Hugging Face needs datasets",
            remedy="pip install 'blindcal[data]', or name the folder of a known set's files with {data_dir}",
            options={"data_dir": ...},
        ) from None
    log = logging.getLogger("huggingface_hub")
    before = log.level
    log.setLevel(logging.ERROR)  # it logs every retry; the final error says it once
    try:
        loaded = datasets.load_dataset(form["name"], form["config"], split=form["split"])
    except (ValueError, RuntimeError, OSError) as error:
        raise _explained(hosted, error) from None
    finally:
        log.setLevel(before)
    if isinstance(loaded, datasets.DatasetDict):
        if len(loaded) > 1:
            first = next(iter(loaded))
            raise InputError(
                f"{hosted}: has the splits {', '.join(loaded)}; choose one, such as {hosted}@{first}"
            )
        (loaded,) = loaded.values()
    named = {
        field: kind.names for field, kind in loaded.features.items() if isinstance(kind, datasets.ClassLabel)
    }
    for row in loaded:
        for field, names in named.items():
            if isinstance(row[field], int) and 0 <= row[field] < len(names):
                row[field] = names[row[field]]
        yield plain(row)


def _explained(hosted: str, error: Exception) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(f"{hosted}: no such data set, or it needs a login ({printable(str(error), 120)})")
    if isinstance(error, ConnectionError | TimeoutError):
        return InputError(
            f"{hosted}: the Hugging Face Hub cannot be reached",
            remedy="without a network, download the set's files elsewhere and name their folder: {data_dir} "
            f"for a set that blindcal knows, {PREFIX}FOLDER[@SPLIT] for any other",
            options={"data_dir": ...},
        )
    return InputError(f"{hosted}: {printable(' '.join(str(error).split()), 300)}")


def _counted(rows: Iterable[Record], wanted: int) -> Iterator[Record]:
    # With another number of rows it is another split, whose ids would mean nothing.
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
