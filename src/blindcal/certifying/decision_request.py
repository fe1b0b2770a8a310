"""Requests that decide by a chosen threshold with one query and no probabilities.

The deployed model is asked as in the audit (same tokens, common bias C, temperature 0, one token), with the
shift of the threshold. With more than two answers, a first request asks the plain question and a second one
asks again with the given answer lowered: the same answer confirms its margin over the strongest other one.
The margin alone does not determine the probability, so no request can decide by that.

Where the endpoint shows probabilities, the request is that of the audit, and the threshold is compared with
the probability in the reply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import expit

from blindcal.auditing.prepared import AskedSettings
from blindcal.certifying.shown_probability import ShownProbability, given_probability, shown_probability
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.endpoints.refusals import Accepted
from blindcal.errors import NotIdentifiedError
from blindcal.estimate.certification import SHIFT_DIGITS
from blindcal.methods import METHODS
from blindcal.records import INSTRUCTIONS, FloatArray, Message
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
    threshold: float
    shown: ShownProbability | None = None  # in the reply, to compare with the threshold

    @property
    def body(self) -> dict[str, Any]:
        """The only body, or both under the keys ``ask`` and ``confirm``."""
        return {"ask": self.ask, "confirm": self.confirm} if self.confirm else self.ask


def need_request(run: Run) -> None:
    """Raise `NotIdentifiedError` if no single request decides by a threshold of a run."""
    method = METHODS[run.result.method]
    if method.shown or (method.biased and run.result.semantics not in ("sum", "configured")):
        return
    raise NotIdentifiedError(
        f"a run of method {run.result.method} sends no logit_bias: its threshold is known, but one query "
        "cannot decide by it",
        remedy="audit with {method} where the endpoint takes logit_bias",
        options={"method": "latent"},
    )


def decision_request(run: Run, shift: float, accepted: Accepted | None = None) -> DecisionRequest:
    """Build the request that decides by the threshold with this shift, with a template for the question.

    With more than two answers, the shift is added to the given answer when it is asked again. ``accepted``
    are the fields that the endpoint takes, if known. Raises `NotIdentifiedError` if no threshold can be
    deployed: the run neither used ``logit_bias`` nor showed probabilities, or tested no margins between more
    than two answers.
    """
    need_request(run)
    settings, targets, answers = run.settings, run.result.targets, run.result.answers
    method = METHODS[run.result.method]
    if answers and not method.shown and not run.problem.hard.any():
        raise NotIdentifiedError(
            f"a run of method {run.result.method} tests no margins: its threshold is known, but no request "
            "can decide by it",
            remedy="audit with {method}",
            options={"method": "latent"},
        )
    request = DecisionRequest(
        url="",
        key_header="",
        ask={},
        confirm={},
        tokens=tuple(tuple(token.text for token in tokens) for tokens in targets.sides),
        threshold=round(float(expit(-shift)), 12),
    )
    if method.given:
        return replace(request, shown=given_probability(settings["confidence_field"], several=bool(answers)))
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
    messages = _template(settings)
    request = replace(
        request,
        url=endpoint.url,
        key_header="Authorization: Bearer " if settings["api_version"] is None else "api-key: ",
    )
    if method.shown:
        asked = AskedSettings.of_run(run).question
        ask = replace(asked.request(messages, 0.0, 0.0), seed=None)
        return replace(
            request, ask=json.loads(endpoint.body(ask)), shown=shown_probability(asked, settings["api"])
        )
    question = TokenQuestion(targets, settings["offset"])

    def body(added: float, biases: FloatArray | None = None) -> dict[str, Any]:
        request = question.request(messages, added, 0.0, 0, biases)
        bias = {str(token): round(value, SHIFT_DIGITS) for token, value in request.logit_bias.items()}
        return {**json.loads(endpoint.body(request)), "logit_bias": bias}

    rounded = round(shift, SHIFT_DIGITS)
    lowered = np.diag(np.full(len(answers), rounded))
    return replace(
        request,
        ask=body(0.0, np.zeros(len(answers))) if answers else body(rounded),
        confirm={word: body(shift, row) for word, row in zip(answers, lowered, strict=True)},
    )


def _template(settings: Mapping[str, Any]) -> tuple[Message, ...]:
    role = "prompt" if settings["api"] == "completions" else "user"
    asked = [
        ("system", settings["system"]),
        (role, settings["template"] or QUESTION),
        (INSTRUCTIONS, settings.get("instructions")),
    ]
    return tuple(Message(role, text) for role, text in asked if text)
