"""Maps answer words to tokens.

``logit_bias`` takes token ids, so some spelling of a word (case, leading space) must be a single token,
unless the user gives ids. The ids come from a tokenizer that the user names, the endpoint, or OpenAI's
encodings. Pilot queries show which spelling the model prefers, and whether ids that did not come from the
endpoint are those of its model.
"""

from __future__ import annotations

import asyncio
import functools
import warnings
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from blindcal.endpoints import Endpoint
from blindcal.endpoints.address import OPENAI_HOST
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.refusals import ITEM_STATUSES
from blindcal.errors import FatalError, InputError, MissingExtraError, ReplyError, UnfitError
from blindcal.records import Item, Request, Semantics, Targets, Token
from blindcal.text import printable, spellings, spoken

LETTERS = (
    "let the model answer with letters: give each item its options as a list in the field choices, or list "
    "them in the prompt and use {answers}"
)
"""The remedy if one token cannot distinguish the answer words."""
LETTER_OPTIONS = {"answers": "A,B,C,D"}
Encoder: TypeAlias = Callable[[str], Awaitable[Sequence[int]]]
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
    if not tokens:
        raise UnfitError(
            f"the answer {printable(word)!r} is not one token of this model in any spelling",
            remedy=LETTERS if choice else "use a shorter, commoner word",
            options=LETTER_OPTIONS if choice else {},
        )
    return tuple(tokens.values())


