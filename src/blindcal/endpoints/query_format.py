"""How queries are sent and answers read: as one token, logprobs, free text, or a stated confidence."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy.special import expit

from blindcal.endpoints.free_text import (
    FreeText,
    Verbalized,
    ask_confidence,
    ask_json,
    parse_free_text,
    parse_json_text,
    parse_stated_choice,
    parse_verbalized,
)
from blindcal.endpoints.replies import REFUSED, TOP_LOGPROBS, fault_in, log_odds, place_of, shown_answers
from blindcal.errors import EndpointError, InputError, UnfitError
from blindcal.query_seeds import query_seeds
from blindcal.records import (
    INSTRUCTIONS,
    INVALID,
    NEGATIVE,
    POSITIVE,
    AnswerFormat,
    FloatArray,
    Message,
    Reply,
    Request,
    Semantics,
    Targets,
    Token,
    TypedQuestion,
)
from blindcal.text import printable, shortened, spoken, visible

STATED_TOKENS = 64
"""Maximum tokens of an answer that states a confidence."""
ANSWER_TOKENS: Mapping[AnswerFormat, int] = MappingProxyType({"word": 1, "sentence": 512, "json": 64})
"""Default maximum tokens of an answer, by form."""
REASONING_TOKENS = 4000
"""Maximum tokens to suggest for a model that reasons."""
_STATED_CHARACTERS = 2000
_ROUNDED = 0.0051  # difference that rounding to two decimals can explain
_ODD = 0.4  # most by which a usual formula may exceed (k p - 1) / (k - 1); vLLM's may be far below

ConstraintName: TypeAlias = Literal["allowed_token_ids", "structured_outputs", "guided_choice", "grammar"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A request field that allows only some answers; ``measures`` says how that changes what is measured.

    Servers use different fields and mostly ignore those that they do not know, so a constraint is used only
    after the probe has seen it act.
    """

    measures: str
    fields: Callable[[Sequence[Token]], dict[str, Any]]
    max_tokens: int = 16
    by_id: bool = False


def _by_words(name: str, allowed: Callable[[list[str]], object]) -> Constraint:
    return Constraint(
        f"only the answers are possible ({name}): each token is drawn among those that can begin or continue "
        "one of them",
        lambda tokens: {name: allowed([token.text for token in tokens])},
    )


def _grammar(words: Iterable[str]) -> str:
    return f"root ::= {' | '.join(json.dumps(word, ensure_ascii=False) for word in words)}"


#: By name, the one that changes least first.
CONSTRAINTS: Mapping[ConstraintName, Constraint] = {
    "allowed_token_ids": Constraint(
        "only these tokens are allowed (allowed_token_ids), and compared with each other",
        lambda tokens: {"allowed_token_ids": [token.id for token in tokens]},
        max_tokens=1,
        by_id=True,
    ),
    "structured_outputs": _by_words("structured_outputs", lambda words: {"choice": words}),
    "guided_choice": _by_words("guided_choice", lambda words: words),
    "grammar": _by_words("grammar", _grammar),
}


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """The answer in a reply, and its ``text``, safe to print.

    Of replies that show probabilities, ``low`` and ``high`` bound the log-odds of the positive answer (with
    more than two, of the given one against the rest), and ``mass`` is the probability of all answers
    together. ``shown`` are the probabilities of each of more than two answers. ``said`` is the answer in the
    text, if it can be compared with them. ``reason`` says why a reply could not be read, such as one cut
    short.
    """

    answer: int
    text: str
    _: KW_ONLY
    low: float | None = None
    high: float | None = None
    reason: str = ""
    mass: float | None = None
    said: int | None = None
    shown: tuple[float, ...] = ()

    @property
    def left_open(self) -> float:
        """The width of the bounds in probability; 0 without bounds."""
        return 0.0 if self.low is None or self.high is None else float(expit(self.high) - expit(self.low))


class NoAnswerWordError(UnfitError):
    """No reply is an answer word. It stops the run, and the result says what came back."""


