"""Whether an endpoint is still the one it was: forced answers show if the bias acts, and replies name it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from blindcal.asking.job import Job
from blindcal.endpoints.base import Endpoint
from blindcal.errors import ReplyError
from blindcal.records import NEGATIVE, POSITIVE, Reply
from blindcal.store.run_store import ServedModel
from blindcal.text import printable

NAMELESS = ServedModel("", "")


@dataclass(frozen=True, slots=True)
class ForcedReply:
    """A reply to a forced query, and whether it is the answer that was forced."""

    item: int
    right: bool
    reply: Reply


async def ask_forced(job: Job, endpoint: Endpoint, items: Sequence[int]) -> list[ForcedReply]:
    """Force both answers of items; those that are refused are left out."""
    wanted = [(item, answer) for item in items for answer in (POSITIVE, NEGATIVE)]
    asking = (endpoint.ask(job.forced(item, answer)) for item, answer in wanted)
    found = []
    for (item, answer), reply in zip(
        wanted, await asyncio.gather(*asking, return_exceptions=True), strict=True
    ):
        if isinstance(reply, Reply):
            found.append(ForcedReply(item, job.question.parse(reply).answer == answer, reply))
        elif not isinstance(reply, ReplyError):
            raise reply
    return found


def bias_ignored(forced: Sequence[ForcedReply]) -> str | None:
    """What was seen, in words, if most items do not follow the bias: one of their forced answers is wrong."""
    wrong = {one.item for one in forced if not one.right}
    asked = {one.item for one in forced}
    if 2 * len(wrong) <= len(asked):
        return None
    return f"on {len(wrong)} of {len(asked)} items, an answer forced by the largest shift came out otherwise"


def name_in(reply: Reply) -> ServedModel:
    """What a reply names, as the run file notes it."""
    return ServedModel(printable(reply.model or "", 100), printable(reply.fingerprint or "", 100))


def unknown_names(heard: Iterable[ServedModel], known: Sequence[ServedModel]) -> list[str]:
    """The models and systems that replies name and that are not known, in words."""
    return sorted({one.words for one in heard if one not in (known or (NAMELESS,))})
