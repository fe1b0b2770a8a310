"""The two forms of a decision API, which answers a typed question with probabilities instead of text.

``decisions`` is OpenAI's: a list of questions (predicate, choice, score) about an ``input``. ``systemone``
has a map of them (noul, choice, score) about a ``state``. Some services speak one at the path of the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from blindcal.endpoints.address import Address
from blindcal.endpoints.completion_form import encode
from blindcal.endpoints.refusals import Accepted
from blindcal.endpoints.replies import REFUSED, Envelope, status_of, tokens_of
from blindcal.errors import ReplyError
from blindcal.json_form import JsonError, read_json
from blindcal.records import INSTRUCTIONS, Message, Reply, Request, TypedQuestion
from blindcal.text import printable

_NAME = "answer"  # of the only question of a request


class _Answers(Envelope, gc=False):
    answers: Any = None


class _Answer(msgspec.Struct, gc=False):
    """An answer in either form; each type has its own fields."""

    type: str
    name: str | None = None
    probability: float | None = None  # of a predicate
    noul: float | None = None
    probabilities: Any = None
    legend: dict[str, str] | None = None  # the levels of a score by their keys
    confidence: float | None = None
    choice: Any = None


_DECODER = msgspec.json.Decoder(_Answers)


class DecisionForm(ABC):
    """Writes the bodies of requests with one typed question each, and reads the replies."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def body(self, request: Request, accepted: Accepted) -> bytes:  # noqa: ARG002 - no field is optional
        assert request.question is not None
        about = tuple(message for message in request.messages if message.role != INSTRUCTIONS)
        return encode(
            {
                "model": self._address.model,
                **self._asked(about, request.question),
                **self._address.extra_body,
            }
        )

    def read(self, status: int, raw: bytes, request: Request) -> Reply | int:
        """The reply in a response, or the HTTP status of the error in it."""
        if status != 200:
            return status
        try:
            parsed = read_json(raw, _DECODER)
        except JsonError as error:
            raise ReplyError(f"the reply is not that of a decision API: {error}") from None
        if parsed.error:
            return status_of(parsed.error)
        prompt, completion, cached = tokens_of(parsed.usage)
        try:
            return self._reply(parsed, request, prompt, completion, cached)
        except ReplyError as error:
            error.billed = prompt, completion, cached
            raise

    def _reply(self, parsed: _Answers, request: Request, *tokens: int) -> Reply:
        assert request.question is not None
        prompt, completion, cached = tokens
        answer = self._only_answer(parsed.answers)
        refused = answer.type == "refusal"
        shown = {} if refused else self._shown(answer, request.question)
        text = "refused" if refused else ", ".join(f"{name} {p:.6g}" for name, p in shown.items())
        return Reply(
            printable(text),
            REFUSED if refused else None,
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=cached,
            model=parsed.model,
            fingerprint=parsed.system_fingerprint if isinstance(parsed.system_fingerprint, str) else None,
            probabilities=shown,
            confidence=answer.confidence,
            chosen=answer.choice if isinstance(answer.choice, str) else None,
        )

    def _only_answer(self, answers: Any) -> _Answer:
        """The answer to the question; raises `ReplyError` for none, several, or that to another question."""
        given = self._named(answers)
        if given is None or len(given) != 1:
            count = "no" if not given else f"{len(given)}"
            raise ReplyError(
                f"the reply has {count} answers of the form {self.name} to one question",
                remedy="the endpoint may speak the other form: try {api}",
                options={"api": "systemone" if self.name == "decisions" else "decisions"},
            )
        name, raw = given[0]
        try:
            answer = msgspec.convert(raw, _Answer, strict=False)
        except msgspec.ValidationError as error:
            raise ReplyError(f"the answer is not that of a decision API: {error}") from None
        if (name or answer.name) not in (None, _NAME):
            raise ReplyError(
                f"the answer is to another question: {printable(str(name or answer.name), 40)!r}"
            )
        return answer

    def _shown(self, answer: _Answer, question: TypedQuestion) -> dict[str, float]:
        """The probabilities of the options, in the order asked; that of ``true`` for a predicate."""
        if not question.options:
            p = answer.probability if answer.noul is None else answer.noul
            return {"true": _probability(p)}
        legend = answer.legend or {}
        shown = {legend.get(key, key): p for key, p in self._by_option(answer.probabilities).items()}
        if set(shown) != set(question.options):
            raise ReplyError(
                f"the reply shows probabilities of {printable(', '.join(shown) or 'nothing', 80)}, not of "
                f"{printable(', '.join(question.options), 80)}"
            )
        return {option: _probability(shown[option]) for option in question.options}

    name: str

    @abstractmethod
    def _asked(self, about: tuple[Message, ...], question: TypedQuestion) -> dict[str, Any]:
        """The fields of the body that ask ``question`` about the messages."""

    @abstractmethod
    def _named(self, answers: Any) -> list[tuple[str | None, Any]] | None:
        """The answers with their names; ``None`` if they have another form."""

    @abstractmethod
    def _by_option(self, probabilities: Any) -> dict[str, Any]:
        """The probabilities by the text of their option; empty if they have another form."""


class OpenAIDecisions(DecisionForm):
    """``POST {base}/decisions``."""

    name = "decisions"

    def _asked(self, about: tuple[Message, ...], question: TypedQuestion) -> dict[str, Any]:
        kinds: dict[str, dict[str, Any]] = {
            "predicate": {},
            "choice": {"choices": [{"value": option, "description": option} for option in question.options]},
            "score": {"levels": [{"label": option, "description": option} for option in question.options]},
        }
        asked = {"type": question.kind, "name": _NAME, "instructions": question.instructions}
        plain = len(about) == 1 and about[0].role in ("user", "prompt")
        return {
            "input": about[0].content if plain else about,
            "questions": [asked | kinds[question.kind]],
        }

    def _named(self, answers: Any) -> list[tuple[str | None, Any]] | None:
        return [(None, answer) for answer in answers] if isinstance(answers, list) else None

    def _by_option(self, probabilities: Any) -> dict[str, Any]:
        if not isinstance(probabilities, list):
            return {}
        rows = [row for row in probabilities if isinstance(row, dict)]
        return {str(row.get("label", row.get("value"))): row.get("probability") for row in rows}


class SystemOne(DecisionForm):
    """``POST {base}/systemone``."""

    name = "systemone"

    def _asked(self, about: tuple[Message, ...], question: TypedQuestion) -> dict[str, Any]:
        kinds: dict[str, dict[str, Any]] = {
            "predicate": {"type": "noul"},
            "choice": {"type": "choice", "criteria": dict.fromkeys(question.options)},
            "score": {"type": "score", "criteria": question.options},
        }
        asked = {**kinds[question.kind], "instructions": question.instructions}
        return {
            "state": "\n\n".join(message.content for message in about),
            "questions": {_NAME: asked},
        }

    def _named(self, answers: Any) -> list[tuple[str | None, Any]] | None:
        return list(answers.items()) if isinstance(answers, dict) else None

    def _by_option(self, probabilities: Any) -> dict[str, Any]:
        return dict(probabilities) if isinstance(probabilities, dict) else {}


def _probability(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise ReplyError(f"the reply shows {printable(repr(value), 40)} as a probability")
    return float(value)
