"""A certificate is read back as it was saved, or refused with a reason."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from blindcal.errors import InputError
from blindcal.records import Targets, Token
from blindcal.results.certificate import FORMAT, Certificate, prompt_digest
from certified_runs import REJECT, certificate

ASKED = {
    "api": "chat",
    "template": "{q}?",
    "system": None,
    "positive": "Yes",
    "negative": "No",
    "offset": 50.0,
}
TARGETS = Targets((Token(1, "Yes"),), (Token(2, "No"),))


@pytest.mark.parametrize("reject", [None, REJECT])
def test_a_certificate_is_read_back_as_it_was_saved(reject: Any, tmp_path: Path) -> None:
    """Every field survives, with one threshold and with two; dates are ISO dates in the file."""
    made = certificate(reject=reject)
    made.save(tmp_path / "c.json")
    assert Certificate.load(tmp_path / "c.json") == made
    assert len(repr(made)) <= 200
    content = json.loads((tmp_path / "c.json").read_text())
    assert (content["made"], content["expires"], content["format"]) == ("2026-11-16", "2027-02-14", FORMAT)


def test_it_is_valid_on_its_last_day() -> None:
    """The day after, it has expired."""
    made = certificate(expires=date(2027, 2, 14))
    assert not made.expired(date(2027, 2, 14))
    assert made.expired(date(2027, 2, 15))


def changed(content: dict[str, Any]) -> bytes:
    content["accept"]["threshold"] = 0.5
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (changed, "was changed after it was certified"),
        (lambda content: json.dumps({**content, "format": FORMAT + 1}).encode(), "in format 2, and"),
        (lambda content: json.dumps({**content, "accept": None}).encode(), "blindcal (Expected `object`"),
        (lambda content: json.dumps(content).encode()[:100], "not a certificate of blindcal"),
        (lambda _: b'{"schema_version": 1}', "(Object missing required field `format`"),
        (lambda _: b"[" * 100_000, "not a certificate of blindcal"),
        (None, "no such certificate"),
    ],
)
def test_what_is_no_certificate_is_refused(damage: Any, why: str, tmp_path: Path) -> None:
    """One error with the cause and the cure, whatever the file holds."""
    path = tmp_path / "c.json"
    certificate().save(path)
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(json.loads(path.read_text())))
    with pytest.raises(InputError) as raised:
        Certificate.load(path)
    assert why in str(raised.value)
    assert raised.value.remedy


def test_the_prompt_digest_follows_the_wording() -> None:
    """It changes with each part of the question, and with the tokens, but not with anything else."""
    digest = prompt_digest(ASKED, TARGETS)
    assert prompt_digest({**ASKED, "seed": 3, "model": "m"}, TARGETS) == digest
    for name in ASKED:
        assert prompt_digest({**ASKED, name: "other"}, TARGETS) != digest
    assert prompt_digest(ASKED, replace(TARGETS, positive=(Token(3, "yes"),))) != digest
