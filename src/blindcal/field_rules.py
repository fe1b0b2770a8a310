"""Rules of the fields of a record, stated once in their annotations.

``seed: Annotated[FromZero, "Random seed of the design."] = 0`` is what Python checks, what the command line
parses and shows as help, and a row of the table of settings in the docs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from types import NoneType
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from blindcal.errors import InputError
from blindcal.json_form import read_json
from blindcal.text import printable

FromZero: TypeAlias = Annotated[int, Meta(ge=0, le=10**15, description="a whole number from 0 to 1e15")]
FromOne: TypeAlias = Annotated[int, Meta(ge=1, le=10**15, description="a whole number from 1 to 1e15")]
NotNegative: TypeAlias = Annotated[float, Meta(ge=0, le=1e15, description="a number from 0 to 1e15")]
Positive: TypeAlias = Annotated[float, Meta(gt=0, le=1e15, description="a number above 0, up to 1e15")]
Rate: TypeAlias = Annotated[float, Meta(ge=0.01, le=1e15, description="a number from 0.01 to 1e15")]
Port: TypeAlias = Annotated[int, Meta(ge=0, le=65535, description="a port from 0 to 65535")]
Bias: TypeAlias = Annotated[float, Meta(ge=0, le=1000, description="a number from 0 to 1000")]
PerItem: TypeAlias = Annotated[float, Meta(ge=0.001, le=100, description="a number from 0.001 to 100")]
Bins: TypeAlias = Annotated[int, Meta(ge=1, le=1000, description="a whole number from 1 to 1000")]
Refits: TypeAlias = Annotated[int, Meta(ge=2, le=100_000, description="a whole number from 2 to 100000")]
HIGHEST_LEVEL = 0.999999
Level: TypeAlias = Annotated[
    float, Meta(ge=0.01, le=HIGHEST_LEVEL, description=f"a number from 0.01 to {HIGHEST_LEVEL}")
]

_RULES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple: "a list of words",
    Mapping: "a JSON object",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRule:
    """What a field may hold and what it sets; ``kind`` is ``hint`` without ``None`` and range."""

    name: str
    about: str
    default: Any
    hint: Any
    kind: Any
    rule: str

    def check(self, value: object) -> None:
        try:
            msgspec.convert(value, self.hint)
        except msgspec.ValidationError:
            raise self._error(repr(value)) from None

    def parse(self, text: str) -> Any:
        """Parse a value: words are separated by commas, and an object is JSON."""
        value: Any = text
        try:
            if get_origin(self.kind) is Mapping:
                value = read_json(text.encode(errors="surrogateescape"))
            elif get_origin(self.kind) is tuple:
                value = text.split(",")
            elif self.kind is float:  # .5 is no number in JSON
                value = float(text)
            return msgspec.convert(value, self.hint, strict=False)
        except (ValueError, msgspec.ValidationError):
            raise self._error(repr(text)) from None

    def _error(self, value: str) -> InputError:
        return InputError(f"{self.name} must be {self.rule}, not {printable(value, 80)}")


@functools.cache
def rules_of(record: Any) -> dict[str, FieldRule]:
    """Rules of the fields of a dataclass whose annotations end with a sentence, by name."""
    hints = get_type_hints(record, include_extras=True)
    rules = {}
    for field in fields(record):
        annotation = hints[field.name]
        if get_origin(annotation) is Annotated and isinstance(annotation.__metadata__[-1], str):
            *ranges, about = annotation.__metadata__
            hint = functools.reduce(lambda kind, one: Annotated[kind, one], ranges, annotation.__origin__)
            default = field.default if field.default_factory is MISSING else field.default_factory()
            kind, rule = _kind_and_rule(hint)
            rules[field.name] = FieldRule(
                name=field.name, about=about, default=default, hint=hint, kind=kind, rule=rule
            )
    return rules


def check_fields(record: Any) -> None:
    kind: Any = type(record)
    for name, rule in rules_of(kind).items():
        rule.check(getattr(record, name))


def _kind_and_rule(hint: Any) -> tuple[Any, str]:
    if get_origin(hint) is not Annotated and NoneType in get_args(hint):
        (hint,) = (kind for kind in get_args(hint) if kind is not NoneType)
    if get_origin(hint) is Annotated:
        return hint.__origin__, hint.__metadata__[0].description
    if get_origin(hint) is Literal:
        return hint, f"one of {', '.join(get_args(hint))}"
    if get_args(hint)[:1] == (int,):
        return hint, "a list of whole numbers"
    return hint, _RULES[get_origin(hint) or hint]
