"""Score files: the probabilities that an audit has to estimate, written batch by batch, surviving a crash.

For two answers, its columns are ``id``, ``label``, ``p`` (pair semantics: the first spellings), ``p_max`` and
``p_sum`` (all spellings; METHOD 1), ``mass`` (the share of all probability on the targets), the logprob of
each target as ``text|token id``, the pair first, and ``asked``. For more, it is a choice file with ``id``,
the logprobs as ``logit_<answer>`` (empty if the item lacks the answer), ``label`` (from 0), ``mass``,
``tokens`` (ids) and ``asked``, a digest of prompt and model: a file is continued only with the same ones, and
``audit --oracle`` checks them.
"""

from __future__ import annotations

import asyncio
import csv
import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Self

import numpy as np
from scipy.special import expit, logsumexp

from blindcal.atomic_write import atomic_write, make_folder, writing
from blindcal.endpoints import tokens
from blindcal.errors import InputError
from blindcal.items.catalogue import open_items
from blindcal.items.score_files import ASKED, LOGIT, asked_of
from blindcal.records import Item, Targets, Token
from blindcal.scoring.hf import HfModel, HfSettings, Score, in_order
from blindcal.settings import Settings

_COLUMNS = ("id", "label", "p", "p_max", "p_sum", "mass")
_TOKENS = "tokens"
_CHOICE_END = ("label", "mass", _TOKENS, ASKED)
PILOTS = 4  # items whose scores show which spelling the model prefers
_START_ANEW = "choose another file, or remove it"


def score_items(
    items: str | Path,
    settings: Settings,
    out: Path,
    how: HfSettings,
    *,
    first: int | None = None,
    progress: Callable[[int, int], None],
) -> ScoreWriter:
    """Write the probability of the positive answer of each item; an existing file is continued.

    More than two answers make it a choice file, with the logprob of each. ``first`` limits the number of
    items. ``progress`` is called with the number of items scored so far and the total.
    """
    loaded = open_items(items, settings.prompt)
    settings = settings.resolved(len(loaded), loaded.words)
    words = settings.answer_words
    digests = prompt_digests(islice(loaded, first), f"{settings.endpoint.model} {how.dtype}")
    model = HfModel(settings.endpoint.model, how)
    targets = _targets(model, settings)
    writer = ScoreWriter.resume(out, targets, digests, words)
    if writer is None:
        pilots = islice(loaded, min(PILOTS, len(digests)))
        seen = [each.logprobs for batch in model.scores(pilots, targets) for each in batch]
        writer = ScoreWriter.create(out, prefer(targets, seen), digests, words)
    progress(len(writer.done), len(digests))
    todo = (item for item in islice(loaded, first) if item.id not in writer.done)
    for scores in model.scores(todo, writer.targets):
        writer.add(scores)
        progress(len(writer.done), len(digests))
    writer.finish()
    return writer


def _targets(model: HfModel, settings: Settings) -> Targets:
    prompt = settings.prompt
    ids = prompt.positive_ids, prompt.negative_ids
    answers = asyncio.run(tokens.candidates_of(settings.answer_words, model.encode, ids))
    tokens.check_clashes(answers)
    return tokens.targets_of(answers, "max")


def log_odds(targets: Targets, logprobs: Sequence[float]) -> tuple[float, ...]:
    """Log-odds of the positive side under pair, max and sum semantics (METHOD 1)."""
    (first, second, *rest), more = logprobs, len(targets.positive) - 1
    positive, negative = (first, *rest[:more]), (second, *rest[more:])
    largest = max(positive) - max(negative)
    return first - second, largest, float(logsumexp(positive) - logsumexp(negative))


def prefer(targets: Targets, scores: Iterable[Sequence[float]]) -> Targets:
    """Put the spelling first that is most often the likeliest of its side, as an audit's pilot does.

    Of more than two answers, only this spelling is kept, the same for all if possible.
    """
    values, order = np.array(list(scores)), in_order(targets)

    def votes(side: Sequence[Token]) -> Counter[Token]:
        columns = [order.index(token) for token in side]
        return Counter(side[int(k)] for k in values[:, columns].argmax(axis=1))

    if targets.answers:
        chosen = Counter(token.text for side in targets.answers for token in votes(side).elements())
        return tokens.one_spelling(targets.answers, chosen)
    sides = []
    for side in (targets.positive, targets.negative):
        best = max(side, key=votes(side).__getitem__)
        sides.append((best, *(token for token in side if token != best)))
    return replace(targets, positive=sides[0], negative=sides[1])


def prompt_digests(items: Iterable[Item], model: str) -> dict[str, str]:
    """What is asked, by item id; ``model`` names the model and all else that a score depends on."""
    return {item.id: asked_of(item, model) for item in items}


