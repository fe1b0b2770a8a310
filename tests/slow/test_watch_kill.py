"""A watch whose process is killed at any moment, again and again, comes to what one left alone does."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from killing import CONCURRENCY
from watch_killing import Moment, Step, go, result_of
from watching import production, write

STEPS: tuple[Step, ...] = ("begin_look", "begun_look", "end_look", "ended_look", "save")
ASKING: tuple[Step, ...] = ("request", "reply")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_twenty_kills_change_nothing_and_cost_little(tmp_path: Path) -> None:
    """With failing requests, late labels and a share of the items: the same result to the last digit.

    At most what was in flight is asked again, and nothing is lost that was counted.
    """
    luck = random.Random(15)
    moments = [
        *(Moment(step, 1) for step in STEPS for _ in range(2)),
        *(Moment(step, luck.randint(5, 40)) for step in ASKING for _ in range(5)),
    ]
    luck.shuffle(moments)
    with production(tmp_path, fault="500", fault_share=0.05) as live:
        stream = write(tmp_path / "stream.jsonl", live.records(labelled=False))
        rows = [{"id": f"q{k}", "label": int(live.labels[k])} for k in range(150, 390)]
        labels = write(tmp_path / "labels.jsonl", rows)
        url, more = live.server.base_url, {"labels": labels, "rate": 0.8, "every": 15}
        before = live.server.answered
        assert not go(live.run, stream, tmp_path / "whole", url, None, **more)
        alone = live.server.answered - before
        expected = result_of(tmp_path / "whole")
        assert not expected.raised, (expected.state.alarms, expected.facts)
        before, kills = live.server.answered, 0
        for moment in moments:
            kills += go(live.run, stream, tmp_path / "killed", url, moment, **more)
        assert not go(live.run, stream, tmp_path / "killed", url, None, **more)
        again = live.server.answered - before - alone
        asked = live.asked(tmp_path / "killed")
        assert asked == live.asked(tmp_path / "whole")
    assert kills == len(moments) == 20
    assert 0 <= again <= kills * CONCURRENCY
    assert expected.look == 13
    assert expected.labelled > 150
    assert result_of(tmp_path / "killed") == expected
