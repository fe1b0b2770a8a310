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

from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.endpoints.refusals import Accepted
from blindcal.errors import NotIdentifiedError
from blindcal.methods import METHODS
from blindcal.records import FloatArray, Message
from blindcal.results.run import Run

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


def need_bias(run: Run) -> None:
    """Raise `NotIdentifiedError` if a run used no ``logit_bias``, so that nothing can be deployed."""
    method = METHODS[run.result.method]
    if not method.biased or run.result.semantics in ("sum", "configured"):
        shown = "compare the probability that the endpoint shows with it, or " if method.logprobs else ""
        raise NotIdentifiedError(
            f"a run of method {run.result.method} sends no logit_bias: its threshold is known, but one query "
            "cannot decide by it",
            remedy=shown + "audit with {method} where the endpoint takes logit_bias",
            options={"method": "latent"},
        )


def decision_request(run: Run, shift: float, accepted: Accepted | None = None) -> DecisionRequest:
    """The request to the endpoint of a run that decides by the threshold with this shift.

    It has the audit's template to fill in. If there are more than two answers, the shift is added to the
    answer given when it is asked for again. ``accepted`` are the fields that the endpoint takes, if known.

    Raises
    ------
    NotIdentifiedError
        If the run used no ``logit_bias``, or its thresholds between more than two answers are not about
        margins, so that no threshold can be deployed.
    """
    need_bias(run)
    settings, targets, answers = run.settings, run.result.targets, run.result.answers
    if answers and not run.problem.hard.any():
        raise NotIdentifiedError(
            f"a run of method {run.result.method} tests no margins: its threshold is known, but no request "
            "can decide by it",
            remedy="audit with {method}",
            options={"method": "latent"},
        )
    address = Address(
        settings["base_url"],
        settings["model"],
        settings["api"],
        api_version=settings["api_version"],
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
