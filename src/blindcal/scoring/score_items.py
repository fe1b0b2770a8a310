"""Score files: the probabilities that an audit has to estimate, written batch by batch, surviving a crash.

The help of ``blindcal score`` lists the columns.
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

import numpy as np
from scipy.special import expit, logsumexp

from blindcal.atomic_write import make_folder, write_file, writing
from blindcal.endpoints import tokens
from blindcal.errors import InputError
from blindcal.items.catalogue import open_items
from blindcal.items.score_files import ASKED, LOGIT, asked_of
from blindcal.records import Item, Targets, Token
from blindcal.scoring.hf import HfModel, HfSettings, Score, in_order
from blindcal.settings import Settings

_COLUMNS = ("id", "label", "p", "p_max", "p_sum", "mass")
_CHOICE_END = ("label", "mass", "tokens", ASKED)
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
    seen = [each.logprobs for batch in model.scores(islice(loaded, PILOTS), targets) for each in batch]
    writer = ScoreWriter(out, prefer(targets, seen), digests, words)
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
    """Appends rows to a score file, which is continued if it exists; a row that a crash cut off is dropped.

    ``digests`` are the :func:`prompt_digests` of all items to score, and ``done`` the ids of those in the
    file. ``words`` name the columns of more than two answers. `InputError` if the file has other tokens,
    another model or other prompts.
    """

    def __init__(
        self, path: Path, targets: Targets, digests: Mapping[str, str], words: Sequence[str] = ()
    ) -> None:
        self.path, self.targets, self._digests = path, targets, digests
        self._header = _header(targets, words)
        content = path.read_bytes() if path.is_file() else b""
        content = content[: content.rfind(b"\n") + 1]
        rows = self._rows(content) if content else []
        if any(digests.get(row[0], row[-1]) != row[-1] for row in rows):
            raise InputError(f"{path}: was scored with another model, prompt or label", remedy=_START_ANEW)
        self.done = {row[0] for row in rows}
        make_folder(path.parent)
        with writing(path), path.open("r+b" if content else "wb") as file:
            file.truncate(len(content))
            file.write(b"" if content else _lines([self._header]))

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
        rows = sorted(self._rows(self.path.read_bytes()), key=lambda row: place.get(row[0], len(place)))
        write_file(self.path, _lines([self._header, *rows]))

    def _rows(self, content: bytes) -> list[list[str]]:
        try:
            header, *rows = csv.reader(io.StringIO(content.decode(), newline=""))
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{self.path}: is not a score file ({error})") from None
        other = self.targets.answers and any(row[-2] != _ids(self.targets) for row in rows)
        if header != self._header or any(len(row) != len(header) for row in rows) or other:
            raise InputError(
                f"{self.path}: is not a score file, or was scored for other answer tokens", remedy=_START_ANEW
            )
        return rows


def _header(targets: Targets, words: Sequence[str]) -> list[str]:
    if targets.answers:
        return ["id", *(f"{LOGIT}{word.strip()}" for word in words), *_CHOICE_END]
    return [*_COLUMNS, *(f"{token.text}|{token.id}" for token in in_order(targets)), ASKED]


def _ids(targets: Targets) -> str:
    return " ".join(str(side[0].id) for side in targets.answers)


def _row(targets: Targets, score: Score) -> list[str]:
    p = (f"{expit(s):.10g}" for s in log_odds(targets, score.logprobs))
    logprobs = (f"{value:.7g}" for value in score.logprobs)
    return [score.item.id, str(score.item.label), *p, f"{score.mass:.7g}", *logprobs]


def _choice_row(targets: Targets, score: Score) -> list[str]:
    item = score.item
    shown = [f"{value:.7g}" if number < item.choices else "" for number, value in enumerate(score.logprobs)]
    return [item.id, *shown, str(item.label), f"{score.mass:.7g}", _ids(targets)]


def _lines(rows: Iterable[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
