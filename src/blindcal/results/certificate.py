"""The certificate of a decision rule: a JSON file with all it takes to apply the rule.

Its ``digest`` is computed on saving and checked on loading: an edited certificate promises nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import msgspec
from scipy.special import expit

from blindcal.atomic_write import write_file
from blindcal.errors import InputError
from blindcal.estimate.noise import ControlCounts
from blindcal.estimate.uncertainty import share_bounds
from blindcal.json_form import JsonError, json_page, read_json, read_saved
from blindcal.records import Targets
from blindcal.results.result import Spread
from blindcal.store.run_file import ServedModel

CERTIFICATE_FILE = "certificate.json"
FORMAT = 1
"""The version of the file format; a file with another one is refused."""
PREFIX = 6
"""Bytes of the digest of a prompt that a certificate keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedSide:
    """One threshold, and the bound of the precision of the decisions on its side.

    ``bound`` holds at the confidence ``level`` of this side alone; ``wanted`` was asked for. Of ``items``
    items, ``decided`` fell on this side, and the labels of ``right`` of these agree.
    """

    threshold: float
    shift: float
    bound: float
    wanted: float
    right: int
    decided: int
    items: int
    level: float

    @property
    def share(self) -> float:
        """Share of the items on this side."""
        return self.decided / self.items


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedRequest:
    """The request bodies that decide, with the audit's template to fill in, and the answer words.

    If the endpoint shows probabilities, one body serves both thresholds, which are compared with the
    ``probability`` in its reply: the words say where it is. With more than two answers, the given one is
    accepted: ``positive`` are the words of all, by their numbers, and ``negative`` is empty. Without a
    ``url``, a file gives the probability.
    """

    url: str
    accept: dict[str, Any]
    reject: dict[str, Any] | None
    positive: tuple[str, ...]
    negative: tuple[str, ...]
    probability: str | None = None


