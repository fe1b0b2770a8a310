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
    "made",  # the thresholds of a certificate, and its day
    "reuse",  # which answers of the audit a certification may use
    "doubts",  # why nothing is promised of the decisions of a run
    "finished",  # all decisions are made
    "stream",  # what the stream of a watch held besides new records
    "day",  # the latest day of a watch, and what had been used before it and until now
    "anchors",  # the anchors of a watch
    "facts",  # what has changed at the endpoint of a watch
    "reported",  # the alarms that were reported
]
"""Names of the JSON values that a run file keeps beside items, rounds and replies."""

ReplyKind: TypeAlias = Literal["design", "control", "probe", "anchor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReply:
    """One reply in the run file, and what it was to.

    - ``query``: number across all rounds, of a control's carrier or of an anchor query; for the probe, a hash
    - ``nth``: counts the replies to the same query
    - ``outcome``: false if the reply was paid for but is not used
    - ``text``: already `printable`; for an ``unusable`` reply, why it could not be read
    - ``served``: number of the model that the reply names, from `Store.served_number`
    - ``low``, ``high``, ``mass``: bounds of the log-odds and probability of both answers, if shown
    - ``reason``: why a text is no answer, if known
    - ``body``: JSON of what a control or anchor asked, or of the whole reply to the probe
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
    """What the replies cost together, in one pass, because every reply goes through it."""
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
    """What an endpoint calls its model and its system; empty where it names none."""

    model: str
    fingerprint: str

    @property
    def words(self) -> str:
        return " ".join(filter(None, (self.model, self.fingerprint and f"({self.fingerprint})"))) or "no name"
