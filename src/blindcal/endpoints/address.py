"""The address of a model: base URL, model name and key variable, and the services that need a key."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from blindcal.endpoints import secrets
from blindcal.errors import InputError
from blindcal.field_rules import Positive, check_fields
from blindcal.text import printable

Api: TypeAlias = Literal["auto", "chat", "completions", "decisions", "systemone"]
DECISION_APIS: tuple[Api, ...] = ("decisions", "systemone")
PATHS: Mapping[Api, str] = {
    **dict.fromkeys(("auto", "chat"), "chat/completions"),
    "completions": "completions",
    **{api: api for api in DECISION_APIS},
}

OPENAI_HOST = "api.openai.com"
OPENAI = f"https://{OPENAI_HOST}/v1"
URL_VARIABLE = "OPENAI_BASE_URL"
_PORTS = {"http": 80, "https": 443}
_NEVER = re.compile(r"[\s\x00-\x1f\x7f\\]")  # urlsplit() accepts or silently drops these
#: Fields that decide what is asked, and the setting that changes each, if there is one.
OWN_FIELDS: Mapping[str, str] = {
    "model": "model",
    **dict.fromkeys(("messages", "prompt", "input", "state"), "template"),
    "questions": "instructions",
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), "max_tokens"),
    **dict.fromkeys(("temperature", "logit_bias", "logprobs", "top_logprobs", "n", "best_of"), "method"),
    "seed": "seed",
    **dict.fromkeys(("allowed_token_ids", "structured_outputs", "guided_choice", "grammar"), "method"),
    **dict.fromkeys(("stream", "return_tokens_as_token_ids"), ""),
}
_BEYOND_BASE = re.compile(r"(?<=[^/:])(/+((chat/)?completions)?)+(?=$|\?)")


@dataclass(frozen=True, slots=True)
class Address:
    """How to find and query a model. It names the variable that holds the API key, never the key itself.

    It is stored with the run, so one that contains a secret raises `InputError`. A trailing slash or
    completions path in ``base_url`` is dropped.
    """

    base_url: Annotated[
        str,
        "Base URL of the endpoint, up to and including /v1. By default OPENAI_BASE_URL in the environment, "
        "else OpenAI's.",
    ]
    model: Annotated[str, "Name of the model (on Azure, of the deployment)."]
    api: Annotated[
        Api,
        "API to call: chat messages, plain completions for base models, or one that answers typed questions "
        "with probabilities, in OpenAI's form (decisions) or the other (systemone); auto asks one item in "
        "each of these two forms, and else takes chat.",
    ] = "auto"
    _: KW_ONLY
    api_version: Annotated[str | None, "API version of Azure; selects Azure's URLs."] = None
    api_key_env: Annotated[
        str, "Environment variable that holds the API key. The key itself is never an argument."
    ] = "OPENAI_API_KEY"
    extra_body: Annotated[
        Mapping[str, Any],
        "Additional fields of every request, such as '{\"cache_prompt\": false}'; null removes a sampler.",
    ] = field(default_factory=dict)
    timeout: Annotated[Positive, "Time to wait for a reply, in seconds."] = 60.0

    def __post_init__(self) -> None:
        check_fields(self)
        secrets.check_variable(self.api_key_env)
        secrets.check_url(self.base_url)
        secrets.check_body(self.extra_body)
        self._check_own_fields()
        object.__setattr__(self, "base_url", _BEYOND_BASE.sub("", self.base_url))

    def _check_own_fields(self) -> None:
        for name in self.extra_body:
            if (setting := OWN_FIELDS.get(name)) is not None:
                raise InputError(
                    f"{{extra_body}} holds {name!r}, which blindcal sets in every request",
                    remedy=f"leave it out{f', and use {{{setting}}}' if setting else ''}",
                    options=dict.fromkeys(filter(None, ("extra_body", setting)), ...),
                )

    @property
    def root(self) -> SplitResult:
        try:
            return web_url(self.base_url)
        except ValueError as error:
            raise InputError(f"base URL {self.base_url!r}: {error}") from None

    @property
    def completion_url(self) -> str:
        url, tail = self.root, PATHS[self.api]
        base = url.path.rstrip("/")
        if self.api in DECISION_APIS and base.endswith(DECISION_APIS):  # either form at a path of its own
            return url.geturl()
        if self.api_version is None:
            return url._replace(path=f"{base}/{tail}").geturl()
        if "/deployments/" not in base:
            base = f"{base.removesuffix('/openai')}/openai/deployments/{quote(self.model)}"
        return url._replace(
            path=f"{base}/{tail}", query=urlencode({"api-version": self.api_version})
        ).geturl()

    def key(self, environ: Mapping[str, str] = os.environ) -> str:
        """The API key in the environment, or an empty string; raises `InputError` if it is unusable."""
        key = environ.get(self.api_key_env, "").strip()
        if not all(33 <= ord(char) < 127 for char in key):
            raise InputError(
                f"the value of {self.api_key_env} has characters that no API key has: set it again"
            )
        kept = ("base_url", "model", "api_version", "extra_body")
        secrets.check_absent(key, **{name: getattr(self, name) for name in kept})
        return key

    def keyless_host(self, environ: Mapping[str, str] = os.environ) -> str | None:
        """The host, if there is one, it is remote, uses https and no key is set."""
        if not self.base_url:
            return None
        host = self.root.hostname or ""
        keyed = environ.get(self.api_key_env, "").strip()
        return None if self.root.scheme != "https" or is_loopback(host) or keyed else host

    def check_key(self, environ: Mapping[str, str] = os.environ, *, begun: bool = False) -> None:
        """Raise `InputError` if a key is unusable, or required and missing in a run not yet ``begun``."""
        self.key(environ)
        host = None if begun else self.keyless_host(environ)
        if host is not None and (self.api_version is not None or service_at(self.base_url) is not None):
            raise InputError(
                f"{printable(host, 80)} wants an API key and {printable(self.api_key_env, 80)} is not set",
                remedy=self.key_remedy,
                options={"api_key_env": ...},
            )

    @property
    def key_remedy(self) -> str:
        variable, service = printable(self.api_key_env, 80), service_at(self.base_url)
        remedy = f"export {variable}=..., or name the variable that holds it with {{api_key_env}}"
        if service is None or service.key_variable == self.api_key_env:
            return remedy
        return f"{remedy}; keys of {service.name} are usually in {service.key_variable}"


def default_base_url(environ: Mapping[str, str] = os.environ) -> str:
    """The base URL in the environment, else OpenAI's; nothing else reads the variable."""
    return environ.get(URL_VARIABLE, "").strip() or OPENAI