@dataclass(frozen=True, slots=True)
class AskedAs:
    """How the endpoint was asked, as in the run file; ``accepted`` are the fields left if it refused some."""

    config: dict[str, Any]
    ready: dict[str, Any]
    accepted: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Certificate:
    """A certified decision rule.

    An item is accepted (decided positive) if f is at least ``accept.threshold``, and rejected (decided
    negative) if f is below ``reject.threshold``; in between, the rule abstains. Without ``reject``, every
    other item is rejected, without a promise. With more than two answers, f is about the given one, which is
    accepted, or the rule abstains. Both bounds hold together with confidence ``level``, up to and
    including the day ``expires``. So do those of all attempts to certify the run, of which this is number
    ``attempt``; each side is tested at a higher level. ``candidates`` counts the thresholds tried, and
    ``reused`` the answers taken from the run. ``controls`` are the control answers that those of decisions
    are compared with, and ``spread`` says how far the probability of the same question moved in the audit.
    ``audited`` holds the beginning of the digest of every prompt of the audit.
    """

    format: int = FORMAT
    blindcal: str
    accept: CertifiedSide
    reject: CertifiedSide | None
    level: float
    attempt: int
    candidates: int
    items: int
    queries: int
    reused: int
    controls: ControlCounts
    model: str
    served: tuple[ServedModel, ...]
    prompt_digest: str
    made: date
    expires: date
    audited: bytes
    request: CertifiedRequest
    settings: AskedAs
    spread: Spread | None = None

    def __repr__(self) -> str:
        reject = "" if self.reject is None else f", reject below {self.reject.threshold:.4f}"
        rule = f"accept from {self.accept.threshold:.4f}{reject}, precision {self.accept.bound:.4f}"
        return f"Certificate({self.model!r}, {rule}, until {self.expires})"

    @property
    def sides(self) -> dict[str, CertifiedSide]:
        """The certified sides, by name."""
        sides = {"accept": self.accept, "reject": self.reject}
        return {name: side for name, side in sides.items() if side is not None}

    @property
    def shown(self) -> bool:
        """Whether the rule compares a probability that the endpoint shows."""
        return self.request.probability is not None

    @property
    def several(self) -> bool:
        """Whether there are more than two answers."""
        return not self.request.negative

    @property
    def audited_prompts(self) -> frozenset[bytes]:
        """Beginnings of the digests of the prompts of the audit, of `PREFIX` bytes each."""
        return frozenset(self.audited[k : k + PREFIX] for k in range(0, len(self.audited), PREFIX))

    @property
    def contradiction(self) -> str | None:
        """Where its parts contradict each other, in words."""
        bodies = {"accept": self.request.accept, "reject": self.request.reject}
        for name, side in self.sides.items():
            bound = share_bounds(side.right, side.decided, 1 - side.level)[0]
            if not 0 <= side.right <= side.decided <= side.items == self.items:
                return f"{name}: {side.right:,} of {side.decided:,} of {side.items:,} items are no counts"
            if not side.wanted <= side.bound <= bound + 1e-9 or side.level < self.level:
                counts = f"{side.right:,} of {side.decided:,} right decisions"
                return f"{name}: a bound of {side.bound:.4f} does not follow from {counts}"
            if abs(side.threshold - expit(-side.shift)) > 1e-6 or not self._sends(side.shift, bodies[name]):
                return f"{name}: its request does not decide at {side.threshold:.4f}"
        if self.reject is not None and self.reject.threshold > self.accept.threshold:
            return "its two thresholds cross"
        return None

    def _sends(self, shift: float, body: dict[str, Any] | None) -> bool:
        if self.shown:  # nothing is sent but the question, and the reply shows the probability
            if not self.request.url:  # a file gives it
                return not body
            shows = {"questions", "logprobs"} & (body or {}).keys()
            return bool(shows) and body == self.request.accept and "logit_bias" not in body
        try:
            bias = (body or {})["logit_bias"]
            targets = msgspec.convert(self.settings.ready["targets"], Targets)
            raised, others = ([bias[str(t.id)] for t in side] for side in targets.sides)
        except (KeyError, TypeError, ValueError, msgspec.ValidationError):
            return False
        return bool(raised and others) and all(abs(a - b - shift) < 1e-3 for a in raised for b in others)

    def expired(self, today: date | None = None) -> bool:
        """Whether the certificate is no longer valid today (UTC)."""
        return (today or datetime.now(UTC).date()) > self.expires

    def to_json(self) -> bytes:
        """The JSON form, with its digest."""
        content = msgspec.to_builtins(self)
        return json_page({**content, "digest": _digest(content)})

    def save(self, path: str | Path) -> None:
        """Write the JSON form atomically."""
        write_file(Path(path), self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """Read a certificate back; raises `InputError` if it was changed after it was certified."""
        made = read_saved(Path(path), cls, "certificate", FORMAT)
        content = read_json(Path(path).read_bytes())
        if content.pop("digest", None) != _digest(content):
            raise InputError(
                f"{path}: was changed after it was certified, so that it promises nothing",
                remedy="use the original file, or certify again",
            )
        if made.contradiction is not None:
            raise InputError(f"{path}: contradicts itself: {made.contradiction}", remedy="certify again")
        return made


def is_certificate(path: str | Path) -> bool:
    try:
        content = read_json(Path(path).read_bytes())
    except (OSError, JsonError):
        return False
    return isinstance(content, dict) and {"format", "digest", "accept"} <= content.keys()


def prompt_digest(settings: dict[str, Any], targets: Targets) -> str:
    """A hash of all that words a question: template, system message, answer words and tokens, common bias."""
    names = "api", "template", "instructions", "system", "answers", "graded", "positive", "negative", "offset"
    asked = {name: settings.get(name) for name in names}
    return _digest({**asked, "targets": msgspec.to_builtins(targets)})


def _digest(content: dict[str, Any]) -> str:
    return hashlib.blake2b(msgspec.json.encode(content, order="sorted"), digest_size=16).hexdigest()
