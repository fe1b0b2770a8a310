"""White-box probabilities: what an audit would find out, read off where the endpoint shows logprobs.

A score file has a row an item: ``id``, ``label``, ``p`` (pair semantics: the first spelling of each
side), ``p_max`` and ``p_sum`` (all spellings; METHOD 1), ``mass`` (the share of all probability that
is on the targets), the logprob of each target in a column named ``text|token id``, the pair
first, and ``asked``, a digest of the model and the prompt: a file is continued only with what it was
begun with. It is what ``simulate`` and ``audit --oracle`` read.

Endpoints show the logprobs of the few likeliest tokens, and of the answer itself. So a target that is
not among the likeliest is *forced* with ``logit_bias`` and read as the answer. That is exact where
logprobs are taken before the bias is added, as llama.cpp and vLLM do. Where they are taken after it,
all targets are raised by the same amount, which leaves their differences as they were.
"""

from __future__ import annotations

import asyncio
import csv
import hashlib
import io
import json
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal, Self

import numpy as np
from scipy.special import expit, logsumexp

from blindcal.atomic_write import atomic_write
from blindcal.endpoints.base import Endpoint
from blindcal.errors import FatalError, InputError
from blindcal.records import Item, Reply, Request, Targets, Token
from blindcal.text import printable

WIDEST = (5000, 100, 20, 5)  # as many logprobs as a server allows: llama.cpp any number, vLLM and OpenAI 20
FORCE = 100.0
RAISE = 50.0
_SAME = 1e-3
_CERTAIN = -1e-3

_COLUMNS = ("id", "label", "p", "p_max", "p_sum", "mass")
_ASKED = "asked"


@dataclass(frozen=True, slots=True)
class Score:
    """What is known of one item: logprobs in the order of :func:`in_order`, and the mass they hold."""

    id: str
    label: int
    logprobs: tuple[float, ...]
    mass: float


def in_order(targets: Targets) -> tuple[Token, ...]:
    """All target tokens, the pair (the first of each side) before the others."""
    return (targets.positive[0], targets.negative[0], *targets.positive[1:], *targets.negative[1:])


def log_odds(targets: Targets, logprobs: Sequence[float]) -> tuple[float, float, float]:
    """The log-odds of the positive side under pair, max and sum semantics (METHOD 1)."""
    values = np.asarray(logprobs, float)
    more = 2 + len(targets.positive) - 1
    positive, negative = np.r_[values[0], values[2:more]], np.r_[values[1], values[more:]]
    return (
        float(values[0] - values[1]),
        float(positive.max() - negative.max()),
        float(logsumexp(positive) - logsumexp(negative)),
    )


def prefer(targets: Targets, scores: Iterable[Sequence[float]]) -> Targets:
    """Put the spelling first that is the likeliest of its side most often, as an audit's pilots would."""
    values = np.array(list(scores))
    tokens = in_order(targets)
    sides = []
    for side in (targets.positive, targets.negative):
        columns = [tokens.index(token) for token in side]
        votes = np.bincount(values[:, columns].argmax(axis=1), minlength=len(side))
        best = int(votes.argmax())
        sides.append((side[best], *side[:best], *side[best + 1 :]))
    return replace(targets, positive=sides[0], negative=sides[1])


