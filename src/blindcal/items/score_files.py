"""Score files: known probabilities of a model on labelled items, in any format of item files.

A score file has the columns id, label and p. A logit file has a column ``text|token id`` per spelling of an
answer word, from which all probabilities follow (METHOD 1). A choice file has a column ``logit_<answer>`` for
each of more than two answers (METHOD 8). Files from ``blindcal score`` also identify prompt and model in the
column ``asked`` (`asked_of`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from scipy.special import expit, logsumexp

from blindcal.errors import InputError
from blindcal.items.record_files import numbered_records
from blindcal.records import FloatArray, IntArray, Item, Semantics, Targets, Token
from blindcal.text import printable, spoken

#: Answer words to look for in a logit file by default.
WORDS = (("True", "False"), ("Yes", "No"))
ASKED = "asked"
LOGIT = "logit_"
"""Prefix of the logit columns of a choice file; the answer follows."""
_ENDING = re.compile(r"(\.(csv|tsv|jsonl?|ndjson|parquet|eval))?(\.gz)?$")
_SEMANTICS: dict[str, Semantics] = {"p": "pair", "p_max": "max", "p_sum": "sum"}
LABEL, PROBABILITY = "0 or 1", "a number in [0, 1]"
_RULES: dict[str, Callable[[FloatArray], Any]] = {
    LABEL: lambda numbers: np.isin(numbers, (0.0, 1.0)),
    PROBABILITY: lambda numbers: (numbers >= 0) & (numbers <= 1),
    "a number": np.isfinite,
}


@dataclass(frozen=True, slots=True)
class Table:
    """The columns of a file by name, with unconverted values."""

    path: Path
    columns: dict[str, list[Any]]

    @classmethod
    def read(cls, path: Path) -> Self:
        if not path.exists():
            raise InputError(f"{path}: no such file")
        columns: dict[str, list[Any]] = {}
        for where, record in numbered_records(path):
            columns = columns or {name: [] for name in record}
            for name, column in columns.items():
                if name not in record:
                    raise InputError(f"{path}, {where}: lacks the field {printable(name, 40)!r}")
                column.append(record[name])
        if not columns:
            raise InputError(f"{path}: holds no rows")
        return cls(path, columns)

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> list[Any]:
        if name not in self.columns:
            raise InputError(f"{self.path}: has no column {name!r}, only {self.names}")
        return self.columns[name]

    @property
    def names(self) -> str:
        return ", ".join(printable(name, 30) for name in self.columns)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids, or row numbers if there are none."""
        size = len(next(iter(self.columns.values())))
        return tuple(map(str, self.columns.get("id", range(size))))

    @property
    def asked(self) -> tuple[str, ...]:
        """The `asked_of` of each row, if the file has it."""
        return tuple(map(str, self.columns.get(ASKED, ())))

    @property
    def spelled(self) -> tuple[str, ...]:
        """The columns with the logits of a spelling."""
        return tuple(name for name in self.columns if "|" in name)

    def check(self, name: str, good: Any, rule: str) -> None:
        if not good.all():
            row = int(np.argmin(good))
            shown = printable(str(self[name][row]), 30)
            raise InputError(
                f"{self.path}, row {row + 1}, {printable(name, 60)}: must be {rule}, got {shown!r}"
            )

    def numbers(self, name: str, rule: str = "a number") -> FloatArray:
        """A column as numbers that satisfy a rule."""
        numbers = np.array([_number(value) for value in self[name]])
        self.check(name, _RULES[rule](numbers), rule)
        return numbers

    def labels(self) -> IntArray:
        return self.numbers("label", LABEL).astype(np.int64)

    def logits(self) -> tuple[tuple[Token, ...], FloatArray]:
        """The tokens and logits of all columns named ``text|token id``."""
        tokens = []
        for name in self.spelled:
            text, _, number = name.rpartition("|")
            if not number.isdecimal():
                raise InputError(f"{self.path}: column {printable(name, 60)!r} is not named 'text|token id'")
            tokens.append(Token(int(number), text))
        return tuple(tokens), np.column_stack([self.numbers(name) for name in self.spelled])


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Ids, labels and probabilities in the order of a file; ``column`` says which probabilities.

    A logit file has ``tokens`` and their ``logits``, a column each; ``asked`` is the `asked_of` of each row.
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
        """Recompute the probabilities for exactly these tokens; unchanged if the file lacks their logits."""
        if self.logits is None or not {*targets.positive, *targets.negative} <= set(self.tokens):
            return self
        p = answer_probabilities(self.tokens, self.logits, targets)
        return replace(self, p=p, column=_described(targets))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceScores:
    """Ids, labels (numbers of the right answers) and logits of a choice file, in its order.

    ``logits`` has a column per answer, minus infinity for answers that an item lacks.
    """

    path: str
    ids: tuple[str, ...]
    labels: IntArray
    logits: FloatArray
    answers: tuple[str, ...]
    asked: tuple[str, ...] = ()

    @property
    def choices(self) -> IntArray:
        return np.asarray(np.isfinite(self.logits).sum(axis=1), np.int64)


def prompt_digest(item: Item) -> str:
    asked = [item.label, *((message.role, message.content) for message in item.messages)]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]


def asked_of(item: Item, model: str) -> str:
    """Identify what was asked of which model: the `prompt_digest`, a space, and the model."""
    return f"{prompt_digest(item)} {model}"