class QuestionFormat(ABC):
    """How a run makes its requests, of at most ``max_tokens`` per answer, and reads the replies."""

    __slots__ = ()
    max_tokens: int

    @property
    def about_answers(self) -> str:
        """What a report should add about the answers; may be empty."""
        return ""

    @abstractmethod
    def request(
        self,
        messages: tuple[Message, ...],
        shift: float,
        temperature: float,
        number: int = 0,
        biases: FloatArray | None = None,
    ) -> Request:
        """The request of query ``number``; ``biases`` are added to the answers if there are more than two."""

    @abstractmethod
    def parse(self, reply: Reply) -> ParsedAnswer:
        """The answer in a reply."""

    @abstractmethod
    def complaint(self, count: int, text: str, reason: str = "") -> EndpointError:
        """The error if all of ``count`` answers are invalid, with the ``text`` and ``reason`` of the last
        one.
        """


@dataclass(frozen=True, slots=True)
class TokenQuestion(QuestionFormat):
    """A question answered by one token.

    ``biased=False`` sends no ``logit_bias`` (METHOD 6), and ``tempered=False`` no temperature, which draws
    answers at the endpoint's own setting (METHOD 9). With a ``seed``, every sampled query carries a seed
    derived from it. Some constraints need more than one token.

    ``own_noise`` seeds Gumbel noise that replaces sampling: queries are sent at T = 0 with noise times the
    temperature added to each token's bias, so the likeliest token has the distribution of a draw (METHOD 8).
    """

    targets: Targets
    offset: float = 50.0
    _: KW_ONLY
    biased: bool = True
    seed: int | None = None
    tempered: bool = True
    max_tokens: int = 1
    constraint: ConstraintName | None = None
    own_noise: int | None = None
    _meaning: dict[str, int] = field(init=False, repr=False, default_factory=dict)
    _fields: dict[str, Any] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.constraint is not None:
            self._fields.update(CONSTRAINTS[self.constraint].fields(self.targets.tokens))
        for meaning, side in enumerate(self.targets.by_answer):
            for token in side:
                if self._meaning.setdefault(spoken(token.text), meaning) != meaning:
                    both = "two answers" if self.targets.answers else "both positive and negative"
                    raise InputError(f"the answer {printable(token.text)!r} cannot mean {both}")

    @property
    def form(self) -> AnswerFormat:
        return "word"

    @property
    def about_answers(self) -> str:
        return "" if self.constraint is None else CONSTRAINTS[self.constraint].measures

    def request(
        self,
        messages: tuple[Message, ...],
        shift: float,
        temperature: float,
        number: int = 0,
        biases: FloatArray | None = None,
    ) -> Request:
        """The request of one query (METHOD 2, 8); a bias of minus infinity marks an answer the item lacks."""
        bias = self._bias(shift, biases) if self.biased else {}
        if self.own_noise is not None and temperature > 0:
            noise = temperature * np.random.default_rng([self.own_noise, number]).gumbel(size=len(bias))
            noise -= noise.max()  # a common shift changes nothing; this one keeps biases within their limit
            bias = {
                token: value + float(more) for (token, value), more in zip(bias.items(), noise, strict=True)
            }
            temperature = 0.0
        return Request(
            messages,
            bias,
            temperature if self.tempered else None,
            max_tokens=self.max_tokens,
            seed=_seed(self.seed, temperature, number),
            fields=self._fields,
        )

    def _bias(self, shift: float, biases: FloatArray | None) -> dict[int, float]:
        if not self.targets.answers:
            raised = {token.id: self.offset + shift for token in self.targets.positive}
            return raised | {token.id: self.offset for token in self.targets.negative}
        added = np.zeros(len(self.targets.answers)) if biases is None else biases
        return {
            token.id: self.offset + float(more)
            for side, more in zip(self.targets.answers, added, strict=True)
            if np.isfinite(more)
            for token in side
        }

    def parse(self, reply: Reply) -> ParsedAnswer:
        """The answer that the text is, ignoring case and surrounding white space."""
        return ParsedAnswer(self._meaning.get(spoken(reply.text), INVALID), printable(reply.text))

    def complaint(self, count: int, text: str, reason: str = "") -> EndpointError:  # noqa: ARG002 - has none
        return NoAnswerWordError(
            f"none of {count} answers is one of the answer words (the last one: {text[:40]!r}): "
            "check the words and tokens, and that logit_bias acts"
        )


