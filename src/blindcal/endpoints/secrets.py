"""API keys: refused in settings, and redacted from what a server sends.

A key is read from an environment variable and sent as a header. Settings are stored in run files and reports,
and replies are quoted and stored, so a key must be in neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

from blindcal.errors import InputError
from blindcal.text import printable

SHORTEST = 8
"""Shorter keys are placeholders such as ``none`` and are not redacted."""
_LIKELY = 16  # characters; shorter texts do not look random enough to be a key

# Fields and query parameters that hold a secret, in lower case and without punctuation. Not among them are
# names such as prompt_cache_key and eos_token.
_SECRET_NAME = re.compile(
    r"^(key|token|auth|code|sig|pass|pwd|bearer)$"
    r"|(api|access|account|auth|client|master|private|secret|subscription|virtual)key(id)?$"
    r"|(access|api|auth|bearer|private|refresh|security|session)token$"
    r"|secret|password|passwd|passphrase|credential|authori[sz]ation|signature|cookie"
)
# Keys of services that mark theirs, and JSON web tokens.
_SECRET_VALUE = re.compile(
    r"(?<![A-Za-z0-9])("
    r"[sp]k[-_](?=[\w-]*\d)[\w-]{12,}"
    r"|(gsk|hf|r8|fw|tgp|rk|ghp|gho|github_pat)_\w{12,}|(xai|pplx|csk|nvapi|glpat)-\w{16,}"
    r"|AIza[\w-]{12,}|AKIA[A-Z0-9]{12,}|eyJ[\w-]{8,}\.[\w-]{8,}"
    r")|^(?i:bearer|basic)\s+\S{8,}"
)
_USER = re.compile(r"^([^/?#]*//)?[^/?#]*@")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Redactor:
    """Replaces a key by ``[key]``, whether plain or escaped as in JSON or a URL."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()
        self._pattern = re.compile("".join(map(_forms, key)).encode()) if len(key) >= SHORTEST else None

    def __call__(self, raw: bytes) -> bytes:
        if self._pattern is None or not (self._key in raw or b"\\" in raw or b"%" in raw):
            return raw
        return self._pattern.sub(b"[key]", raw)


def without_keys(text: str) -> str:
    """Redact everything that looks like a key, for errors that quote user input."""
    return _SECRET_VALUE.sub("[key]", text)


def check_variable(name: str) -> None:
    """Raise `InputError` if ``name`` is no valid environment variable or looks like a key."""
    if not _VARIABLE.fullmatch(name) or _SECRET_VALUE.match(name) or _random(name):
        raise InputError(
            "{api_key_env} takes the name of an environment variable, and was given something else (which is "
            "not shown here, as it may be the key)",
            remedy="put the key into a variable, as in export OPENAI_API_KEY=..., and name that variable",
            options={"api_key_env": ...},
        )


def check_url(url: str) -> None:
    """Raise `InputError`, without quoting the URL, if it holds a password or a key."""
    _, _, query = url.partition("?")
    if _USER.match(url):
        raise _misplaced("the base URL holds a user or a password", "base_url")
    if _SECRET_VALUE.search(unquote(url)):
        raise _misplaced("the base URL holds what looks like an API key", "base_url")
    for name, _ in parse_qsl(query):
        if _SECRET_NAME.search(_plain(name)):
            raise _misplaced(f"the base URL holds a secret in its parameter {printable(name)!r}", "base_url")


def check_body(body: Mapping[str, Any]) -> None:
    """Raise `InputError`, naming only the field, if a request field holds a secret."""
    for path, name, text in _texts(body):
        if _SECRET_VALUE.search(text) or (_SECRET_NAME.search(_plain(name)) and len(text) >= SHORTEST):
            where = f"the field {printable(path)!r} of {{extra_body}}" if path else "{extra_body}"
            raise _misplaced(f"{where} holds what looks like a secret", "extra_body")


def check_absent(key: str, **settings: object) -> None:
    """Raise `InputError` if a setting, which is stored with the run, contains the API key."""
    if not (len(key) >= _LIKELY and any(map(str.isdigit, key))):
        return  # a placeholder, which may be an ordinary word
    redact = Redactor(key)
    for name, value in settings.items():
        text = str(value).encode(errors="replace")
        if redact(text) != text:
            raise _misplaced(f"{{{name}}} holds the API key itself", name)


def _misplaced(what: str, option: str) -> InputError:
    return InputError(
        f"{what}, which would be kept in the files of the run",
        remedy="leave it out, and put the key into an environment variable, which {api_key_env} names; it is "
        "sent as a header",
        options={option: ..., "api_key_env": ...},
    )


def _forms(char: str) -> str:
    r"""Match a character as it is, as ``\u002f``, as ``%2f``, or after a backslash."""
    plain = rf"\\?{re.escape(char)}" if char in '/"\\' else re.escape(char)
    return rf"(?:{plain}|(?i:\\u00{ord(char):02x}|%{ord(char):02x}))"


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


def _random(name: str) -> bool:
    """Whether a name is long and mixed as only a key is: with digits, and both cases or no underscore."""
    both = name != name.lower() and name != name.upper()
    return len(name) >= _LIKELY and any(map(str.isdigit, name)) and (both or "_" not in name)


def _texts(value: Any, path: str = "", name: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the path, the field and the text of every string and key in a nested value."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield path, "", str(key)
            yield from _texts(inner, f"{path}.{key}" if path else str(key), str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, path, name)
    elif isinstance(value, str):
        yield path, name, value
