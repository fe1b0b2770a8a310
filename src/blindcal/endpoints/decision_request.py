"""The requests that decide by a chosen threshold: one query, no probabilities needed.

The deployed model answers under the same conditions as in the audit: the same tokens, the same common bias C,
temperature 0 and one token. Only the shift differs: it is that of the threshold.

With more than two answers, a first request asks the plain question, as in the audit. A second asks it again
with the logit of the answer given lowered: if the same answer comes again, its margin over the strongest
other answer is large enough. No request can decide by the probability itself, of which the margin alone is
not the whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from blindcal.endpoints.http import Address, HttpEndpoint
from blindcal.endpoints.parameters import Accepted
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.records import FloatArray, Message, Targets

QUESTION = "YOUR QUESTION, WORDED AS IN THE AUDIT"
DIGITS = 4
"""Decimals of a bias: far finer than the cells of the fit, and short enough to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRequest:
    """The URL, and the body of the request that decides.

    With more than two answers, ``ask`` is the plain question, and ``confirm`` has the body that confirms each
    answer, by its word. ``tokens`` are the texts that mean each answer, with two answers first those of the
    positive one.
    """

    url: str
    key_header: str
    ask: dict[str, Any]
    confirm: dict[str, dict[str, Any]]
    tokens: tuple[tuple[str, ...], ...]

    @property
    def body(self) -> dict[str, Any]:
        """The body, or both: the question, and what confirms each answer."""
        return {"ask": self.ask, "confirm": self.confirm} if self.confirm else self.ask


def decision_request(
    settings: Mapping[str, Any],
    targets: Targets,
    shift: float,
    *,
    answers: tuple[str, ...] = (),
    accepted: Accepted | None = None,
) -> DecisionRequest:
    """The request to the endpoint of a run with these settings, with the audit's template to fill in.

    ``shift`` is that of the threshold; if there are more than two ``answers``, it is added to the answer
    given when it is asked for again. ``accepted`` are the fields that the endpoint takes, if that is known.
    """
    address = Address(
        settings["base_url"],
        settings["model"],
        settings["api"],
        settings["api_version"],
        extra_body=settings["extra_body"],
    )
    endpoint = HttpEndpoint(address, environ={})
    if accepted is not None:
        endpoint.accepted = accepted
    question, messages = TokenQuestion(targets, settings["offset"]), _template(settings)

    def body(added: float, biases: FloatArray | None = None) -> dict[str, Any]:
        request = question.request(messages, added, 0.0, 0, biases)
        bias = {str(token): round(value, DIGITS) for token, value in request.logit_bias.items()}
        return {**json.loads(endpoint.body(request)), "logit_bias": bias}

    rounded = round(shift, DIGITS)
    lowered = np.diag(np.full(len(answers), rounded))
    sides = targets.by_answer if answers else (targets.positive, targets.negative)
    return DecisionRequest(
        url=endpoint.url,
        key_header="Authorization: Bearer " if settings["api_version"] is None else "api-key: ",
        ask=body(0.0, np.zeros(len(answers))) if answers else body(rounded),
        confirm={word: body(shift, row) for word, row in zip(answers, lowered, strict=True)},
        tokens=tuple(tuple(token.text for token in tokens) for tokens in sides),
    )


def _template(settings: Mapping[str, Any]) -> tuple[Message, ...]:
    """The messages of a question, with the fields of the audit's template not filled in."""
    role = "prompt" if settings["api"] == "completions" else "user"
    question = Message(role, settings["template"] or QUESTION)
    return (*([Message("system", settings["system"])] if settings["system"] else []), question)
