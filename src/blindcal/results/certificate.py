"""The certificate of a decision rule: thresholds, their bounds, and all it takes to apply them.

A certificate is one small JSON file. It needs neither the run nor the settings that it came from. Its
``digest`` is computed when it is saved and checked when it is loaded: a certificate that was edited promises
nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import msgspec

from blindcal.atomic_write import atomic_write
from blindcal.errors import InputError
from blindcal.json_form import JsonError, json_page, read_json, read_saved
from blindcal.records import Targets
from blindcal.store.stored import ServedModel

CERTIFICATE_FILE = "certificate.json"
FORMAT = 1
"""The number of the file's format; a file with another one is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedSide:
    """One threshold, and the bound that holds for the decisions on its side.

    A query with ``shift`` asks whether f is at least ``threshold``. Of ``items`` items, ``decided`` fell on
    this side (``share`` of all), and for ``right`` of these the label agrees. ``bound`` is the lower bound
    of the precision of these decisions, at the confidence ``level`` of this side alone; ``wanted`` was asked
    for.
    """

    threshold: float
    shift: float
    bound: float
    wanted: float
    right: int
    decided: int
    items: int
    share: float
    level: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedRequest:
    """The requests that decide, with the audit's template to fill in, and the answer words.

    ``accept`` is the body with the shift of the upper threshold; ``reject`` the one with that of the lower
    threshold, if there is one.
    """

    url: str
    accept: dict[str, Any]
    reject: dict[str, Any] | None
    positive: tuple[str, ...]
    negative: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AskedAs:
    """How the endpoint was asked, as the run file notes it.

    ``config`` are the settings of the run, ``ready`` what its preparation learnt (answer tokens, largest
    shift), and ``accepted`` the fields that the endpoint takes, if any were refused.
    """

    config: dict[str, Any]
    ready: dict[str, Any]
    accepted: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Certificate:
    """A certified decision rule.

    An item is accepted (decided positive) if f is at least ``accept.threshold``, and rejected (decided
    negative) if f is below ``reject.threshold``; between the two the rule abstains. Without ``reject``,
    everything that is not accepted is rejected, without any promise. The bounds of both sides hold together
    with confidence ``level``. ``candidates`` thresholds were tried, on ``items`` items, with ``queries`` new
    queries and ``reused`` answers of the run. ``served`` are the names that the endpoint gave itself
    meanwhile. The certificate is valid up to and including the day ``expires``.
    """

    format: int = FORMAT
    blindcal: str
    accept: CertifiedSide
    reject: CertifiedSide | None
    level: float
    candidates: int
    items: int
    queries: int
    reused: int
    model: str
    served: tuple[ServedModel, ...]
    prompt_digest: str
    made: date
    expires: date
    request: CertifiedRequest
    settings: AskedAs

    def __repr__(self) -> str:
        rule = f"accept from {self.accept.threshold:.4f}"
        if self.reject is not None:
            rule += f", reject below {self.reject.threshold:.4f}"
        return f"Certificate({self.model!r}, {rule}, precision {self.accept.bound:.4f}, until {self.expires})"

    @property
    def sides(self) -> dict[str, CertifiedSide]:
        """The certified sides, by name."""
        sides = {"accept": self.accept, "reject": self.reject}
        return {name: side for name, side in sides.items() if side is not None}

    def expired(self, today: date | None = None) -> bool:
        """Whether the certificate is no longer valid today (UTC)."""
        return (today or datetime.now(UTC).date()) > self.expires

    def to_json(self) -> bytes:
        """The JSON form, with its digest."""
        content = msgspec.to_builtins(self)
        return json_page({**content, "digest": _digest(content)})

    def save(self, path: str | Path) -> None:
        """Write the JSON form atomically."""
        with atomic_write(Path(path)) as draft:
            draft.write_bytes(self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """Read a certificate back; `InputError` if it was changed after it was certified."""
        made = read_saved(Path(path), cls, "certificate", FORMAT)
        content = read_json(Path(path).read_bytes())
        if content.pop("digest", None) != _digest(content):
            raise InputError(
                f"{path}: was changed after it was certified, so that it promises nothing",
                remedy="use the original file, or certify again",
            )
        return made


def is_certificate(path: str | Path) -> bool:
    """Whether a file looks like a certificate, which may be damaged."""
    try:
        content = read_json(Path(path).read_bytes())
    except (OSError, JsonError):
        return False
    return isinstance(content, dict) and {"format", "digest", "accept"} <= content.keys()


def prompt_digest(settings: dict[str, Any], targets: Targets) -> str:
    """A hash of all that words a question, given the settings of a run as its run file notes them.

    It covers the template, the system message, the answer words and their tokens, and the common bias.
    """
    names = ("api", "template", "system", "answers", "positive", "negative", "offset")
    asked = {name: settings.get(name) for name in names}
    return _digest({**asked, "targets": msgspec.to_builtins(targets)})


def _digest(content: dict[str, Any]) -> str:
    return hashlib.blake2b(msgspec.json.encode(content, order="sorted"), digest_size=16).hexdigest()