async def candidates_of(
    words: Sequence[str], encode: Encoder, ids: Sequence[Sequence[int]] = ()
) -> list[tuple[Token, ...]]:
    """The candidates for each answer word; ``ids`` may name those of two words."""
    if len(words) > 2:
        return [await candidates(word, encode, choice=True) for word in words]
    return [await candidates(word, encode, own) for word, own in zip(words, ids or ((), ()), strict=True)]


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
    # in each round, an item gets another answer
    places = [
        (pilots[(turn + turn // len(asked)) % len(pilots)], answers[number])
        for turn, number in enumerate(queries)
    ]
    texts = [await _forced(endpoint, *place) for place in places[:1]]  # shows which fields are accepted
    texts += await asyncio.gather(*(_forced(endpoint, *place) for place in places[1:]))
    for (item, side), text in zip(places, texts, strict=True):
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

    def preference(token: Token) -> tuple[bool, int]:
        return _style(token.text) == common, votes.get(token.text, 0)

    return targets_of([[max(side, key=preference)] for side in answers])


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
    request = Request(item.messages, {token.id: PILOT_BIAS for token in side})
    try:
        return (await endpoint.ask(request)).text
    except (FatalError, ReplyError):
        return ""


def _spelling(text: str, side: Sequence[Token]) -> str:
    exact = (token.text for token in side if token.text == text)
    trimmed = (token.text for token in side if token.text.strip() == text.strip())
    return next(exact, None) or next(trimmed, "")


# Sources of token ids

# By prefix of the model's name, longer ones first.
ENCODINGS = {
    **dict.fromkeys(("gpt-4o", "gpt-4.1", "gpt-4.5", "gpt-5"), "o200k_base"),
    **dict.fromkeys(("chatgpt-4o", "o1", "o3", "o4-mini"), "o200k_base"),
    **dict.fromkeys(("gpt-4", "gpt-3.5", "gpt-35", "davinci-002", "babbage-002"), "cl100k_base"),
}
WORDS = ("Yes", "No", "True", "False")
# Built in to spare most audits a 42 MB vocabulary; a test compares them with bpe-openai's.
# Ids are without and with a leading space; that of a bare letter is 32 for A, 33 for B, ...
_WORD_IDS = {
    "o200k_base": "Yes 13022 11377 yes 6763 14531 YES 31958 32968 No 3160 3004 no 1750 860 NO 14695 9319 "
    "True 4710 6432 true 3309 1343 TRUE 51138 19894 False 8168 7983 false 7556 1485 FALSE 75732 19451",
    "cl100k_base": "Yes 9642 7566 yes 9891 10035 YES 14331 14410 No 2822 2360 no 2201 912 NO 9173 5782 "
    "True 2575 3082 true 1904 837 TRUE 21260 8378 False 4139 3641 false 3934 905 FALSE 31451 7989",
}
_SPACED_LETTERS = {
    "o200k_base": "355 418 363 415 457 454 499 487 357 643 658 451 391 478 532 398 1486 460 336 353 601 631 "
    "486 2127 865 1489",
    "cl100k_base": "362 426 356 423 469 435 480 473 358 622 735 445 386 452 507 393 1229 432 328 350 549 650 "
    "468 1630 816 1901",
}


def _table(encoding: str) -> dict[str, int]:
    words = _WORD_IDS[encoding].split()
    letters = [chr(65 + k) for k in range(26)]
    table = dict(zip(words[::3], map(int, words[1::3]), strict=True))
    table |= {f" {word}": int(number) for word, number in zip(words[::3], words[2::3], strict=True)}
    table |= {letter: 32 + k for k, letter in enumerate(letters)}
    spaced = _SPACED_LETTERS[encoding].split()
    return table | {f" {letter}": int(number) for letter, number in zip(letters, spaced, strict=True)}


IDS: dict[str, dict[str, int]] = {encoding: _table(encoding) for encoding in _WORD_IDS}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Encodes texts as token ids; ``unsure`` names the source of ids that may be another model's."""

    encode: Encoder
    unsure: str = ""


def no_ids(message: str) -> UnfitError:
    return UnfitError(
        message,
        remedy="name the tokenizer with {tokenizer} (a tokenizer.json, a Hugging Face name or an OpenAI "
        "encoding), or give the ids with {positive_ids} and {negative_ids}",
        options={"tokenizer": ..., "positive_ids": ..., "negative_ids": ...},
    )


def served_vocabulary(endpoint: HttpEndpoint, model: str) -> Encoder:
    """The endpoint's own vocabulary, from ``/tokenize`` as llama.cpp or vLLM offer it."""
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
        raise no_ids("this endpoint does not tell its token ids")

    return encode


def hugging_face(source: str) -> Encoder:
    """A vocabulary from a ``tokenizer.json``, a folder with one, or a Hugging Face name."""
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


def openai_ids(encoding: str) -> Encoder:
    """One of OpenAI's encodings; usual answer words and capital letters need no download or extra."""
    opened = functools.cache(openai_vocabulary)  # large, so it is freed with this encoder

    async def encode(text: str) -> Sequence[int]:
        known = IDS[encoding].get(text)
        return list(opened(encoding).encode(text)) if known is None else [known]

    return encode


def openai_vocabulary(encoding: str) -> Any:
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
    """The encoding of an OpenAI model, also if fine-tuned or with a gateway's prefix, or ``None``."""
    name = name.removeprefix("ft:").removeprefix("openai/")
    if name in IDS:
        return name
    return next((encoding for start, encoding in ENCODINGS.items() if name.startswith(start)), None)


def named_vocabulary(source: str) -> Encoder:
    """The vocabulary of an OpenAI model or encoding, a tokenizer file or a Hugging Face name."""
    encoding = openai_encoding(source)
    return hugging_face(source) if encoding is None else openai_ids(encoding)


async def find_vocabulary(
    endpoint: HttpEndpoint, asked: Endpoint, pilot: Item, tokenizer: str | None = None
) -> Vocabulary:
    """The vocabulary that ``tokenizer`` names, else OpenAI's or the endpoint's own.

    A missing ``/tokenize`` may mean a wrong address, so ``asked``, a client of the same endpoint, first sends
    the pilot item. Raises `UnfitError` if there is no vocabulary, `FatalError` if the address is wrong.
    """
    if tokenizer is not None:
        return Vocabulary(named_vocabulary(tokenizer), f"the tokenizer {printable(tokenizer, 80)!r}")
    address = endpoint.address
    encoding = openai_encoding(address.model)
    if encoding is not None and address.root.hostname == OPENAI_HOST:
        return Vocabulary(openai_ids(encoding))
    own = served_vocabulary(endpoint, address.model)
    try:
        await own("Yes")
        return Vocabulary(own)
    except UnfitError:
        await _check_address(asked, pilot)
        if encoding is None:
            raise
        return Vocabulary(openai_ids(encoding), f"OpenAI's {encoding}, as the model's name suggests,")


async def _check_address(endpoint: Endpoint, item: Item) -> None:
    try:
        await endpoint.ask(Request(item.messages, temperature=None))
    except ReplyError:
        pass
    except FatalError as error:
        # A model that reasons may refuse a limit of one token, which is no fault of the address.
        if error.status not in ITEM_STATUSES or "max_" not in error.message:
            raise
