"""The records of a run file: replies, what they cost and who answered; and the names of its notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from blindcal.records import INVALID, Usage

Note: TypeAlias = Literal[
    "config",  # the settings that a run cannot change once it has answers
    "parts",  # the field of the breakdown, and the digest of the items' parts
    "stages",  # which items of a sample joined in which stage
    "ready",  # what the preparation learnt: tokens, the probe's verdict
    "accepted",  # the fields that the endpoint takes, if it refused any
    "served",  # the models that replies name
    "tokens_estimated",  # some of the tokens are estimates, because the endpoint reported none
    "control_every",  # the distance between two control queries
    "seconds",  # the time that asking took
    "noise",  # the noise of the answers of a concluded run
    "plan",  # the candidates of a certification
    "made",  # the thresholds of a certificate, and the day of it
    "reuse",  # which answers of the audit a certification may use
    "doubts",  # why nothing is promised of the decisions of a run
    "finished",  # all decisions are made
    "stream",  # what the stream of a watch held besides new records
    "day",  # the latest day of a watch, and what had been used before it and until now
    "anchors",  # the anchors of a watch
    "facts",  # what has changed at the endpoint of a watch
    "reported",  # the alarms that were reported
]
"""What a run file notes beside items, rounds and replies; each value is JSON."""

ReplyKind: TypeAlias = Literal["design", "control", "probe", "anchor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReply:
    """One reply in the run file, and what it was to.

    ``query`` is the number of a query of the design, counted across all rounds, of the one that carries a
    control, or of an anchor query; for the probe it follows from the request. ``nth`` counts the replies to
    it. ``answer`` is as the question reads the reply, and ``text`` already `printable`.

    ``unusable`` marks a query without a reply that could be read; its ``text`` is the reason. ``served`` is
    the number of the model that the reply names, as `Store.served_number` gives it. If the reply shows
    probabilities, the log-odds are between ``low`` and ``high``, and both answers together have ``mass``.
    ``reason`` says why a text is no answer, if that is known. ``body`` is JSON: what a control asked, or the
    whole reply to the probe. Without an ``outcome``, a reply was paid for and is not used.
    """

    kind: ReplyKind = "design"
    query: int = 0
    nth: int = 0
    outcome: bool = True
    queries: int = 1
    answer: int | None = None
    text: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    attempts: int = 1
    seconds: float = 0.0
    unusable: bool = False
    served: int = 0
    low: float | None = None
    high: float | None = None
    reason: str = ""
    mass: float | None = None
    body: str | None = None


def usage_of(replies: Sequence[StoredReply]) -> Usage:
    """What the replies cost together, in one pass: it is on the way of every reply."""
    queries = attempts = prompt = completion = cached = invalid = unusable = wasted = 0
    for reply in replies:
        attempts += reply.attempts
        prompt += reply.prompt_tokens
        completion += reply.completion_tokens
        cached += reply.cached_tokens
        if reply.outcome:
            queries += reply.queries
            invalid += reply.answer == INVALID
            unusable += reply.unusable
        else:
            wasted += reply.queries
    return Usage(
        queries=queries,
        attempts=attempts,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        invalid=invalid,
        unusable=unusable,
        wasted=wasted,
    )


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What an endpoint calls its model and its system; an empty text if it says nothing."""

    model: str
    fingerprint: str

    @property
    def words(self) -> str:
        """Both in words."""
        return " ".join(filter(None, (self.model, self.fingerprint and f"({self.fingerprint})"))) or "no name"
