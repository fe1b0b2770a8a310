"""Verbalized confidence through an endpoint, and answers read by another estimator than their method's."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blindcal.auditing.audit import audit
from blindcal.endpoints.free_text import INSTRUCTION
from blindcal.endpoints.query_format import ConfidenceQuestion
from blindcal.errors import BlindcalError, UnfitError
from blindcal.estimate.truth import binned_ece
from blindcal.items.catalogue import open_items
from blindcal.results.result import AuditResult
from blindcal.results.run import open_run
from blindcal.settings import Settings
from blindcal.simulation.recording import RecordedTexts
from commanding import blindcal
from serving import replaying, write_items

pytestmark = pytest.mark.usefixtures("no_page")

N = 120
SAID = INSTRUCTION.replace("{positive}", "Yes").replace("{negative}", "No")


@pytest.fixture
def items(tmp_path: Path) -> Path:
    return write_items(tmp_path / "items.jsonl", N)


def texts() -> dict[str, str]:
    """What the model says: confidences in several spellings, and every tenth item none."""
    rng = np.random.default_rng(2)
    forms = itertools.cycle(["{}, {}%", "{}\nConfidence: {}%", "**{}** ({} percent)"])
    said = {f"q{k}": next(forms).format(rng.choice(["Yes", "No"]), rng.integers(50, 101)) for k in range(N)}
    return said | {f"q{k}": "Yes, surely." for k in range(0, N, 10)} | {"q5": "I cannot answer that."}


def serving(items: Path, said: dict[str, str] | None = None, **behaviour: Any) -> Any:
    recorded = items.with_name("texts.csv")
    with recorded.open("w", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *(said or texts()).items()])
    spoken = RecordedTexts.load(recorded, ("Yes", "No"))
    return replaying(items, np.random.default_rng(3).random(N), spoken=spoken, **behaviour)


def settings(server: Any, **more: Any) -> Settings:
    base = {"model": "replay", "base_url": server.base_url, "method": "verbalized", "resamples": 20}
    return Settings(**{**base, **more})


def test_a_verbalized_audit_reads_what_was_said(items: Path, tmp_path: Path) -> None:
    """Its figures are those of the stated confidences; what states none is counted, bounded and explained."""
    with serving(items, bias="rejected") as server:
        shown = blindcal(
            "audit", items, "--model", "replay", "--base-url", server.base_url, "--out", tmp_path / "run",
            "--method", "verbalized", "--set", "resamples=20", "-v",
        )  # fmt: skip
        assert server.requests == N  # no probe, and no bias that this endpoint would reject
        found = audit(items, settings(server), out=tmp_path / "run")
        assert server.requests == N
    assert shown.exit_code == 0, shown.output
    assert f"WARNING    {N // 10 + 1} of {N} answers could not be read. If they had been" in shown.output
    assert f"unread     no confidence {N // 10}, refusal 1" in shown.output
    assert "measures   the confidence that the model states in words" in shown.output
    labels = open_items(items).labels
    p = ConfidenceQuestion(("Yes", "No")).stated([texts()[f"q{k}"] for k in range(N)]).p
    known = np.isfinite(p)
    assert found.ece.value == pytest.approx(binned_ece(labels[known], p[known], 5).ece.value, abs=1e-12)
    assert found.counts.invalid == N // 10 + 1
    assert found.invalid_reasons == {"no confidence": N // 10, "refusal": 1}
    low, high = found.ece_if_invalid
    assert low < (found.ece.value or 0) < high
    assert (found.estimator, found.semantics, found.probe) == ("stated", "stated", None)
    assert found.example is not None
    assert found.example.messages[0].content.endswith(SAID)
    assert found.example.logit_bias == {}
    assert AuditResult.load(tmp_path / "run" / "result.json") == found
    with pytest.raises(BlindcalError, match="has no fit"):
        open_run(tmp_path / "run").fit()
    with (tmp_path / "run" / "answers.csv").open() as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    assert rows["q5"]["answer"] == "invalid"
    assert "\\nConfidence: " in rows["q1"]["text"]


def test_a_model_that_never_states_a_confidence_ends_the_run(items: Path, tmp_path: Path) -> None:
    """After fifty answers without one the run says so, what the model said, and what can be done."""
    with (
        serving(items, {f"q{k}": "No, it is not." for k in range(N)}) as server,
        pytest.raises(UnfitError, match=r"'No, it is not\.'.*try another confidence_wording="),
    ):
        audit(items, settings(server), out=tmp_path / "run")


# Another estimator for the same answers


def test_answers_are_read_anew_without_asking(items: Path, tmp_path: Path) -> None:
    """A finished run of sampling, read by latent, has intervals and a curve, and costs nothing more."""
    with serving(items) as server:
        one = settings(server, method="sampling", queries=2)
        own = audit(items, one, out=tmp_path / "run")
        asked = server.requests
        other = settings(server, method="sampling", queries=2, estimator="latent")
        fitted = audit(items, other, out=tmp_path / "run")
        assert server.requests == asked
    assert (own.estimator, own.ece.low, own.curve) == ("shares", None, None)
    assert fitted.estimator == "latent"
    assert fitted.ece.low is not None
    assert fitted.curve is not None
    assert fitted.spend == own.spend
    assert "read by maximum likelihood" in fitted.measures
    assert open_run(tmp_path / "run").fit(resamples=20).ece.value == pytest.approx(fitted.ece.value)
