"""A server that answers over real HTTP as an opaque API would, from recorded logits or probabilities.

At temperature 0, the answer is the token with the highest biased logit, the first recorded one on a tie.
Above 0, it is drawn from the softmax, with the request's seed if given; unrecorded tokens count as one, with
their log-sum-exp as its logit. A prompt that asks for a confidence in words gets the recorded text
(:class:`RecordedTexts`).

Randomness (draws, jitter) depends on the request and on how often it was made before, never on the
order of arrival, so that concurrent requests get reproducible answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Annotated, Any, Self, TypeVar

import msgspec
import numpy as np

from blindcal.endpoints.free_text import ask_confidence
from blindcal.errors import InputError
from blindcal.field_rules import FromZero, NotNegative
from blindcal.json_form import JsonError, read_json
from blindcal.query_seeds import uniform_draws
from blindcal.records import Item, Message
from blindcal.simulation.http_server import HttpRequest, HttpResponse, Listener, json_response
from blindcal.simulation.recording import UNRECORDED_GAP, RecordedTexts, Recording, drawn

HOST = "127.0.0.1"

_OTHER_TEXT = "The"
_MOST_LOGPROBS = 20
_SEED_STEP = 2**31  # beyond every seed, so that answers share no draws
ServerKind = TypeVar("ServerKind", bound="Server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What a replay shows, how noisy it is and how slow; by default the paper's "simulated API"."""

    logprobs: Annotated[bool, "Show logprobs to clients that ask for them."] = False
    jitter: Annotated[NotNegative, "Standard deviation of the noise on each logit of each request."] = 0.0
    latency: Annotated[NotNegative, "Seconds before each answer."] = 0.0
    seed: Annotated[FromZero, "Random seed of the jitter."] = 0


