"""A run watches its endpoint: control queries, names in the replies, and a test for drift; over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blindcal.asking.controls import lost_since
from blindcal.asking.run_context import Limits
from blindcal.auditing.audit import audit
from blindcal.errors import UnfitError
from blindcal.methods import control_spacing
from blindcal.report.page import render
from blindcal.results.check import check
from blindcal.results.result import AuditResult
from blindcal.store.run_store import RUN_FILE, Store
from misbehaving import Behaviour
from serving import replaying, settings_of, write_items

N = 1000
ASKED = 750  # queries of `blind` with four bins
PROBE = 200  # more queries than the probe takes, whose draws are seeded


def truth(n: int = N) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.random.default_rng(2).beta(0.6, 0.6, n)


@pytest.fixture
def items(tmp_path: Path) -> Path:
    return write_items(tmp_path / "items.jsonl", np.random.default_rng(3).random(N) < truth())


def audited(items: Path, out: Path, behaviour: dict[str, Any], **more: Any) -> AuditResult:
    force, limits = more.pop("force", False), more.pop("limits", None)
    with replaying(items, truth(), **behaviour) as server:
        settings = settings_of(server, **{"method": "blind", "bins": 4, **more})
        return audit(items, settings, out=out, force=force, limits=limits)


def later(at: int, **changed: Any) -> dict[str, Any]:
    """A service that changes at this request."""
    return {"later": Behaviour(**changed), "later_from": at}


def test_an_honest_endpoint_gets_no_word(items: Path, tmp_path: Path) -> None:
    """Controls are asked, counted as spent, and pass; the answers are those of a run without them."""
    result = audited(items, tmp_path / "run", {"fingerprint": "fp_1"})
    steady = result.steadiness
    assert steady is not None
    assert not steady.warnings
    assert not steady.notes
    controls = steady.controls
    assert result.spend.control_queries == ASKED // control_spacing(N) + 1
    assert (controls.failed, controls.disagreed) == (0, 0)
    assert steady.flip_rate.value == 0
    assert min(controls.forced, controls.repeated) >= result.spend.control_queries // 3
    assert result.spend.queries - result.spend.probe_queries - result.spend.control_queries == ASKED
    (served,) = steady.served
    assert (served.model, served.fingerprint, served.answers) == ("replay", "fp_1", ASKED)
    assert AuditResult.load(tmp_path / "run" / "result.json") == result
    limited = audited(items, tmp_path / "limited", {}, limits=Limits(max_queries=400))
    assert 390 < limited.spend.queries <= 400  # controls included


def test_a_bias_that_stops_acting_ends_the_run(items: Path, tmp_path: Path) -> None:
    """Soon after the bias stops acting the run ends; continued, it ends at once, and is never estimated."""
    with replaying(items, truth(), **later(PROBE + 120, bias="ignored")) as server:
        settings = settings_of(server, method="blind")
        with pytest.raises(UnfitError, match="no longer does"):
            audit(items, settings, out=tmp_path / "run")
        requests = server.requests
        with pytest.raises(UnfitError, match="no longer does"):
            audit(items, settings, out=tmp_path / "run")
        assert server.requests == requests
    assert not (tmp_path / "run" / "result.json").exists()
    with Store.read(tmp_path / "run" / RUN_FILE) as store:
        assert 100 <= store.usage("design").queries < 600


def test_a_forced_run_says_that_the_bias_stopped_acting(items: Path, tmp_path: Path) -> None:
    """With force the run goes on, and the page, the summary's record and a check say what that means."""
    result = audited(items, tmp_path / "run", later(PROBE + 120, bias="ignored"), force=True)
    assert "logit_bias stopped acting during the run" in result.warnings[0]
    assert result.steadiness is not None
    assert result.steadiness.bias_lost is not None
    assert 80 < result.steadiness.bias_lost < 600
    assert "logit_bias stopped acting" in render(result)
    verdict = check(tmp_path / "run", max_ece=0.9)
    assert verdict.outcome == "undecided"
    assert "stopped acting" in verdict.verdicts[0].why


def test_a_share_of_requests_that_ignores_the_bias_is_noticed(items: Path, tmp_path: Path) -> None:
    """If 30% of the requests go to a machine that ignores the bias, the run ends too."""
    with pytest.raises(UnfitError, match="no longer does"):
        audited(items, tmp_path / "run", later(PROBE, bias_ignored=0.3))


def test_a_change_of_the_answers_is_noticed(items: Path, tmp_path: Path) -> None:
    """All log-odds move by 1 half-way: the result says so, and about when."""
    result = audited(items, tmp_path / "run", later(PROBE + ASKED // 2, drift=1.5))
    assert result.steadiness is not None
    assert result.steadiness.drift is not None
    assert any("answers changed during the run" in text for text in result.warnings)
    assert abs(result.steadiness.drift.at - ASKED / 2) < 100


@pytest.mark.parametrize(
    ("behaviour", "method", "said", "moved"),
    [
        (later(PROBE, drift=2.0, drift_over=ASKED), "blind", "during the run", 1),
        (later(PROBE, drift=-2.0, drift_over=ASKED), "blind", "during the run", -1),
        (later(PROBE, drift=2.0, drift_over=3 * N), "temperature", "answers changed", 0),
        ({"cached": 0.5}, "temperature", "draws are not independent", 0),
    ],
)
def test_what_a_probe_cannot_see_is_noticed_in_the_run(
    behaviour: dict[str, Any], method: str, said: str, moved: int, items: Path, tmp_path: Path
) -> None:
    """Log-odds that drift slowly, and a cache that answers half of the queries, end in a warning."""
    behaviour = {"bias": "rejected", **behaviour} if method == "temperature" else behaviour
    result = audited(items, tmp_path / "run", behaviour, method=method, resamples=20)
    assert any(said in text for text in result.warnings)
    assert result.steadiness is not None
    assert result.steadiness.moved == moved


def test_another_fingerprint_is_noticed(items: Path, tmp_path: Path) -> None:
    """A fingerprint that changes once is named, with the query from which on; one in turns is said mildly."""
    changed = {"fingerprint": "fp_1", **later(PROBE + 400, fingerprint="fp_2")}
    result = audited(items, tmp_path / "run", changed, limits=Limits(concurrency=4))
    assert result.steadiness is not None
    (note,) = result.steadiness.notes
    assert "was replaced during the run" in note
    assert "fp_1" in note
    assert "fp_2" in note
    assert 300 < result.steadiness.served[1].first < 500


def test_noise_is_estimated_and_allowed_for(items: Path, tmp_path: Path) -> None:
    """With jitter that the probe did not see, repeated queries disagree; a note says what is allowed for."""
    result = audited(items, tmp_path / "run", later(PROBE, jitter=1.0), method="latent", resamples=20)
    steady = result.steadiness
    assert steady is not None
    assert steady.controls.disagreed
    assert steady.jitter.value is not None
    assert steady.jitter.value > 0.1
    assert any("answers are noisy" in text for text in steady.notes)


def test_the_alarm_is_rare_at_a_few_flips_and_certain_if_the_bias_is_ignored() -> None:
    """200 runs of 200 forced queries: 3% wrong hardly ever ends a run, one half always does, soon."""
    rng = np.random.default_rng(0)
    false = sum(lost_since(rng.random(200) < 0.03) is not None for _ in range(200))
    assert false <= 2
    begun = []
    for _ in range(100):
        since = lost_since([*(rng.random(50) < 0.03), *(rng.random(50) < 0.5)])
        assert since is not None
        begun.append(since)
    assert 45 <= np.median(begun) <= 55
