"""A strict schema of the replies of OpenAI-compatible servers, and what is read from them.

Decoded JSON has no cycles, so the garbage collector can skip it (``gc=False``).

A list of logprobs is short, so it may lack spellings of an answer. Two bounds limit what it lacks: hidden
tokens share what the shown ones leave of 1, and none is likelier than the least likely shown one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from blindcal.errors import EndpointError, ReplyError, RetryableError
from blindcal.json_form import JsonError, read_json
from blindcal.records import Reply, Semantics
from blindcal.text import spellings, spoken

REFUSED = "refusal"
"""Finish reason of a reply that the endpoint marks as a refusal."""
MOST_TOKENS = 10**8
"""Larger token counts are taken for errors."""
_NO_COMPLETION = "the reply is not a completion of the OpenAI form"


class Logprob(msgspec.Struct, gc=False):
    token: str
    logprob: float


class ChatPosition(msgspec.Struct, gc=False):
    logprob: float | None = None
    top_logprobs: list[Logprob] = []


class Logprobs(msgspec.Struct, gc=False):
    """Logprobs in both dialects: a list of positions (OpenAI's chats) or dictionaries (its completions)."""

    content: list[ChatPosition] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None
    token_logprobs: list[float | None] | None = None


class ChatMessage(msgspec.Struct, gc=False):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class CompletionChoice(msgspec.Struct, gc=False):
    """The ``message`` of a chat or the ``text`` of a plain completion."""

    message: ChatMessage | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: Logprobs | None = None


class Envelope(msgspec.Struct, gc=False):
    """Some gateways send an ``error`` instead of choices. Any ``usage`` is accepted, to lose no answer."""

    model: str | None = None
    system_fingerprint: Any = None
    usage: Any = None
    error: Any = None


class Completion(Envelope, gc=False):
    choices: list[CompletionChoice] = []


_COMPLETION = msgspec.json.Decoder(Completion)
_ENVELOPE = msgspec.json.Decoder(Envelope)


def read(status: int, raw: bytes, *, free_text: bool = False) -> Reply | int:
    """The reply in a response, or the HTTP status of the error in it; errors carry the tokens billed.

    Reasoning without an answer is an error if one word was asked for, and an empty answer in ``free_text``.
    """
    if status != 200:
        return status
    try:
        parsed = _decode(raw)
        return status_of(parsed.error) if parsed.error else _as_reply(parsed, free_text)
    except EndpointError as error:
        try:
            error.billed = tokens_of(read_json(raw, _ENVELOPE).usage)
        except JsonError:
            error.billed = 0, 0, 0
        raise


def status_of(error: Any) -> int:
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 300 <= code < 600 else 502


def _decode(raw: bytes) -> Completion:
    try:
        return read_json(raw, _COMPLETION)
    except JsonError as error:
        if not error.malformed:
            raise ReplyError(f"{_NO_COMPLETION}: {error}") from None
    if raw.lstrip().startswith(b"{") and not raw.rstrip().endswith(b"}"):
        raise RetryableError("the reply was cut short: its JSON does not end")
    if raw.lstrip().startswith(b"<"):
        raise ReplyError(
            "the endpoint answered with a web page, not JSON: check the base URL (it usually ends in /v1)"
        )
    raise ReplyError("the endpoint did not answer with JSON: check the base URL, and any proxy in between")


def _as_reply(parsed: Completion, free_text: bool) -> Reply:
    if not parsed.choices:
        raise ReplyError(
            "the reply has no choices: the endpoint is not OpenAI-compatible, or it filtered the answer"
        )
    first, *further = _usable(parsed, free_text)
    prompt, completion, cached = tokens_of(parsed.usage)
    fingerprint = parsed.system_fingerprint if isinstance(parsed.system_fingerprint, str) else None
    return Reply(  # not by `replace`, which takes several times as long
        first.text,
        first.finish_reason,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        model=parsed.model,
        logprobs=first.logprobs,
        logprob=first.logprob,
        fingerprint=fingerprint,
        further=tuple(replace(other, model=parsed.model, fingerprint=fingerprint) for other in further),
    )


def _usable(parsed: Completion, free_text: bool) -> list[Reply]:
    usable, errors = [], []
    for choice in parsed.choices:
        try:
            usable.append(_choice(choice, parsed.usage, free_text))
        except ReplyError as error:
            errors.append(error)
    if not usable:
        raise errors[0]
    return usable


def _choice(choice: CompletionChoice, usage: Any, free_text: bool) -> Reply:
    message, answer = choice.message, choice.text
    if message is not None:
        if not message.content and message.refusal:
            return Reply(message.refusal, REFUSED)
        if not message.content and not free_text:
            _check_no_reasoning(choice, message, usage)
        answer = message.content or ""
    if answer is None:
        raise ReplyError(f"{_NO_COMPLETION}: a choice has neither a message nor a text")
    logprobs, logprob = _first_logprobs(choice.logprobs)
    return Reply(answer, choice.finish_reason, logprobs=logprobs, logprob=logprob)


def tokens_of(usage: Any) -> tuple[int, int, int]:
    """Tokens of the prompt, the completion and the cached prompt, under either name.

    Some services count hidden reasoning only in the total; it is billed as completion.
    """
    decided = _count(usage, "input_tokens") is not None
    read, written = ("input", "output") if decided else ("prompt", "completion")
    prompt, completion = _count(usage, f"{read}_tokens"), _count(usage, f"{written}_tokens")
    completion = 0 if decided and completion is None else completion
    if prompt is None or completion is None:
        return 0, 0, 0
    completion = max(completion, (_count(usage, "total_tokens") or 0) - prompt)
    cached = _count(usage, f"{read}_tokens_details", "cached_tokens") or 0
    return prompt, completion, min(cached, prompt)


def _count(usage: Any, *path: str) -> int | None:
    for name in path:
        usage = usage.get(name) if isinstance(usage, dict) else None
    if type(usage) is float and usage.is_integer():  # as some servers write whole numbers
        usage = int(usage)
    return usage if type(usage) is int and 0 <= usage <= MOST_TOKENS else None


def _check_no_reasoning(choice: CompletionChoice, message: ChatMessage, usage: Any) -> None:
    counted = _count(usage, "completion_tokens_details", "reasoning_tokens")
    reasoned = message.reasoning_content or message.reasoning or counted
    if reasoned or (message.content is None and choice.finish_reason == "length"):
        raise ReplyError(
            "the model returned reasoning and no answer",
            remedy="turn reasoning off with {reasoning_effort}, or audit a model that does not reason",
            options={"reasoning_effort": "none"},
        )


def _first_logprobs(logprobs: Logprobs | None) -> tuple[dict[str, float] | None, float | None]:
    if logprobs is None:
        return None, None
    if logprobs.top_logprobs:
        return logprobs.top_logprobs[0], next(iter(logprobs.token_logprobs or ()), None)
    if not logprobs.content:
        return None, None
    first, best = logprobs.content[0], dict[str, float]()
    for entry in first.top_logprobs:  # tokens with the same text: keep the likelier
        best[entry.token] = max(entry.logprob, best.get(entry.token, -float("inf")))
    return best or None, first.logprob


# The probabilities of the answers in the logprobs of a reply

TOP_LOGPROBS = 20
"""Logprobs to ask for: the most that OpenAI allows, and vLLM by default."""
FARTHEST = 50.0
"""Stands for infinite log-odds, far beyond what rounded probabilities can show."""

_UNSHOWN = -9999.0  # written by OpenAI and vLLM for tokens that are too unlikely to be shown
_ROUNDING = 1e-6  # a sum of rounded probabilities is not known better
_LARGEST = 0.01  # logprob that rounding can explain
_MOST = 1.05  # sum of probabilities that rounding can explain
_TRACE = 1e-12  # far below what even a model that is sure leaves to other spellings
_TOKEN_ID = re.compile(r"token_id:\d+")

BY_ID = "return_tokens_as_token_ids"
"""vLLM's field, and option, that names the tokens of logprobs by id: ``token_id:123``."""


def named_by_id(logprobs: Mapping[str, float] | None) -> bool:
    return bool(logprobs) and all(map(_TOKEN_ID.fullmatch, logprobs or ()))


def fault_in(logprobs: Mapping[str, float] | None) -> str | None:
    """Why a list of logprobs cannot be read; ``None`` if it can."""
    if not logprobs:
        return "this endpoint shows no logprobs"
    if named_by_id(logprobs):
        return f"this endpoint shows logprobs by token id and not by text (vLLM does with {BY_ID})"
    values = list(logprobs.values())
    if max(values) > _LARGEST or sum(map(math.exp, values)) > _MOST:
        return (
            "what this endpoint shows as logprobs are no logarithms of probabilities: it seems to show "
            "logits (vLLM does with logprobs-mode raw_logits or processed_logits)"
        )
    return None


def one_is_certain(logprobs: Mapping[str, float]) -> bool:
    """Whether one token has all of the probability, and the others shown not even a trace of it."""
    *others, most = sorted(map(math.exp, logprobs.values()))
    return most > 1 - _ROUNDING and sum(others) < _TRACE


@dataclass(frozen=True, slots=True)
class ShownAnswers:
    """The probabilities of the answers in a list of logprobs, in the order of their words.

    Each value of ``shown`` may be larger by its part of ``more``, and their sum by ``unseen``; ``mass`` is
    the shown probability of all spellings.
    """

    shown: tuple[float, ...]
    more: tuple[float, ...]
    unseen: float
    mass: float

    @property
    def likeliest(self) -> int:
        return self.shown.index(max(self.shown))

    def low(self, place: int = 0) -> float:
        """Lower bound of the log-odds of an answer against all others."""
        more = min(self.unseen, _others(self.more, place))
        return log_odds(self.shown[place], _others(self.shown, place) + more)

    def high(self, place: int = 0) -> float:
        """Upper bound of the log-odds of an answer against all others."""
        return log_odds(self.shown[place] + self.more[place], _others(self.shown, place))


def shown_answers(
    logprobs: Mapping[str, float], words: tuple[str, ...], semantics: Semantics = "sum"
) -> ShownAnswers:
    """Find the answer words in a list of logprobs.

    ``sum`` semantics add up all tokens that are the word but for case and white space, ``max`` takes the
    likeliest, and ``pair`` the exact token (METHOD 1). Of more than two answers, letters keep their case.
    """
    chances = {text: math.exp(value) for text, value in logprobs.items() if value > _UNSHOWN}
    unseen = max(1 - sum(chances.values()), _ROUNDING)
    least = min(chances.values(), default=1.0)
    shown, more, mass = [], [], 0.0
    for word in words:
        letter = _is_letter(word, words)
        spelled = [chance for text, chance in chances.items() if _same(text, word, letter=letter)]
        mass += sum(spelled)
        if semantics == "sum":
            missing = len(spellings(word, letter=letter)) - len(spelled)
        else:
            if semantics == "pair":
                spelled = [chances[word]] if word in chances else []
            spelled = [max(spelled)] if spelled else []
            missing = 1 - len(spelled)
        shown.append(sum(spelled))
        more.append(min(unseen, max(missing, 0) * least))
    return ShownAnswers(tuple(shown), tuple(more), unseen, min(mass, 1.0))


def place_of(text: str, words: tuple[str, ...]) -> int | None:
    """The place of the answer word that a text is."""
    same = (k for k, word in enumerate(words) if _same(text, word, letter=_is_letter(word, words)))
    return next(same, None)


def _is_letter(word: str, words: tuple[str, ...]) -> bool:
    return len(words) > 2 and len(word.strip()) == 1


def _same(text: str, word: str, *, letter: bool) -> bool:
    return text.strip() == word.strip() if letter else spoken(text) == spoken(word)


def _others(values: tuple[float, ...], place: int) -> float:
    return sum(values[:place] + values[place + 1 :])


def log_odds(positive: float, negative: float) -> float:
    """The log of a ratio of probabilities, within ±`FARTHEST`."""
    if not positive or not negative:
        return FARTHEST if positive else -FARTHEST
    return min(max(math.log(positive) - math.log(negative), -FARTHEST), FARTHEST)
