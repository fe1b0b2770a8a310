"""Limits per minute over real HTTP: every request of every command counts, whatever it is for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blindcal as bc
from blindcal.asking.run_context import Limits
from blindcal.simulation.http_server import HttpResponse
from serving import replaying, write_items

RPM = 2400.0


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize(("command", "tpm"), [(bc.probe, None), (bc.audit, 1e6)])
def test_the_limit_on_requests_counts_every_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., Any], tpm: float | None
) -> None:
    """Requests of the probe, the design and its controls leave at the rate that is allowed.

    A limit on tokens that replies do not use up changes nothing.
    """
    items, arrived = write_items(tmp_path / "items.jsonl", 20), list[float]()
    with replaying(items, np.random.default_rng(1).random(20)) as server:
        complete = server._complete

        def timed(body: bytes, *, chat: bool) -> HttpResponse:
            arrived.append(time.monotonic())
            return complete(body, chat=chat)

        monkeypatch.setattr(server, "_complete", timed)
        settings = bc.Settings(model="replay", base_url=server.base_url, method="latent", resamples=20)
        where = {"out": tmp_path / "run"} if command is bc.audit else {}
        command(items, settings, limits=Limits(rpm=RPM, tpm=tpm), **where)
    assert len(arrived) > 60
    # a request may take a while to arrive, but is never sent early
    sent = arrived[0] - 0.2 + 60 / RPM * np.arange(len(arrived))
    assert np.all(arrived > sent)
