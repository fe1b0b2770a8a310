"""Turns every failure of an HTTP request into one of the three endpoint errors.

Retryable: may succeed later. Fatal: the same for every item, so a run stops. Reply: this item only.
"""

from __future__ import annotations

import difflib
import errno
import re
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Literal

from blindcal.errors import EndpointError, FatalError, ReplyError, RetryableError, UnsupportedError
from blindcal.text import printable
from blindcal.untrusted_json import JsonError, read_json

Fate = Literal["retry", "fatal", "address"]
"""An "address" failure is fatal until the endpoint has answered once; after that it is an outage."""

# Keyed by the name of pyreqwest's class; the nearest ancestor counts, and a test fails when it has an error
# that only the root covers. `_while_connecting` tells apart what fails before anything is sent.
FATES: dict[str, Fate] = {
    "PyreqwestError": "retry",
    "RequestTimeoutError": "retry",
    "NetworkError": "retry",
    "DecodeError": "retry",
    "ClientClosedError": "retry",
    "RequestPanicError": "retry",
    "StatusError": "retry",
    "RedirectError": "fatal",
    "BuilderError": "fatal",
    "ValueError": "fatal",
}

# Errors quote URLs or what the server sent, and both may hold a secret: these texts take their place.
_REASONS = {
    "DecodeError": "the reply is not valid HTTP, breaks off, or cannot be unpacked",
    "ReadError": "the reply breaks off",
    "NetworkError": "the server disconnected",
    "BuilderError": "the URL of the endpoint or of the proxy is not valid",
    "ValueError": "the URL of the endpoint or of the proxy is not valid",
}
_CONNECTING = "client error (Connect)"
_OS_ERROR = re.compile(r"\A(.*) \(os error (\d+)\)\Z", re.DOTALL)

# Errors of one item, not of the endpoint: a prompt that is too long, or that a filter refuses.
_ITEM_FAULT = re.compile(
    r"context.{0,20}(length|size|window)|too long"
    r"|content.{0,20}(filter|policy)|usage.policy|flagged|moderation"
    r"|output limit was reached",
    re.IGNORECASE,
)

_MODEL_FAULT = re.compile(
    r"model.{0,200}(does not exist|not found)|invalid model|not a valid model", re.IGNORECASE | re.DOTALL
)
_MOST_NAMES = 5

ITEM_STATUSES = (400, 422)
"""Once an endpoint has answered, these are about the item, whatever the words that come with them."""

# No provider behind a gateway takes every field: OpenRouter says so with the status of an unknown model.
_NO_PROVIDER = re.compile(r"requested parameters", re.IGNORECASE)
# LiteLLM has said so with the status of a failing server.
_GATEWAY_REFUSAL = re.compile(rb"does not support parameters")

_CURES = {
    402: "the endpoint wants payment",
    403: "the API key in {api_key_env} may not use model {model!r}",
    404: "no model {model!r} at this address: check the model's name and the base URL",
    **dict.fromkeys(
        range(300, 400),
        "the base URL redirects elsewhere: give the final address (https rather than http?)",
    ),
}


def from_exception(error: Exception, authority: str, *, reached: bool) -> EndpointError:
    """The endpoint error for one of pyreqwest; ``reached`` says whether the endpoint has ever answered."""
    causes = [cause["message"] for cause in (getattr(error, "details", None) or {}).get("causes") or ()]
    system = _OS_ERROR.match(causes[-1]) if causes else None
    if system and int(system[2]) in (errno.EMFILE, errno.ENFILE):
        return FatalError(
            f"too many open files to connect to {authority}",
            remedy="raise the limit (ulimit -n), or lower {concurrency}",
            options={"concurrency": ...},
        )
    if isinstance(error, TimeoutError):
        return RetryableError(f"no reply from {authority} in time")
    kinds = [kind.__name__ for kind in type(error).__mro__]
    if _CONNECTING in causes:
        fate, reason = _while_connecting(causes)
    else:
        fate = next(FATES[kind] for kind in kinds if kind in FATES)
        reason = next((_REASONS[kind] for kind in kinds if kind in _REASONS), kinds[0])
    what = f"{authority}: {printable(system[1] if system else reason)}"
    if fate == "retry" or (fate == "address" and reached):
        return RetryableError(f"the connection failed: {what}")
    if fate == "address":
        return FatalError(f"cannot reach {what}: check the base URL, and that the server runs")
    return FatalError(f"cannot talk to {what}: check the base URL, its certificate and any proxy")


def _while_connecting(causes: Sequence[str]) -> tuple[Fate, str]:
    """Whose fault it is that no connection was made, and why; nothing was sent yet, so nothing is quoted."""
    last = causes[-1]
    if "dns error" in causes:
        return "address", last.removeprefix("failed to lookup address information: ")
    if _OS_ERROR.match(last) or last == "tls handshake eof":
        return "address", last
    return "fatal", "the proxy refuses the connection" if last.startswith("tunnel error") else last


