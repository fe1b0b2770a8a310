"""Maps answer words to tokens.

``logit_bias`` takes token ids, so some spelling of a word (case, leading space) must be a single token,
unless the user gives ids. Pilot queries show which spelling the model prefers, and whether ids that did not
come from the endpoint are those of its model.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from blindcal.endpoints.base import Endpoint
from blindcal.endpoints.vocabulary import Encoder, no_ids
from blindcal.errors import FatalError, InputError, ReplyError, UnfitError
from blindcal.records import Item, Request, Semantics, Targets, Token
from blindcal.text import printable, spellings, spoken

LETTERS = (
    "let the model answer with letters: give each item its options as a list in the field choices, or list "
    "them in the prompt and use {answers}"
)
"""The remedy if one token cannot distinguish the answer words."""
LETTER_OPTIONS = {"answers": "A,B,C,D"}
LEAST_PILOTS = 8  # pilot queries, at least one per answer
PILOT_BIAS = 50.0  # METHOD 2's C: far above any other token, inside the usual range of +-100


@dataclass(frozen=True, slots=True)
class Choice:
    """The answer tokens and pilots' votes per spelling; ``no_ids`` and ``doubt`` explain bad token ids."""

    targets: Targets
    votes: Mapping[str, int] = field(default_factory=dict)
    queries: int = 0
    no_ids: str = ""
    doubt: str = ""


def targets_of(answers: Sequence[Sequence[Token]], semantics: Semantics = "pair") -> Targets:
    """The targets with these tokens per answer; of two answers, the positive one comes first."""
    sides = tuple(map(tuple, answers))
    return Targets(*sides, semantics) if len(sides) == 2 else Targets((), (), semantics, sides)


async def candidates(
    word: str, encode: Encoder, ids: Iterable[int] = (), *, choice: bool = False
) -> tuple[Token, ...]:
    """The single-token spellings of a word, or the user's ``ids``; with ``choice``, letters keep case."""
    if known := tuple(Token(number, word) for number in dict.fromkeys(ids)):
        if any(token.id < 0 for token in known):
            raise InputError(
                f"token ids for {printable(word)!r} must be whole numbers from 0 up, and at least one"
            )
        return known
    word = word.strip()
    if not word:
        raise InputError("an answer word must not be empty")
    tokens: dict[int, Token] = {}
    for text in spellings(word, letter=choice and len(word) == 1):
        encoded = await encode(text)
        if len(encoded) == 1:
            tokens.setdefault(encoded[0], Token(int(encoded[0]), text))
    if not tokens and choice:
        raise UnfitError(
            f"the answer {printable(word)!r} is not one token of this model in any spelling",
            remedy=LETTERS,
            options=LETTER_OPTIONS,
        )
    if not tokens:
        raise UnfitError(
            f"no spelling of {printable(word)!r} is one token of this model: use a shorter, commoner word"
        )
    return tuple(tokens.values())


async def candidates_of(
    words: Sequence[str], encode: Encoder, ids: Sequence[Sequence[int]] = ()
) -> list[tuple[Token, ...]]:
    """The candidates for each answer word; ``ids`` may name those of two words."""
    several = len(words) > 2
    given = [() for _ in words] if several or not ids else ids
    return [
        await candidates(word, encode, own, choice=several) for word, own in zip(words, given, strict=True)
    ]


