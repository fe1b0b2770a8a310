"""Sources of token ids: a tokenizer that the user names, the endpoint, or OpenAI's encodings."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from blindcal.endpoints.address import service_at
from blindcal.endpoints.base import Endpoint
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.refusals import ITEM_STATUSES
from blindcal.errors import FatalError, InputError, MissingExtraError, ReplyError, UnfitError
from blindcal.records import Item, Request
from blindcal.text import printable

Encoder: TypeAlias = Callable[[str], Awaitable[Sequence[int]]]

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


def served(endpoint: HttpEndpoint, model: str) -> Encoder:
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


def openai(encoding: str) -> Encoder:
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


def named(source: str) -> Encoder:
    """The vocabulary of an OpenAI model or encoding, a tokenizer file or a Hugging Face name."""
    encoding = openai_encoding(source)
    return hugging_face(source) if encoding is None else openai(encoding)


async def find(
    endpoint: HttpEndpoint, asked: Endpoint, pilot: Item, tokenizer: str | None = None
) -> Vocabulary:
    """The vocabulary that ``tokenizer`` names, else OpenAI's or the endpoint's own.

    A missing ``/tokenize`` may mean a wrong address, so ``asked``, a client of the same endpoint, first sends
    the pilot item. Raises `UnfitError` if there is no vocabulary, `FatalError` if the address is wrong.
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
        raise no_ids(f"{error.message}; {lacking}") if lacking else error from None


async def _check_address(endpoint: Endpoint, item: Item) -> None:
    try:
        await endpoint.ask(Request(item.messages, temperature=None))
    except ReplyError:
        pass
    except FatalError as error:
        # A model that reasons may refuse a limit of one token, which is no fault of the address.
        if error.status not in ITEM_STATUSES or "max_" not in error.message:
            raise
