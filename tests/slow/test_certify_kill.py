"""A certification whose process is killed again and again ends as one that is left alone."""

from __future__ import annotations

import os
import shutil
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from blindcal.asking.limits import Limits
from blindcal.certifying.certify import certify
from blindcal.results.certificate import Certificate
from deciding import audited, model, serving, write_items
from finished_runs import without_page
from killing import CONTEXT

LABELS, P = model(900, 5)
CONCURRENCY = 4


def run_certify(run: Path, told: Connection) -> None:
    """Certify in a process of its own, and tell how many answers are on disk."""
    limits = Limits(concurrency=CONCURRENCY)
    certify(run, 0.9, limits=limits, progress=lambda so_far: told.send(so_far.done))


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_killed_again_and_again_it_ends_as_one_left_alone(tmp_path: Path) -> None:
    """Only what was under way is asked again, and the certificate is the same."""
    items = write_items(tmp_path / "items.jsonl", LABELS)
    with serving(items, P, latency=0.002) as server, without_page():
        run = audited(items, server, tmp_path / "run", resamples=20)
        shutil.copytree(run, tmp_path / "alone")
        audit = server.answered
        alone = certify(tmp_path / "alone", 0.9)
        expected, kills = server.answered - audit, 0
        for enough in (40, 150, 300, 450, 600):
            ours, theirs = CONTEXT.Pipe(duplex=False)
            process = CONTEXT.Process(target=run_certify, args=(run, theirs))
            process.start()
            theirs.close()
            try:
                while ours.recv() < enough:
                    pass
            except EOFError:
                break
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
            process.join()
        certify(run, 0.9)
        again = server.answered - audit - 2 * expected
    assert kills >= 4
    assert 0 <= again <= kills * CONCURRENCY
    assert Certificate.load(run / "certificate.json") == alone
