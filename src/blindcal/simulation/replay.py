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
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Self, TypeVar

import numpy as np

from blindcal.confidence_prompt import ask_confidence
from blindcal.errors import ConfigError, InputError
from blindcal.query_seeds import uniform_draws
from blindcal.records import FloatArray, Item
from blindcal.simulation.behaviour import Behaviour as Behaviour  # what callers need beside the server
from blindcal.simulation.behaviour import Fault as Fault
from blindcal.simulation.completion_request import CHAT, PROMPT, ChatRequest, PromptRequest, joined
from blindcal.simulation.http_server import HttpRequest, HttpResponse, Listener, Manner, json_response
from blindcal.simulation.recording import UNRECORDED_GAP, RecordedTexts, Recording, drawn
from blindcal.simulation.refusals import error, refusal, unknown_model
from blindcal.simulation.wording import sentence
from blindcal.untrusted_json import JsonError, read_json

HOST = "127.0.0.1"

_OTHER_TEXT = "The"
_SEED_STEP = 2**31  # beyond every seed, so that no answer shares its draw with another query
ServerKind = TypeVar("ServerKind", bound="Server")


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer to a request, and the tokens that it is billed, of which some are hidden reasoning."""

    text: str
    tokens: int
    reasoning_tokens: int
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Candidates:
    """The logits and texts of the tokens that a request may be answered with.

    All unrecorded tokens together have the logit ``rest``, the likeliest of them ``other``.
    """

    logits: list[float]
    texts: list[str]
    rest: float
    other: float


class Server:
    """A recording served with a behaviour; an async context manager that opens and closes the port.

    ``requests`` counts the requests for an answer. ``answered`` counts the answers, and ``paid`` the
    answers by item id: what a provider would have billed.
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
        self._cache: dict[str, Answer] = {}
        self._replies: dict[bytes, list[Answer]] = {}
        self._listener = Listener(self._handle)

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
        return error(404, f"no such path: {path}", "not_found")

    def _authorised(self, headers: dict[str, str]) -> bool:
        key = self.behaviour.api_key
        return key is None or headers.get("authorization") == f"Bearer {key}" or headers.get("api-key") == key

    def _tokenize(self, body: bytes) -> HttpResponse:
        vllm = self.behaviour.tokenize == "vllm"
        try:
            text = read_json(body)["prompt" if vllm else "content"]
        except (JsonError, KeyError, TypeError):
            return error(400, "the body names no text", "invalid_request_error")
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
            return replace(error(429, "Rate limit reached", "rate_limit_exceeded"), headers=headers)
        if fault == "500":
            return error(500, "The server had an error", "server_error")
        if fault == "401":
            return error(401, "Incorrect API key provided", "invalid_api_key")
        if fault == "404":
            return unknown_model(self.recording.name)
        return HttpResponse(b"<!DOCTYPE html><html><body>Welcome</body></html>", content_type="text/html")

    def _answer(self, body: bytes, *, chat: bool, fault: str | None) -> HttpResponse:
        how, model = self.behaviour, self.recording.name
        try:
            asked = read_json(body, CHAT) if chat else read_json(body, PROMPT)
        except JsonError as problem:
            return error(400, str(problem), "invalid_request_error")
        if refused := self._refusal(asked, body):
            return refused
        text = asked.text
        row = self._rows.get(text)
        if row is None:
            return error(
                400, "this prompt was not recorded: is this the recording's items file?", "unknown_prompt"
            )
        answers = self._answers(row, asked, body)
        if how.cached:
            answers = [self._cache.setdefault(text, answers[0])] * len(answers)
        if how.cached_requests:
            answers = self._replies.setdefault(body, answers)
        self.answered += len(answers)
        self.paid[self.recording.ids[row]] += len(answers)
        if fault == "schema":
            return json_response({"result": answers[0].text, "choices": answers[0].text})
        shown = self._logprobs(row) if asked.logprobs else None
        most = min(asked.shown, how.top_logprobs)
        reasoning = fault == "reasoning"
        choices = [_choice(k, one, shown, most, chat, reasoning) for k, one in enumerate(answers)]
        kind = "chat.completion" if chat else "text_completion"
        mark = {} if (seen := how.fingerprint) is None else {"system_fingerprint": seen}
        return json_response(
            {
                "object": kind,
                "model": model,
                "choices": [] if fault == "empty" else choices,
                "usage": self._usage(text, answers),
                **mark,
            }
        )

    def _refusal(self, asked: ChatRequest | PromptRequest, body: bytes) -> HttpResponse | None:
        return refusal(self.behaviour, asked, body, self.recording.name)

    def _usage(self, prompt: str, answers: list[Answer]) -> dict[str, Any]:
        """What a request is billed: its prompt once, and every answer."""
        completion = sum(one.tokens for one in answers)
        usage: dict[str, Any] = {"prompt_tokens": 1 + len(prompt) // 4, "completion_tokens": completion}
        if self.behaviour.reasoning_tokens:
            hidden = sum(one.reasoning_tokens for one in answers)
            usage["completion_tokens_details"] = {"reasoning_tokens": hidden}
        return usage

    def _answers(self, row: int, asked: ChatRequest | PromptRequest, body: bytes) -> list[Answer]:
        how, recorded = self.behaviour, self._spoken.get(asked.text)
        count = asked.n if how.n in ("honoured", "identical") else 1
        if recorded is not None:
            return [_worded(recorded, 1 + len(recorded) // 4, asked.limit, how)] * count
        logits = self._logits(row, asked, body)
        said = [self._say(logits, asked, body, k) for k in range(1 if how.n == "identical" else count)]
        if how.wording == "word":
            words = [_worded(_OTHER_TEXT if word is None else word, 1, asked.limit, how) for word in said]
            return words * (count // len(words))
        texts = [sentence(word, asked.text, k) for k, word in enumerate(said)]
        answers = [_worded(text, 1 + len(text) // 4, asked.limit, how, cut=True) for text in texts]
        return answers * (count // len(answers))

    def _logits(self, row: int, asked: ChatRequest | PromptRequest, body: bytes) -> Candidates:
        """What a request's answer is chosen from: biased, penalised and jittered."""
        how, recording = self.behaviour, self.recording
        logits = recording.logits[row].tolist()
        texts = [token.text for token in recording.tokens]
        rest = float(recording.rest[row])
        other = rest if recording.others_first[row] else min(rest, max(logits) - 1e-3)
        if how.drift:
            logits[0] += how.drift  # recordings list the positive answer first
        honoured = how.bias == "honoured"
        if how.bias_ignored:
            honoured &= bool(self._chance(body).random() >= how.bias_ignored)
        for token, value in self._heeded(asked.logit_bias or {}) if honoured else ():
            column = self._columns.get(token)
            if column is None:
                logits.append(other - UNRECORDED_GAP + self._applied(value))
                texts.append(f"token{token}")
            else:
                logits[column] += self._applied(value)
        heeded = how.penalty_fields == "honoured" and asked.penalty is not None
        penalty = asked.penalty if heeded and asked.penalty is not None else how.repetition_penalty
        if penalty != 1:
            repeated = set(re.findall(r"\w+", asked.text))
            for k, text in enumerate(texts):
                if text.strip() in repeated:
                    logits[k] = logits[k] / penalty if logits[k] > 0 else logits[k] * penalty
        jitter = math.hypot(how.jitter, how.crowd_jitter if self.in_flight > 1 else 0.0)
        if jitter:
            noise = self._chance(body).normal(0, jitter, len(logits))
            logits = [z + e for z, e in zip(logits, noise, strict=True)]
        if how.constraints == "honoured" and asked.constraints:
            allowed = [*self._allowed(asked), *(False for _ in logits[len(recording.tokens) :])]
            logits = [z if ok else -math.inf for z, ok in zip(logits, allowed, strict=True)]
            rest = other = -math.inf
        return Candidates(logits, texts, rest, other)

    def _allowed(self, asked: ChatRequest | PromptRequest) -> list[bool]:
        """Which of the recorded tokens the constraints of a request allow."""
        ids = asked.allowed_token_ids
        words = (asked.structured_outputs or {}).get("choice")
        return [
            (ids is None or token.id in ids) and (words is None or token.text in words)
            for token in self.recording.tokens
        ]

    def _say(self, found: Candidates, asked: ChatRequest | PromptRequest, body: bytes, k: int) -> str | None:
        """The token of the ``k``-th answer to a request; ``None`` if it is none of the recorded ones."""
        how = self.behaviour
        if how.outside and self._chance(body).random() < how.outside:
            return None
        temperature = self._temperature(asked)
        if temperature == 0:
            candidates = [*found.logits, found.other]
            chosen = candidates.index(max(candidates))
        else:
            if asked.seed is None:
                draw = self._chance(body).random(1)
            else:
                draw = uniform_draws(np.array([asked.seed + k * _SEED_STEP]))
            kept = self._cut(np.array([*found.logits, found.rest]), temperature, asked)
            chosen = int(drawn(kept[None, :], np.array([temperature]), draw)[0])
        answers = self.recording.choices
        if how.flipped and chosen < answers and self._chance(body).random() < how.flipped:
            chosen = (chosen + 1) % answers
        return found.texts[chosen] if chosen < len(found.texts) else None

    def _logprobs(self, row: int) -> dict[str, float]:
        """The recorded tokens with their unbiased logprobs, the likeliest first."""
        recorded = self.recording.logits[row]
        total = float(np.logaddexp(np.logaddexp.reduce(recorded), self.recording.rest[row]))
        pairs = zip(self.recording.tokens, recorded.tolist(), strict=True)
        return dict(sorted(((token.text, z - total) for token, z in pairs), key=lambda pair: -pair[1]))

    def _temperature(self, asked: ChatRequest | PromptRequest) -> float:
        how = self.behaviour
        if how.temperature == "ignored":
            return 0.0
        own = how.temperature == "fixed" or asked.temperature is None
        return how.own_temperature if own or asked.temperature is None else asked.temperature

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

    def _heeded(self, bias: Mapping[int, float]) -> Iterable[tuple[int, float]]:
        """The entries of a bias that a service takes notice of."""
        how = self.behaviour
        if how.further_biases == "lowest":
            return sorted(bias.items(), key=lambda one: -one[1])[: how.most_biases]
        return islice(bias.items(), how.most_biases)

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


def _worded(text: str, tokens: int, limit: int | None, how: Behaviour, *, cut: bool = False) -> Answer:
    """An answer of so many tokens under a limit on them; ``cut`` says that its text ends there too."""
    hidden = how.reasoning_tokens
    if limit is None or hidden + tokens < limit:
        return Answer(text, hidden + tokens, hidden, "stop")
    if hidden and limit <= hidden:
        return Answer("", limit, limit, "length")
    left = min(tokens, limit - hidden)
    return Answer(text[: 4 * left] if cut else text, hidden + (left if cut else tokens), hidden, "length")


def _choice(
    index: int, answer: Answer, logprobs: Mapping[str, float] | None, most: int, chat: bool, reasoning: bool
) -> dict[str, Any]:
    """One choice of a completion, with the logprob of its own and at most ``most`` of the likeliest."""
    listed = dict(islice((logprobs or {}).items(), most))
    own = (logprobs or {}).get(answer.text)
    choice: dict[str, Any] = {"index": index, "finish_reason": answer.finish_reason, "logprobs": None}
    if not chat:
        choice["text"] = answer.text
        if logprobs is not None:
            choice["logprobs"] = {"token_logprobs": [own], "top_logprobs": [listed]}
        return choice
    said = {"content": None, "reasoning_content": "Let"} if reasoning else {"content": answer.text}
    choice["message"] = {"role": "assistant", **said}
    if logprobs is not None:
        top = [{"token": token, "logprob": logprob} for token, logprob in listed.items()]
        choice["logprobs"] = {"content": [{"token": answer.text, "logprob": own, "top_logprobs": top}]}
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
        found.setdefault(joined(item.messages), rows[item.id])
        if spoken is not None and item.id in spoken.texts:
            asked = joined(ask_confidence(item.messages, spoken.words))
            found.setdefault(asked, rows[item.id])
            texts.setdefault(asked, spoken.texts[item.id])
    return found, texts
