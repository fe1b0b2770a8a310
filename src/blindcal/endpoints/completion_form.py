"""OpenAI's two forms of a request for text: a chat, or a plain completion. `replies` reads both.

Another form is a class with the same two methods, as those of `decision_forms`, and the path of its API.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from blindcal.endpoints import replies
from blindcal.endpoints.address import Address
from blindcal.endpoints.refusals import Accepted
from blindcal.endpoints.replies import BY_ID
from blindcal.records import INSTRUCTIONS, Message, Reply, Request
from blindcal.text import encodable


class CompletionForm:
    """Writes the bodies of requests to one address, and reads the replies."""

    def __init__(self, address: Address) -> None:
        self._address, self._chat = address, address.api != "completions"
        self._constant: dict[tuple[object, ...], bytes] = {}

    def body(self, request: Request, accepted: Accepted) -> bytes:
        settings = accepted.settings_of(request)
        constant = self._constant.get(settings)
        if constant is None:
            constant = self._constant[settings] = self._constant_part(request, accepted)
        more = b',"logit_bias":' + encode(request.logit_bias) if request.logit_bias else b""
        if request.seed is not None and accepted.sends("seed", request.seed):
            more += b',"seed":%d' % request.seed
        fields = request.fields
        if request.top_logprobs and accepted.texts:
            fields = {BY_ID: False, **fields}
        if fields:
            more += b"," + encode(fields)[1:-1]
        if self._chat:
            return b'%b"messages":%b%b}' % (constant, encode(_as_chat(request.messages)), more)
        prompt = "\n".join(message.content for message in request.messages)
        return b'%b"prompt":%b%b}' % (constant, encode(prompt), more)

    def _constant_part(self, request: Request, accepted: Accepted) -> bytes:
        """The part of a body that does not depend on the item or the shift, with a trailing comma."""
        temperature, top = request.temperature, request.top_logprobs
        body: dict[str, Any] = {
            "model": self._address.model,
            accepted.limit_name: max(request.max_tokens, accepted.least_tokens),
            "temperature": temperature if accepted.sends("temperature", temperature) else None,
            "n": request.n if request.n > 1 else None,
            **accepted.offs(temperature),
        }
        if top:
            body |= {"logprobs": True, "top_logprobs": top} if self._chat else {"logprobs": top}
        body |= self._address.extra_body
        return encode({key: value for key, value in body.items() if value is not None})[:-1] + b","

    def read(self, status: int, raw: bytes, request: Request) -> Reply | int:
        """The reply in a response, or the HTTP status of the error in it."""
        return replies.read(status, raw, free_text=request.max_tokens > 1)


def _as_chat(messages: Iterable[Message]) -> list[Message]:
    chat: list[Message] = []
    for message in messages:
        if message.role == INSTRUCTIONS and chat:  # the question ends the text that it is about
            chat[-1] = Message(chat[-1].role, f"{chat[-1].content}\n{message.content}")
        else:
            own = message.role in ("prompt", INSTRUCTIONS)
            chat.append(Message("user", message.content) if own else message)
    return chat


def encode(value: object) -> bytes:
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:  # lone surrogates
        plain = msgspec.to_builtins(value, enc_hook=_plain)
        return encodable(json.dumps(plain, ensure_ascii=False, separators=(",", ":"))).encode()


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value.item()


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
