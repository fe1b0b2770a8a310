"""A server that answers over real HTTP as an opaque API would, from recorded logits or probabilities.

A :class:`Recording` is what a model would answer. A :class:`Behaviour` is how the service around it differs
from an ideal one: a clamped or ignored bias, jitter, throttling, broken replies. By default the server shows
only answers, like the services that blindcal is made for. The paper's "simulated API" is this server with the
default behaviour; the hostile endpoints of the tests use other behaviours.

At temperature 0, the answer is the token with the highest biased logit; a tie goes to the token that the
recording lists first. Above 0, it is drawn from the softmax, with the request's seed if there is one; all
unrecorded tokens together count as one, with their log-sum-exp as its logit. If the prompt asks for a
confidence in words, the answer is the recorded text (:class:`RecordedTexts`).

Everything random (draws, jitter, faults) depends on the request and on how often it was made before, never
on the order of arrival: concurrent requests arrive in any order, and must still be answered the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypeAlias, TypeVar

import msgspec
import numpy as np

from blindcal.confidence_prompt import ask_confidence
from blindcal.errors import ConfigError, InputError
from blindcal.query_seeds import uniform_draws
from blindcal.records import FloatArray, Item, Message
from blindcal.simulation.http_server import HttpRequest, HttpResponse, Listener, Manner, json_response
from blindcal.simulation.recording import UNRECORDED_GAP, RecordedTexts, Recording, drawn
from blindcal.simulation.replay_batches import Desk
from blindcal.untrusted_json import JsonError, read_json

HOST = "127.0.0.1"

_OTHER_TEXT = "The"
ServerKind = TypeVar("ServerKind", bound="Server")

Fault: TypeAlias = Literal[
    "429", "500", "401", "404", "reset", "hang", "truncated", "html", "schema", "empty", "reasoning"
]


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How the service differs from an ideal one; the default is ideal.

    Every bias is multiplied by ``bias_scale``. ``jitter`` is the standard deviation of the noise on each
    logit, drawn anew for each request; ``crowd_jitter`` applies only while other requests are in flight.
    ``outside`` is the share of answers that are no answer token, and ``flipped`` the share that are
    replaced by the other answer. A ``cached`` service repeats its first answer to a prompt. At a ``fixed``
    temperature every answer is drawn at 1. ``min_p`` and ``top_p`` cut sampled answers ``cut`` the
    temperature is applied, unless a request sets them and ``sampler_fields`` are honoured. ``constraints`` is
    about the fields ``allowed_token_ids`` and ``structured_outputs``. ``fault`` hits a random share
    ``fault_share`` of the requests or, if ``fault_first`` is set, exactly the first ``fault_first`` requests.
    A random share ``bias_ignored`` of the requests goes to a machine that ignores the bias. ``drift`` is
    added to all log-odds. From request number ``later_from`` on, the service behaves as ``later`` says.
    If it shows ``logprobs``, they are those of the likeliest recorded tokens, at most
    ``top_logprobs``.
    """

    bias: Literal["honoured", "ignored", "rejected"] = "honoured"
    bias_scale: float = 1.0
    clamp: float | None = None
    integer_bias: bool = False
    jitter: float = 0.0
    crowd_jitter: float = 0.0
    outside: float = 0.0
    flipped: float = 0.0
    cached: bool = False
    temperature: Literal["honoured", "ignored", "rejected", "fixed"] = "honoured"
    min_p: float = 0.0
    top_p: float = 1.0
    cut: Literal["before", "after"] = "before"
    sampler_fields: Literal["honoured", "ignored", "rejected"] = "honoured"
    constraints: Literal["honoured", "ignored", "rejected"] = "ignored"
    logprobs: bool = False
    top_logprobs: int = 20
    latency: float = 0.0
    fault: Fault | None = None
    fault_share: float = 1.0
    fault_first: int | None = None
    retry_after: str | None = None
    limit_name: Literal["any", "max_completion_tokens"] = "any"
    api_key: str | None = None
    tokenize: Literal["llama.cpp", "vllm", "none"] = "llama.cpp"
    seed: int = 0
    bias_ignored: float = 0.0
    drift: float = 0.0
    fingerprint: str | None = None
    later: Behaviour | None = None
    later_from: int = 0


