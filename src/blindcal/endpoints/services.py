"""What known services document about themselves.

This words advice, and saves questions whose answer is documented. It never decides how a service is audited:
what the probe measures always wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

LOOKED_UP = "2026-11-16"
"""When the sources of all entries were read."""


@dataclass(frozen=True, slots=True)
class Service:
    """A service that answers nothing without a key; ``hosts`` that begin with a dot stand for all below them.

    ``lacks`` are request fields that it documents as refused or ignored. ``openai_ids`` says that a model
    with a name of OpenAI's is that model, with its published token ids; there is no ``/tokenize`` to ask.
    """

    name: str
    hosts: tuple[str, ...]
    key_variable: str
    source: str
    lacks: frozenset[str] = frozenset()
    openai_ids: bool = False

    def lacking(self, field: str) -> str:
        """A sentence about a request field that the service does not take; empty if it does not say so."""
        if field not in self.lacks:
            return ""
        return f"{self.name} documents {field} as not supported ({self.source}, read {LOOKED_UP})"


_LOGITS = frozenset({"logit_bias", "logprobs", "top_logprobs"})

SERVICES = (
    Service(
        "OpenAI",
        ("api.openai.com",),
        "OPENAI_API_KEY",
        "https://github.com/openai/openai-python",
        openai_ids=True,
    ),
    Service(
        "Azure OpenAI",
        (".openai.azure.com",),
        "AZURE_OPENAI_API_KEY",
        "https://reference.langchain.com/python/langchain-community/llms/openai/AzureOpenAI",
    ),
    Service(
        "OpenRouter",
        ("openrouter.ai",),
        "OPENROUTER_API_KEY",
        "https://openrouter.ai/docs/api-reference/overview",
    ),
    Service(
        "Together",
        ("api.together.xyz",),
        "TOGETHER_API_KEY",
        "https://docs.together.ai/docs/logprobs",
    ),
    Service(
        "Fireworks",
        ("api.fireworks.ai",),
        "FIREWORKS_API_KEY",
        "https://docs.fireworks.ai/guides/querying-text-models",
    ),
    Service(
        "Groq",
        ("api.groq.com",),
        "GROQ_API_KEY",
        "https://console.groq.com/docs/openai",
        _LOGITS | {"n"},
    ),
    Service(
        "Anthropic",
        ("api.anthropic.com",),
        "ANTHROPIC_API_KEY",
        "https://platform.claude.com/docs/en/api/openai-sdk",
        _LOGITS | {"n", "seed"},
    ),
)


def service_at(base_url: str) -> Service | None:
    """The known service at a base URL, if there is one."""
    try:
        host = urlsplit(base_url).hostname or ""
    except ValueError:
        return None
    for service in SERVICES:
        if any(host == one or (one.startswith(".") and host.endswith(one)) for one in service.hosts):
            return service
    return None