class ScoreWriter:
    """Appends rows to a score file, made by :meth:`create` or continued by :meth:`resume`.

    ``done`` holds the ids of the items in the file, ``digests`` the :func:`prompt_digests` of all items to
    score. ``words`` name the columns of more than two answers.
    """

    def __init__(self, path: Path, targets: Targets, digests: Mapping[str, str], done: set[str]) -> None:
        self.path = path
        self.targets = targets
        self.done = done
        self._digests = digests

    @classmethod
    def create(
        cls, path: Path, targets: Targets, digests: Mapping[str, str], words: Sequence[str] = ()
    ) -> Self:
        make_folder(path.parent)
        with writing(path):
            path.write_bytes(_lines([_header(targets, words)]))
        return cls(path, targets, digests, set())

    @classmethod
    def resume(
        cls, path: Path, targets: Targets, digests: Mapping[str, str], words: Sequence[str] = ()
    ) -> Self | None:
        """Continue a file with the pair it was started with; ``None`` if there is none to continue.

        A row that a crash cut off is dropped. `InputError` if the tokens, the model or a prompt differ.
        """
        content = path.read_bytes() if path.is_file() else b""
        content = content[: content.rfind(b"\n") + 1]
        if not content:
            return None
        header, rows = _parse(path, content)
        if targets.answers and not rows and header == _header(targets, words):
            return None  # which tokens are the favourites is not known yet
        before = _chosen_before(targets, header, rows)
        if before is None or _header(before, words) != header:
            raise InputError(f"{path}: was scored for other answer tokens", remedy=_START_ANEW)
        if any(digests.get(row[0], row[-1]) != row[-1] for row in rows):
            raise InputError(f"{path}: was scored with another model, prompt or label", remedy=_START_ANEW)
        with writing(path), path.open("r+b") as file:
            file.truncate(len(content))
        return cls(path, before, digests, {row[0] for row in rows})

    def add(self, scores: Iterable[Score]) -> None:
        """Append rows in one write; they are on disk when this returns."""
        scores = list(scores)
        row = _choice_row if self.targets.answers else _row
        rows = ([*row(self.targets, score), self._digests[score.item.id]] for score in scores)
        with writing(self.path), self.path.open("ab") as file:
            file.write(_lines(rows))
            file.flush()
            os.fsync(file.fileno())
        self.done.update(score.item.id for score in scores)

    def finish(self) -> None:
        """Sort the rows into item order; the file is replaced atomically."""
        place = {name: k for k, name in enumerate(self._digests)}
        header, rows = _parse(self.path, self.path.read_bytes())
        rows.sort(key=lambda row: place.get(row[0], len(place)))
        with atomic_write(self.path) as draft:
            draft.write_bytes(_lines([header, *rows]))


def _chosen_before(targets: Targets, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Targets | None:
    # The file decides the order of the spellings, or the spelling of more than two answers.
    if not targets.answers:
        place = {name: k for k, name in enumerate(header)}
        positive, negative = (
            tuple(sorted(side, key=lambda token: place.get(_column_name(token), 0)))
            for side in (targets.positive, targets.negative)
        )
        return replace(targets, positive=positive, negative=negative)
    column = len(header) - len(_CHOICE_END) + _CHOICE_END.index(_TOKENS)
    (ids, *others) = {row[column] for row in rows} or {""}
    chosen = tuple(tuple(token for token in side if str(token.id) in ids.split()) for side in targets.answers)
    alike = not others and all(len(side) == 1 for side in chosen)
    return replace(targets, semantics="pair", answers=chosen) if alike else None


def _header(targets: Targets, words: Sequence[str]) -> list[str]:
    if targets.answers:
        return ["id", *(f"{LOGIT}{word.strip()}" for word in words), *_CHOICE_END]
    return [*_COLUMNS, *map(_column_name, in_order(targets)), ASKED]


def _column_name(token: Token) -> str:
    return f"{token.text}|{token.id}"


def _row(targets: Targets, score: Score) -> list[str]:
    p = (f"{expit(s):.10g}" for s in log_odds(targets, score.logprobs))
    logprobs = (f"{value:.7g}" for value in score.logprobs)
    return [score.item.id, str(score.item.label), *p, f"{score.mass:.7g}", *logprobs]


def _choice_row(targets: Targets, score: Score) -> list[str]:
    item, ids = score.item, " ".join(str(side[0].id) for side in targets.answers)
    shown = [f"{value:.7g}" if number < item.choices else "" for number, value in enumerate(score.logprobs)]
    return [item.id, *shown, str(item.label), f"{score.mass:.7g}", ids]


def _lines(rows: Iterable[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _parse(path: Path, content: bytes) -> tuple[list[str], list[list[str]]]:
    try:
        rows = list(csv.reader(io.StringIO(content.decode(), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: is not a score file ({error})") from None
    if not rows or not _is_header(rows[0]) or any(len(r) != len(rows[0]) for r in rows):
        raise InputError(f"{path}: is not a score file", remedy=_START_ANEW)
    return rows[0], rows[1:]


def _is_header(names: Sequence[str]) -> bool:
    return tuple(names[: len(_COLUMNS)]) == _COLUMNS or tuple(names[-len(_CHOICE_END) :]) == _CHOICE_END
