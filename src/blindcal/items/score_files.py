"""Score and logit files: known probabilities of a model on labelled items, as CSV or Parquet, or gzipped.

A score file has the columns id, label and p. A logit file has one column per spelling of an answer word,
named ``text|token id``, from which all probabilities follow (METHOD 1). One reader handles both. A choice
file is about more than two answers (METHOD 8): it has a column ``logit_<answer>`` for each. Files that
``blindcal score`` wrote also say in the column ``asked`` what was asked of which model (`asked_of`).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from scipy.special import expit, logsumexp

from blindcal.errors import InputError, MissingExtraError
from blindcal.items.record_files import UNREADABLE, as_text, csv_rows, unreadable
from blindcal.records import FloatArray, IntArray, Item, Semantics, Targets, Token
from blindcal.text import printable, spoken

Table: TypeAlias = dict[str, list[Any]]

#: Answer words to look for in a logit file if none are given.
WORDS = (("True", "False"), ("Yes", "No"))
ASKED = "asked"
LOGIT = "logit_"
"""What the names of a choice file's columns of logits begin with; the answer follows."""
ENDINGS = (".csv.gz", ".csv", ".parquet.gz", ".parquet")
_ENDING = re.compile(r"(\.(csv|tsv|jsonl?|ndjson|parquet|eval))?(\.gz)?$")
_SEMANTICS: dict[str, Semantics] = {"p": "pair", "p_max": "max", "p_sum": "sum"}
_RULES: dict[str, Callable[[FloatArray], Any]] = {
    "0 or 1": lambda numbers: np.isin(numbers, (0.0, 1.0)),
    "a number in [0, 1]": lambda numbers: (numbers >= 0) & (numbers <= 1),
    "a number": np.isfinite,
}


@dataclass(frozen=True, slots=True)
class Scores:
    """The ids, labels and probabilities of a file, in its order, and what the probabilities are.

    ``tokens`` and their ``logits``, one column each, are the content of a logit file. ``asked`` is what
    `asked_of` says of each row, if the file has it.
    """

    path: str
    ids: tuple[str, ...]
    labels: IntArray
    p: FloatArray
    column: str
    tokens: tuple[Token, ...] = ()
    logits: FloatArray | None = None
    asked: tuple[str, ...] = ()

    def about(self, targets: Targets) -> Scores:
        """With the probabilities of exactly these tokens if the file has their logits; else unchanged."""
        if self.logits is None or not {*targets.positive, *targets.negative} <= set(self.tokens):
            return self
        p = answer_probabilities(self.tokens, self.logits, targets)
        return replace(self, p=p, column=_described(targets))


@dataclass(frozen=True, slots=True)
class ChoiceScores:
    """The ids, labels and logits of a choice file, in its order.

    ``logits`` has a column per answer, and minus infinity where an item does not have the answer. ``labels``
    are the numbers of the right answers, and ``asked`` is that of `Scores`.
    """

    path: str
    ids: tuple[str, ...]
    labels: IntArray
    logits: FloatArray
    answers: tuple[str, ...]
    asked: tuple[str, ...] = ()

    @property
    def choices(self) -> IntArray:
        """The number of answers that each item has."""
        return np.asarray(np.isfinite(self.logits).sum(axis=1), np.int64)


def prompt_digest(item: Item) -> str:
    """A digest of an item's prompt and label."""
    asked = [item.label, *((one.role, one.content) for one in item.messages)]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]


def asked_of(item: Item, model: str) -> str:
    """What was asked of which model: the `prompt_digest`, a space, and the model."""
    return f"{prompt_digest(item)} {model}"


def read_scores(path: Path, column: str = "p", words: tuple[str, ...] | None = None) -> Scores:
    """Read ids (by default row numbers), labels and probabilities from a score or logit file.

    ``column`` is p, p_max or p_sum (METHOD 1: pair, max or sum). Score files without this column fall back
    to p; for logit files it is computed. ``words`` are the positive and the negative answer word in a logit
    file; by default the first pair of `WORDS` that it has. Errors name the file, the row and the column.
    """
    table = read_table(path)
    spelled = [name for name in table if "|" in name]
    wanted = column if column in table else "p"
    missing = [name for name in ("label", *(() if spelled else (wanted,))) if name not in table]
    if missing:
        there = ", ".join(printable(name, 30) for name in table) or "none"
        raise InputError(
            f"{path}: must have the columns id, label and p; lacks {missing[0]}, has {there} "
            "(logits, instead of p, go in columns named 'text|token id')"
        )
    if not table["label"]:
        raise InputError(f"{path}: holds no rows")
    ids = tuple(map(str, table.get("id", range(len(table["label"])))))
    labels = _numbers(path, table, "label", "0 or 1").astype(np.int64)
    asked = tuple(map(str, table.get(ASKED, ())))
    if wanted in table:
        p = _numbers(path, table, wanted, "a number in [0, 1]")
        return Scores(str(path), ids, labels, p, wanted, asked=asked)
    tokens = tuple(token_of(path, name) for name in spelled)
    logits = np.column_stack([_numbers(path, table, name, "a number") for name in spelled])
    targets = answers_in(path, tokens, words)
    targets = targets if column == "p" else every_spelling(tokens, targets, _SEMANTICS[column])
    p = answer_probabilities(tokens, logits, targets)
    return Scores(str(path), ids, labels, p, _described(targets), tokens, logits, asked)