class Reader:
    """Reads the logprobs of targets from one endpoint; made by :meth:`open`, which finds out how."""

    def __init__(self, endpoint: Endpoint, targets: Targets, top: int, *, biased: bool) -> None:
        self.targets = targets
        self.top = top
        self.biased = biased
        self._endpoint = endpoint
        self._tokens = in_order(targets)
        self._misread: set[int] = set()

    @classmethod
    async def open(cls, endpoint: Endpoint, item: Item, targets: Targets) -> Self:
        """Find out on one item how many logprobs are shown, whether the bias shows in them, and whose.

        Raises
        ------
        FatalError
            If the endpoint shows no logprobs, or does not obey ``logit_bias``.
        """
        top, shown = await _widest(endpoint, item)
        reader = cls(endpoint, targets, top, biased=False)
        replies = [await reader._forced(item, token) for token in reader._tokens]
        own = [_own(reply) for reply in replies]
        if replies[0].text.strip() == replies[1].text.strip():
            said = printable(replies[0].text, 40)
            raise FatalError(f"logit_bias does not act: {said!r} is answered whatever token is raised")
        reader.biased = min(own) > _CERTAIN
        least = min(shown.values())
        for token, value in zip(reader._tokens, own, strict=True):
            expected = shown.get(token.text)
            if (value > least + _SAME) if expected is None else abs(value - expected) > _SAME:
                reader._misread.add(token.id)  # its text is not what the endpoint calls it
        return reader

    def ordered(self, targets: Targets) -> Reader:
        """The same reader for the same tokens in another order."""
        reader = Reader(self._endpoint, targets, self.top, biased=self.biased)
        reader._misread = self._misread
        return reader

    async def read(self, item: Item) -> Score:
        """Ask for the logprobs of every target."""
        return await (self._read_raised(item) if self.biased else self._read_raw(item))

    async def _read_raw(self, item: Item) -> Score:
        shown = _shown(await self._endpoint.ask(Request(item.messages, top_logprobs=self.top)))
        values = []
        for token in self._tokens:
            value = None if token.id in self._misread else shown.get(token.text)
            values.append(_own(await self._forced(item, token)) if value is None else value)
        return Score(item.id, item.label, tuple(values), float(np.exp(values).sum()))

    async def _read_raised(self, item: Item) -> Score:
        bias = {token.id: RAISE for token in self._tokens}
        raised = _shown(await self._endpoint.ask(Request(item.messages, bias, top_logprobs=self.top)))
        missing = [token.text for token in self._tokens if token.text not in raised]
        if missing:
            raise FatalError(
                f"{len(self._tokens)} answer tokens are wanted and {len(raised)} logprobs are shown, without "
                f"{printable(missing[0])!r}: ask for one spelling a side"
            )
        values = np.array([raised[token.text] for token in self._tokens])
        shown = _shown(await self._endpoint.ask(Request(item.messages, top_logprobs=self.top)))
        seen = [k for k, token in enumerate(self._tokens) if token.text in shown]
        if not seen:
            return Score(item.id, item.label, tuple(values.tolist()), float("nan"))
        anchor = max(seen, key=lambda k: values[k])
        values += shown[self._tokens[anchor].text] - values[anchor]
        return Score(item.id, item.label, tuple(values.tolist()), float(np.exp(values).sum()))

    async def _forced(self, item: Item, token: Token) -> Reply:
        return await self._endpoint.ask(Request(item.messages, {token.id: FORCE}, top_logprobs=1))


async def read_all(
    reader: Reader, items: Iterable[Item], *, concurrency: int = 4
) -> AsyncIterator[list[Score]]:
    """Read many items, a batch at a time in their order, with at most so many under way at once."""
    gate = asyncio.Semaphore(concurrency)

    async def one(item: Item) -> Score:
        async with gate:
            return await reader.read(item)

    rest = iter(items)
    while batch := list(islice(rest, 4 * concurrency)):
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(item)) for item in batch]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        yield [task.result() for task in tasks]


NO_LOGPROBS = (
    "this endpoint shows no logprobs, and without them its probabilities cannot be read: score a server that "
    "shows them (llama.cpp, vLLM), or load the model itself with --transformers"
)


async def _widest(endpoint: Endpoint, item: Item) -> tuple[int, Mapping[str, float]]:
    """How many logprobs the endpoint shows at most, and what it showed."""
    for top in WIDEST:
        try:
            reply = await endpoint.ask(Request(item.messages, top_logprobs=top))
        except FatalError as error:
            if top == WIDEST[-1]:
                raise (FatalError(NO_LOGPROBS) if "logprobs" in str(error) else error) from None
        else:
            return top, _shown(reply)
    raise AssertionError("the last of WIDEST returns or raises")


def _shown(reply: Reply) -> Mapping[str, float]:
    if not reply.logprobs:
        raise FatalError(NO_LOGPROBS)
    return reply.logprobs


def _own(reply: Reply) -> float:
    value = _shown(reply).get(reply.text) if reply.logprob is None else reply.logprob
    if value is None:
        raise FatalError("this endpoint does not show the logprob of the answer it gives")
    return value


def marks(items: Iterable[Item], about: Sequence[object]) -> dict[str, str]:
    """A digest for each item, by id: of its prompt and label, and of what else a row depends on."""
    begun = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    found = {}
    for item in items:
        digest = begun.copy()
        asked = [item.label, *((one.role, one.content) for one in item.messages)]
        digest.update(json.dumps(asked).encode())
        found[item.id] = digest.hexdigest()[:12]
    return found


