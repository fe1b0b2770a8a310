"""How OpenAI refuses a request; tests/data/refusals.json has the words and forms of other services."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from blindcal.simulation.http_server import HttpResponse
from blindcal.simulation.replay import CompletionRequest, error, unknown_model

if TYPE_CHECKING:
    from misbehaving import Behaviour

CONSTRAINTS = ("allowed_token_ids", "structured_outputs")
_SAMPLERS = ("top_p", "presence_penalty", "frequency_penalty")
_OPENAI_FIELDS = frozenset(
    {
        *("model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature", "n", "seed"),
        *("logit_bias", "logprobs", "top_logprobs", "response_format", "reasoning_effort", "stop", "stream"),
        *("user", "store", "metadata", "service_tier", "verbosity", "echo", "best_of", "suffix", *_SAMPLERS),
    }
)


def refusal(how: Behaviour, asked: CompletionRequest, body: bytes, model: str) -> HttpResponse | None:
    """The refusal of a request by a service that behaves like this; ``None`` if it takes the request.

    Like OpenAI, it names all unknown fields at once, and then one unsupported field at a time.
    """
    if asked.model != model:
        return unknown_model(asked.model)
    strict, sent = how.sampler_fields in ("rejected", "all rejected"), json.loads(body)
    unknown = [name for name in sent if strict and name not in _OPENAI_FIELDS]
    unknown = unknown or [name for name in CONSTRAINTS if how.constraints == "rejected" and name in sent]
    if unknown:
        plural = "s" if len(unknown) > 1 else ""
        return _refused(f"Unrecognized request argument{plural} supplied: {', '.join(unknown)}", None, None)
    if how.limit_name == "max_completion_tokens" and asked.max_tokens is not None:
        return _unsupported("max_tokens", " Use 'max_completion_tokens' instead.")
    if asked.limit is not None and asked.limit < how.least_tokens:
        return _below_minimum(how.limit_name, how.least_tokens, asked.limit)
    if how.bias == "rejected" and asked.logit_bias:
        return _unsupported("logit_bias")
    entries, most = len(asked.logit_bias or {}), how.most_biases
    if most is not None and how.further_biases == "rejected" and entries > most:
        text = f"Invalid 'logit_bias': too many properties. Expected an object with at most {most} properties"
        text += f", but got an object with {entries} properties instead."
        return _refused(text, "logit_bias", "object_above_max_properties")
    if how.temperature == "rejected" and asked.temperature not in (None, 1):
        return _only_one("temperature", asked.temperature or 0.0)
    if asked.logprobs and not how.logprobs:
        return _unsupported("logprobs")
    if how.n == "rejected" and asked.n > 1:
        return _only_one("n", asked.n)
    refused = [name for name in _SAMPLERS if name in sent] if how.sampler_fields == "all rejected" else []
    return _unsupported(refused[0]) if refused else None


def _refused(message: str, param: str | None, code: str | None) -> HttpResponse:
    return error(400, message, code, kind="invalid_request_error", param=param)


def _unsupported(name: str, instead: str = "") -> HttpResponse:
    text = f"Unsupported parameter: '{name}' is not supported with this model.{instead}"
    return _refused(text, name, "unsupported_parameter")


def _only_one(name: str, value: float) -> HttpResponse:
    """The refusal of every value but 1."""
    text = (
        f"Unsupported value: '{name}' does not support {value:g} with this model. Only the default (1) value "
        "is supported."
    )
    return _refused(text, name, "unsupported_value")


def _below_minimum(limit_name: str, least: int, value: int) -> HttpResponse:
    name = "max_output_tokens" if limit_name == "any" else limit_name
    text = f"Invalid '{name}': integer below minimum value."
    text += f" Expected a value >= {least}, but got {value} instead."
    return _refused(text, name, "integer_below_min_value")
