"""From answer words to token ids.

``logit_bias`` names tokens by number, so a word is usable only if some spelling of it (case, leading
space) is a single token of the model's vocabulary. The vocabulary comes from a tokenizer that the user
names, from the endpoint or, if the model has a name of OpenAI's, from its published encodings; or the user
gives the ids. Which spelling the model prefers is not guessed: a few pilot queries find out. They also show
whether ids that did not come from the endpoint are those of this model.
"""

from __future__ import annotations

import functools
import warnings
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from blindcal.endpoints.address import service_at
from blindcal.endpoints.base import Endpoint
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.openai_token_ids import IDS, WORDS
from blindcal.endpoints.refusals import ITEM_STATUSES
from blindcal.errors import FatalError, InputError, MissingExtraError, ReplyError, UnfitError
from blindcal.records import Item, Request, Semantics, Targets, Token
from blindcal.text import printable, spellings, spoken

Encoder: TypeAlias = Callable[[str], Awaitable[Sequence[int]]]

# Keyed by the start of the model's name; longer keys come first.
ENCODINGS = {
    "gpt-4o": "o200k_base",
    "gpt-4.1": "o200k_base",
    "gpt-4.5": "o200k_base",
    "gpt-5": "o200k_base",
    "chatgpt-4o": "o200k_base",
    "o1": "o200k_base",
    "o3": "o200k_base",
    "o4-mini": "o200k_base",
    "gpt-4": "cl100k_base",
    "gpt-3.5": "cl100k_base",
    "gpt-35": "cl100k_base",
    "davinci-002": "cl100k_base",
    "babbage-002": "cl100k_base",
}
LETTERS = (
    "let the model answer with letters: give each item its options as a list in the field choices, or list "
    "them in the prompt and use {answers}"
)
"""What helps if the words of answers cannot be told apart by one token."""
LETTER_OPTIONS = {"answers": "A,B,C,D"}
LEAST_PILOTS = 8  # pilot queries if there are more than two answers; each answer gets one at least
PILOT_BIAS = 50.0  # METHOD 2's C: far above any other token, inside the usual range of +-100


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The token ids of texts; ``unsure`` says where they come from, if they may be those of another model."""

    encode: Encoder
    unsure: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """The answer tokens, how often pilot queries were answered with each spelling, and their number.

    If the ids of the tokens are not known, ``no_ids`` says why. ``doubt`` is set if the pilots leave open
    whether they are those of this model.
    """

    targets: Targets
    votes: Mapping[str, int]
    queries: int
    no_ids: str = ""
    doubt: str = ""


async def candidates(
    word: str, encode: Encoder, ids: Iterable[int] = (), *, choice: bool = False
) -> tuple[Token, ...]:
    """The single-token spellings of a word, the given one first, or the `ids` that the user gave.

    ``choice`` says that it is one of more than two answers, which are often letters: these keep their case.
    """
    if known := tuple(Token(number, word) for number in dict.fromkeys(ids)):
        if any(token.id < 0 for token in known):
            raise InputError(
                f"token ids for {printable(word)!r} must be whole numbers from 0 up, and at least one"
            )
        return known
    word = word.strip()
    if not word:
        raise InputError("an answer word must not be empty")
    found: dict[int, Token] = {}
    for text in spellings(word, letter=choice and len(word) == 1):
        encoded = await encode(text)
        if len(encoded) == 1:
            found.setdefault(encoded[0], Token(int(encoded[0]), text))
    if not found and choice:
        raise UnfitError(
            f"the answer {printable(word)!r} is not one token of this model in any spelling",
            remedy=LETTERS,
            options=LETTER_OPTIONS,
        )
    if not found:
        raise UnfitError(
            f"no spelling of {printable(word)!r} is one token of this model: use a shorter, commoner word"
        )
    return tuple(found.values())


async def choose(
    endpoint: Endpoint,
    pilots: Iterable[Item],
    positive: Sequence[Token],
    negative: Sequence[Token],
    semantics: Semantics = "pair",
    *,
    unsure: str = "",
) -> Choice:
    """The targets: all spellings, or with ``pair`` semantics the one per side that the model prefers.

    Each pilot item is asked once per side, with the same bias on all spellings of that side, so that the
    model says the likeliest of them. If no answer is recognised, the first spelling is used.

    Raises
    ------
    UnfitError
        If the ids are ``unsure`` and the bias makes the model say other words.
    """
    shared_ids = {token.id for token in positive} & {token.id for token in negative}
    shared_words = {spoken(token.text) for token in positive} & {spoken(token.text) for token in negative}
    if shared_ids or shared_words:
        raise InputError("the positive and the negative answer must be different words with different tokens")
    sides = tuple(positive), tuple(negative)
    asked = [side for side in sides if unsure or (semantics == "pair" and len(side) > 1)]
    votes: Counter[str] = Counter()
    queries, misses = 0, []
    for item in pilots if asked else ():
        said = [await _forced(endpoint, item, side) for side in asked]
        queries += len(asked)
        chosen = [_spelling(text, side) for text, side in zip(said, asked, strict=True)]
        votes.update(filter(None, chosen))
        misses.append(tuple(text for text in said if text))
    doubt = _doubt(unsure, misses) if unsure and not votes else ""
    if semantics == "pair":
        favourites = [max(side, key=lambda token: votes[token.text]) for side in sides]
        sides = (favourites[0],), (favourites[1],)
    return Choice(Targets(*sides, semantics), dict(votes), queries, doubt=doubt)


async def choose_answers(
    endpoint: Endpoint, pilots: Sequence[Item], answers: Sequence[Sequence[Token]], *, unsure: str = ""
) -> Choice:
    """The targets of more than two answers: one token each, in the spelling that the model prefers.

    Each pilot query puts the same bias on all spellings of one answer, and the pilot items take turns. All
    answers are spelled alike (with a space before them or not, in the same case) if they can be: the spelling
    with the most votes is the one that the model uses.

    Raises
    ------
    InputError
        If two answers share a word or a token.
    UnfitError
        If the ids are ``unsure`` and the bias makes the model say other words.
    """
    check_clashes(answers)
    asked = [number for number, side in enumerate(answers) if unsure or len(side) > 1]
    votes: Counter[str] = Counter()
    said: defaultdict[str, list[str]] = defaultdict(list)
    queries = 0
    times = -(-LEAST_PILOTS // len(answers)) if pilots else 0
    for turn, number in enumerate(asked * times):
        # in each round, an item gets another answer
        item, side = pilots[(turn + turn // len(asked)) % len(pilots)], answers[number]
        text = await _forced(endpoint, item, side)
        queries += 1
        said[item.id] += [text] if text else []
        if spelling := _spelling(text, side):
            votes[spelling] += 1
    doubt = _doubt(unsure, list(said.values())) if unsure and not votes else ""
    return Choice(one_spelling(answers, votes), dict(votes), queries, doubt=doubt)


def one_spelling(answers: Sequence[Sequence[Token]], votes: Mapping[str, int]) -> Targets:
    """One token per answer, all spelled alike if they can be: in the way that has the most votes."""
    styles: Counter[Style] = Counter()
    for text, count in votes.items():
        styles[_style(text)] += count
    shared = set.intersection(*({_style(token.text) for token in side} for side in answers))
    given = [_style(token.text) for token in answers[0]]  # the given spelling first
    style = max((one for one in given if one in shared), key=lambda one: styles[one], default=None)
    favourites = [
        max(side, key=lambda token: (_style(token.text) == style, votes.get(token.text, 0)))
        for side in answers
    ]
    return Targets((), (), answers=tuple((one,) for one in favourites))


def check_clashes(answers: Sequence[Sequence[Token]]) -> None:
    """Raise an error if two answers could not be told apart."""
    owner: dict[object, str] = {}
    for side in answers:
        word = side[0].text.strip()
        for token in side:
            for key in (token.id, spoken(token.text)):
                other = owner.setdefault(key, word)
                if other != word:
                    raise InputError(
                        f"the answers {printable(other)!r} and {printable(word)!r} share the token "
                        f"{printable(token.text)!r} ({token.id}), so that they cannot be told apart",
                        remedy=LETTERS,
                        options=LETTER_OPTIONS,
                    )


Style: TypeAlias = tuple[bool, str]
"""How an answer is spelled: whether with a space before it, and in which case."""


def _style(text: str) -> Style:
    word = text.strip()
    case = "lower" if word.islower() else "upper" if word.isupper() and len(word) > 1 else "capital"
    return text != word, case


def _doubt(unsure: str, said: Sequence[Sequence[str]]) -> str:
    """What it means that no pilot was answered with the word that its bias raised.

    If the two biases of an item lead to different words, they act, and raise the tokens of these words.
    """
    words = ", ".join(repr(printable(word, 20)) for word in dict.fromkeys(w for both in said for w in both))
    if not words:
        return ""  # the bias is refused: the probe explains it
    if any(len(set(both)) > 1 for both in said):
        raise _no_ids(
            f"the token ids from {unsure} are not those of this model: with a bias on them it says {words}"
        )
    return (
        f"the token ids from {unsure} may not be those of this model: whichever answer the bias raises, "
        f"it says {words}"
    )


def served(endpoint: HttpEndpoint, model: str) -> Encoder:
    """The endpoint's own vocabulary, from ``/tokenize`` in the form of llama.cpp or vLLM."""
    forms: list[Callable[[str], dict[str, Any]]] = [
        lambda text: {"content": text, "add_special": False},
        lambda text: {"model": model, "prompt": text, "add_special_tokens": False},
    ]

    async def encode(text: str) -> Sequence[int]:
        while forms:
            answer = await endpoint.post("/tokenize", forms[0](text))
            ids = answer.get("tokens") if isinstance(answer, dict) else None
            if isinstance(ids, list) and all(isinstance(number, int) for number in ids):
                return ids
            del forms[0]
        raise _no_ids("this endpoint does not tell its token ids")

    return encode