def web_url(text: str) -> SplitResult:
    """Parse an http or https URL; raises `ValueError` if it is invalid or has no host."""
    if _NEVER.search(text):
        raise ValueError("it has spaces, backslashes or control characters")
    url = urlsplit(text)
    if url.scheme not in _PORTS or not url.hostname:
        raise ValueError("it must start with http:// or https:// and name a host")
    _ = url.port  # raises ValueError if invalid
    return url


def authority(url: SplitResult) -> str:
    host = url.hostname or ""
    return f"{f'[{host}]' if ':' in host else host}:{url.port or _PORTS.get(url.scheme, 0)}"


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Service:
    """A service that requires an API key; a leading dot of ``host`` matches all subdomains.

    This only words advice: what the probe measures always wins.
    """

    name: str
    host: str
    key_variable: str


SERVICES = (
    Service("OpenAI", OPENAI_HOST, "OPENAI_API_KEY"),
    Service("Azure OpenAI", ".openai.azure.com", "AZURE_OPENAI_API_KEY"),
    Service("OpenRouter", "openrouter.ai", "OPENROUTER_API_KEY"),
    Service("Together", "api.together.xyz", "TOGETHER_API_KEY"),
    Service("Together", "api.together.ai", "TOGETHER_API_KEY"),
    Service("Fireworks", "api.fireworks.ai", "FIREWORKS_API_KEY"),
    Service("Groq", "api.groq.com", "GROQ_API_KEY"),
    Service("Anthropic", "api.anthropic.com", "ANTHROPIC_API_KEY"),
    Service("Gemini", "generativelanguage.googleapis.com", "GEMINI_API_KEY"),
    Service("xAI", "api.x.ai", "XAI_API_KEY"),
    Service("DeepSeek", "api.deepseek.com", "DEEPSEEK_API_KEY"),
    Service("Mistral", "api.mistral.ai", "MISTRAL_API_KEY"),
)


def service_at(base_url: str) -> Service | None:
    """The known service at a base URL, or ``None``."""
    try:
        host = urlsplit(base_url).hostname or ""
    except ValueError:
        return None
    for service in SERVICES:
        if host == service.host or (service.host[0] == "." and host.endswith(service.host)):
            return service
    return None