def too_large(most: int) -> RetryableError:
    """The endpoint error for a reply of more than ``most`` bytes."""
    return RetryableError(f"the endpoint sent a reply of more than {most:,} bytes")


def from_status(
    status: int, headers: Mapping[str, str], said: str, *, model: str, api_key_env: str
) -> EndpointError:
    """The endpoint error for an HTTP status; ``said`` is the server's message, safe to show."""
    says = f": {said}" if said else ""
    if status == 429 and re.search(r"insufficient_quota|billing", said):
        return FatalError(f"the account has no quota left (429){says}")
    if status in (408, 409, 425, 429) or (status >= 500 and status != 501):
        throttled = status == 429
        what = "too many requests (429)" if throttled else f"the server failed ({status})"
        return RetryableError(f"{what}{says}", retry_after=retry_after(headers), throttled=throttled)
    if status in (400, 403, 413, 422) and (status == 413 or _ITEM_FAULT.search(said)):
        return ReplyError(f"the endpoint refuses this item ({status}){says}", status=status)
    if status == 404 and _NO_PROVIDER.search(said):
        return FatalError(
            f"no provider of {model!r} takes every field of the request (404){says}", status=status
        )
    cure = _CURES.get(status, "the endpoint refuses the request")
    return FatalError(f"{cure.format(model=model, api_key_env=api_key_env)} ({status}){says}", status=status)


def blames_model(said: str) -> bool:
    """Whether a server's message says that there is no model of this name."""
    return _MODEL_FAULT.search(said) is not None


def blames_key(said: str) -> bool:
    """Whether a server's message is about the key, whatever its status: LiteLLM looks up unknown ones."""
    return "no_db_connection" in said


def not_there(said: str, url: str, model: str, api: str, listed: Sequence[str]) -> FatalError:
    """The error of an endpoint that lists models, but finds nothing for a request."""
    says = f": {said}" if said else ""
    if model in listed:
        other = "completions" if api == "chat" else "chat"
        return FatalError(
            f"the endpoint lists model {printable(model, 80)!r}, but has nothing at {url} (404){says}",
            status=404,
            remedy="try {api}",
            options={"api": other},
        )
    return FatalError(
        f"the endpoint has no model {printable(model, 80)!r}",
        status=404,
        remedy=f"name one that it lists with {{model}}: {nearest(model, listed)}",
        options={"model": ...},
    )


def nearest(model: str, listed: Sequence[str]) -> str:
    """The listed names, or those most like the model's if there are many."""
    shown = listed
    if len(listed) > _MOST_NAMES:
        shown = difflib.get_close_matches(model, listed, _MOST_NAMES, 0.0)
    more = f" and {len(listed) - len(shown):,} more" if len(listed) > len(shown) else ""
    return ", ".join(repr(printable(name, 80)) for name in shown) + more


def is_about_fields(status: int, raw: bytes, error: EndpointError) -> bool:
    """Whether a refusal may be about the fields of a request, not about the item, the model or the key."""
    if isinstance(error, RetryableError):
        return status == 500 and _GATEWAY_REFUSAL.search(raw) is not None
    told = said(raw)
    about = status in (*ITEM_STATUSES, 501) or (status == 404 and _NO_PROVIDER.search(told) is not None)
    return about and isinstance(error, FatalError) and not blames_model(told)


def unsupported(parameter: str, status: int, raw: bytes) -> UnsupportedError:
    """The error for a field that matters and is refused."""
    says = f": {told}" if (told := said(raw)) else ""
    return UnsupportedError(
        f"the endpoint does not accept {parameter!r} as sent ({status}){says}",
        parameter=parameter,
        status=status,
    )


def status_within(error: Any) -> int:
    """The HTTP status of an error inside a 200 reply; 502 (bad gateway) if it names none."""
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 300 <= code < 600 else 502


def said(raw: bytes) -> str:
    """The message in a server's error body, on one line that is safe to show."""
    try:
        body = read_json(raw)
    except JsonError:
        return "" if raw.lstrip().startswith(b"<") else printable(raw.decode("utf-8", "replace"))
    error = (body.get("error") or body) if isinstance(body, dict) else body
    if not isinstance(error, dict):
        return printable(str(error))
    parts = [error.get("message") or error.get("detail"), error.get("code"), error.get("type")]
    if isinstance(metadata := error.get("metadata"), dict):
        parts.insert(1, metadata.get("raw"))  # what the provider behind a gateway says
    return printable("; ".join(dict.fromkeys(str(part) for part in parts if part)))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The wait that a server asks for, in seconds, from ``Retry-After`` or OpenAI's ``retry-after-ms``."""
    given = {name.lower(): value.strip() for name, value in headers.items()}
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = given.get(name, "")
        try:
            seconds = float(value) * scale
        except ValueError:
            continue
        return seconds if 0 <= seconds < float("inf") else None
    try:
        return max(0.0, parsedate_to_datetime(given.get("retry-after", "")).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None