def _no_ids(message: str) -> UnfitError:
    return UnfitError(
        message,
        remedy="name the tokenizer with {tokenizer} (a tokenizer.json, a Hugging Face name or an OpenAI "
        "encoding), or give the ids with {positive_ids} and {negative_ids}",
        options={"tokenizer": ..., "positive_ids": ..., "negative_ids": ...},
    )


def hugging_face(source: str) -> Encoder:
    """A vocabulary from a ``tokenizer.json``, a folder with one, or a name on the Hugging Face Hub."""
    try:
        import tokenizers
    except ImportError:
        raise MissingExtraError("reading a tokenizer needs: pip install 'blindcal[tokenizers]'") from None
    path = Path(source)
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        if file.is_file():
            tokenizer = tokenizers.Tokenizer.from_file(str(file))
        else:
            tokenizer = tokenizers.Tokenizer.from_pretrained(source)
    except Exception as error:  # the library raises bare Exception
        raise InputError(f"no tokenizer at {printable(source)!r}: {printable(str(error))}") from None

    async def encode(text: str) -> Sequence[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return encode


def openai(encoding: str) -> Encoder:
    """One of OpenAI's published vocabularies, without a download.

    The usual answer words and capital letters are built in; other texts need the extra ``tokenizers``.
    """
    opened = functools.cache(vocabulary)  # large, so it is freed with this encoder

    async def encode(text: str) -> Sequence[int]:
        known = IDS[encoding].get(text)
        return list(opened(encoding).encode(text)) if known is None else [known]

    return encode


def vocabulary(encoding: str) -> Any:
    """One of OpenAI's published vocabularies, complete."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from how the library opens its data
        try:
            import bpe_openai
        except ImportError:
            raise MissingExtraError(
                f"of OpenAI's encodings only the ids of {', '.join(WORDS)} and of letters are built in",
                remedy="pip install 'blindcal[tokenizers]', or give the ids of the answer words with "
                "{positive_ids} and {negative_ids}",
                options={"positive_ids": ..., "negative_ids": ...},
            ) from None
        return bpe_openai.get_encoding(encoding)


def openai_encoding(name: str) -> str | None:
    """The encoding of the OpenAI model of this name, also if fine-tuned or with a gateway's prefix."""
    name = name.removeprefix("ft:").removeprefix("openai/")
    if name in ENCODINGS.values():
        return name
    return next((encoding for start, encoding in ENCODINGS.items() if name.startswith(start)), None)


def named(source: str) -> Encoder:
    """The vocabulary of a model or an encoding of OpenAI's, of a tokenizer file or of a Hugging Face name."""
    encoding = openai_encoding(source)
    return hugging_face(source) if encoding is None else openai(encoding)


async def find(
    endpoint: HttpEndpoint, asked: Endpoint, pilot: Item, tokenizer: str | None = None
) -> Vocabulary:
    """The vocabulary that ``tokenizer`` names, or the endpoint's own, or OpenAI's for a name of its models.

    Where ``/tokenize`` is not offered, the reason may be the address. So ``asked``, which sends to the same
    endpoint, is asked the pilot item before anything is said about tokens.

    Raises
    ------
    UnfitError
        If there is none.
    FatalError
        If the key, the model or the address is wrong.
    """
    if tokenizer is not None:
        return Vocabulary(named(tokenizer), f"the tokenizer {printable(tokenizer, 80)!r}")
    address = endpoint.address
    service, encoding = service_at(address.base_url), openai_encoding(address.model)
    if encoding is not None and service is not None and service.openai_ids:
        return Vocabulary(openai(encoding))
    own = served(endpoint, address.model)
    try:
        await own("Yes")
        return Vocabulary(own)
    except UnfitError as error:
        await _check_address(asked, pilot)
        if encoding is not None:
            return Vocabulary(openai(encoding), f"OpenAI's {encoding}, as the model's name suggests,")
        lacking = service.lacking("logit_bias") if service is not None else ""
        raise _no_ids(f"{error.message}; {lacking}") if lacking else error from None


async def _check_address(endpoint: Endpoint, item: Item) -> None:
    """Raise the error of an endpoint that cannot be asked even the plainest query."""
    try:
        await endpoint.ask(Request(item.messages, temperature=None))
    except ReplyError:
        pass
    except FatalError as error:
        # A model that reasons may refuse a limit of one token, which is no fault of the address.
        if error.status not in ITEM_STATUSES or "max_" not in error.message:
            raise


async def _forced(endpoint: Endpoint, item: Item, side: Sequence[Token]) -> str:
    """What the model says with a bias on one side; empty after an error, which the probe explains."""
    try:
        reply = await endpoint.ask(Request(item.messages, {token.id: PILOT_BIAS for token in side}))
    except (FatalError, ReplyError):
        return ""
    return reply.text


def _spelling(text: str, side: Sequence[Token]) -> str:
    """The spelling on this side that the text is, or empty."""
    exact = (token.text for token in side if token.text == text)
    trimmed = (token.text for token in side if token.text.strip() == text.strip())
    return next(exact, None) or next(trimmed, "")
