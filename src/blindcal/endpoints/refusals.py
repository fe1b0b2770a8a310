"""What a refusal means: which endpoint error it is, and which request fields it is about.

An error is retryable, fatal (the same for every item, so the run stops) or about one reply. A refused field
that changes nothing (a seed, a sampler that is off) is left out from then on; refusal of one that decides the
method raises `UnsupportedError`. Only fields that were sent count as refused.
"""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any

from blindcal.endpoints.address import DECISION_APIS
from blindcal.errors import EndpointError, FatalError, ReplyError, RetryableError, UnsupportedError
from blindcal.json_form import JsonError, read_json
from blindcal.records import Request
from blindcal.text import printable

_OTHERS = {"auto": "completions", "chat": "completions", "completions": "chat"}
ITEM_STATUSES = (400, 422)
"""Once an endpoint has answered, these statuses are about the item, whatever the message says."""
_MOST_NAMES = 5

# Errors of one item, not of the endpoint: a prompt that is too long, or that a filter refuses.
_ITEM_FAULT = re.compile(
    r"context.{0,20}(length|size|window)|too long"
    r"|content.{0,20}(filter|policy)|usage.policy|flagged|moderation"
    r"|output limit was reached",
    re.IGNORECASE,
)
_MODEL_FAULT = re.compile(
    r"model.{0,200}(does not exist|not found)|invalid model|not a valid model", re.IGNORECASE | re.DOTALL
)
# No provider behind a gateway takes every field: OpenRouter says so with the status of an unknown model.
_NO_PROVIDER = re.compile(r"requested parameters", re.IGNORECASE)
# LiteLLM has said so with the status of a failing server.
_GATEWAY_REFUSAL = re.compile(rb"does not support parameters")

_REDIRECTED = "the base URL redirects elsewhere: give the final address (https rather than http?)"
_CURES = {
    402: "the endpoint wants payment",
    403: "the API key in {api_key_env} may not use model {model!r}",
    404: "no model {model!r} at this address: check the model's name and the base URL",
    **dict.fromkeys(range(300, 400), _REDIRECTED),
}


def from_status(
    status: int, headers: Mapping[str, str], message: str, *, model: str, api_key_env: str
) -> EndpointError:
    """The endpoint error for an HTTP status and the server's ``message``, which must be safe to show."""
    says = f": {message}" if message else ""
    if status == 429 and re.search(r"insufficient_quota|billing", message):
        return FatalError(f"the account has no quota left (429){says}")
    if status in (408, 409, 425, 429) or (status >= 500 and status != 501):
        throttled = status == 429
        what = "too many requests (429)" if throttled else f"the server failed ({status})"
        return RetryableError(f"{what}{says}", retry_after=retry_after(headers), throttled=throttled)
    if status == 413 or (status in (400, 403, 422) and _ITEM_FAULT.search(message)):
        return ReplyError(f"the endpoint refuses this item ({status}){says}", status=status)
    if status == 404 and _NO_PROVIDER.search(message):
        return FatalError(
            f"no provider of {model!r} takes every field of the request (404){says}", status=status
        )
    cure = _CURES.get(status, "the endpoint refuses the request")
    return FatalError(f"{cure.format(model=model, api_key_env=api_key_env)} ({status}){says}", status=status)


def blames_model(message: str) -> bool:
    return _MODEL_FAULT.search(message) is not None


def blames_key(message: str) -> bool:
    """Whether a message is about the key, whatever its status: LiteLLM looks up unknown keys."""
    return "no_db_connection" in message


def not_there(message: str, url: str, model: str, api: str, listed: Sequence[str]) -> FatalError:
    """The error for a 404 from an endpoint that lists its models."""
    if model in listed:
        says = f": {message}" if message else ""
        return FatalError(
            f"the endpoint lists model {printable(model, 80)!r}, but has nothing at {url} (404){says}",
            status=404,
            remedy="{api} finds out what it speaks" if api in DECISION_APIS else "try {api}",
            options={"api": _OTHERS.get(api, "auto")},
        )
    return FatalError(
        f"the endpoint has no model {printable(model, 80)!r}",
        status=404,
        remedy=f"name one that it lists with {{model}}: {nearest(model, listed)}",
        options={"model": ...},
    )


