"""From answer words to token ids.

``logit_bias`` names tokens by number, so a word is usable only if some spelling of it (case, leading
space) is a single token of the model's vocabulary. The vocabulary comes from the endpoint, from a
tokenizer file or from OpenAI's published encodings, or the user gives the ids. Which spelling the model
prefers is not guessed: a few pilot queries find out.
"""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from blindcal.endpoints.base import Endpoint
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.openai_token_ids import IDS, WORDS
from blindcal.errors import FatalError, InputError, MissingExtraError, ReplyError
from blindcal.records import Item, Request, Semantics, Targets, Token
from blindcal.text import printable, spoken

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
PILOT_BIAS = 50.0  # METHOD 2's C: far above any other token, inside the usual range of +-100


@dataclass(frozen=True, slots=True)
class Choice:
    """The answer tokens, how often pilot queries were answered with each spelling, and their number.

    If the ids of the tokens are not known, ``no_ids`` says why.
    """

    targets: Targets
    votes: Mapping[str, int]
    queries: int
    no_ids: str = ""


async def candidates(word: str, encode: Encoder, ids: Iterable[int] = ()) -> tuple[Token, ...]:
    """The single-token spellings of a word, the given one first, or the `ids` that the user gave."""
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
    for spelling in dict.fromkeys([word, word.capitalize(), word.lower(), word.upper()]):
        for text in (spelling, f" {spelling}"):
            encoded = await encode(text)
            if len(encoded) == 1:
                found.setdefault(encoded[0], Token(int(encoded[0]), text))
    if not found:
        raise InputError(
            f"no spelling of {printable(word)!r} is one token of this model: use a shorter, commoner word"
        )
    return tuple(found.values())


async def choose(
    endpoint: Endpoint,
    pilots: Iterable[Item],
    positive: Sequence[Token],
    negative: Sequence[Token],
    semantics: Semantics = "pair",
) -> Choice:
    """The targets: all spellings, or with ``pair`` semantics the one per side that the model prefers.

    Each pilot item is asked once per side, with the same bias on all spellings of that side, so that the
    model says the likeliest of them. If no answer is recognised, the first spelling is used.
    """
    shared_ids = {token.id for token in positive} & {token.id for token in negative}
    shared_words = {spoken(token.text) for token in positive} & {spoken(token.text) for token in negative}
    if shared_ids or shared_words:
        raise InputError("the positive and the negative answer must be different words with different tokens")
    if semantics != "pair" or (len(positive) == 1 and len(negative) == 1):
        return Choice(Targets(tuple(positive), tuple(negative), semantics), {}, 0)
    votes: Counter[str] = Counter()
    queries = 0
    for item in pilots:
        for side in (positive, negative):
            if len(side) > 1:
                queries += 1
                votes.update([await _pilot(endpoint, item, side)])
    votes.pop("", None)
    chosen = [max(side, key=lambda token: votes[token.text]) for side in (positive, negative)]
    return Choice(Targets((chosen[0],), (chosen[1],), "pair"), dict(votes), queries)


def served(endpoint: HttpEndpoint, model: str) -> Encoder:
    """The endpoint's own vocabulary, from ``/tokenize`` in the form of llama.cpp or vLLM."""
    forms: list[Callable[[str], dict[str, Any]]] = [
        lambda text: {"content": text, "add_special": False},
        lambda text: {"model": model, "prompt": text, "add_special_tokens": False},
    ]

    async def encode(text: str) -> Sequence[int]:
        while True:
            answer = await endpoint.post("/tokenize", forms[0](text))
            ids = answer.get("tokens") if isinstance(answer, dict) else None
            if isinstance(ids, list) and all(isinstance(number, int) for number in ids):
                return ids
            del forms[0]
            if not forms:
                raise FatalError(
                    "this endpoint does not reveal its token ids",
                    remedy="name the tokenizer with {tokenizer} (a tokenizer.json, a Hugging Face name or an "
                    "OpenAI encoding), or give the ids with {positive_ids} and {negative_ids}; if it should "
                    "tell them, check the base URL",
                    options={"tokenizer": ..., "positive_ids": ..., "negative_ids": ...},
                )

    return encode


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

    The usual answer words are built in; other texts need the extra ``tokenizers``.
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
                f"of OpenAI's encodings only the ids of {', '.join(WORDS)} are built in",
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


def find(endpoint: HttpEndpoint, model: str, tokenizer: str | None = None) -> Encoder:
    """The vocabulary that ``tokenizer`` names, or OpenAI's for its own models, or the endpoint's own."""
    if (encoding := openai_encoding(tokenizer or model)) is not None:
        return openai(encoding)
    return served(endpoint, model) if tokenizer is None else hugging_face(tokenizer)


async def _pilot(endpoint: Endpoint, item: Item, side: Sequence[Token]) -> str:
    """The spelling that the model prefers for one item; empty after an error, which the probe explains."""
    try:
        reply = await endpoint.ask(Request(item.messages, {token.id: PILOT_BIAS for token in side}))
    except (FatalError, ReplyError):
        return ""
    exact = (token.text for token in side if token.text == reply.text)
    trimmed = (token.text for token in side if token.text.strip() == reply.text.strip())
    return next(exact, None) or next(trimmed, "")