class UnbiasedQuestion(QuestionFormat):
    """A question that sends no bias, and no temperature unless ``tempered``; ``words`` are its answers."""

    __slots__ = ()
    words: tuple[str, ...]
    tempered: bool

    def request(
        self,
        messages: tuple[Message, ...],
        shift: float,  # noqa: ARG002 - nothing is biased
        temperature: float,
        number: int = 0,
        biases: FloatArray | None = None,  # noqa: ARG002 - nothing is biased
    ) -> Request:
        return self._request(messages, temperature if self.tempered else None, number)

    @abstractmethod
    def _request(self, messages: tuple[Message, ...], temperature: float | None, number: int) -> Request: ...

    def _number(self, place: int) -> int:
        """Of two words, the positive one comes first."""
        return (POSITIVE, NEGATIVE)[place] if len(self.words) == 2 else place


@dataclass(frozen=True, slots=True)
class FreeTextQuestion(UnbiasedQuestion):
    """A question answered in free text that ends in an answer word, or in JSON with the field ``answer``."""

    words: tuple[str, ...]
    form: AnswerFormat = "sentence"
    max_tokens: int = ANSWER_TOKENS["sentence"]
    _: KW_ONLY
    tempered: bool = True
    seed: int | None = None

    @property
    def about_answers(self) -> str:
        if self.form == "json":
            return "the answers are JSON, and its field counts"
        return "the answers are free text, and what a text settles on counts, after any reasoning"

    def _request(self, messages: tuple[Message, ...], temperature: float | None, number: int) -> Request:
        return Request(
            ask_json(messages, self.words) if self.form == "json" else messages,
            temperature=temperature,
            max_tokens=self.max_tokens,
            seed=_seed(self.seed, 1.0 if temperature is None else temperature, number),
        )

    def parse(self, reply: Reply) -> ParsedAnswer:
        parse = parse_json_text if self.form == "json" else parse_free_text
        if reply.finish_reason in (REFUSED, "content_filter"):
            read = FreeText(None, "refusal")
        else:
            read = parse(reply.text, self.words, finished=reply.finish_reason != "length")
        lines = "\n".join(reply.text.splitlines())
        kept = visible(shortened(lines, _STATED_CHARACTERS), lines=True)
        answer = INVALID if read.answer is None else self._number(read.answer)
        return ParsedAnswer(answer, kept, reason=read.reason)

    def complaint(self, count: int, text: str, reason: str = "") -> EndpointError:
        if reason in ("cut short", "empty"):
            return _no_room(count, reason, self.max_tokens)
        words = f"{', '.join(map(repr, self.words[:-1]))} or {self.words[-1]!r}"
        why = f" ({reason})" if reason else ""
        return UnfitError(
            f"none of {count} texts settles on {words}{why}; the last one ends in "
            f"{printable(text[-80:], 80)!r}",
            remedy="check the answer words, and that the prompt asks for one of them",
        )


