"""Certificates that the tests of certify, decide and check share."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

from blindcal.results.certificate import AskedAs, Certificate, CertifiedRequest, CertifiedSide
from blindcal.store.run_store import ServedModel

ACCEPT = CertifiedSide(
    threshold=0.9,
    shift=-2.1972,
    bound=0.953,
    wanted=0.95,
    right=396,
    decided=400,
    items=1000,
    share=0.4,
    level=0.95,
)
REJECT = replace(ACCEPT, threshold=0.2, shift=1.3863, bound=0.961, level=0.975)


def certificate(**changes: Any) -> Certificate:
    """A small certificate of a rule that only accepts."""
    made = Certificate(
        blindcal="0.1.0",
        accept=ACCEPT,
        reject=None,
        level=0.95,
        candidates=4,
        items=1000,
        queries=700,
        reused=300,
        model="replay",
        served=(ServedModel("replay", "fp_1"),),
        prompt_digest="00",
        made=date(2026, 11, 16),
        expires=date(2027, 2, 14),
        request=CertifiedRequest(
            url="http://127.0.0.1:1/v1/chat/completions",
            accept={"model": "replay"},
            reject=None,
            positive=("Yes",),
            negative=("No",),
        ),
        settings=AskedAs({"model": "replay"}, {"max_shift": 50.0}),
    )
    return replace(made, **changes)
