"""Check that an endpoint still obeys the bias and still names the same model.

A query forced by the largest shift has a known answer, whatever the model thinks. Page's test compares 3%
wrong answers with 25%; it is an alarm if the log-likelihood ratio, restarted at zero, reaches 8. An endpoint
that is wrong 3% of the time raises a false alarm after more than 10,000 forced queries on average; one that
ignores the bias is wrong half of the time and raises it after about ten.

During a run, every n-th query carries a control query, asked and stored before it. Its kind depends on the
query's number alone, so interruptions change nothing:

- *forced*: the item at the largest shift. Each wrong answer leads to more, about other items. With more than
  two answers, each is raised in turn.
- *repeated*: another query of the round, with a slightly smaller common bias, which changes nothing but
  avoids caches. If its two answers, or the probabilities that they show, differ, they are noisy.
- *anchor*: an item whose flip the probe knows, a little below or above its flip. A drift of all log-odds
  changes these answers first.

The run ends if too many forced answers are wrong, because the bias has stopped acting.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from blindcal.asking.governor import FinalOutcome
from blindcal.asking.job import Job
from blindcal.endpoints import Endpoint
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.errors import ReplyError, UnfitError
from blindcal.probing.bias_checks import IRRESISTIBLE
from blindcal.records import INVALID, NEGATIVE, POSITIVE, Reply, Request, Round
from blindcal.store.run_file import ServedModel, StoredReply
from blindcal.store.run_store import Store

_WRONG, _RIGHT, _ALARM = math.log(0.25 / 0.03), math.log(0.75 / 0.97), 8.0
NAMELESS = ServedModel("", "")


@dataclass(frozen=True, slots=True)
class ForcedReply:
    """A reply to a forced query, and whether it is the forced answer."""

    item: int
    right: bool
    reply: Reply


async def ask_forced(job: Job, endpoint: Endpoint, items: Sequence[int], least: int = 6) -> list[ForcedReply]:
    """Force both answers of each item, cycling until ``least`` items were asked; leaves out refusals."""
    turns = itertools.islice(itertools.cycle(items), max(least, len(items)))
    wanted = [(item, answer) for item in turns for answer in (POSITIVE, NEGATIVE)]
    asking = (endpoint.ask(job.forced(item, answer)) for item, answer in wanted)
    forced = []
    for (item, answer), reply in zip(
        wanted, await asyncio.gather(*asking, return_exceptions=True), strict=True
    ):
        if isinstance(reply, Reply):
            forced.append(ForcedReply(item, job.question.parse(reply).answer == answer, reply))
        elif not isinstance(reply, ReplyError):
            raise reply
    return forced


def lost_since(wrong: Iterable[bool]) -> int | None:
    """The place from which on too many forced answers are wrong; ``None`` if the bias acts."""
    ratio, since = 0.0, 0
    for place, failed in enumerate(wrong):
        if ratio <= 0:
            ratio, since = 0.0, place
        ratio += _WRONG if failed else _RIGHT
        if ratio >= _ALARM:
            return since
    return None


def bias_ignored(forced: Sequence[ForcedReply]) -> str | None:
    """What was seen, in words, if the bias does not act."""
    wrong = [not reply.right for reply in forced]
    if lost_since(wrong) is None:
        return None
    items = len({reply.item for reply in forced})
    share = f"{sum(wrong)} of {len(wrong)}"
    return f"on {items} items, {share} answers forced by the largest shift came out otherwise"


def unknown_names(names: Iterable[ServedModel], known: Sequence[ServedModel]) -> list[str]:
    """The names that are not ``known``, in words."""
    return sorted({name.words for name in names if name not in (known or (NAMELESS,))})


CONFIRMATIONS, MOST_CONFIRMATIONS = 30, 90  # per wrong forced answer, and in total per query
_OTHER_ITEM = 7919  # a prime: successive confirmations ask distant items
_COOLER = 1.0  # subtracted from the common bias of a repeated query
LEAST_MARGIN = 0.4  # distance of anchors from their flips, which the probe knows to about 0.05


@dataclass(frozen=True, slots=True)
class KnownFlip:
    """An item whose answer turns at the shift ``flip``, and how far from there it is asked."""

    item: int
    flip: float
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The ``nth`` control query of query ``carrier``.

    It ``forces`` an answer, asks query ``again`` anew, or asks an anchor at the distance ``off`` from its
    flip.
    """

    carrier: int
    nth: int
    item: int
    forces: int | None = None
    again: int = -1
    shift: float = 0.0
    off: float = 0.0


@dataclass(frozen=True, slots=True)
class ControlAnswer:
    """An answered control query; ``after`` is the run's number of answers by then.

    ``log_odds`` are those that the answer shows, NaN if it shows none.
    """

    control: Control
    after: int
    answer: int
    log_odds: float = float("nan")

    @property
    def wrong(self) -> bool:
        """Whether a forced query got another valid answer."""
        return self.forced and self.answer != self.control.forces

    @property
    def forced(self) -> bool:
        """Whether this is a forced query with a valid answer."""
        return self.control.forces is not None and self.answer != INVALID


def stored_controls(store: Store) -> list[ControlAnswer]:
    """The answered control queries of a run, in the order of answering."""
    return [_as_answer(reply) for reply in store.replies("control")]


