"""What a URL says about where a request goes."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

_PORTS = {"http": 80, "https": 443}
_NEVER = re.compile(r"[\s\x00-\x1f\x7f\\]")  # urlsplit() takes them, or drops them without a word


def web_url(text: str) -> SplitResult:
    """The parts of an http or https URL; raises `ValueError` if it is none or names no host."""
    if _NEVER.search(text):
        raise ValueError("it has spaces, backslashes or control characters")
    url = urlsplit(text)
    if url.scheme not in _PORTS or not url.hostname:
        raise ValueError("it must start with http:// or https:// and name a host")
    _ = url.port  # raises ValueError if it cannot be one
    return url


def authority(url: SplitResult) -> str:
    """The host and the port of a URL, without a user or a password."""
    host = url.hostname or ""
    return f"{f'[{host}]' if ':' in host else host}:{url.port or _PORTS.get(url.scheme, 0)}"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
