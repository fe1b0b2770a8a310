"""An audit killed at any moment, again and again, ends as one that was left alone."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from killing import ITEMS, PHASES, Killer, write_items


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_kills_in_every_phase_lose_nothing_and_cost_little(tmp_path: Path) -> None:
    """Killed in every phase, with refused items and failures, only what was in flight is asked again."""
    items = tmp_path / "items.jsonl"
    write_items(items, ITEMS)
    killer = Killer(items, tmp_path, random.Random(7))
    while missing := [phase for phase in PHASES if killer.kills[phase] < 4]:
        killer.run(sorted(2 * missing, key=PHASES.index))