def is_choice_file(path: Path) -> bool:
    """Whether a file has the logits of several answers, as its header says; `read_choices` reads it."""
    names = _parquet(path)[0] if ".parquet" in path.suffixes else csv_header(path)
    return sum(name.startswith(LOGIT) for name in names) > 1


def read_choices(path: Path) -> ChoiceScores:
    """Read ids (by default row numbers), labels and the logits of every answer from a choice file.

    A label is the number of the right answer, from 0 up in the order of the columns, or its name. A logit
    that is empty, NaN or minus infinity says that the item does not have this answer, nor any after it.
    Errors name the file, the row and the column.
    """
    table = read_table(path)
    columns = [name for name in table if name.startswith(LOGIT)]
    answers = tuple(name.removeprefix(LOGIT) for name in columns)
    if "label" not in table or len(columns) < 2 or "" in answers:
        names = ", ".join(printable(name, 30) for name in table) or "none"
        raise InputError(
            f"{path}: must have the columns id, label, and logit_<answer> for each answer; has {names}"
        )
    if not table["label"]:
        raise InputError(f"{path}: holds no rows")
    logits = np.column_stack([_logits(path, table, name) for name in columns])
    there = np.isfinite(logits)
    gap = there[:, 1:] & ~there[:, :-1]
    if gap.any():
        row, column = (int(place[0]) for place in np.nonzero(gap))
        raise InputError(
            f"{path}, row {row + 1}, {printable(columns[column], 60)}: must be a number, since a later "
            "answer has one; those that an item does not have are the last ones"
        )
    few = there.sum(axis=1) < 2
    if few.any():
        raise InputError(
            f"{path}, row {int(np.argmax(few)) + 1}: must have the logits of at least two answers"
        )
    labels = _labels(path, table["label"], answers)
    foreign = ~there[np.arange(labels.size), labels]
    if foreign.any():
        row = int(np.argmax(foreign))
        name = printable(columns[labels[row]], 60)
        raise InputError(f"{path}, row {row + 1}, {name}: must be a number, since the label is this answer")
    ids = tuple(map(str, table.get("id", range(labels.size))))
    return ChoiceScores(str(path), ids, labels, logits, answers, tuple(map(str, table.get(ASKED, ()))))


def _logits(path: Path, table: Table, name: str) -> FloatArray:
    """A column of logits; minus infinity where there is none."""
    told = [np.nan if value is None or str(value).strip() == "" else value for value in table[name]]
    numbers = np.array([_number(value) for value in told])
    spelled = np.array([str(value).strip().lower() == "nan" for value in told])
    bad = (np.isnan(numbers) & ~spelled) | (numbers == np.inf)
    if bad.any():
        row = int(np.argmax(bad))
        shown = printable(str(table[name][row]), 30)
        raise InputError(
            f"{path}, row {row + 1}, {printable(name, 60)}: must be a number, or empty if the item does not "
            f"have this answer, got {shown!r}"
        )
    return np.where(np.isnan(numbers), -np.inf, numbers)


def _labels(path: Path, given: Sequence[Any], answers: tuple[str, ...]) -> IntArray:
    """The numbers of the answers that labels count to or name.

    If answers are numbers themselves, a label may do both. Then the others decide, if they can do only one.
    """
    texts = [str(one).strip() for one in given]
    counted = [int(x) if (x := _number(one)) in range(len(answers)) else None for one in given]
    named = [answers.index(text) if text in answers else None for text in texts]
    rows = range(len(texts))
    for row in rows:
        if counted[row] is None and named[row] is None:
            rule = f"a number from 0 to {len(answers) - 1} or one of {', '.join(map(repr, answers))}"
            shown = printable(texts[row], 30)
            raise InputError(f"{path}, row {row + 1}, label: must be {printable(rule, 200)}, got {shown!r}")
    numbers = any(named[row] is None for row in rows)
    names = any(counted[row] is None for row in rows)
    unclear = [row for row in rows if None not in (counted[row], named[row]) and counted[row] != named[row]]
    if unclear and numbers == names:
        raise InputError(
            f"{path}, row {unclear[0] + 1}, label: {printable(texts[unclear[0]], 30)!r} may be an answer or "
            "the number of another; name the columns with letters, such as logit_A"
        )
    first, second = (named, counted) if names else (counted, named)
    return np.array([one if one is not None else other for one, other in zip(first, second, strict=True)])


