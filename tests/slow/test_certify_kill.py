"""A certification whose process is killed again and again ends as one that is left alone."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from blindcal.certifying.certify import certify
from blindcal.results.certificate import Certificate
from deciding import audited, model, serving, write_items
from finished_runs import without_page
from killing import CONCURRENCY, LIMITS, Fate, killed

LABELS, P = model(900, 5)
FATES = (
    *(Fate(step, nth) for step, nth in (("request", 40), ("reply", 90), ("request", 150), ("reply", 150))),
    *(Fate(step) for step in ("before save", "after save")),
)


def run_certify(run: Path, base_url: str, fate: Fate) -> None:
    fate.surrounds(Certificate, "save")
    certify(run, 0.9, endpoint=fate.endpoint(base_url), limits=LIMITS)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_killed_again_and_again_it_ends_as_one_left_alone(tmp_path: Path) -> None:
    """Only what was under way is asked again, and the certificate is the same."""
    items = write_items(tmp_path / "items.jsonl", LABELS)
    with serving(items, P) as server, without_page():
        run = audited(items, server, tmp_path / "run", resamples=20)
        shutil.copytree(run, tmp_path / "alone")
        before = server.answered
        alone = certify(tmp_path / "alone", 0.9)
        expected, before = server.answered - before, server.answered
        assert all(killed(run_certify, run, server.base_url, fate) for fate in FATES)
        assert not killed(run_certify, run, server.base_url, Fate())
        again = server.answered - before - expected
    assert 0 <= again <= len(FATES) * CONCURRENCY
    assert Certificate.load(run / "certificate.json") == alone
