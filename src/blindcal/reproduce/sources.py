"""Sources of the table: recorded probabilities of a model on a data set, from score or logit files.

Files are named ``MODEL__DATASET.csv`` or, for example, ``MODEL__DATASET__logits.csv.gz``; only the model's
name may contain two underscores. Stated confidences are read from ``MODEL__DATASET__verbalized.csv`` in the
same folder, if it exists, with the columns id, label and text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from blindcal.endpoints.free_text import parse_verbalized
from blindcal.errors import InputError
from blindcal.items.record_files import has_reader
from blindcal.items.score_files import (
    WORDS,
    Table,
    answer_probabilities,
    answers_in,
    every_spelling,
    is_choice_file,
    read_scores,
    stem,
)
from blindcal.records import INVALID, AnswerTable, FloatArray, IntArray, Semantics, Targets, Token
from blindcal.simulation.recording import Recording

_VERBALIZED = "__verbalized"


@dataclass(frozen=True)
class RecordedConfidence:
    """The confidences that a model stated in words; NaN if unreadable."""

    labels: IntArray
    p: FloatArray

    @property
    def answers(self) -> AnswerTable:
        """One answer per item, invalid if it states no confidence."""
        answers = np.where(np.isfinite(self.p), self.p >= 0.5, INVALID).astype(np.int64)
        zeros = np.zeros(self.p.size)
        return AnswerTable(np.arange(self.p.size), zeros, zeros, answers, stated=self.p)


@dataclass(frozen=True, kw_only=True, repr=False)
class Source:
    """A model on a data set, with everything that was recorded.

    ``targets`` are the tokens asked about: one per side under pair semantics, else all spellings. ``p`` is
    the probability if the file has no logits.
    """

    model: str
    data: str
    labels: IntArray
    recording: Recording
    targets: Targets
    p: FloatArray | None = None
    stated: RecordedConfidence | None = None

    @property
    def name(self) -> str:
        return f"{self.model} {self.data}"

    @property
    def n(self) -> int:
        return int(self.labels.size)

    def probabilities(self, semantics: Semantics) -> FloatArray:
        """Hidden probability of the positive answer (METHOD 1)."""
        if self.p is not None:
            return self.p
        targets = self.targets if semantics == "pair" else self.spelled(semantics).targets
        return answer_probabilities(self.recording.tokens, self.recording.logits, targets)

    def spelled(self, semantics: Semantics) -> Source:
        """The same source with every recorded spelling of its two words as a target."""
        return replace(self, targets=every_spelling(self.recording.tokens, self.targets, semantics))


def from_probabilities(model: str, data: str, labels: IntArray, p: FloatArray) -> Source:
    recording = Recording.from_probabilities([str(k) for k in range(labels.size)], p, name=model)
    targets = Targets((Token(1, "Yes"),), (Token(2, "No"),))
    return Source(model=model, data=data, labels=labels, recording=recording, targets=targets, p=p)


def find(paths: Sequence[Path]) -> list[Path]:
    """The score and logit files among these files and folders."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = (file for file in sorted(path.iterdir()) if has_reader(file))
            files += [file for file in inside if _VERBALIZED not in file.name]
        elif path.exists():
            files.append(path)
        else:
            raise InputError(f"{path}: no such file or folder; give score files (id,label,p) or logit files")
    if not files:
        raise InputError(f"no score or logit files in {', '.join(map(str, paths))}")
    return files


def read(path: Path, words: tuple[str, str] | None = None) -> Source:
    """Read a file; the answer words are by default the file's own."""
    model, data = names(path)
    if is_choice_file(path):
        raise InputError(f"{path}: has more answers than two: compare methods on it by 'blindcal simulate'")
    table = Table.read(path)
    if not table.spelled:
        scores = read_scores(path)
        source = from_probabilities(model, data, scores.labels, scores.p)
    else:
        recording = Recording.of_logits(table)
        if "mass" in table:  # as `blindcal score` writes it: the pair comes first
            targets = Targets(recording.tokens[:1], recording.tokens[1:2])
        else:
            targets = answers_in(path, recording.tokens, words)
        source = Source(model=model, data=data, labels=table.labels(), recording=recording, targets=targets)
    own = tuple(word.strip() for word in source.targets.words)
    return replace(source, stated=_stated(path, (own, *WORDS) if words is None else (words,)))


def names(path: Path) -> tuple[str, str]:
    """Model and data set in a file name, split at the last ``__``: models may be ORGANISATION__MODEL."""
    model, _, data = stem(path).removesuffix("__logits").rpartition("__")
    return (model, data) if model else (data, "items")


def _stated(path: Path, words: Sequence[tuple[str, ...]]) -> RecordedConfidence | None:
    model, data = names(path)
    possible = (path.with_name(f"{model}__{data}{_VERBALIZED}{end}") for end in (".csv.gz", ".csv"))
    beside = next((file for file in possible if file.exists() and file != path), None)
    if beside is None:
        return None
    table = Table.read(beside)
    positive, negative = zip(*dict.fromkeys(words), strict=True)
    stated = (parse_verbalized(str(text), positive, negative).p for text in table["text"])
    return RecordedConfidence(table.labels(), np.array([np.nan if p is None else p for p in stated]))