def read_scores(path: Path, column: str = "p", words: tuple[str, ...] | None = None) -> Scores:
    """Read a score or logit file; ids are row numbers if it has none.

    ``column`` is p, p_max or p_sum (METHOD 1: pair, max or sum): computed for a logit file, and p if a score
    file lacks it. ``words`` are the positive and the negative answer word of a logit file, by default the
    first pair of `WORDS` in it.
    """
    table = Table.read(path)
    wanted = column if column in table else "p"
    for name in ("label", *(() if table.spelled else (wanted,))):
        if name not in table:
            raise InputError(
                f"{path}: must have the columns id, label and p; lacks {name}, has {table.names} "
                "(logits, instead of p, go in columns named 'text|token id')"
            )
    known = partial(Scores, path=str(path), ids=table.ids, labels=table.labels(), asked=table.asked)
    if wanted in table:
        return known(p=table.numbers(wanted, PROBABILITY), column=wanted)
    tokens, logits = table.logits()
    targets = answers_in(path, tokens, words)
    targets = targets if column == "p" else every_spelling(tokens, targets, _SEMANTICS[column])
    p = answer_probabilities(tokens, logits, targets)
    return known(p=p, column=_described(targets), tokens=tokens, logits=logits)


def is_choice_file(path: Path) -> bool:
    """Whether a file has the logits of several answers, for `read_choices`."""
    _, first = next(numbered_records(path), ("", {}))
    return sum(name.startswith(LOGIT) for name in first) > 1


def read_choices(path: Path) -> ChoiceScores:
    """Read a choice file; ids are row numbers if it has none.

    A label is the name of the right answer, or its number from 0 in the order of the columns. A logit that is
    empty, NaN or minus infinity means that the item lacks this answer, and all after it.
    """
    table = Table.read(path)
    columns = [name for name in table.columns if name.startswith(LOGIT)]
    answers = tuple(name.removeprefix(LOGIT) for name in columns)
    if "label" not in table or len(columns) < 2 or "" in answers:
        raise InputError(
            f"{path}: must have the columns id, label, and logit_<answer> for each answer; has {table.names}"
        )
    logits = np.column_stack([_choice_logits(table, name) for name in columns])
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
    labels = _choice_labels(table, answers)
    foreign = ~there[np.arange(labels.size), labels]
    if foreign.any():
        row = int(np.argmax(foreign))
        name = printable(columns[labels[row]], 60)
        raise InputError(f"{path}, row {row + 1}, {name}: must be a number, since the label is this answer")
    return ChoiceScores(
        path=str(path), ids=table.ids, labels=labels, logits=logits, answers=answers, asked=table.asked
    )


def _choice_logits(table: Table, name: str) -> FloatArray:
    missing = np.array([value is None or str(value).strip().lower() in ("", "nan") for value in table[name]])
    numbers = np.array([_number(value) for value in table[name]])
    rule = "a number, or empty if the item does not have this answer"
    table.check(name, missing | (~np.isnan(numbers) & (numbers != np.inf)), rule)
    return np.where(missing, -np.inf, numbers)


def _choice_labels(table: Table, answers: tuple[str, ...]) -> IntArray:
    texts = [str(value).strip().removesuffix(".0") for value in table["label"]]
    numbers = tuple(map(str, range(len(answers))))
    counted, named = (all(text in names for text in texts) for names in (numbers, answers))
    for row, text in enumerate(texts if counted and named else ()):
        if numbers.index(text) != answers.index(text):
            raise InputError(
                f"{table.path}, row {row + 1}, label: {printable(text, 30)!r} may be an answer or the number "
                "of another; name the columns with letters, such as logit_A"
            )
    names = numbers if counted or (not named and texts[0] in numbers) else answers
    rule = f"a number from 0 to {len(answers) - 1} or one of {printable(', '.join(map(repr, answers)), 200)}"
    table.check("label", np.array([text in names for text in texts]), rule)
    return np.array([names.index(text) for text in texts], np.int64)


def stem(path: Path) -> str:
    """The file name without the endings of its format; other dots stay."""
    return _ENDING.sub("", path.name)


def answers_in(path: Path, tokens: Sequence[Token], words: tuple[str, ...] | None = None) -> Targets:
    """The two tokens spelled exactly like the answer words."""
    pairs = WORDS if words is None else (words,)
    by_text = {token.text: token for token in reversed(tokens)}
    for positive, negative in pairs:
        if positive in by_text and negative in by_text:
            return Targets((by_text[positive],), (by_text[negative],))
    spellings = ", ".join(repr(token.text) for token in tokens)
    named = " or ".join(f"{positive} and {negative}" for positive, negative in pairs)
    raise InputError(
        f"{path}: no columns for {printable(named, 80)}",
        remedy=f"name the words with {{answers}}, among {printable(spellings, 200)}",
        options={"answers": ...},
    )


def every_spelling(tokens: Sequence[Token], targets: Targets, semantics: Semantics) -> Targets:
    """Extend targets to every recorded spelling of their two words."""
    positive, negative = (
        tuple(token for token in tokens if spoken(token.text) == spoken(side[0].text))
        for side in (targets.positive, targets.negative)
    )
    return Targets(positive, negative, semantics)


def answer_probabilities(tokens: Sequence[Token], logits: FloatArray, targets: Targets) -> FloatArray:
    """Hidden probability of the positive answer (METHOD 1); ``logits`` has a column per token."""
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


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return np.nan
