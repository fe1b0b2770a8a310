"""Sources of the table: a model's recorded probabilities on a data set, from a score or logit file.

A file is named ``MODEL__DATASET.csv`` or, for example, ``MODEL__DATASET__logits.csv.gz``. The model's name
may contain two underscores, the data set's may not. A score file has the columns id, label and p; a logit
file has lse, argmax and a column ``text|token id`` per spelling. Stated confidences are read from
``MODEL__DATASET__verbalized.csv`` in the same folder, if it exists, with the columns id, label and text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from blindcal.endpoints.verbalized import parse_verbalized
from blindcal.errors import InputError
from blindcal.items.score_files import (
    ENDINGS,
    WORDS,
    Table,
    answer_probabilities,
    answers_in,
    every_spelling,
    is_choice_file,
    read_choices,
    read_scores,
    read_table,
    stem,
    token_of,
)
from blindcal.records import (
    INVALID,
    NEGATIVE,
    POSITIVE,
    AnswerTable,
    FloatArray,
    IntArray,
    Semantics,
    Targets,
    Token,
)
from blindcal.simulation.recording import Recording
from blindcal.text import printable

_VERBALIZED = "__verbalized"


@dataclass(frozen=True)
class RecordedConfidence:
    """The confidences that a model stated in words; NaN if none could be read."""

    labels: IntArray
    p: FloatArray

    @property
    def answers(self) -> AnswerTable:
        """The answers, one per item; those that state no confidence are invalid."""
        side = np.where(self.p >= 0.5, POSITIVE, NEGATIVE)
        answers = np.where(np.isfinite(self.p), side, INVALID).astype(np.int64)
        nothing = np.zeros(self.p.size)
        return AnswerTable(np.arange(self.p.size), nothing, nothing, answers, self.p)


@dataclass(frozen=True, repr=False)
class Source:
    """One model on one data set, with everything that was recorded.

    ``targets`` are the tokens that are asked about: one per side under pair semantics, else all spellings.
    ``p`` is the probability, if the file has that instead of logits. ``choices`` is the number of answers of
    each item, if there are more than two.
    """

    model: str
    data: str
    labels: IntArray
    recording: Recording
    targets: Targets
    p: FloatArray | None = None
    stated: RecordedConfidence | None = None
    choices: IntArray | None = None

    def __repr__(self) -> str:
        return f"Source({self.name!r}, {self.n:,} items)"

    @property
    def name(self) -> str:
        """The model and the data set."""
        return f"{self.model} {self.data}"

    @property
    def n(self) -> int:
        """Number of items."""
        return int(self.labels.size)

    def probabilities(self, semantics: Semantics) -> FloatArray:
        """The hidden probability of the positive answer (METHOD 1)."""
        if self.p is not None:
            return self.p
        every = self.targets if semantics == "pair" else self.spelled(semantics).targets
        return answer_probabilities(self.recording.tokens, self.recording.logits, every)

    def spelled(self, semantics: Semantics) -> Source:
        """The same source with every recorded spelling of its two words as a target."""
        return replace(self, targets=every_spelling(self.recording.tokens, self.targets, semantics))


def from_probabilities(model: str, data: str, labels: IntArray, p: FloatArray) -> Source:
    """A source of known probabilities."""
    ids = [str(k) for k in range(labels.size)]
    recording = Recording.from_probabilities(ids, p, name=model)
    return Source(model, data, labels, recording, Targets((Token(1, "Yes"),), (Token(2, "No"),)), p=p)


def find(paths: Sequence[Path]) -> list[Path]:
    """The score and logit files among files and folders; an error if there is none."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = [one for one in sorted(path.iterdir()) if one.name.endswith(ENDINGS)]
            found += [one for one in inside if _VERBALIZED not in one.name]
        elif path.exists():
            found.append(path)
        else:
            raise InputError(f"{path}: no such file or folder; give score files (id,label,p) or logit files")
    if not found:
        raise InputError(f"no .csv, .csv.gz or .parquet file in {', '.join(map(str, paths))}")
    return found