@dataclass(frozen=True, slots=True)
class LogprobQuestion(UnbiasedQuestion):
    """A question read from the ``top`` logprobs of the answer's first token; needs no token ids.

    The answer itself is drawn at T = 1: it costs nothing, and must agree with the probabilities beside it.
    """

    words: tuple[str, ...]
    semantics: Semantics = "sum"
    top: int = TOP_LOGPROBS
    seed: int | None = None
    tempered: bool = field(init=False, default=True)
    max_tokens: int = field(init=False, default=1)

    def _request(self, messages: tuple[Message, ...], temperature: float | None, number: int) -> Request:  # noqa: ARG002 - it is 1
        seed = _seed(self.seed, 1.0, number)
        return Request(messages, temperature=1.0, top_logprobs=self.top, seed=seed)

    def parse(self, reply: Reply) -> ParsedAnswer:
        """The likeliest answer and the bounds of its log-odds; invalid if no answer is in the list."""
        fault = fault_in(reply.logprobs)
        if fault is not None or reply.logprobs is None:
            return ParsedAnswer(INVALID, printable(f"({fault})"), reason=fault or "")
        answers = shown_answers(reply.logprobs, self.words, self.semantics)
        masses = zip(self.words, answers.shown, strict=True)
        shown = ", ".join(f"{word.strip()} {mass:.4g}" for word, mass in masses)
        text = printable(f"{printable(reply.text, 40)} ({shown})")
        if not any(answers.shown):
            return ParsedAnswer(INVALID, text, mass=answers.mass)
        # only the sum of all spellings is the probability of an answer
        said = place_of(reply.text, self.words) if self.semantics == "sum" else None
        about = 0 if len(self.words) == 2 else answers.likeliest
        return ParsedAnswer(
            self._number(answers.likeliest),
            text,
            low=answers.low(about),
            high=answers.high(about),
            mass=answers.mass,
            said=None if said is None else self._number(said),
            shown=() if len(self.words) == 2 else tuple(p / sum(answers.shown) for p in answers.shown),
        )

    def complaint(self, count: int, text: str, reason: str = "") -> EndpointError:  # noqa: ARG002 - in the text
        return UnfitError(
            f"none of {count} replies shows the probability of an answer word (the last one: "
            f"{printable(text, 200)!r})",
            remedy="check the answer words, each of which must be one token, or use {method}",
            options={"method": "latent"},
        )


@dataclass(frozen=True, slots=True)
class DecisionQuestion(UnbiasedQuestion):
    """A typed question to a decision API: two words are a predicate, true if the first is the answer.

    More are the options of a choice, or ``graded`` levels. The instructions are those of the item's messages.
    """

    words: tuple[str, ...]
    graded: bool = False
    tempered: bool = field(init=False, default=False)
    max_tokens: int = field(init=False, default=1)

    @property
    def options(self) -> tuple[str, ...]:
        """The options by their text; none for a predicate."""
        return self.words if len(self.words) > 2 or self.graded else ()

    def _request(self, messages: tuple[Message, ...], temperature: float | None, number: int) -> Request:  # noqa: ARG002 - nothing is drawn
        given = "\n".join(message.content for message in messages if message.role == INSTRUCTIONS)
        usual = (
            "Answer the question." if self.options else f'The answer to the question is "{self.words[0]}".'
        )
        question = TypedQuestion(given or usual, self.options, self.graded)
        return Request(messages, temperature=temperature, question=question)

    def parse(self, reply: Reply) -> ParsedAnswer:
        """The likeliest answer and its log-odds, known exactly; a refusal is invalid."""
        if not reply.probabilities:
            return ParsedAnswer(INVALID, printable(reply.text), reason="refusal")
        shown = [*reply.probabilities.values()]
        if not self.options:
            s = log_odds(shown[0], 1 - shown[0])
            return ParsedAnswer(POSITIVE if shown[0] >= 0.5 else NEGATIVE, reply.text, low=s, high=s)
        likeliest = shown.index(max(shown))
        s = log_odds(shown[likeliest], 1 - shown[likeliest])
        chosen = self.options.index(reply.chosen) if reply.chosen in self.options else None
        wrong = _contradictions(shown, chosen, reply.confidence)
        return ParsedAnswer(
            likeliest,
            reply.text,
            low=s,
            high=s,
            mass=min(sum(shown), 1.0),
            reason="; ".join(wrong),
            shown=tuple(shown),
        )

    def complaint(self, count: int, text: str, reason: str = "") -> EndpointError:  # noqa: ARG002 - in the text
        return UnfitError(
            f"none of {count} replies shows a probability (the last one: {printable(text, 80)!r})",
            remedy="check that the model answers questions like these, or word them by {instructions}",
            options={"instructions": ...},
        )


