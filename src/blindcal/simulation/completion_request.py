"""What clients of a replay ask for: the fields of chat and plain completions that a replay reads."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from blindcal.records import Message


class CompletionRequest(msgspec.Struct, kw_only=True):
    """The fields that both kinds of request share; unknown fields are ignored, as by most servers."""

    model: str
    logit_bias: dict[int, float] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int = 1
    logprobs: bool | int | None = None
    top_logprobs: int | None = None
    seed: int | None = None

    @property
    def limit(self) -> int | None:
        """The limit on the tokens of an answer, under either name."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def shown(self) -> int:
        """The number of logprobs to be shown; plain completions give it in ``logprobs``."""
        return self.top_logprobs or 0 if isinstance(self.logprobs, bool) else self.logprobs or 0


class ChatRequest(CompletionRequest, kw_only=True):
    messages: list[Message]

    @property
    def text(self) -> str:
        """The contents of the messages."""
        return joined(self.messages)


class PromptRequest(CompletionRequest, kw_only=True):
    prompt: str

    @property
    def text(self) -> str:
        """The prompt."""
        return self.prompt


CHAT = msgspec.json.Decoder(ChatRequest)
PROMPT = msgspec.json.Decoder(PromptRequest)


def joined(messages: Iterable[Message]) -> str:
    """The contents of messages as one text, by which a replay finds its item."""
    return "\n".join(message.content for message in messages)
