"""Which fields of a request an endpoint accepts, learnt from what it refuses.

Services differ in the fields that they take and in how they say so. A field that changes nothing (a seed, a
sampler that is off) is left out once it is refused. One that matters decides the method, so its refusal is an
`UnsupportedError`. Only fields that were sent count as refused, whatever else an error body mentions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from blindcal.untrusted_json import JsonError, read_json

# Penalties act on greedy answers too, and after the bias: vLLM takes `repetition_penalty` from a model's
# generation_config.json, and llama.cpp calls its own `repeat_penalty`.
PENALTIES: Mapping[str, float] = MappingProxyType(
    {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "repeat_penalty": 1}
)
# A sampled answer must follow the whole distribution, but servers cut by default: llama.cpp with min_p and
# top_k, vLLM with what generation_config.json says. Every server takes a top_k of -1; older vLLM refuses 0.
SAMPLERS: Mapping[str, float] = MappingProxyType(
    {"top_p": 1, "min_p": 0, "top_k": -1, "typical_p": 1, **PENALTIES}
)
OPENAI_SAMPLERS = frozenset({"top_p", "presence_penalty", "frequency_penalty"})

_LIMIT_NAMES = ("max_tokens", "max_completion_tokens")
_MOST_LEAST_TOKENS = 4096
_ESSENTIAL = frozenset({"model", "messages", "prompt", *_LIMIT_NAMES})
_TOLD = ("error", "message", "detail", "details", "msg", "metadata", "raw")  # where servers say what is wrong
_DEEPEST = 8
_REFUSAL = re.compile(
    r"unsupported|not (?:\w+ )?support|n't support|only supports?|unknown|unrecogni[sz]ed|unexpected"
    r"|not permitted|not allowed|is allowed|deprecated|invalid|must be|cannot|not implemented|unavailable",
    re.IGNORECASE,
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
    """What is known of the fields that an endpoint accepts.

    ``limit_name`` is the name of the limit on tokens, which is at least ``least_tokens``. Fields that are
    ``left_out`` are not sent, unless they have a value that matters, such as a temperature other than 1.
    With ``texts``, logprobs are asked for by the texts of tokens, where a server would name them by id.
    """

    limit_name: str = "max_tokens"
    least_tokens: int = 1
    left_out: tuple[str, ...] = ()
    texts: bool = False

    @property
    def limit(self) -> tuple[str, int]:
        """The name of the limit on tokens and its least value."""
        return self.limit_name, self.least_tokens

    def without(self, names: Collection[str]) -> Accepted:
        """The same, with more fields left out."""
        return replace(self, left_out=tuple(sorted({*self.left_out, *names})))

    def offs(self, temperature: float | None) -> dict[str, float]:
        """The sampler fields that switch off what would distort an answer at this temperature.

        At the endpoint's own setting (``None``) there are none: that setting is what is measured.
        """
        offs = {} if temperature is None else SAMPLERS if temperature > 0 else PENALTIES
        return {name: value for name, value in offs.items() if name not in self.left_out}

    def sends(self, name: str, value: object) -> bool:
        """Whether a field with this value is sent."""
        return name not in self.left_out or not changes_nothing(name, value)

    def after(self, raw: bytes, sent: Mapping[str, Any]) -> Accepted:
        """What is known after a refusal, apart from the fields that `refused` finds."""
        if "max_tokens" in sent and b"max_completion_tokens" in raw:
            return replace(self, limit_name="max_completion_tokens")  # as newer OpenAI models want it
        limit = next((sent[name] for name in _LIMIT_NAMES if name in sent), None)
        least = max((int(found[1]) for text in _texts(raw) for found in _LEAST.finditer(text)), default=0)
        if limit is not None and limit < least <= _MOST_LEAST_TOKENS:
            return replace(self, least_tokens=max(least, self.least_tokens))
        return self


def changes_nothing(name: str, value: object) -> bool:
    """Whether a field can be left out: it only makes answers repeatable, or asks for what is the default."""
    return name == "seed" or (name == "temperature" and value == 1) or SAMPLERS.get(name) == value


def refused(raw: bytes, sent: Collection[str]) -> tuple[str, ...]:
    """The fields among those ``sent`` that an error body refuses by name, in the order of the body.

    Structured parts (``param``, ``loc``) count before the words of the message, of which the first sentence
    that refuses anything counts.
    """
    known = [name for name in sent if name not in _ESSENTIAL]
    body = _decoded(raw)
    named = [name for name in map(_plain, _structured(body)) if name in known]
    if named:
        return tuple(dict.fromkeys(named))
    for text in _texts(raw):
        plain = _CAMEL.sub("_", _BESIDES.sub("", text)).lower()
        for sentence in _SENTENCE_END.split(plain):
            if _REFUSAL.search(sentence) and (found := _mentioned(sentence, known)):
                return found
    return ()


def _mentioned(sentence: str, known: Collection[str]) -> tuple[str, ...]:
    """The known names in a sentence, in order; a single letter must be quoted, or say what it must be."""
    places = {}
    for name in known:
        word = rf"\b{name}\b" if len(name) > 1 else rf"['\"`]{name}['\"`]|\b{name} must be|\b{name}="
        if (found := re.search(word, sentence)) is not None:
            places[name] = found.start()
    return tuple(sorted(places, key=places.__getitem__))


def _plain(name: str) -> str:
    """A field's name as it is sent: ``response_format.type`` is in ``response_format``."""
    return "reasoning_effort" if name == "reasoning.effort" else name.split(".")[0].split("[")[0]


def _decoded(raw: bytes) -> Any:
    try:
        return read_json(raw)
    except JsonError:
        return raw.decode("utf-8", "replace")


def _structured(body: Any) -> Iterator[str]:
    """The names that the structured parts of an error body give."""
    for part in _parts(body):
        if isinstance(part, str):
            yield from re.findall(r"\(parameter=(\w+)", part)
            yield from re.findall(r"'loc': \('body', '(\w+)'", part)
            continue
        if isinstance(name := part.get("param"), str):
            yield name
        match part.get("loc"):
            case ["body", str(name), *_]:
                yield name


def _texts(raw: bytes) -> list[str]:
    return [part for part in _parts(_decoded(raw)) if isinstance(part, str)]


def _parts(body: Any, depth: int = 0) -> Iterator[dict[str, Any] | str]:
    """The objects and texts in which an error body says what is wrong; gateways wrap those of others."""
    if depth > _DEEPEST:
        return
    if isinstance(body, dict):
        yield body
        for key in _TOLD:
            yield from _parts(body.get(key), depth + 1)
    elif isinstance(body, list):
        for part in body:
            yield from _parts(part, depth + 1)
    elif isinstance(body, str):
        inner = _decoded(body.encode("utf-8", "replace")) if body.lstrip().startswith(("{", "[{")) else body
        if isinstance(inner, str):
            yield body
        else:
            yield from _parts(inner, depth + 1)