class Server:
    """A recording served with a behaviour; an async context manager that opens and closes the port.

    ``requests`` counts the live requests for an answer. ``answered`` counts the answers, and ``paid`` the
    answers by item id: what a provider would have billed. ``desk`` serves files and batches.
    """

    def __init__(
        self,
        recording: Recording,
        items: Iterable[Item],
        behaviour: Behaviour | None = None,
        *,
        port: int = 0,
        spoken: RecordedTexts | None = None,
    ) -> None:
        self.recording = recording
        self.behaviour = behaviour or Behaviour()
        self.requests = 0
        self.answered = 0
        self.paid: Counter[str] = Counter()
        self.in_flight = 0
        self.most_in_flight = 0
        self._port = port
        self._rows, self._spoken = _by_text(recording, items, spoken)
        self._columns = {token.id: k for k, token in enumerate(recording.tokens)}
        self._times: Counter[bytes] = Counter()
        self._cache: dict[str, str] = {}
        self._listener = Listener(self._handle)
        self.desk = Desk(lambda body, chat: self._answer(body, chat=chat, fault=None))

    @property
    def base_url(self) -> str:
        """The base URL for clients."""
        return f"http://{HOST}:{self._port}/v1"

    async def __aenter__(self) -> Self:
        try:
            self._port = await self._listener.open(HOST, self._port)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {HOST}:{self._port} ({error.strerror})",
                remedy="{port} takes any free port",
                options={"port": 0},
            ) from None
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listener.close()

    def _handle(self, request: HttpRequest) -> HttpResponse:
        path = request.path.split("?")[0].rstrip("/")
        if not self._authorised(request.headers):
            return self._fail("401")
        if (about_batches := self.desk.handle(request)) is not None:
            return about_batches
        if request.method == "POST" and path.endswith("/chat/completions"):
            return self._complete(request.body, chat=True)
        if request.method == "POST" and path.endswith("/completions"):
            return self._complete(request.body, chat=False)
        if request.method == "POST" and path == "/tokenize" and self.behaviour.tokenize != "none":
            return self._tokenize(request.body)
        if request.method == "GET" and path.endswith("/models"):
            return json_response({"object": "list", "data": [{"id": self.recording.name, "object": "model"}]})
        if request.method == "GET" and path == "/stats":
            shown = ("requests", "answered", "most_in_flight", "paid")
            return json_response({name: getattr(self, name) for name in shown})
        return _error(404, f"no such path: {path}", "not_found")

    def _authorised(self, headers: dict[str, str]) -> bool:
        key = self.behaviour.api_key
        return key is None or headers.get("authorization") == f"Bearer {key}" or headers.get("api-key") == key

    def _tokenize(self, body: bytes) -> HttpResponse:
        vllm = self.behaviour.tokenize == "vllm"
        try:
            text = read_json(body)["prompt" if vllm else "content"]
        except (JsonError, KeyError, TypeError):
            return _error(400, "the body names no text", "invalid_request_error")
        single = [token.id for token in self.recording.tokens if token.text == text]
        ids = single or [1_000_000 + byte for byte in text.encode()]  # one per byte, none of them recorded
        more = {"count": len(ids), "max_model_len": 4096} if vllm else {}
        return json_response({"tokens": ids, **more})

    def _complete(self, body: bytes, *, chat: bool) -> HttpResponse:
        self.requests += 1
        if self.behaviour.later is not None and self.requests >= self.behaviour.later_from:
            self.behaviour = self.behaviour.later
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        fault = self._struck(body)
        if fault in ("429", "500", "401", "404", "reset", "hang", "html"):
            response = self._fail(fault)
        else:
            response = self._answer(body, chat=chat, fault=fault)
        manner: Manner = fault if fault in ("reset", "hang", "truncated") else "whole"
        return replace(response, delay=self.behaviour.latency, manner=manner, done=self._left)

    def _left(self) -> None:
        self.in_flight -= 1

    def _chance(self, body: bytes) -> np.random.Generator:
        """A random generator seeded by the request and by how many generators it got before."""
        words = hashlib.blake2b(body, digest_size=16).digest()
        self._times[words] += 1
        return np.random.default_rng([self.behaviour.seed, self._times[words], int.from_bytes(words)])

    def _struck(self, body: bytes) -> Fault | None:
        how = self.behaviour
        if how.fault is None:
            return None
        if how.fault_first is not None:
            return how.fault if self.requests <= how.fault_first else None
        return how.fault if self._chance(body).random() < how.fault_share else None

    def _fail(self, fault: str) -> HttpResponse:
        if fault == "429":
            wait = self.behaviour.retry_after
            headers = {} if wait is None else {"Retry-After": wait}
            return replace(_error(429, "Rate limit reached", "rate_limit_exceeded"), headers=headers)
        if fault == "500":
            return _error(500, "The server had an error", "server_error")
        if fault == "401":
            return _error(401, "Incorrect API key provided", "invalid_api_key")
        if fault == "404":
            return _unknown_model(self.recording.name)
        return HttpResponse(b"<!DOCTYPE html><html><body>Welcome</body></html>", content_type="text/html")

    def _answer(self, body: bytes, *, chat: bool, fault: str | None) -> HttpResponse:
        try:
            asked = read_json(body, _CHAT) if chat else read_json(body, _PROMPT)
        except JsonError as error:
            return _error(400, str(error), "invalid_request_error")
        if refusal := self._refusal(asked):
            return refusal
        text = _joined(asked.messages) if isinstance(asked, ChatRequest) else asked.prompt
        row = self._rows.get(text)
        if row is None:
            return _error(
                400, "this prompt was not recorded: is this the recording's items file?", "unknown_prompt"
            )
        free_text = self._spoken.get(text)
        said, logprobs = self._say(row, asked, body) if free_text is None else (free_text, {})
        if self.behaviour.cached:
            said = self._cache.setdefault(text, said)
        self.answered += 1
        self.paid[self.recording.ids[row]] += 1
        if fault == "schema":
            return json_response({"result": said, "choices": said})
        usage = {"prompt_tokens": 1 + len(text) // 4, "completion_tokens": 1 + len(free_text or "") // 4}
        shown = self._shown(logprobs, asked) if asked.logprobs else None
        choice = _choice(said, shown, chat=chat, reasoning=fault == "reasoning")
        choices = [] if fault == "empty" else [choice]
        kind, model = "chat.completion" if chat else "text_completion", self.recording.name
        mark = {} if (seen := self.behaviour.fingerprint) is None else {"system_fingerprint": seen}
        return json_response({"object": kind, "model": model, "choices": choices, "usage": usage, **mark})

    def _refusal(self, asked: ChatRequest | PromptRequest) -> HttpResponse | None:
        how = self.behaviour
        if asked.model != self.recording.name:
            return _unknown_model(asked.model)
        if how.limit_name == "max_completion_tokens" and asked.max_tokens is not None:
            text = "'max_tokens' is not supported. Use 'max_completion_tokens' instead."
            return _error(400, f"Unsupported parameter: {text}", "unsupported_parameter")
        if how.bias == "rejected" and asked.logit_bias:
            return _error(400, "Unsupported parameter: 'logit_bias'", "unsupported_parameter")
        if how.temperature == "rejected" and asked.temperature not in (None, 1):
            return _error(400, "Unsupported value: 'temperature' must be 1", "unsupported_value")
        if how.sampler_fields == "rejected" and (unknown := asked.sampler_fields):
            text = f"Unrecognized request arguments supplied: {', '.join(unknown)}"
            return _error(400, text, "invalid_request_error")
        if how.constraints == "rejected" and (unknown := asked.constraints):
            text = f"Unrecognized request argument supplied: {unknown[0]}"
            return _error(400, text, "invalid_request_error")
        if asked.logprobs and not how.logprobs:
            return _error(400, "Unsupported parameter: 'logprobs'", "unsupported_parameter")
        return None

    def _say(self, row: int, asked: ChatRequest | PromptRequest, body: bytes) -> tuple[str, dict[str, float]]:
        """The answer to one query, and the unbiased logprobs of the recorded tokens."""
        how, recording = self.behaviour, self.recording
        recorded = recording.logits[row]
        logits = recorded.tolist()
        texts = [token.text for token in recording.tokens]
        rest = float(recording.rest[row])
        other = rest if recording.others_first[row] else min(rest, max(logits) - 1e-3)
        if how.drift:
            logits[0] += how.drift  # recordings list the positive answer first
        honoured = how.bias == "honoured"
        if how.bias_ignored:
            honoured &= bool(self._chance(body).random() >= how.bias_ignored)
        for token, value in (asked.logit_bias or {}).items() if honoured else ():
            column = self._columns.get(token)
            if column is None:
                logits.append(other - UNRECORDED_GAP + self._applied(value))
                texts.append(f"token{token}")
            else:
                logits[column] += self._applied(value)
        jitter = math.hypot(how.jitter, how.crowd_jitter if self.in_flight > 1 else 0.0)
        if jitter:
            noise = self._chance(body).normal(0, jitter, len(logits))
            logits = [z + e for z, e in zip(logits, noise, strict=True)]
        if how.outside and self._chance(body).random() < how.outside:
            return _OTHER_TEXT, {}
        temperature = self._temperature(asked)
        candidates = [*logits, other if temperature == 0 else rest]
        if how.constraints == "honoured" and asked.constraints:
            allowed = [*self._allowed(asked), *(False for _ in candidates[len(recording.tokens) :])]
            candidates = [z if ok else -math.inf for z, ok in zip(candidates, allowed, strict=True)]
        if temperature == 0:
            chosen = candidates.index(max(candidates))
        else:
            draws = (
                self._chance(body).random(1) if asked.seed is None else uniform_draws(np.array([asked.seed]))
            )
            kept = self._cut(np.array(candidates), temperature, asked)
            chosen = int(drawn(kept[None, :], np.array([temperature]), draws)[0])
        if how.flipped and chosen < 2 and self._chance(body).random() < how.flipped:
            chosen = 1 - chosen
        said = texts[chosen] if chosen < len(texts) else _OTHER_TEXT
        if not asked.logprobs:
            return said, {}
        total = float(np.logaddexp(np.logaddexp.reduce(recorded), rest))
        return said, {t.text: z - total for t, z in zip(recording.tokens, recorded.tolist(), strict=True)}

    def _allowed(self, asked: ChatRequest | PromptRequest) -> list[bool]:
        """Which of the recorded tokens the constraints of a request allow."""
        ids = asked.allowed_token_ids
        words = (asked.structured_outputs or {}).get("choice")
        return [
            (ids is None or token.id in ids) and (words is None or token.text in words)
            for token in self.recording.tokens
        ]

    def _shown(self, logprobs: dict[str, float], asked: ChatRequest | PromptRequest) -> dict[str, float]:
        """The largest logprobs, as many as are asked for and the service shows."""
        wanted = asked.top_logprobs if isinstance(asked, ChatRequest) else asked.logprobs
        ranked = sorted(logprobs.items(), key=lambda entry: -entry[1])
        return dict(ranked[: min(int(wanted or 0), self.behaviour.top_logprobs)])

    def _temperature(self, asked: ChatRequest | PromptRequest) -> float:
        how = self.behaviour.temperature
        if how == "ignored":
            return 0.0
        return 1.0 if how == "fixed" or asked.temperature is None else asked.temperature

    def _cut(
        self, candidates: FloatArray, temperature: float, asked: ChatRequest | PromptRequest
    ) -> FloatArray:
        """The candidates' logits, minus infinity for those that min_p or top_p rule out."""
        how = self.behaviour
        heeded = how.sampler_fields == "honoured"
        min_p = asked.min_p if heeded and asked.min_p is not None else how.min_p
        top_p = asked.top_p if heeded and asked.top_p is not None else how.top_p
        logits = candidates if how.cut == "before" else candidates / temperature
        weights = np.exp(logits - logits.max())
        order = np.argsort(-weights, kind="stable")
        before = np.cumsum(weights[order]) - weights[order]  # the weight of all likelier candidates
        keep = weights >= min_p
        keep[order] &= before < top_p * weights.sum()
        return np.where(keep, candidates, -np.inf)

    def _applied(self, value: float) -> float:
        how = self.behaviour
        value *= how.bias_scale
        if how.integer_bias:
            value = round(value)
        return value if how.clamp is None else min(max(value, -how.clamp), how.clamp)


@contextlib.contextmanager
def running(server: ServerKind) -> Iterator[ServerKind]:
    """Run a server in its own thread, for callers that are not asynchronous."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="blindcal-replay", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
        try:
            yield server
        finally:
            asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class CompletionRequest(msgspec.Struct, kw_only=True):
    """The fields that both kinds of request share; unknown fields are ignored, as by most servers."""

    model: str
    logit_bias: dict[int, float] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | int | None = None
    top_logprobs: int | None = None
    seed: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    allowed_token_ids: list[int] | None = None
    structured_outputs: dict[str, Any] | None = None

    @property
    def constraints(self) -> list[str]:
        """The fields in the request that allow only some answers."""
        known = ("allowed_token_ids", "structured_outputs")
        return [name for name in known if getattr(self, name) is not None]

    @property
    def sampler_fields(self) -> list[str]:
        """The sampler fields in the request that OpenAI's own API does not know."""
        known = ("min_p", "top_k", "repetition_penalty")
        return [name for name in known if getattr(self, name) is not None]


class ChatRequest(CompletionRequest, kw_only=True):
    messages: list[Message]


class PromptRequest(CompletionRequest, kw_only=True):
    prompt: str


_CHAT = msgspec.json.Decoder(ChatRequest)
_PROMPT = msgspec.json.Decoder(PromptRequest)


def _error(status: int, message: str, code: str) -> HttpResponse:
    return json_response({"error": {"message": message, "type": code, "code": code}}, status)


def _unknown_model(name: str) -> HttpResponse:
    return _error(404, f"The model `{name}` does not exist", "model_not_found")


def _choice(
    said: str, logprobs: Mapping[str, float] | None, *, chat: bool, reasoning: bool
) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "logprobs": None}
    if not chat:
        choice["text"] = said
        if logprobs is not None:
            choice["logprobs"] = {"top_logprobs": [dict(logprobs)]}
        return choice
    answer: dict[str, Any] = {"content": None, "reasoning_content": "Let"} if reasoning else {"content": said}
    choice["message"] = {"role": "assistant", **answer}
    if logprobs is not None:
        top = [{"token": token, "logprob": logprob} for token, logprob in logprobs.items()]
        choice["logprobs"] = {"content": [{"token": said, "top_logprobs": top}]}
    return choice


def _by_text(
    recording: Recording, items: Iterable[Item], spoken: RecordedTexts | None
) -> tuple[dict[str, int], dict[str, str]]:
    """The row that answers each prompt, and the recorded text for prompts that ask for a confidence.

    Raises `InputError` if an item was not recorded.
    """
    rows = {name: row for row, name in enumerate(recording.ids)}
    found: dict[str, int] = {}
    texts: dict[str, str] = {}
    for item in items:
        if item.id not in rows:
            raise InputError(
                f"item {item.id!r} is not in the recording {recording.name!r}: wrong items file?"
            )
        # Items with the same text get the first one's answer: over HTTP they cannot be told apart.
        found.setdefault(_joined(item.messages), rows[item.id])
        if spoken is not None and item.id in spoken.texts:
            asked = _joined(ask_confidence(item.messages, spoken.words))
            found.setdefault(asked, rows[item.id])
            texts.setdefault(asked, spoken.texts[item.id])
    return found, texts


def _joined(messages: Iterable[Message]) -> str:
    return "\n".join(message.content for message in messages)