class ScoreFile:
    """A score file that grows: rows are appended whole, and a row cut off by a crash is dropped.

    Made by :meth:`create`, or by :meth:`resume` from what is there. ``done`` holds the ids it has, ``asked``
    the :func:`marks` of all that it shall have.
    """

    def __init__(self, path: Path, targets: Targets, asked: Mapping[str, str], done: set[str]) -> None:
        self.path = path
        self.targets = targets
        self.done = done
        self._asked = asked

    @classmethod
    def create(cls, path: Path, targets: Targets, asked: Mapping[str, str]) -> Self:
        """Begin a file for these targets."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_lines([_header(targets)]))
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}") from None
        return cls(path, targets, asked, set())

    @classmethod
    def resume(cls, path: Path, targets: Targets, asked: Mapping[str, str]) -> Self | None:
        """Take up a file scored for the same tokens, with the pair that it was begun with; None if new.

        Raises
        ------
        InputError
            If it was scored for other tokens, by another model, or with another prompt.
        """
        whole = _whole(path)
        if not whole:
            return None
        header, rows = _parse(path, whole)
        place = {name: k for k, name in enumerate(header)}
        positive, negative = (
            tuple(sorted(side, key=lambda token: place.get(_name(token), 0)))
            for side in (targets.positive, targets.negative)
        )
        targets = replace(targets, positive=positive, negative=negative)
        if _header(targets) != header:
            raise InputError(f"{path}: was scored for other answer tokens; choose another file, or remove it")
        if not _agree(rows, asked):
            raise InputError(
                f"{path}: was scored with another model, prompt or label; choose another file, or remove it"
            )
        with path.open("r+b") as file:
            file.truncate(len(whole))
        return cls(path, targets, asked, {row[0] for row in rows})

    @staticmethod
    def of(path: Path, asked: Mapping[str, str]) -> Literal["none", "some", "all"]:
        """How much of what shall be asked a file holds; none if it is of another model or prompt."""
        try:
            _, rows = _parse(path, _whole(path))
        except InputError:
            return "none"
        if not _agree(rows, asked):
            return "none"
        return "all" if {row[0] for row in rows} == asked.keys() else "some"

    def add(self, scores: Iterable[Score]) -> None:
        """Append rows in one write, on disk when this returns."""
        scores = list(scores)
        rows = ([*_row(self.targets, score), self._asked[score.id]] for score in scores)
        with self.path.open("ab") as file:
            file.write(_lines(rows))
            file.flush()
            os.fsync(file.fileno())
        self.done.update(score.id for score in scores)

    def finish(self, ids: Sequence[str]) -> None:
        """Put the rows into the order of `ids`, at once or not at all."""
        place = {name: k for k, name in enumerate(ids)}
        header, rows = _parse(self.path, self.path.read_bytes())
        rows.sort(key=lambda row: place.get(row[0], len(place)))
        with atomic_write(self.path) as draft:
            draft.write_bytes(_lines([header, *rows]))


def _whole(path: Path) -> bytes:
    """The whole lines of a file; a last one that a crash cut off is not among them."""
    raw = path.read_bytes() if path.is_file() else b""
    return raw[: raw.rfind(b"\n") + 1]


def _agree(rows: Iterable[Sequence[str]], asked: Mapping[str, str]) -> bool:
    return all(asked.get(row[0], row[-1]) == row[-1] for row in rows)


def _header(targets: Targets) -> list[str]:
    return [*_COLUMNS, *map(_name, in_order(targets)), _ASKED]


def _name(token: Token) -> str:
    return f"{token.text}|{token.id}"


def _row(targets: Targets, score: Score) -> list[str]:
    p = (f"{expit(s):.10g}" for s in log_odds(targets, score.logprobs))
    logprobs = (f"{value:.7g}" for value in score.logprobs)
    return [score.id, str(score.label), *p, f"{score.mass:.7g}", *logprobs]


def _lines(rows: Iterable[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _parse(path: Path, raw: bytes) -> tuple[list[str], list[list[str]]]:
    try:
        rows = list(csv.reader(io.StringIO(raw.decode(), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: is not a score file ({error})") from None
    if not rows or tuple(rows[0][: len(_COLUMNS)]) != _COLUMNS or any(len(r) != len(rows[0]) for r in rows):
        raise InputError(f"{path}: is not a score file; choose another file, or remove it")
    return rows[0], rows[1:]