@dataclass(frozen=True, slots=True)
class ConfidenceQuestion(UnbiasedQuestion):
    """A question answered by an answer word and a confidence in it (METHOD 3); both are required."""

    words: tuple[str, ...]
    instruction: str | None = None
    max_tokens: int = STATED_TOKENS
    tempered: bool = True

    def _request(self, messages: tuple[Message, ...], temperature: float | None, number: int) -> Request:  # noqa: ARG002 - nothing is drawn
        asked = ask_confidence(messages, self.words, self.instruction)
        return Request(asked, temperature=temperature, max_tokens=self.max_tokens)

    def parse(self, reply: Reply) -> ParsedAnswer:
        """Confidences are read from the text, kept with its line breaks, at the end of the run."""
        stated = self._read(reply.text)
        answer = INVALID
        if stated.p is not None:
            likelier = POSITIVE if stated.p >= 0.5 else NEGATIVE
            answer = likelier if stated.answer is None else stated.answer
        lines = (printable(line, _STATED_CHARACTERS) for line in reply.text.splitlines())
        return ParsedAnswer(answer, "\n".join(lines), reason="" if reply.text.strip() else "empty")

    def complaint(self, count: int, text: str, reason: str = "") -> EndpointError:
        if reason == "empty":
            return _no_room(count, reason, self.max_tokens)
        return UnfitError(
            f"none of {count} answers states an answer and a confidence (the last one: "
            f"{printable(text, 80)!r}): this model does not state its confidence when asked like this",
            remedy="try another {confidence_wording}",
            options={"confidence_wording": ...},
        )

    def stated(self, texts: Iterable[str | None]) -> VerbalAnswers:
        """Read the stated probabilities: of the positive answer or, with more than two, of the given one."""
        read = [Verbalized(None) if text is None else self._read(text) for text in texts]
        p = np.array([np.nan if answer.p is None else answer.p for answer in read])
        reasons = Counter(answer.reason for answer in read if answer.reason)
        return VerbalAnswers(p, dict(reasons.most_common()))

    def _read(self, text: str) -> Verbalized:
        if len(self.words) > 2:
            return parse_stated_choice(text, self.words)
        return parse_verbalized(text, self.words[:1], self.words[1:])


@dataclass(frozen=True, slots=True)
class VerbalAnswers:
    """The probability that each answer states, NaN if none, and the counts of the reasons for NaN."""

    p: FloatArray
    reasons: dict[str, int]


def _contradictions(
    probabilities: Sequence[float], chosen: int | None, confidence: float | None
) -> list[str]:
    """What a reply says that its probabilities of all options deny, beyond rounding to two decimals."""
    k, total, most = len(probabilities), sum(probabilities), max(probabilities)
    wrong = []
    if abs(total - 1) > _ROUNDED * k:
        wrong.append(f"the probabilities add up to {total:.3g}")
    if chosen is not None and probabilities[chosen] < most - 2 * _ROUNDED:
        wrong.append("another option is likelier than the one chosen")
    sure = (k * most - 1) / (k - 1)
    if confidence is not None and confidence - sure > _ODD:
        wrong.append(f"a confidence of {confidence:.3g} where the likeliest option has {most:.3g}")
    return wrong


def _seed(seed: int | None, temperature: float, number: int) -> int | None:
    return int(query_seeds(seed, number, 1)[0]) if seed is not None and temperature > 0 else None


def _no_room(count: int, reason: str, max_tokens: int) -> UnfitError:
    return UnfitError(
        f"none of {count} answers has come to an end: the last one is {reason}, within {max_tokens} tokens",
        remedy="a model that reasons or explains needs {max_tokens} or more, or a lower {reasoning_effort}; "
        "a run with other settings goes into another {out}",
        options={"max_tokens": max(REASONING_TOKENS, 4 * max_tokens), "reasoning_effort": ..., "out": ...},
    )
