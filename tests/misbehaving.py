"""The replay as a server that lies, refuses and breaks as real services do, and such services by name."""

from __future__ import annotations

import asyncio
import json
import math
import re
import socket
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from blindcal.records import Item
from blindcal.simulation import replay
from blindcal.simulation.http_server import HttpRequest, HttpResponse, Listener, json_response
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import Answer, Candidates, CompletionRequest, error, unknown_model

Fault: TypeAlias = Literal[
    "429", "500", "401", "404", "reset", "hang", "truncated", "html", "schema", "empty", "reasoning"
]
_ERRORS = {
    "429": ("Rate limit reached", "rate_limit_exceeded"),
    "500": ("The server had an error", "server_error"),
    "401": ("Incorrect API key provided", "invalid_api_key"),
}
_FOR_EVER = 1e6  # seconds
CONSTRAINTS = ("allowed_token_ids", "structured_outputs")
_SAMPLERS = ("top_p", "presence_penalty", "frequency_penalty")
_OPENAI_FIELDS = frozenset(
    {
        *("model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature", "n", "seed"),
        *("logit_bias", "logprobs", "top_logprobs", "response_format", "reasoning_effort", "stop", "stream"),
        *("user", "store", "metadata", "service_tier", "verbosity", "echo", "best_of", "suffix", *_SAMPLERS),
    }
)


@dataclass(frozen=True)
class Reset(HttpResponse):
    """The connection is reset instead of a response."""


class _Listener(Listener):
    def write(self, writer: asyncio.StreamWriter, response: HttpResponse) -> None:
        if isinstance(response, Reset):
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        else:
            super().write(writer, response)


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour(replay.Behaviour):
    """How the service differs from an ideal one; the default is ideal.

    Every bias is multiplied by ``bias_scale`` and cut at ``clamp`` either way. Of more than ``most_biases``
    entries in ``logit_bias``, those after the first ones, or those with the ``lowest`` values, are ignored,
    or the request is rejected. ``crowd_jitter`` is noise on the logits while other requests are in flight.
    ``outside`` is the share of answers that are no answer token, and ``flipped`` the share that are replaced
    by the next answer. Of the replies, the share ``cached`` repeats the first answer to the prompt, and the
    share ``cached_requests`` the first reply to the same request. ``draws`` come from the request's seed, if
    it has one, and are fresh otherwise or with the server's ``one seed``; or from a seed ``by prompt`` alone.

    A ``fixed`` temperature is 1 for every request; if it is ``ignored``, every answer is greedy; else it is
    multiplied by ``temperature_scale``. ``min_p``
    and ``top_p`` cut sampled answers ``cut`` the temperature is applied, unless a request sets them and
    ``sampler_fields`` are honoured. If these are ``rejected``, so are all fields that OpenAI's API does not
    know, and ``all rejected`` includes ``top_p`` and the penalties. A ``repetition_penalty`` acts, after the
    bias, on answer words that stand in the prompt, unless a request sets another and ``penalty_fields`` are
    honoured. ``constraints`` is about the fields ``allowed_token_ids`` and ``structured_outputs``.

    With several answers asked for, ``n`` of them are drawn, or one, or one is repeated. At most
    ``top_logprobs`` are shown. They are the answers' own, swapped or of another item, and are multiplied by
    ``logprobs_scale``, as after a temperature. A service whose ``wording`` is a sentence answers in free
    text. One that reasons bills ``reasoning_tokens`` that it does not show, and its answer is empty if they
    reach the limit.
    A limit on tokens below ``least_tokens`` is refused.

    A random ``fault_share`` of the requests meets the ``fault`` or, if ``fault_first`` is set, exactly the
    first ones. A random share ``bias_ignored`` of the requests goes to a machine that ignores the bias.
    ``drift`` is added to all log-odds, little by little over ``drift_over`` requests. From request number
    ``later_from`` on, the service behaves as ``later`` says, and as ``unreasoned`` says whenever
    ``reasoning_effort`` is none.
    """

    bias: Literal["honoured", "ignored", "rejected"] = "honoured"
    bias_scale: float = 1.0
    clamp: float | None = None
    most_biases: int | None = None
    further_biases: Literal["ignored", "lowest", "rejected"] = "ignored"
    integer_bias: bool = False
    crowd_jitter: float = 0.0
    outside: float = 0.0
    flipped: float = 0.0
    cached: float = 0.0
    cached_requests: float = 0.0
    draws: Literal["fresh", "one seed", "by prompt"] = "fresh"
    temperature: Literal["honoured", "ignored", "rejected", "fixed"] = "honoured"
    temperature_scale: float = 1.0
    min_p: float = 0.0
    top_p: float = 1.0
    cut: Literal["before", "after"] = "before"
    sampler_fields: Literal["honoured", "ignored", "rejected", "all rejected"] = "honoured"
    repetition_penalty: float = 1.0
    penalty_fields: Literal["honoured", "ignored"] = "honoured"
    constraints: Literal["honoured", "ignored", "rejected"] = "ignored"
    n: Literal["honoured", "ignored", "identical"] = "honoured"
    top_logprobs: int = 20
    logprobs_of: Literal["answers", "answers swapped", "another item"] = "answers"
    logprobs_scale: float = 1.0
    wording: Literal["word", "sentence"] = "word"
    reasoning_tokens: int = 0
    fault: Fault | None = None
    fault_share: float = 1.0
    fault_first: int | None = None
    retry_after: str | None = None
    limit_name: Literal["any", "max_completion_tokens"] = "any"
    least_tokens: int = 1
    tokenize: Literal["llama.cpp", "vllm", "none"] = "llama.cpp"
    bias_ignored: float = 0.0
    drift: float = 0.0
    drift_over: int = 0
    fingerprint: str | None = None
    later: Behaviour | None = None
    later_from: int = 0
    unreasoned: Behaviour | None = None