def read(path: Path, *, positive: str | None = None, negative: str | None = None) -> Source:
    """Read a file; by default, the answer words are those of the file."""
    words = (positive, negative) if positive and negative else None
    model, data = names(path)
    if is_choice_file(path):
        return _read_choices(path, model, data)
    table = read_table(path)
    if not any("|" in name for name in table):
        scores = read_scores(path)
        source = from_probabilities(model, data, scores.labels, scores.p)
    else:
        labels = _labels(path, table)
        if "mass" in table:  # as `blindcal score` writes it: the pair comes first
            recording = _scored(path, table)
            targets = Targets(recording.tokens[:1], recording.tokens[1:2])
        else:
            recording = Recording.load(path)
            targets = answers_in(path, recording.tokens, words)
        source = Source(model, data, labels, recording, targets)
    own = source.targets.positive[0].text.strip(), source.targets.negative[0].text.strip()
    return replace(source, stated=_read_stated(path, (own, *WORDS) if words is None else (words,)))


def _read_choices(path: Path, model: str, data: str) -> Source:
    """Read the logits of several answers; two of them are a source of probabilities like any other."""
    known = read_choices(path)
    if known.logits.shape[1] == 2:
        return from_probabilities(model, data, known.labels, expit(known.logits[:, 1] - known.logits[:, 0]))
    recording = Recording.of_choices(known.ids, known.logits, known.answers, name=model)
    targets = Targets((), (), answers=tuple((token,) for token in recording.tokens))
    return Source(model, data, known.labels, recording, targets, choices=known.choices)


def names(path: Path) -> tuple[str, str]:
    """The model and the data set in the name of a file.

    The last double underscore separates them: models are often called ORGANISATION__MODEL.
    """
    model, _, data = stem(path).removesuffix("__logits").rpartition("__")
    return (model, data) if model else (data, "items")


def _scored(path: Path, table: Table) -> Recording:
    """A recording of the logprobs of every spelling, and of their mass."""
    spelled = [name for name in table if "|" in name]
    tokens = tuple(token_of(path, name) for name in spelled)
    try:
        mass = np.array(_column(path, table, "mass"), dtype=np.float64)
        logprobs = np.array([table[name] for name in spelled], dtype=np.float64).T.copy()
    except ValueError as error:
        raise InputError(f"{path}: not what 'blindcal score' writes ({error})") from None
    rest = np.log(np.maximum(1 - mass, 1e-12))
    unseen = np.zeros(rest.size, np.int64)  # whether another token is likelier is not recorded
    ids = tuple(map(str, _column(path, table, "id")))
    return Recording(stem(path), ids, tokens, logprobs, rest, unseen)


def _column(path: Path, table: Table, name: str) -> list[Any]:
    if name not in table:
        raise InputError(f"{path}: lacks the column {name!r}")
    return table[name]


def _labels(path: Path, table: Table) -> IntArray:
    labels = _column(path, table, "label")
    wrong = next((value for value in labels if value not in ("0", "1", 0, 1)), None)
    if wrong is not None:
        raise InputError(f"{path}: label must be 0 or 1, got {printable(str(wrong), 30)!r}")
    return np.array(labels, dtype=np.int64)


def _read_stated(path: Path, words: tuple[tuple[str, str], ...]) -> RecordedConfidence | None:
    """Read the stated confidences, if there is a file of them; ``words`` are the possible answer words."""
    model, data = names(path)
    possible = (path.with_name(f"{model}__{data}{_VERBALIZED}{end}") for end in (".csv.gz", ".csv"))
    beside = next((one for one in possible if one.exists() and one != path), None)
    if beside is None:
        return None
    table = read_table(beside)
    positive, negative = zip(*dict.fromkeys(words), strict=True)
    texts = map(str, _column(beside, table, "text"))
    stated = [parse_verbalized(text, positive, negative).p for text in texts]
    return RecordedConfidence(_labels(beside, table), np.array([np.nan if p is None else p for p in stated]))