class CompletionRequest(msgspec.Struct, kw_only=True):
    """The fields of chat and plain completions that a replay reads; others are ignored."""

    model: str
    messages: list[Message] = []
    prompt: str = ""
    logit_bias: dict[int, float] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int = 1
    logprobs: bool | int | None = None
    top_logprobs: int | None = None
    seed: int | None = None

    @property
    def text(self) -> str:
        return _joined(self.messages) if self.messages else self.prompt

    @property
    def limit(self) -> int | None:
        """Maximum number of tokens of an answer, under either name."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def shown(self) -> int:
        """Number of logprobs to show; plain completions give it in ``logprobs``."""
        return self.top_logprobs or 0 if isinstance(self.logprobs, bool) else self.logprobs or 0


_REQUEST = msgspec.json.Decoder(CompletionRequest)


def _joined(messages: Iterable[Message]) -> str:
    return "\n".join(message.content for message in messages)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, and the number of tokens billed for it."""

    text: str
    tokens: int
    finish_reason: str = "stop"


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens to answer with; ``rest`` is the logit of all unrecorded ones, ``other`` of their likeliest."""

    logits: list[float]
    texts: list[str]
    rest: float
    other: float


class Server:
    """Serves a recording with a behaviour; an async context manager that opens and closes the port.

    ``requests`` counts requests for answers, ``answered`` the answers, and ``paid`` those billed by item id.
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
        self._port = port
        self._rows, self._spoken = _by_text(recording, items, spoken)
        self._columns = {token.id: k for k, token in enumerate(recording.tokens)}
        self._times: Counter[bytes] = Counter()
        self._listener = Listener(self._handle)

    @property
    def base_url(self) -> str:
        return f"http://{HOST}:{self._port}/v1"

    async def __aenter__(self) -> Self:
        try:
            self._port = await self._listener.open(HOST, self._port)
        except OSError as error:
            raise InputError(
                f"cannot listen on {HOST}:{self._port} ({error.strerror})",
                remedy="{port} takes any free port",
                options={"port": 0},
            ) from None
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listener.close()

    def _handle(self, request: HttpRequest) -> HttpResponse:
        path = request.path.split("?")[0].rstrip("/")
        if request.method == "POST" and path.endswith("/chat/completions"):
            return self._complete(request.body, chat=True)
        if request.method == "POST" and path.endswith("/completions"):
            return self._complete(request.body, chat=False)
        if request.method == "POST" and path == "/tokenize":
            return self._tokenize(request.body)
        if request.method == "GET" and path.endswith("/models"):
            return json_response({"object": "list", "data": [{"id": self.recording.name, "object": "model"}]})
        if request.method == "GET" and path == "/stats":
            shown = ("requests", "answered", "paid")
            return json_response({name: getattr(self, name) for name in shown})
        return error(404, f"no such path: {path}", "not_found")

    def _tokenize(self, body: bytes) -> HttpResponse:
        try:
            text = read_json(body)["content"]
        except (JsonError, KeyError, TypeError):
            return error(400, "the body names no text", "invalid_request_error")
        return json_response({"tokens": self._token_ids(text)})

    def _token_ids(self, text: str) -> list[int]:
        recorded = [token.id for token in self.recording.tokens if token.text == text]
        return recorded or [1_000_000 + byte for byte in text.encode()]  # one per byte, none of them recorded

    def _complete(self, body: bytes, *, chat: bool) -> HttpResponse:
        self.requests += 1
        response = self._answer(body, chat=chat)
        return replace(response, delay=response.delay + self.behaviour.latency)

    def _chance(self, body: bytes) -> np.random.Generator:
        words = hashlib.blake2b(body, digest_size=16).digest()
        self._times[words] += 1
        return np.random.default_rng([self.behaviour.seed, self._times[words], int.from_bytes(words)])

    def _answer(self, body: bytes, *, chat: bool) -> HttpResponse:
        try:
            asked = read_json(body, _REQUEST)
        except JsonError as problem:
            return error(400, str(problem), "invalid_request_error")
        if refused := self._refusal(asked, body):
            return refused
        row = self._rows.get(asked.text)
        if row is None:
            return error(
                400, "this prompt was not recorded: is this the recording's items file?", "unknown_prompt"
            )
        answers = self._answers(row, asked, body)
        self.answered += len(answers)
        self.paid[self.recording.ids[row]] += len(answers)
        return json_response(self._reply(row, asked, answers, chat=chat))

    # Overridden by services that differ in other ways

    def _refusal(self, asked: CompletionRequest, body: bytes) -> HttpResponse | None:  # noqa: ARG002
        if asked.model != self.recording.name:
            return unknown_model(asked.model)
        if asked.logprobs and not self.behaviour.logprobs:
            text = "Unsupported parameter: 'logprobs' is not supported with this model."
            kind = "invalid_request_error"
            return error(400, text, "unsupported_parameter", kind=kind, param="logprobs")
        return None

    def _answers(self, row: int, asked: CompletionRequest, body: bytes) -> list[Answer]:
        recorded = self._spoken.get(asked.text)
        if recorded is not None:
            return [self._limited(recorded, 1 + len(recorded) // 4, asked.limit)] * asked.n
        candidates = self._candidates(row, asked, body)
        return [self._worded(self._choose(candidates, asked, body, k), asked, k) for k in range(asked.n)]

    def _candidates(self, row: int, asked: CompletionRequest, body: bytes) -> Candidates:
        recording = self.recording
        logits = recording.logits[row].tolist()
        texts = [token.text for token in recording.tokens]
        rest = float(recording.rest[row])
        other = rest if recording.others_first[row] else min(rest, max(logits) - 1e-3)
        for token, value in (asked.logit_bias or {}).items():
            column = self._columns.get(token)
            if column is None:
                logits.append(other - UNRECORDED_GAP + value)
                texts.append(f"token{token}")
            else:
                logits[column] += value
        if self.behaviour.jitter:
            noise = self._chance(body).normal(0, self.behaviour.jitter, len(logits))
            logits = [z + e for z, e in zip(logits, noise, strict=True)]
        return Candidates(logits, texts, rest, other)

    def _choose(self, candidates: Candidates, asked: CompletionRequest, body: bytes, k: int) -> str | None:
        # `None` stands for an unrecorded token.
        logits, temperature = candidates.logits, 1.0 if asked.temperature is None else asked.temperature
        if temperature == 0:
            every = [*logits, candidates.other]
            chosen = every.index(max(every))
        else:
            if asked.seed is None:
                draw = self._chance(body).random(1)
            else:
                draw = uniform_draws(np.array([asked.seed + k * _SEED_STEP]))
            weighed = np.array([[*logits, candidates.rest]])
            chosen = int(drawn(weighed, np.array([temperature]), draw)[0])
        return candidates.texts[chosen] if chosen < len(logits) else None

    def _worded(self, word: str | None, asked: CompletionRequest, k: int) -> Answer:  # noqa: ARG002
        return self._limited(_OTHER_TEXT if word is None else word, 1, asked.limit)

    def _limited(self, text: str, tokens: int, limit: int | None) -> Answer:
        return Answer(text, tokens, "stop" if limit is None or tokens < limit else "length")

    def _reply(
        self, row: int, asked: CompletionRequest, answers: list[Answer], *, chat: bool
    ) -> dict[str, Any]:
        logprobs = self._logprobs(row) if asked.logprobs else None
        return {
            "object": "chat.completion" if chat else "text_completion",
            "model": self.recording.name,
            "choices": [
                _choice(k, answer, logprobs, min(asked.shown, _MOST_LOGPROBS), chat)
                for k, answer in enumerate(answers)
            ],
            "usage": {
                "prompt_tokens": 1 + len(asked.text) // 4,
                "completion_tokens": sum(answer.tokens for answer in answers),
            },
        }

    def _logprobs(self, row: int) -> dict[str, float]:
        recorded = self.recording.logits[row]
        total = float(np.logaddexp(np.logaddexp.reduce(recorded), self.recording.rest[row]))
        pairs = zip(self.recording.tokens, recorded.tolist(), strict=True)
        return dict(sorted(((token.text, z - total) for token, z in pairs), key=lambda pair: -pair[1]))


@contextlib.contextmanager
def running(server: ServerKind) -> Iterator[ServerKind]:
    """Run a server in its own thread, for synchronous callers."""
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


def error(
    status: int, message: str, code: str | int | None, *, kind: str | None = None, param: str | None = None
) -> HttpResponse:
    """An error in OpenAI's form; its type is ``kind``, by default the code."""
    about = {"message": message, "type": code if kind is None else kind, "param": param, "code": code}
    return json_response({"error": about}, status)


def unknown_model(name: str) -> HttpResponse:
    return error(404, f"The model `{name}` does not exist", "model_not_found", kind="invalid_request_error")


def _choice(
    index: int, answer: Answer, logprobs: Mapping[str, float] | None, most: int, chat: bool
) -> dict[str, Any]:
    listed = dict(islice((logprobs or {}).items(), most))
    own = (logprobs or {}).get(answer.text)
    choice: dict[str, Any] = {"index": index, "finish_reason": answer.finish_reason, "logprobs": None}
    if not chat:
        choice["text"] = answer.text
        if logprobs is not None:
            choice["logprobs"] = {"token_logprobs": [own], "top_logprobs": [listed]}
        return choice
    choice["message"] = {"role": "assistant", "content": answer.text}
    if logprobs is not None:
        top = [{"token": token, "logprob": logprob} for token, logprob in listed.items()]
        choice["logprobs"] = {"content": [{"token": answer.text, "logprob": own, "top_logprobs": top}]}
    return choice


def _by_text(
    recording: Recording, items: Iterable[Item], spoken: RecordedTexts | None
) -> tuple[dict[str, int], dict[str, str]]:
    rows = {name: row for row, name in enumerate(recording.ids)}
    by_text: dict[str, int] = {}
    texts: dict[str, str] = {}
    for item in items:
        if item.id not in rows:
            raise InputError(
                f"item {item.id!r} is not in the recording {recording.name!r}: wrong items file?"
            )
        # Over HTTP, items with the same text are indistinguishable: all get the first one's answer.
        by_text.setdefault(_joined(item.messages), rows[item.id])
        if spoken is not None and item.id in spoken.texts:
            asked = _joined(ask_confidence(item.messages, spoken.words))
            by_text.setdefault(asked, rows[item.id])
            texts.setdefault(asked, spoken.texts[item.id])
    return by_text, texts
