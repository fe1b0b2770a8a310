"""How a finished run asked its endpoint: the settings and what its preparation found, to ask the same way."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from blindcal.auditing.prepare import Prepared
from blindcal.errors import InputError
from blindcal.results.certificate import AskedAs
from blindcal.settings import Settings
from blindcal.text import printable


@dataclass(frozen=True, slots=True)
class AskedSource:
    """What says how to ask, as errors name it, and how to make another one."""

    name: str
    remedy: str


def settings_as_asked(
    asked: AskedAs,
    source: AskedSource,
    *,
    id_field: str | None = None,
    api_key_env: str = "OPENAI_API_KEY",
    timeout: float = 60.0,
) -> Settings:
    """The settings that a run was asked by, without those that are about its own items."""
    try:
        usual = {"group_field": "group", "sample": None}
        named = {} if id_field is None else {"id_field": id_field}
        return Settings.noted(asked.config).replace(
            **usual, **named, api_key_env=api_key_env, timeout=timeout
        )
    except (InputError, TypeError) as error:
        raise _unusable(source, error) from None


def preparation_as_asked(asked: AskedAs, source: AskedSource) -> Prepared:
    """What the preparation of a run found, without its cost."""
    try:
        found = msgspec.convert(asked.ready, Prepared)
    except msgspec.ValidationError as error:
        raise _unusable(source, error) from None
    return replace(found, probe=None)


def _unusable(source: AskedSource, error: Exception) -> InputError:
    return InputError(
        f"{source.name} does not say how to ask ({printable(str(error))})", remedy=source.remedy
    )
