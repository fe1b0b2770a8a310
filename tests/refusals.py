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
    if strict and (unknown := [name for name in sent if name not in _OPENAI_FIELDS]):
        return _unknown_fields(how.dialect, unknown, model)
    if how.limit_name == "max_completion_tokens" and asked.max_tokens is not None:
        instead = " Use 'max_completion_tokens' instead."
        return _unsupported_field(how.dialect, "max_tokens", model, instead)
    if asked.limit is not None and asked.limit < how.least_tokens:
        return _below_minimum(how.limit_name, how.least_tokens, asked.limit)
    constraints = [name for name in CONSTRAINTS if name in sent]
    if how.constraints == "rejected" and constraints:
        return _unknown_fields(how.dialect, constraints, model)
    if how.bias == "rejected" and asked.logit_bias:
        return _unsupported_field(how.dialect, "logit_bias", model)
    entries, most = len(asked.logit_bias or {}), how.most_biases
    if most is not None and how.further_biases == "rejected" and entries > most:
        return _too_many_biases(how.dialect, entries, most)
    if how.temperature == "rejected" and asked.temperature not in (None, 1):
        return _unsupported_temperature(how.dialect, asked.temperature or 0.0)
    if asked.logprobs and not how.logprobs:
        return _unsupported_field(how.dialect, "logprobs", model)
    if how.n == "rejected" and asked.n > 1:
        return _unsupported_n(how.dialect, asked.n)
    refused = [name for name in _SAMPLERS if name in sent] if how.sampler_fields == "all rejected" else []
    return _unsupported_field(how.dialect, refused[0], model) if refused else None


def _unsupported_field(dialect: Dialect, name: str, model: str, instead: str = "") -> HttpResponse:
    if dialect == "litellm":
        return _litellm(_not_in_litellm([name], model), model)
    if dialect == "vllm":
        return _forbidden([name])
    if dialect == "llama.cpp":
        return _llama_cpp(f"Unsupported param: {name}")
    if dialect == "azure" and name == "logprobs":
        text = "The deployment doesn't support logprobs request parameter."
        return json_response(
            {"error": {"message": text, "type": "invalid_request_error", "code": "422"}}, 422
        )
    text = f"Unsupported parameter: '{name}' is not supported with this model.{instead}"
    return _openai(text, name, "unsupported_parameter")


def _too_many_biases(dialect: Dialect, entries: int, most: int) -> HttpResponse:
    """The refusal of a bias with too many entries, in the words that OpenAI has for too many of anything."""
    text = (
        f"Invalid 'logit_bias': too many properties. Expected an object with at most {most} properties, but "
        f"got an object with {entries} properties instead."
    )
    if dialect == "vllm":
        return _vllm(text, "logit_bias")
    if dialect == "llama.cpp":
        return _llama_cpp(text)
    return _openai(text, "logit_bias", "object_above_max_properties")


def _unsupported_temperature(dialect: Dialect, value: float) -> HttpResponse:
    if dialect == "litellm":
        text = (
            f"gpt-5 models (including gpt-5-codex) don't support temperature={value:g}. Only temperature=1 "
            "is supported. For gpt-5.1, temperature is supported when reasoning_effort='none' (or not "
            "specified, as it defaults to 'none'). To drop unsupported params set `litellm.drop_params = "
            "True`"
        )
        return _litellm(text, "gpt-5")
    if dialect == "vllm":
        return _vllm(f"temperature must be 1.0, got {value}.", "temperature")
    return _only_one(dialect, "temperature", value)


def _unsupported_n(dialect: Dialect, value: int) -> HttpResponse:
    if dialect == "litellm":
        return _litellm(_not_in_litellm(["n"], "gpt-5"), "gpt-5")
    if dialect == "vllm":
        return _vllm(f"n must be 1 when using greedy sampling, got {value}.", None)
    return _only_one(dialect, "n", value)


def _only_one(dialect: Dialect, name: str, value: float) -> HttpResponse:
    """The refusal of every value but 1, by services that say it alike for all fields."""
    if dialect == "llama.cpp":
        return _llama_cpp(f"Field '{name}': Value must be between 1 <= value <= 1, but got {value:g}")
    text = (
        f"Unsupported value: '{name}' does not support {value:g} with this model. Only the default (1) value "
        "is supported."
    )
    return _openai(text, name, "unsupported_value")


def _unknown_fields(dialect: Dialect, names: Sequence[str], model: str) -> HttpResponse:
    if dialect == "litellm":
        return _litellm(_not_in_litellm(names, model), model)
    if dialect == "vllm":
        return _forbidden(names)
    if dialect == "llama.cpp":
        return _llama_cpp(f"Unsupported param: {names[0]}")
    plural = "s" if len(names) > 1 else ""
    return _openai(f"Unrecognized request argument{plural} supplied: {', '.join(names)}", None, None)


def _below_minimum(limit_name: str, least: int, value: int) -> HttpResponse:
    name = "max_output_tokens" if limit_name == "any" else limit_name
    text = f"Invalid '{name}': integer below minimum value."
    text += f" Expected a value >= {least}, but got {value} instead."
    return _openai(text, name, "integer_below_min_value")


def _openai(message: str, param: str | None, code: str | None) -> HttpResponse:
    return error(400, message, code, kind="invalid_request_error", param=param)


def _not_in_litellm(names: Sequence[str], model: str) -> str:
    return (
        f"openai does not support parameters: {list(names)}, for model={model}. To drop these, set "
        "`litellm.drop_params=True` or for proxy:\n\n`litellm_settings:\n drop_params: true`\n. \n If you "
        f"want to use these params dynamically send allowed_openai_params={list(names)} in your request."
    )


def _litellm(message: str, model: str) -> HttpResponse:
    text = (
        f"litellm.UnsupportedParamsError: {message}. Received Model Group={model}\n"
        "Available Model Group Fallbacks=None"
    )
    return error(400, text, "400", kind="None")


def _vllm(message: str, param: str | None) -> HttpResponse:
    return error(400, message, 400, kind="BadRequestError", param=param)


def _forbidden(names: Sequence[str]) -> HttpResponse:
    parts = [
        {
            "type": "extra_forbidden",
            "loc": ("body", name),
            "msg": "Extra inputs are not permitted",
            "input": 1,
        }
        for name in names
    ]
    return _vllm(str(parts), None)


def _llama_cpp(message: str) -> HttpResponse:
    return json_response({"error": {"code": 400, "message": message, "type": "invalid_request_error"}}, 400)
