"""Check that an endpoint still obeys the bias and still names the same model.

A query forced by the largest shift has a known answer, whatever the model thinks. Page's test compares 3%
wrong answers with 25%; it is an alarm if the log-likelihood ratio, restarted at zero, reaches 8. An endpoint
that is wrong 3% of the time raises a false alarm after more than 10,000 forced queries on average; one that
ignores the bias is wrong half of the time and raises it after about ten.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from blindcal.asking.job import Job
from blindcal.endpoints.base import Endpoint
from blindcal.errors import ReplyError
from blindcal.records import NEGATIVE, POSITIVE, Reply
from blindcal.store.stored import ServedModel
from blindcal.text import printable

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


def name_in(reply: Reply) -> ServedModel:
    """The model and fingerprint in a reply, as the run file notes them."""
    return ServedModel(printable(reply.model or "", 100), printable(reply.fingerprint or "", 100))


def unknown_names(names: Iterable[ServedModel], known: Sequence[ServedModel]) -> list[str]:
    """The names that are not ``known``, in words."""
    return sorted({name.words for name in names if name not in (known or (NAMELESS,))})