def nearest(model: str, listed: Sequence[str]) -> str:
    """The listed names, or the closest matches if there are many."""
    shown = listed
    if len(listed) > _MOST_NAMES:
        shown = difflib.get_close_matches(model, listed, _MOST_NAMES, 0.0)
    more = f" and {len(listed) - len(shown):,} more" if len(listed) > len(shown) else ""
    return ", ".join(repr(printable(name, 80)) for name in shown) + more


def is_about_fields(status: int, raw: bytes, error: EndpointError) -> bool:
    """Whether a refusal may be about request fields, not the item, the model or the key."""
    if isinstance(error, RetryableError):
        return status == 500 and _GATEWAY_REFUSAL.search(raw) is not None
    message = message_in(raw)
    about = status in (*ITEM_STATUSES, 501) or (status == 404 and _NO_PROVIDER.search(message) is not None)
    return about and isinstance(error, FatalError) and not blames_model(message)


def unsupported(parameter: str, status: int, raw: bytes) -> UnsupportedError:
    says = f": {message}" if (message := message_in(raw)) else ""
    return UnsupportedError(
        f"the endpoint does not accept {parameter!r} as sent ({status}){says}",
        parameter=parameter,
        status=status,
    )


def message_in(raw: bytes) -> str:
    """The message in a server's error body, on one line that is safe to show."""
    try:
        body = read_json(raw)
    except JsonError:
        return "" if raw.lstrip().startswith(b"<") else printable(raw.decode("utf-8", "replace"))
    error = (body.get("error") or body) if isinstance(body, dict) else body
    if not isinstance(error, dict):
        return printable(str(error))
    parts = [error.get("message") or error.get("detail"), error.get("code"), error.get("type")]
    if isinstance(metadata := error.get("metadata"), dict):
        parts.insert(1, metadata.get("raw"))  # what the provider behind a gateway says
    return printable("; ".join(dict.fromkeys(str(part) for part in parts if part)))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The wait in seconds from ``Retry-After`` or OpenAI's ``retry-after-ms``."""
    given = {name.lower(): value.strip() for name, value in headers.items()}
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(given.get(name, "")) * scale
        except ValueError:
            continue
        return seconds if 0 <= seconds < float("inf") else None
    try:
        return max(0.0, parsedate_to_datetime(given.get("retry-after", "")).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None


# The fields of a request

# Penalties act on greedy answers too, and after the bias: vLLM takes `repetition_penalty` from a model's
# generation_config.json, and llama.cpp calls its own `repeat_penalty`.
PENALTIES: dict[str, float] = {
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "repeat_penalty": 1,
}
# A sampled answer must follow the whole distribution, but servers cut by default: llama.cpp with min_p and
# top_k, vLLM with what generation_config.json says. Every server takes a top_k of -1; older vLLM refuses 0.
SAMPLERS: dict[str, float] = {"top_p": 1, "min_p": 0, "top_k": -1, "typical_p": 1, **PENALTIES}
OPENAI_SAMPLERS = frozenset({"top_p", "presence_penalty", "frequency_penalty"})

_LIMIT_NAMES = ("max_tokens", "max_completion_tokens")
_MOST_LEAST_TOKENS = 4096
_ESSENTIAL = frozenset({"model", "messages", "prompt", "input", "state", "questions", *_LIMIT_NAMES})
# where servers say what is wrong
_MESSAGES = ("error", "message", "detail", "details", "msg", "metadata", "raw")
_DEEPEST = 8
_REFUSAL = re.compile(
    r"unsupported|not (?:\w+ )?support|n't support|only supports?|unknown|unrecogni[sz]ed|unexpected"
    r"|not permitted|not allowed|is allowed|deprecated|invalid|must be|cannot|not implemented|unavailable",
    re.IGNORECASE,
)
# OpenAI's ``param``, pydantic's ``loc`` as JSON or as Python prints it, and vLLM's words
_STRUCTURED = re.compile(
    r""""param":\s*"([\w.\[\]]+)"|["']loc["']:\s*[\[(]["']body["'],\s*["'](\w+)["']|\(parameter=(\w+)"""
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
# What is not about the refused field: pydantic repeats what was sent, and Groq suggests another field.
_BESIDES = re.compile(r"'input': .*|did you mean .*", re.DOTALL)
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_LEAST = re.compile(
    r"max_(?:completion_|output_)?tokens.{0,120}?(?:>=|at least|minimum of)\s*(\d+)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Accepted:
    """What is known about the fields that an endpoint accepts.

    ``limit_name`` is the field that limits tokens, ``least_tokens`` its least value. ``left_out`` fields are
    sent only with a value that matters, such as a temperature other than 1. ``texts`` asks vLLM to name the
    tokens of logprobs by text, not id.
    """

    limit_name: str = "max_tokens"
    least_tokens: int = 1
    left_out: tuple[str, ...] = ()
    texts: bool = False

    @property
    def limit(self) -> tuple[str, int]:
        return self.limit_name, self.least_tokens

    def settings_of(self, request: Request) -> tuple[object, ...]:
        """What the fields of a request depend on, apart from its item and shift."""
        return self, request.temperature, request.max_tokens, request.top_logprobs, request.n

    def without(self, names: Collection[str]) -> Accepted:
        return replace(self, left_out=tuple(sorted({*self.left_out, *names})))

    def offs(self, temperature: float | None) -> dict[str, float]:
        """Fields that switch off distorting samplers; none for ``None``, whose own samplers are measured."""
        offs = {} if temperature is None else SAMPLERS if temperature > 0 else PENALTIES
        return {name: value for name, value in offs.items() if name not in self.left_out}

    def sends(self, name: str, value: object) -> bool:
        return name not in self.left_out or not changes_nothing(name, value)

    def after(self, raw: bytes, sent: Mapping[str, Any]) -> Accepted:
        """What is known after a refusal, apart from the fields that `refused` names."""
        if "max_tokens" in sent and b"max_completion_tokens" in raw:
            return replace(self, limit_name="max_completion_tokens")  # as newer OpenAI models want it
        limit = next((sent[name] for name in _LIMIT_NAMES if name in sent), None)
        least = max(
            (int(match[1]) for text in _texts(_decoded(raw)) for match in _LEAST.finditer(text)), default=0
        )
        if limit is not None and limit < least <= _MOST_LEAST_TOKENS:
            return replace(self, least_tokens=max(least, self.least_tokens))
        return self


def changes_nothing(name: str, value: object) -> bool:
    """Whether a field only makes answers repeatable, or sets what is the default."""
    return name == "seed" or (name == "temperature" and value == 1) or SAMPLERS.get(name) == value


def refused(raw: bytes, sent: Collection[str]) -> tuple[str, ...]:
    """The fields among ``sent`` that an error body refuses by name, structured parts before its message."""
    known = [name for name in sent if name not in _ESSENTIAL]
    unescaped = raw.decode("utf-8", "replace").replace("\\", "")
    named = [_top_level("".join(match.groups(""))) for match in _STRUCTURED.finditer(unescaped)]
    if ours := [name for name in named if name in known]:
        return tuple(dict.fromkeys(ours))
    for text in _texts(_decoded(raw)):
        plain = _CAMEL.sub("_", _BESIDES.sub("", text)).lower()
        for sentence in _SENTENCE_END.split(plain):
            if _REFUSAL.search(sentence) and (names := _mentioned(sentence, known)):
                return names
    return ()


def _mentioned(sentence: str, known: Collection[str]) -> tuple[str, ...]:
    """A name of one letter must be quoted, or followed by "must be" or "="."""
    places = {}
    for name in known:
        word = rf"\b{name}\b" if len(name) > 1 else rf"['\"`]{name}['\"`]|\b{name} must be|\b{name}="
        if (match := re.search(word, sentence)) is not None:
            places[name] = match.start()
    return tuple(sorted(places, key=places.__getitem__))


def _top_level(name: str) -> str:
    return "reasoning_effort" if name == "reasoning.effort" else name.split(".")[0].split("[")[0]


def _decoded(raw: bytes) -> Any:
    try:
        return read_json(raw)
    except JsonError:
        return raw.decode("utf-8", "replace")


def _texts(body: Any, depth: int = 0) -> Iterator[str]:
    """Texts that may say what is wrong; gateways wrap the errors of others."""
    if depth > _DEEPEST:
        return
    if isinstance(body, dict):
        body = [body.get(key) for key in _MESSAGES]
    if isinstance(body, list):
        for part in body:
            yield from _texts(part, depth + 1)
    elif isinstance(body, str):
        wrapped = body.lstrip().startswith(("{", "[{"))
        inner = _decoded(body.encode("utf-8", "replace")) if wrapped else body
        if isinstance(inner, str):
            yield body
        else:
            yield from _texts(inner, depth + 1)
