"""The request that decides by a chosen threshold: one query, no probabilities needed.

The deployed model answers under the same conditions as in the audit: the same tokens, the same common bias C,
temperature 0 and one token. Only the shift differs: it is that of the threshold.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any

from blindcal.endpoints.http import Address, HttpEndpoint
from blindcal.endpoints.parameters import Accepted
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.errors import NotIdentifiedError
from blindcal.methods import METHODS
from blindcal.records import Message, Request
from blindcal.results.run import Run
from blindcal.text import spoken

QUESTION = "YOUR QUESTION, WORDED AS IN THE AUDIT"
FILL_IN = "Put your question into the message: replace the fields in braces, as the audit did."
DIGITS = 4
"""Decimals of a bias: far finer than the cells of the fit, and short enough to read."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """The request that decides by a threshold: its URL, its body and the positive answers."""

    url: str
    logit_bias: dict[str, float]
    body: dict[str, Any]
    positive: tuple[str, ...]
    key_header: str

    def curl(self) -> str:
        """The request as a shell command."""
        return (
            f"# {FILL_IN}\n"
            f"curl {shlex.quote(self.url)} \\\n"
            f'  -H "Content-Type: application/json" -H "{self.key_header}$OPENAI_API_KEY" \\\n'
            f"  -d @- <<'JSON'\n{json.dumps(self.body, indent=2)}\nJSON\n"
        )

    def python(self) -> str:
        """The request as a Python program without dependencies."""
        name, _, scheme = self.key_header.partition(": ")
        words = tuple(dict.fromkeys(map(spoken, self.positive)))
        answer = '["message"]["content"]' if "messages" in self.body else '["text"]'
        return f"""\
# {FILL_IN}
import json
import os
import urllib.request

body = json.loads({json.dumps(self.body)!r})
request = urllib.request.Request(
    {self.url!r},
    json.dumps(body).encode(),
    {{"Content-Type": "application/json", {name!r}: {scheme!r} + os.environ.get("OPENAI_API_KEY", "")}},
)
with urllib.request.urlopen(request) as reply:
    said = json.load(reply)["choices"][0]{answer}
print("positive" if said.strip().casefold() in {words!r} else "negative")
"""


def deployment(run: Run, shift: float, accepted: Accepted | None = None) -> Deployment:
    """The request to a run's endpoint, with a threshold's shift and the audit's template to fill in.

    ``accepted`` are the fields that the endpoint takes, if that is known.

    Raises
    ------
    NotIdentifiedError
        If the run used no ``logit_bias``, so that no threshold can be deployed.
    """
    need_bias(run)
    settings = run.settings
    question, endpoint = TokenQuestion(run.result.targets, settings["offset"]), endpoint_of(settings)
    if accepted is not None:
        endpoint.accepted = accepted
    body = body_of(endpoint, question.request(template(settings), round(shift, DIGITS), 0.0))
    return Deployment(
        url=endpoint.url,
        logit_bias=body["logit_bias"],
        body=body,
        positive=tuple(token.text for token in run.result.targets.positive),
        key_header=key_header(settings),
    )


def need_bias(run: Run) -> None:
    """Raise `NotIdentifiedError` if the run used no ``logit_bias``, so that nothing can be deployed."""
    method = METHODS[run.result.method]
    if not method.biased or run.result.semantics in ("sum", "configured"):
        reading = "compare the probability that the endpoint shows with it, or " if method.logprobs else ""
        raise NotIdentifiedError(
            f"a run of method {run.result.method} sends no logit_bias: its threshold is known, but one query "
            "cannot decide by it",
            remedy=reading + "audit with {method} where the endpoint takes logit_bias",
            options={"method": "latent"},
        )


def endpoint_of(settings: dict[str, Any]) -> HttpEndpoint:
    """The endpoint of a run, to make requests with but not to send them."""
    address = Address(
        settings["base_url"],
        settings["model"],
        settings["api"],
        settings["api_version"],
        extra_body=settings["extra_body"],
    )
    return HttpEndpoint(address, environ={})


def body_of(endpoint: HttpEndpoint, request: Request) -> dict[str, Any]:
    """The JSON body of a request, with biases that are short enough to read."""
    bias = {str(token): round(value, DIGITS) for token, value in request.logit_bias.items()}
    return {**json.loads(endpoint.body(request)), "logit_bias": bias}


def key_header(settings: dict[str, Any]) -> str:
    """The header that carries the API key, up to the key itself."""
    return "Authorization: Bearer " if settings["api_version"] is None else "api-key: "


def template(settings: dict[str, Any]) -> tuple[Message, ...]:
    """The messages of a question, with the fields of the audit's template not filled in."""
    role = "prompt" if settings["api"] == "completions" else "user"
    question = Message(role, settings["template"] or QUESTION)
    return (*([Message("system", settings["system"])] if settings["system"] else []), question)
