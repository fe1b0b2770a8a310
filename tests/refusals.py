"""How services refuse a request, in the words and forms of real ones.

The bodies follow those in tests/data/refusals.json, which says where each was seen. vLLM and llama.cpp refuse
fewer fields than a replay can: there, only the form is theirs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from blindcal.simulation.http_server import HttpResponse, json_response
from blindcal.simulation.replay import CompletionRequest, error, unknown_model

if TYPE_CHECKING:
    from misbehaving import Behaviour

Dialect: TypeAlias = Literal["openai", "azure", "litellm", "vllm", "llama.cpp"]

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
        return _unknown_fields(how.dialect, unknown, model)
    if how.limit_name == "max_completion_tokens" and asked.max_tokens is not None:
        return _unsupported(how.dialect, "max_tokens", model, " Use 'max_completion_tokens' instead.")
    if asked.limit is not None and asked.limit < how.least_tokens:
        return _below_minimum(how.limit_name, how.least_tokens, asked.limit)
    if how.bias == "rejected" and asked.logit_bias:
        return _unsupported(how.dialect, "logit_bias", model)
    entries, most = len(asked.logit_bias or {}), how.most_biases
    if most is not None and how.further_biases == "rejected" and entries > most:
        text = f"Invalid 'logit_bias': too many properties. Expected an object with at most {most} properties"
        text += f", but got an object with {entries} properties instead."
        return _said(how.dialect, text, "logit_bias", "object_above_max_properties")
    if how.temperature == "rejected" and asked.temperature not in (None, 1):
        return _only_one(how.dialect, "temperature", asked.temperature or 0.0)
    if asked.logprobs and not how.logprobs:
        return _unsupported(how.dialect, "logprobs", model)
    if how.n == "rejected" and asked.n > 1:
        return _only_one(how.dialect, "n", asked.n)
    refused = [name for name in _SAMPLERS if name in sent] if how.sampler_fields == "all rejected" else []
    return _unsupported(how.dialect, refused[0], model) if refused else None


def _said(dialect: Dialect, message: str, param: str | None, code: str | None) -> HttpResponse:
    """A message in the form of a service."""
    if dialect == "litellm":
        text = f"litellm.UnsupportedParamsError: {message}. Received Model Group=m\n"
        return error(400, f"{text}Available Model Group Fallbacks=None", "400", kind="None")
    if dialect == "vllm":
        return error(400, message, 400, kind="BadRequestError", param=param)
    if dialect == "llama.cpp":
        body = {"code": 400, "message": message, "type": "invalid_request_error"}
        return json_response({"error": body}, 400)
    return error(400, message, code, kind="invalid_request_error", param=param)


def _unsupported(dialect: Dialect, name: str, model: str, instead: str = "") -> HttpResponse:
    if dialect in ("litellm", "vllm", "llama.cpp"):
        return _unknown_fields(dialect, [name], model)
    if dialect == "azure" and name == "logprobs":
        text = "The deployment doesn't support logprobs request parameter."
        body = {"message": text, "type": "invalid_request_error", "code": "422"}
        return json_response({"error": body}, 422)
    text = f"Unsupported parameter: '{name}' is not supported with this model.{instead}"
    return _said(dialect, text, name, "unsupported_parameter")


def _unknown_fields(dialect: Dialect, names: Sequence[str], model: str) -> HttpResponse:
    if dialect == "litellm":
        text = (
            f"openai does not support parameters: {list(names)}, for model={model}. To drop these, set "
            "`litellm.drop_params=True` or for proxy:\n\n`litellm_settings:\n drop_params: true`\n. \n If "
            "you want to use these params dynamically send "
            f"allowed_openai_params={list(names)} in your request."
        )
        return _said(dialect, text, None, None)
    if dialect == "vllm":
        about = {"msg": "Extra inputs are not permitted", "input": 1}
        parts = [{"type": "extra_forbidden", "loc": ("body", name), **about} for name in names]
        return _said(dialect, str(parts), None, None)
    if dialect == "llama.cpp":
        return _said(dialect, f"Unsupported param: {names[0]}", None, None)
    plural = "s" if len(names) > 1 else ""
    return _said(dialect, f"Unrecognized request argument{plural} supplied: {', '.join(names)}", None, None)


def _only_one(dialect: Dialect, name: str, value: float) -> HttpResponse:
    """The refusal of every value but 1."""
    texts = {
        "litellm": f"gpt-5 models (including gpt-5-codex) don't support {name}={value:g}. Only {name}=1 is "
        "supported. For gpt-5.1, it is supported when reasoning_effort='none'. To drop unsupported params "
        "set `litellm.drop_params = True`",
        "vllm": f"{name} must be 1.0, got {value}.",
        "llama.cpp": f"Field '{name}': Value must be between 1 <= value <= 1, but got {value:g}",
    }
    text = (
        f"Unsupported value: '{name}' does not support {value:g} with this model. Only the default (1) value "
        "is supported."
    )
    return _said(dialect, texts.get(dialect, text), name, "unsupported_value")


def _below_minimum(limit_name: str, least: int, value: int) -> HttpResponse:
    name = "max_output_tokens" if limit_name == "any" else limit_name
    text = f"Invalid '{name}': integer below minimum value."
    text += f" Expected a value >= {least}, but got {value} instead."
    return _said("openai", text, name, "integer_below_min_value")
