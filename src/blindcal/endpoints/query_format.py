"""How queries are sent and answers read: as biased or sampled tokens, or as a stated confidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from blindcal.confidence_prompt import INSTRUCTION, ask_confidence
from blindcal.errors import EndpointError, InputError, NoSenseError, UnfitError
from blindcal.estimate.verbalized import Verbalized, parse_verbalized
from blindcal.query_seeds import query_seeds
from blindcal.records import INVALID, NEGATIVE, POSITIVE, FloatArray, Message, Reply, Request, Targets
from blindcal.text import printable, spoken

STATED_TOKENS = 64
"""Maximum number of tokens of an answer that states a confidence."""
_STATED_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """The answer in a reply, and the ``text`` to keep of it, safe to print.

    If the reply shows probabilities, the log-odds are between ``low`` and ``high``. ``reason`` says why a
    reply is no answer at all, such as one that is cut short; a reply that is none of the answers needs none.
    """

    answer: int
    text: str
    low: float | None = None
    high: float | None = None
    reason: str = ""


class QuestionFormat(Protocol):
    """How a run makes its requests and reads the replies."""

    def request(
        self, messages: tuple[Message, ...], shift: float, temperature: float, number: int = 0
    ) -> Request:
        """The request of one query; ``number`` is its number in the run."""
        ...

    def parse(self, reply: Reply) -> ParsedAnswer:
        """The answer that a reply gives."""
        ...

    def complaint(self, count: int, text: str) -> EndpointError:
        """The error to raise if all of ``count`` answers are invalid; ``text`` is the last of them."""
        ...


@dataclass(frozen=True, slots=True)
class TokenQuestion:
    """A question answered by one token: which tokens are biased, and which answer each stands for.

    ``biased=False`` sends no ``logit_bias`` (METHOD 6). With a ``seed``, every sampled query carries its
    own seed derived from it, so that an endpoint that honours seeds repeats its answers.
    """

    targets: Targets
    offset: float = 50.0
    biased: bool = True
    seed: int | None = None
    _meaning: dict[str, int] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        for tokens, meaning in ((self.targets.positive, POSITIVE), (self.targets.negative, NEGATIVE)):
            for token in tokens:
                if self._meaning.setdefault(spoken(token.text), meaning) != meaning:
                    raise InputError(
                        f"the answer {printable(token.text)!r} cannot mean both positive and negative"
                    )

    def request(
        self, messages: tuple[Message, ...], shift: float, temperature: float, number: int = 0
    ) -> Request:
        """The request of one query (METHOD 2)."""
        seed = None
        if self.seed is not None and temperature > 0:
            seed = int(query_seeds(self.seed, number, 1)[0])
        if not self.biased:
            return Request(messages, temperature=temperature, seed=seed)
        bias = {token.id: self.offset + shift for token in self.targets.positive}
        bias |= {token.id: self.offset for token in self.targets.negative}
        return Request(messages, bias, temperature, seed=seed)

    def parse(self, reply: Reply) -> ParsedAnswer:
        """The answer that a reply's text is; case and surrounding white space do not matter."""
        return ParsedAnswer(self._meaning.get(spoken(reply.text), INVALID), printable(reply.text))

    def complaint(self, count: int, text: str) -> EndpointError:
        """An error that suggests wrong answer words or a bias without effect."""
        return NoSenseError(
            f"none of {count} answers is one of the answer words (the last one: {text[:40]!r}): "
            "check the words and tokens, and that logit_bias acts"
        )


@dataclass(frozen=True, slots=True)
class ConfidenceQuestion:
    """A question answered in free text: one of two words, and a confidence in it (METHOD 3, verbalized).

    An answer that does not state both, or a confidence outside 50% to 100%, is invalid.
    """

    words: tuple[str, str]
    instruction: str = INSTRUCTION

    def request(
        self,
        messages: tuple[Message, ...],
        shift: float,  # noqa: ARG002 - nothing is biased
        temperature: float,
        number: int = 0,  # noqa: ARG002 - nothing is drawn
    ) -> Request:
        """The question with the instruction to state a confidence, and enough tokens for the answer."""
        asked = ask_confidence(messages, self.words, self.instruction)
        return Request(asked, temperature=temperature, max_tokens=STATED_TOKENS)

    def parse(self, reply: Reply) -> ParsedAnswer:
        """The stated answer; invalid if no confidence is stated.

        The text is kept with its line breaks; confidences are read from it at the end of the run.
        """
        p = parse_verbalized(reply.text, self.words[:1], self.words[1:]).p
        answer = INVALID if p is None else POSITIVE if p >= 0.5 else NEGATIVE
        lines = (printable(line, _STATED_CHARACTERS) for line in reply.text.splitlines())
        return ParsedAnswer(answer, "\n".join(lines))

    def complaint(self, count: int, text: str) -> EndpointError:
        """An error that says that the model does not state its confidence."""
        return UnfitError(
            f"none of {count} answers states an answer and a confidence (the last one: "
            f"{printable(text, 80)!r}): this model does not state its confidence when asked like this",
            remedy="try another {instruction}",
            options={"instruction": ...},
        )

    def stated(self, texts: Iterable[str | None]) -> VerbalAnswers:
        """Read the stated probabilities from answers; ``None`` is no answer, and needs no reason here."""
        found = [
            Verbalized(None) if text is None else parse_verbalized(text, self.words[:1], self.words[1:])
            for text in texts
        ]
        p = np.array([np.nan if one.p is None else one.p for one in found])
        return VerbalAnswers(p, dict(Counter(one.reason for one in found if one.reason).most_common()))


@dataclass(frozen=True, slots=True)
class VerbalAnswers:
    """The probability that each answer states, NaN if none, and the counts of the reasons for NaN."""

    p: FloatArray
    reasons: dict[str, int]