def stem(path: Path) -> str:
    """The name of a file without the endings of its format; other dots stay."""
    return _ENDING.sub("", path.name)


def token_of(path: Path, column: str) -> Token:
    """The token that a column of logits is named after."""
    text, _, number = column.rpartition("|")
    try:
        return Token(int(number), text)
    except ValueError:
        raise InputError(f"{path}: column {printable(column, 60)!r} is not named 'text|token id'") from None


def answers_in(path: Path, tokens: Sequence[Token], words: tuple[str, ...] | None = None) -> Targets:
    """The two tokens that are spelled exactly like the answer words."""
    wanted = WORDS if words is None else (words,)
    by_text = {token.text: token for token in reversed(tokens)}
    for positive, negative in wanted:
        if positive in by_text and negative in by_text:
            return Targets((by_text[positive],), (by_text[negative],))
    spellings = ", ".join(repr(token.text) for token in tokens)
    named = " or ".join(f"{positive} and {negative}" for positive, negative in wanted)
    raise InputError(
        f"{path}: no columns for {printable(named, 80)}",
        remedy=f"name the words with {{answers}}, among {printable(spellings, 200)}",
        options={"answers": ...},
    )


def every_spelling(tokens: Sequence[Token], targets: Targets, semantics: Semantics) -> Targets:
    """Targets with every recorded spelling of the two words instead of one each."""
    positive, negative = (
        tuple(token for token in tokens if spoken(token.text) == spoken(side[0].text))
        for side in (targets.positive, targets.negative)
    )
    return Targets(positive, negative, semantics)


def answer_probabilities(tokens: Sequence[Token], logits: FloatArray, targets: Targets) -> FloatArray:
    """The hidden probability of the positive answer (METHOD 1), from one column of logits per token."""
    place = {token.id: column for column, token in enumerate(tokens)}
    positive, negative = (
        logits[:, [place[token.id] for token in side]] for side in (targets.positive, targets.negative)
    )
    if targets.semantics == "sum":
        return np.asarray(expit(logsumexp(positive, axis=1) - logsumexp(negative, axis=1)))
    return np.asarray(expit(positive.max(axis=1) - negative.max(axis=1)))


def _described(targets: Targets) -> str:
    positive, negative = (
        ", ".join(f"{token.text}|{token.id}" for token in side)
        for side in (targets.positive, targets.negative)
    )
    how = "" if targets.semantics == "pair" else f"{targets.semantics} of "
    return f"{how}{positive} against {negative}"


def read_table(path: Path) -> Table:
    """The columns of a file by name, with unconverted values."""
    if not path.exists():
        raise InputError(f"{path}: no such file")
    names, columns = _parquet(path) if ".parquet" in path.suffixes else _csv(path)
    return {name: columns[names.index(name)] for name in names}  # the first of two with the same name


def _numbers(path: Path, table: Table, name: str, rule: str) -> FloatArray:
    """A column as numbers, checked by the given rule of `_RULES`."""
    numbers = np.array([_number(value) for value in table[name]])
    bad = ~_RULES[rule](numbers)
    if bad.any():
        row = int(np.argmax(bad))
        shown = printable(str(table[name][row]), 30)
        raise InputError(f"{path}, row {row + 1}, {printable(name, 60)}: must be {rule}, got {shown!r}")
    return numbers


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return np.nan


def csv_header(path: Path) -> list[str]:
    """The names of the columns of a CSV file."""
    with csv_rows(path) as rows:
        return next(rows, [])


def _csv(path: Path) -> tuple[list[str], list[list[Any]]]:
    with csv_rows(path) as reader:
        names = next(reader, [])
        rows = [row for row in reader if row]
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise InputError(f"{path}, row {number}: has {len(row)} fields where the header has {len(names)}")
    return names, [[row[k] for row in rows] for k in range(len(names))]


def _parquet(path: Path) -> tuple[list[str], list[list[Any]]]:
    try:
        import pyarrow  # type: ignore[import-untyped]
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError(f"{path}: Parquet needs pyarrow: pip install 'blindcal[parquet]'") from None
    try:
        zipped = path.suffix == ".gz"
        source = pyarrow.BufferReader(gzip.decompress(path.read_bytes())) if zipped else path
        table = parquet.read_table(source)
    except pyarrow.ArrowException as error:
        raise InputError(f"{path}: is not a Parquet file ({printable(str(error), 200)})") from None
    except UNREADABLE as error:
        raise InputError(f"{path}: {unreadable(error)}") from None
    return table.column_names, [
        list(map(as_text, column.to_pylist())) if pyarrow.types.is_binary(column.type) else column.to_pylist()
        for column in table.columns
    ]
