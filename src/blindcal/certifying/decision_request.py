"""Requests that decide by a chosen threshold with one query and no probabilities.

The deployed model is asked as in the audit (same tokens, common bias C, temperature 0, one token), with the
shift of the threshold. With more than two answers, a first request asks the plain question and a second one
asks again with the given answer lowered: the same answer confirms its margin over the strongest other one.
The margin alone does not determine the probability, so no request can decide by that.
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
from blindcal.estimate.certification import SHIFT_DIGITS
from blindcal.methods import METHODS
from blindcal.records import FloatArray, Message
from blindcal.results.run import Run

QUESTION = "YOUR QUESTION, WORDED AS IN THE AUDIT"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRequest:
    """URL and body of the request that decides."""

    url: str
    key_header: str
    ask: dict[str, Any]  # the only body; with more than two answers, the plain question
    confirm: dict[str, dict[str, Any]]  # with more than two answers, the body that confirms each, by its word
    tokens: tuple[tuple[str, ...], ...]  # texts that mean each answer; of two, the positive one first

    @property
    def body(self) -> dict[str, Any]:
        """The only body, or both under the keys ``ask`` and ``confirm``."""
        return {"ask": self.ask, "confirm": self.confirm} if self.confirm else self.ask


def need_bias(run: Run) -> None:
    """Raise `NotIdentifiedError` if a run used no ``logit_bias``: no threshold of it can be deployed."""
    method = METHODS[run.result.method]
    if not method.biased or run.result.semantics in ("sum", "configured"):
        shown = "compare the probability that the endpoint shows with it, or " if method.shown else ""
        raise NotIdentifiedError(
            f"a run of method {run.result.method} sends no logit_bias: its threshold is known, but one query "
            "cannot decide by it",
            remedy=shown + "audit with {method} where the endpoint takes logit_bias",
            options={"method": "latent"},
        )


def decision_request(run: Run, shift: float, accepted: Accepted | None = None) -> DecisionRequest:
    """Build the request that decides by the threshold with this shift, with a template for the question.

    With more than two answers, the shift is added to the given answer when it is asked again. ``accepted``
    are the fields that the endpoint takes, if known. Raises `NotIdentifiedError` if no threshold can be
    deployed: the run used no ``logit_bias``, or tested no margins between more than two answers.
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
        bias = {str(token): round(value, SHIFT_DIGITS) for token, value in request.logit_bias.items()}
        return {**json.loads(endpoint.body(request)), "logit_bias": bias}

    rounded = round(shift, SHIFT_DIGITS)
    lowered = np.diag(np.full(len(answers), rounded))
    return DecisionRequest(
        url=endpoint.url,
        key_header="Authorization: Bearer " if settings["api_version"] is None else "api-key: ",
        ask=body(0.0, np.zeros(len(answers))) if answers else body(rounded),
        confirm={word: body(shift, row) for word, row in zip(answers, lowered, strict=True)},
        tokens=tuple(tuple(token.text for token in tokens) for tokens in targets.sides),
    )


def _template(settings: Mapping[str, Any]) -> tuple[Message, ...]:
    role = "prompt" if settings["api"] == "completions" else "user"
    question = Message(role, settings["template"] or QUESTION)
    return (*([Message("system", settings["system"])] if settings["system"] else []), question)
