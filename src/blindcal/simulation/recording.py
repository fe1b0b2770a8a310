"""Recordings of a model whose logits were visible, to be asked again as a black box."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from blindcal.errors import InputError
from blindcal.items.score_files import PROBABILITY, Table, is_choice_file, read_choices, stem
from blindcal.records import INVALID, FloatArray, IntArray, Round, Targets, Token
from blindcal.text import spoken

# Puts unrecorded tokens, which a client may still bias, far below recorded ones.
UNRECORDED_GAP = 12.0
# A p of exactly 0 or 1 was rounded: the largest double below 1 has log-odds of 36.7. No bias in the usual
# range could flip larger log-odds, and the endpoint would look clamped.
_LARGEST_LOG_ODDS = 40.0
_OFFSET = 50.0  # METHOD 2's C


@dataclass(frozen=True, slots=True, repr=False)
class Recording:
    """Logits of a few answer tokens per item, and the weight of the rest of the vocabulary.

    ``logits`` has a row per item and a column per token; ``rest`` is the log-sum-exp of all other tokens.
    ``others_first`` is the id of the likeliest token if it is one of those, else 0. More than two ``choices``
    have one token each.
    """

    name: str
    ids: tuple[str, ...]
    tokens: tuple[Token, ...]
    logits: FloatArray
    rest: FloatArray
    others_first: IntArray
    choices: int = 2

    def __repr__(self) -> str:
        return f"Recording({self.name!r}, {len(self.ids):,} items, {len(self.tokens)} tokens)"

    @classmethod
    def from_probabilities(
        cls,
        ids: Sequence[str],
        p: FloatArray,
        *,
        name: str = "replay",
        positive: str = "Yes",
        negative: str = "No",
    ) -> Recording:
        """A model with two answer tokens, ids 1 and 2, and little else; ``p`` is for the positive one."""
        p = np.asarray(p, float)
        if p.shape != (len(ids),) or not np.all((p >= 0) & (p <= 1)):
            raise InputError("p must be one probability in [0, 1] for each id")
        with np.errstate(divide="ignore"):
            odds = np.clip(np.log(p) - np.log1p(-p), -_LARGEST_LOG_ODDS, _LARGEST_LOG_ODDS)
        return cls.of_choices(ids, np.column_stack([odds / 2, -odds / 2]), (positive, negative), name=name)

    @classmethod
    def of_choices(
        cls, ids: Sequence[str], logits: FloatArray, answers: Sequence[str], *, name: str = "replay"
    ) -> Recording:
        """A model with a token per answer, ids from 1; answers with a logit of -inf are hardly ever given."""
        logits = np.asarray(logits, float)
        if logits.shape != (len(ids), len(answers)):
            raise InputError("logits must have a row for each id and a column for each answer")
        best = logits.max(axis=1, keepdims=True)
        logits = np.maximum(logits, best - _LARGEST_LOG_ODDS)
        tokens = tuple(Token(number, text) for number, text in enumerate(answers, 1))
        rest, others_first = best[:, 0] - UNRECORDED_GAP, np.zeros(len(ids), np.int64)
        return cls(name, tuple(ids), tokens, logits, rest, others_first, len(answers))

    @classmethod
    def load(cls, path: Path, *, positive: str = "Yes", negative: str = "No") -> Recording:
        """Read a score file, a logit file with lse and argmax (or mass), or a choice file."""
        if is_choice_file(path):
            scores = read_choices(path)
            return cls.of_choices(scores.ids, scores.logits, scores.answers, name=stem(path))
        table = Table.read(path)
        if "p" not in table:
            return cls.of_logits(table)
        p = table.numbers("p", PROBABILITY)
        return cls.from_probabilities(table.ids, p, name=stem(path), positive=positive, negative=negative)

    @classmethod
    def of_logits(cls, table: Table) -> Recording:
        """Read logits beside lse and argmax, or beside mass, as ``blindcal score`` writes them."""
        if not table.spelled:
            raise InputError(
                f"{table.path}: must have a column p, or logits named 'text|token id' beside lse and argmax"
            )
        tokens, logits = table.logits()
        if "mass" in table:
            lse, mass = np.zeros(len(logits)), table.numbers("mass")
            others_first = np.zeros(len(logits), np.int64)  # the likeliest token is not recorded
        else:
            lse = table.numbers("lse")
            mass = np.exp(logits - lse[:, None]).sum(axis=1)
            argmax = table.numbers("argmax").astype(np.int64)
            others_first = np.where(np.isin(argmax, [token.id for token in tokens]), 0, argmax)
        rest = lse + np.log(np.maximum(1 - mass, 1e-12))
        return cls(stem(table.path), table.ids, tokens, logits, rest, others_first)

    def answers(self, asked: Round, targets: Targets, draws: FloatArray, *, biased: bool = True) -> IntArray:
        """Answer a round exactly as a replay would; ``draws`` in [0, 1) decide sampled answers."""
        columns = {token.id: column for column, token in enumerate(self.tokens)}
        candidates = np.empty((len(asked), len(self.tokens) + 1))
        candidates[:, :-1] = self.logits[asked.items]
        rest = self.rest[asked.items]
        others_first = self.others_first[asked.items] > 0
        greedy = np.where(others_first, rest, np.minimum(rest, candidates[:, :-1].max(axis=1) - 1e-3))
        cold = asked.temperatures == 0
        candidates[:, -1] = np.where(cold, greedy, rest)
        if biased:
            for side, added in zip(targets.by_answer, _added(asked, targets), strict=True):
                for token in side:
                    candidates[:, columns[token.id]] += added
        chosen = np.empty(len(asked), np.int64)
        chosen[cold] = candidates[cold].argmax(axis=1)
        chosen[~cold] = drawn(candidates[~cold], asked.temperatures[~cold], draws[~cold])
        words = {
            spoken(token.text): number for number, side in enumerate(targets.by_answer) for token in side
        }
        meaning = [words.get(spoken(token.text), INVALID) for token in self.tokens]
        return np.array([*meaning, INVALID])[chosen]


def _added(asked: Round, targets: Targets) -> list[FloatArray]:
    if not targets.answers:
        return [np.full(len(asked), _OFFSET), _OFFSET + asked.shifts]
    if asked.biases is None:
        return [np.full(len(asked), _OFFSET)] * len(targets.answers)
    return [np.where(np.isfinite(bias), _OFFSET + bias, 0.0) for bias in asked.biases.T]


@dataclass(frozen=True, slots=True, repr=False)
class RecordedTexts:
    """Answers by item id of a model that was asked to state its confidence."""

    texts: Mapping[str, str]
    words: tuple[str, ...]

    def __repr__(self) -> str:
        return f"RecordedTexts({len(self.texts):,} answers)"

    @classmethod
    def load(cls, path: Path, words: tuple[str, ...]) -> RecordedTexts:
        """Read a table of ``id,text``."""
        table = Table.read(path)
        return cls(dict(zip(table.ids, map(str, table["text"]), strict=True)), words)


def drawn(candidates: FloatArray, temperatures: FloatArray, draws: FloatArray) -> IntArray:
    """The column sampled in each row: the first whose cumulative weight reaches the draw."""
    best = candidates.max(axis=1, keepdims=True)
    weights = np.cumsum(np.exp((candidates - best) / temperatures[:, None]), axis=1)
    reached = weights >= (draws * weights[:, -1])[:, None]
    return np.asarray(reached.argmax(axis=1), dtype=np.int64)