def _as_answer(reply: StoredReply) -> ControlAnswer:
    assert reply.body is not None
    assert reply.answer is not None
    about = msgspec.json.decode(reply.body)
    control = msgspec.convert({**about["control"], "carrier": reply.query, "nth": reply.nth}, Control)
    shown = np.mean(np.array([reply.low, reply.high], np.float64))
    return ControlAnswer(control, about["after"], reply.answer, float(shown))


class Controls:
    """The control queries of a run, one per ``every`` queries; with ``force`` they never end it."""

    def __init__(
        self, job: Job, *, every: int | None, force: bool = False, anchors: Sequence[KnownFlip] = ()
    ) -> None:
        self._job, self._every, self._force = job, every, force
        self._answers = [] if every is None else stored_controls(job.store)
        self._by_carrier: dict[int, list[ControlAnswer]] = {}
        for answer in self._answers:
            self._by_carrier.setdefault(answer.control.carrier, []).append(answer)
        self._anchors = [one for one in anchors if abs(one.flip) + one.margin <= job.max_shift]
        can_force = isinstance(job.question, TokenQuestion) and job.max_shift >= IRRESISTIBLE
        kinds = ("forced" if can_force else "repeated", "repeated")
        self._kinds = (*kinds, "anchor") if self._anchors else kinds

    def due(self, query: int) -> bool:
        """Whether a control query precedes this query."""
        return self._every is not None and query % self._every == 0 and query not in self._by_carrier

    def next(self, query: int, asked: Round, first: int) -> Control | None:
        """The next control query to ask before ``query``, if any, in a round numbered from ``first``."""
        if self._every is None or query % self._every:
            return None
        carried, place = self._by_carrier.get(query, []), query - first
        turn, kind = divmod(query // self._every, len(self._kinds))
        item = int(asked.items[place])
        nth, wrong = len(carried), sum(answer.wrong for answer in carried)
        if not carried and self._kinds[kind] == "anchor":
            anchor = self._anchors[turn // 2 % len(self._anchors)]
            off = anchor.margin if turn % 2 else -anchor.margin
            return Control(carrier=query, nth=0, item=anchor.item, shift=anchor.flip + off, off=off)
        if not carried and self._kinds[kind] == "repeated":
            other = (place + len(asked) // 2) % len(asked)
            if other == place or asked.temperatures[other] > 0:
                return None
            return Control(carrier=query, nth=0, item=int(asked.items[other]), again=first + other)
        if carried and not (wrong and nth <= min(CONFIRMATIONS * wrong, MOST_CONFIRMATIONS)):
            return None
        item = (item + nth * _OTHER_ITEM) % len(self._job.items)
        turn += nth
        forces = turn % self._job.items[item].choices if self._job.answers > 2 else (turn + 1) % 2
        return Control(carrier=query, nth=nth, item=item, forces=forces)

    def request(self, control: Control, asked: Round, first: int) -> Request:
        if control.forces is not None:
            return self._job.forced(control.item, control.forces)
        question, messages = self._job.question, self._job.items[control.item].messages
        if control.off:
            return question.request(messages, control.shift, 0.0)
        place, biases = control.again - first, asked.biases
        if isinstance(question, TokenQuestion):
            question = replace(question, offset=question.offset - _COOLER)
        row = None if biases is None else biases[place]
        return question.request(messages, float(asked.shifts[place]), 0.0, biases=row)

    def stored(self, control: Control, final: FinalOutcome, answered: int) -> StoredReply:
        """The reply to a control query, to be stored; the run has ``answered`` answers by now."""
        assert isinstance(final.outcome, Reply)
        about: dict[str, Any] = {"kind": "control", "query": control.carrier, "nth": control.nth}
        body = msgspec.json.encode({"control": control, "after": answered}).decode()
        return self._job.read(final.outcome, body=body, **about, **final.cost)

    def record(self, reply: StoredReply) -> None:
        """Take a stored reply into account; raises `UnfitError` if the bias has stopped acting."""
        answer = _as_answer(reply)
        self._answers.append(answer)
        self._by_carrier.setdefault(reply.query, []).append(answer)
        self.check()

    def check(self) -> None:
        """Raise `UnfitError` if the bias has stopped acting, unless the run is forced."""
        forced = [] if self._force else forced_in_vain(self._answers)
        if not forced:
            return
        wrong = sum(answer.wrong for answer in forced)
        raise UnfitError(
            f"logit_bias acted in the probe but no longer does: since about answer {forced[0].after + 1:,}, "
            f"{wrong} of {len(forced)} answers that were forced by the largest shift came out wrong. Answers "
            "since then measure nothing; all are kept",
            remedy="find out what changed at the provider and audit again in another folder with {out}; or "
            "{force} continues anyway, and the result says so",
            options={"out": ..., "force": True},
        )


def forced_in_vain(answers: Iterable[ControlAnswer]) -> list[ControlAnswer]:
    """The forced answers since too many of them are wrong; none if the bias acts."""
    forced = [answer for answer in answers if answer.forced]
    since = lost_since(answer.wrong for answer in forced)
    return [] if since is None else forced[since:]