async def choose(
    endpoint: Endpoint,
    pilots: Sequence[Item],
    answers: Sequence[Sequence[Token]],
    semantics: Semantics = "pair",
    *,
    unsure: str = "",
) -> Choice:
    """The targets: all spellings, or with ``pair`` semantics the one per answer that the model prefers.

    Each pilot query biases all spellings of one answer equally, so that the model gives the likeliest. More
    than two answers are spelled alike (leading space, case) if possible. If no reply is an answer, the first
    spelling is used. Raises `UnfitError` if ``unsure`` ids make the model say other words.
    """
    check_clashes(answers)
    asked = [
        number for number, side in enumerate(answers) if unsure or (semantics == "pair" and len(side) > 1)
    ]
    votes: Counter[str] = Counter()
    replies: defaultdict[str, list[str]] = defaultdict(list)
    queries = asked * (-(-LEAST_PILOTS // len(answers)) if pilots else 0)
    for turn, number in enumerate(queries):
        # in each round, an item gets another answer
        item, side = pilots[(turn + turn // len(asked)) % len(pilots)], answers[number]
        text = await _forced(endpoint, item, side)
        replies[item.id] += [text] if text else []
        if spelling := _spelling(text, side):
            votes[spelling] += 1
    doubt = _doubt(unsure, list(replies.values())) if unsure and not votes else ""
    if semantics != "pair":
        targets = targets_of(answers, semantics)
    elif len(answers) > 2:
        targets = one_spelling(answers, votes)
    else:
        targets = targets_of([[max(side, key=lambda token: votes[token.text])] for side in answers])
    return Choice(targets, dict(votes), len(queries), doubt=doubt)


def one_spelling(answers: Sequence[Sequence[Token]], votes: Mapping[str, int]) -> Targets:
    """One token per answer, in the common spelling with the most votes if there is one."""
    styles: Counter[Style] = Counter()
    for text, count in votes.items():
        styles[_style(text)] += count
    shared = set.intersection(*({_style(token.text) for token in side} for side in answers))
    given = [_style(token.text) for token in answers[0]]  # the given spelling first
    common = max((style for style in given if style in shared), key=lambda style: styles[style], default=None)
    return targets_of(
        [
            [max(side, key=lambda token: (_style(token.text) == common, votes.get(token.text, 0)))]
            for side in answers
        ]
    )


def check_clashes(answers: Sequence[Sequence[Token]]) -> None:
    owner: dict[object, str] = {}
    for side in answers:
        word = side[0].text.strip()
        for token in side:
            for key in (token.id, spoken(token.text)):
                other = owner.setdefault(key, word)
                if other != word:
                    several = len(answers) > 2
                    raise InputError(
                        f"the answers {printable(other)!r} and {printable(word)!r} share the token "
                        f"{printable(token.text)!r} ({token.id}), so that they cannot be told apart",
                        remedy=LETTERS if several else "use other answer words",
                        options=LETTER_OPTIONS if several else {},
                    )


Style: TypeAlias = tuple[bool, str]
"""The spelling of an answer: whether a space precedes it, and its case."""


def _style(text: str) -> Style:
    word = text.strip()
    case = "lower" if word.islower() else "upper" if word.isupper() and len(word) > 1 else "capital"
    return text != word, case


def _doubt(unsure: str, replies: Sequence[Sequence[str]]) -> str:
    """If the biases of an item lead to different words, they act, but on other tokens than ours."""
    words = ", ".join(
        repr(printable(word, 20)) for word in dict.fromkeys(word for texts in replies for word in texts)
    )
    if not words:
        return ""  # the bias is refused: the probe explains it
    if any(len(set(texts)) > 1 for texts in replies):
        raise no_ids(
            f"the token ids from {unsure} are not those of this model: with a bias on them it says {words}"
        )
    return (
        f"the token ids from {unsure} may not be those of this model: whichever answer the bias raises, "
        f"it says {words}"
    )


async def _forced(endpoint: Endpoint, item: Item, side: Sequence[Token]) -> str:
    try:
        return (await endpoint.ask(Request(item.messages, {token.id: PILOT_BIAS for token in side}))).text
    except (FatalError, ReplyError):
        return ""


def _spelling(text: str, side: Sequence[Token]) -> str:
    exact = (token.text for token in side if token.text == text)
    trimmed = (token.text for token in side if token.text.strip() == text.strip())
    return next(exact, None) or next(trimmed, "")
