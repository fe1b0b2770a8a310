"""Certificates with thresholds that the test chooses instead of certifying them, and what they decide."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from blindcal.certifying.decision_request import decision_request
from blindcal.estimate.noise import ControlCounts
from blindcal.records import FloatArray, Targets, Token
from blindcal.results.certificate import AskedAs, Certificate, CertifiedRequest, CertifiedSide, prompt_digest
from blindcal.results.run import open_run
from blindcal.store.run_file import ServedModel
from blindcal.store.run_store import RUN_FILE, Store

ACCEPT = CertifiedSide(
    threshold=0.899997788,
    shift=-2.1972,
    bound=0.953,
    wanted=0.95,
    right=396,
    decided=400,
    items=1000,
    level=0.95,
)
TARGETS = Targets((Token(1, "Yes"),), (Token(2, "No"),))
REJECT = replace(ACCEPT, threshold=0.199999098, shift=1.3863, bound=0.961, level=0.975)


def certificate(**changes: Any) -> Certificate:
    """A certificate of a rule that only accepts."""
    made = Certificate(
        blindcal="0.1.0",
        accept=ACCEPT,
        reject=None,
        level=0.95,
        attempt=1,
        candidates=4,
        items=1000,
        queries=700,
        reused=300,
        controls=ControlCounts(40, 0, 40, 0),
        model="replay",
        served=(ServedModel("replay", "fp_1"),),
        prompt_digest="00",
        made=date(2026, 11, 16),
        expires=date(2027, 2, 14),
        audited=b"",
        request=CertifiedRequest(
            url="http://127.0.0.1:1/v1/chat/completions",
            accept={},
            reject=None,
            positive=("Yes",),
            negative=("No",),
        ),
        settings=AskedAs(
            {"model": "replay"},
            {"max_shift": 50.0, "targets": msgspec.json.decode(msgspec.json.encode(TARGETS))},
        ),
    )
    made = replace(made, **changes)
    if "request" in changes:
        return made
    reject = None if made.reject is None else _body(made.reject)
    return replace(made, request=replace(made.request, accept=_body(made.accept), reject=reject))


def _body(side: CertifiedSide) -> dict[str, Any]:
    return {"model": "replay", "logit_bias": {"1": 50.0 + side.shift, "2": 50.0}}


def side(threshold: float) -> CertifiedSide:
    """A threshold as certify writes it, with the shift that is sent."""
    shift = round(float(np.log(1 / threshold - 1)), 4)
    return replace(ACCEPT, threshold=1 / (1 + float(np.exp(shift))), shift=shift)


def certificate_of(
    folder: Path, accept: float = 0.8, reject: float | None = None, **changes: Any
) -> Certificate:
    """A certificate of a run with these thresholds."""
    run = open_run(folder)
    with Store.read(folder / RUN_FILE) as store:
        asked = AskedAs(store.note("config"), store.note("ready"), store.note("accepted"))
        served = tuple(store.served_names())
    upper, lower = side(accept), None if reject is None else side(reject)
    today = datetime.now(UTC).date()
    made = certificate(
        accept=upper,
        reject=lower,
        model=run.result.model,
        served=served,
        prompt_digest=prompt_digest(run.settings, run.result.targets),
        made=today,
        expires=today + timedelta(90),
        settings=asked,
    )
    body = decision_request(run, upper.shift).ask
    lower_body = None if lower is None else decision_request(run, lower.shift).ask
    request = replace(made.request, url=decision_request(run, 0.0).url, accept=body, reject=lower_body)
    return replace(made, **{"request": request, **changes})


def at(rule: Certificate, base_url: str) -> Certificate:
    """The same certificate for an endpoint at another address."""
    config = {**rule.settings.config, "base_url": base_url}
    return replace(rule, settings=replace(rule.settings, config=config))


def without_labels(items: Path, path: Path) -> Path:
    """A copy of a file of questions, without their labels."""
    records = [json.loads(line) for line in items.read_text().splitlines()]
    for record in records:
        del record["label"]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """The decisions in a folder."""
    return [json.loads(line) for line in (folder / "decisions.jsonl").read_text().splitlines()]


def ruled(p: FloatArray, certificate: Certificate) -> list[str]:
    """The decision of the certified rule on each item, from its true probability."""
    lower = certificate.reject

    def one(f: float) -> str:
        if f >= certificate.accept.threshold:
            return "accept"
        return "reject" if lower is None or f < lower.threshold else "abstain"

    return [one(float(f)) for f in p]