class Server(replay.Server):
    """A replay that behaves as a `Behaviour` says."""

    behaviour: Behaviour

    def __init__(
        self, recording: Recording, items: Iterable[Item], behaviour: Behaviour | None = None, **more: Any
    ) -> None:
        super().__init__(recording, items, behaviour or Behaviour(), **more)
        self._listener = _Listener(self._handle)
        self._in_flight = self._began = 0
        self._cache: dict[str, Answer] = {}
        self._replies: dict[bytes, list[Answer]] = {}

    def _handle(self, request: HttpRequest) -> HttpResponse:
        how = self.behaviour
        if request.path == "/tokenize" and how.tokenize == "none":
            return error(404, "no such path: /tokenize", "not_found")
        if request.path == "/tokenize" and how.tokenize == "vllm":
            sent = json.loads(request.body)
            if "prompt" not in sent:
                return error(400, "the body names no text", "invalid_request_error")
            ids = self._token_ids(sent["prompt"])
            return json_response({"tokens": ids, "count": len(ids), "max_model_len": 4096})
        return super()._handle(request)

    def _turn(self) -> None:
        if self.behaviour.later is not None and self.requests + 1 >= self.behaviour.later_from:
            self.behaviour, self._began = self.behaviour.later, self.requests

    def _complete(self, body: bytes, *, chat: bool) -> HttpResponse:
        self._turn()
        self._in_flight += 1
        usual = self.behaviour
        if usual.unreasoned is not None and json.loads(body).get("reasoning_effort") == "none":
            self.behaviour = usual.unreasoned
        response = super()._complete(body, chat=chat)
        self.behaviour = usual
        asyncio.get_running_loop().call_later(response.delay, self._left)
        if response.status == 429 and (wait := self.behaviour.retry_after) is not None:
            return replace(response, headers={"Retry-After": wait})
        return response

    def _left(self) -> None:
        self._in_flight -= 1

    def _answer(self, body: bytes, *, chat: bool) -> HttpResponse:
        fault = self._struck(body)
        if fault in _ERRORS:
            return error(int(fault), *_ERRORS[fault])
        if fault == "404":
            return unknown_model(self.recording.name)
        if fault == "html":
            return HttpResponse(b"<!DOCTYPE html><html><body>Welcome</body></html>", content_type="text/html")
        if fault == "reset":
            return Reset()
        if fault == "hang":
            return HttpResponse(delay=_FOR_EVER)
        response = super()._answer(body, chat=chat)
        if fault is None or response.status != 200:
            return response
        if fault == "truncated":
            return replace(response, body=response.body[: len(response.body) // 2])
        reply = json.loads(response.body)
        if fault == "schema":
            reply = {"result": "?", "choices": "?"}
        elif fault == "empty":
            reply["choices"] = []
        else:
            for choice in reply["choices"]:
                choice.get("message", {}).update(content=None, reasoning_content="Let")
        return json_response(reply)

    def _struck(self, body: bytes) -> Fault | None:
        how = self.behaviour
        if how.fault is None:
            return None
        if how.fault_first is not None:
            return how.fault if self.requests <= how.fault_first else None
        return how.fault if self._chance(body).random() < how.fault_share else None

    def _refusal(self, asked: CompletionRequest, body: bytes) -> HttpResponse | None:
        return refusal(self.behaviour, asked, body, self.recording.name)

    def _answers(self, row: int, asked: CompletionRequest, body: bytes) -> list[Answer]:
        how, temperature = self.behaviour, asked.temperature
        if temperature is None or how.temperature == "fixed":
            temperature = 1.0
        if how.temperature == "ignored":
            temperature = 0.0
        temperature *= how.temperature_scale
        n, seed = asked.n if how.n == "honoured" else 1, asked.seed
        if how.draws == "by prompt":
            seed = zlib.crc32(asked.text.encode(), how.seed)
        elif how.draws == "one seed" and seed is None:
            seed = how.seed
        drawn = msgspec.structs.replace(asked, n=n, seed=seed, temperature=temperature)
        answers = super()._answers(row, drawn, body)
        if how.n == "identical":
            answers *= asked.n
        first, same = self._cache.setdefault(asked.text, answers[0]), self._replies.setdefault(body, answers)
        if how.cached and self._chance(body).random() < how.cached:
            answers = [first] * len(answers)
        if how.cached_requests and self._chance(body).random() < how.cached_requests:
            answers = same
        return answers

    def _candidates(self, row: int, asked: CompletionRequest, body: bytes) -> Candidates:
        how, sent = self.behaviour, json.loads(body)
        asked = msgspec.structs.replace(asked, logit_bias=self._bias(asked, body))
        known = super()._candidates(row, asked, body)
        logits, rest, other = np.array(known.logits), known.rest, known.other
        drifted = min(1.0, (self.requests - self._began) / how.drift_over) if how.drift_over else 1.0
        logits[0] += how.drift * drifted  # recordings list the positive answer first
        penalty = sent.get("repeat_penalty", sent.get("repetition_penalty"))
        if penalty is None or how.penalty_fields == "ignored":
            penalty = how.repetition_penalty
        if penalty != 1:
            prompt = set(re.findall(r"\w+", asked.text))
            repeated = np.array([text.strip() in prompt for text in known.texts])
            logits[repeated] *= np.where(logits[repeated] > 0, 1 / penalty, penalty)
        if how.crowd_jitter and self._in_flight > 1:
            logits += self._chance(body).normal(0, how.crowd_jitter, logits.size)
        if how.constraints == "honoured" and any(name in sent for name in CONSTRAINTS):
            ids, words = sent.get("allowed_token_ids"), (sent.get("structured_outputs") or {}).get("choice")
            allowed = [
                (ids is None or token.id in ids) and (words is None or token.text in words)
                for token in self.recording.tokens
            ]
            logits[~np.array(allowed + [False] * (logits.size - len(allowed)))] = -np.inf
            rest = other = -math.inf
        return Candidates(logits.tolist(), known.texts, rest, other)

    def _bias(self, asked: CompletionRequest, body: bytes) -> dict[int, float]:
        how, bias = self.behaviour, asked.logit_bias or {}
        if how.bias != "honoured" or (how.bias_ignored and self._chance(body).random() < how.bias_ignored):
            return {}
        entries = list(bias.items())
        if how.further_biases == "lowest":
            entries.sort(key=lambda entry: -entry[1])
        scaled = {token: value * how.bias_scale for token, value in entries[: how.most_biases]}
        if how.integer_bias:
            scaled = {token: round(value) for token, value in scaled.items()}
        most = math.inf if how.clamp is None else how.clamp
        return {token: min(max(value, -most), most) for token, value in scaled.items()}

    def _choose(self, candidates: Candidates, asked: CompletionRequest, body: bytes, k: int) -> str | None:
        how = self.behaviour
        if how.outside and self._chance(body).random() < how.outside:
            return None
        word = super()._choose(self._kept(candidates, asked.temperature or 0.0, body), asked, body, k)
        answers = candidates.texts[: self.recording.choices]
        if how.flipped and word in answers and self._chance(body).random() < how.flipped:
            return answers[(answers.index(word) + 1) % len(answers)]
        return word

    def _kept(self, candidates: Candidates, temperature: float, body: bytes) -> Candidates:
        """The candidates, with a logit of minus infinity for those that min_p or top_p rule out."""
        how = self.behaviour
        sent = json.loads(body) if how.sampler_fields == "honoured" else {}
        min_p, top_p = sent.get("min_p", how.min_p), sent.get("top_p", how.top_p)
        if temperature == 0 or (min_p == 0 and top_p == 1):
            return candidates
        logits = np.array([*candidates.logits, candidates.rest])
        weighed = logits if how.cut == "before" else logits / temperature
        weights = np.exp(weighed - weighed.max())
        order = np.argsort(-weights, kind="stable")
        before = np.cumsum(weights[order]) - weights[order]  # the weight of all likelier candidates
        keep = weights >= min_p
        keep[order] &= before < top_p * weights.sum()
        *kept, rest = np.where(keep, logits, -np.inf).tolist()
        return replace(candidates, logits=kept, rest=rest)

    def _worded(self, word: str | None, asked: CompletionRequest, k: int) -> Answer:
        if self.behaviour.wording == "word":
            return super()._worded(word, asked, k)
        text = sentence(word, asked.text, k)
        answer, left = self._limited(text, 1 + len(text) // 4, asked.limit), asked.limit
        if answer.finish_reason == "stop" or not answer.text or left is None:
            return answer
        return replace(answer, text=text[: 4 * (left - self.behaviour.reasoning_tokens)], tokens=left)

    def _limited(self, text: str, tokens: int, limit: int | None) -> Answer:
        hidden = self.behaviour.reasoning_tokens
        if hidden and limit is not None and limit <= hidden:
            return Answer("", limit, "length")
        return super()._limited(text, hidden + tokens, limit)

    def _logprobs(self, row: int) -> dict[str, float]:
        how = self.behaviour
        listed = super()._logprobs((row + (how.logprobs_of == "another item")) % len(self.recording.ids))
        values = how.logprobs_scale * np.array(list(listed.values()))
        if how.logprobs_scale != 1:
            values -= np.logaddexp.reduce(values)
        texts = list(listed)
        if how.logprobs_of == "answers swapped":
            texts[:2] = texts[1::-1]
        return dict(zip(texts, values.tolist(), strict=True))

    def _reply(
        self, row: int, asked: CompletionRequest, answers: list[Answer], *, chat: bool
    ) -> dict[str, Any]:
        how, reply = self.behaviour, super()._reply(row, asked, answers, chat=chat)
        for choice in reply["choices"] if chat and asked.logprobs else ():
            shown = choice["logprobs"]["content"][0]
            shown["top_logprobs"] = shown["top_logprobs"][: how.top_logprobs]
        if how.reasoning_tokens:
            hidden = sum(min(answer.tokens, how.reasoning_tokens) for answer in answers)
            reply["usage"]["completion_tokens_details"] = {"reasoning_tokens": hidden}
        if how.fingerprint is not None:
            reply["system_fingerprint"] = how.fingerprint
        return reply


_SENTENCES = (
    "Based on the passage, the answer is **{0}**.",
    "{0}.",
    "The answer is: {0}",
    "**Answer:** {0}",
    "Let me look at what is asked. The text says enough to decide it.\n\nFinal answer: {0}",
    'After considering both sides, my answer is "{0}".',
    "{0}, according to the text above.",
)


def sentence(word: str | None, prompt: str, number: int) -> str:
    """A sentence that gives a word, or none; which one depends on the prompt and the answer's number."""
    if word is None:
        return "It depends on what exactly is meant."
    return _SENTENCES[(zlib.crc32(prompt.encode()) + number) % len(_SENTENCES)].format(word.strip())


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
        text = (
            f"Unsupported value: 'temperature' does not support {asked.temperature:g} with this model. Only "
        )
        return _refused(text + "the default (1) value is supported.", "temperature", "unsupported_value")
    if asked.logprobs and not how.logprobs:
        return _unsupported("logprobs")
    refused = [name for name in _SAMPLERS if name in sent] if how.sampler_fields == "all rejected" else []
    return _unsupported(refused[0]) if refused else None


def _refused(message: str, param: str | None, code: str | None) -> HttpResponse:
    return error(400, message, code, kind="invalid_request_error", param=param)


def _unsupported(name: str, instead: str = "") -> HttpResponse:
    text = f"Unsupported parameter: '{name}' is not supported with this model.{instead}"
    return _refused(text, name, "unsupported_parameter")


def _below_minimum(limit_name: str, least: int, value: int) -> HttpResponse:
    name = "max_output_tokens" if limit_name == "any" else limit_name
    text = f"Invalid '{name}': integer below minimum value."
    text += f" Expected a value >= {least}, but got {value} instead."
    return _refused(text, name, "integer_below_min_value")
