"""Certifications, decisions and watches whose process is killed again and again end as those left alone.

A process kills itself (SIGKILL) at a step that it is given, so that no clock decides when.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import killing
from blindcal.asking import governor
from blindcal.asking.run_context import Limits
from blindcal.auditing.audit import audit
from blindcal.certifying.certify import certify
from blindcal.certifying.decide import decide
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.records import Reply, Request
from blindcal.results.certificate import Certificate
from blindcal.results.decisions import DecisionResult
from blindcal.results.watch_result import WatchResult
from blindcal.settings import Settings
from blindcal.store.watch_store import WatchStore
from blindcal.watching.watch import watch
from certified_runs import certificate_of, read_lines, without_labels
from deciding import audited, model, serving, write_items
from finished_runs import without_page
from killing import CONCURRENCY, CONTEXT, REFUSAL
from watching import copied_monitors, production, write

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
LIMITS = Limits(concurrency=CONCURRENCY, backoff=0.005)


@dataclass
class Fate:
    """Kills its process when it comes to a step for the nth time; never without a step.

    Steps are ``request``, ``reply``, and ``before`` and ``after`` a method that it `surrounds`.
    """

    step: str = ""
    nth: int = 1

    def comes_to(self, step: str) -> None:
        if step == self.step:
            self.nth -= 1
            if not self.nth:
                os.kill(os.getpid(), signal.SIGKILL)

    def surrounds(self, kind: type, *methods: str) -> None:
        """Make what comes before and after a method two steps."""
        for method in methods:
            setattr(kind, method, self._surrounded(method, getattr(kind, method)))

    def _surrounded(self, name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        def surrounded(*args: Any, **more: Any) -> Any:
            self.comes_to(f"before {name}")
            result = usual(*args, **more)
            self.comes_to(f"after {name}")
            return result

        return surrounded

    def endpoint(self, base_url: str) -> MortalEndpoint:
        """An endpoint whose process may die before a request or after its reply; it never waits long."""
        governor.backoff = lambda *_: 0.005
        return MortalEndpoint(base_url, self)


class MortalEndpoint:
    """An endpoint that tells a fate of its requests and replies."""

    def __init__(self, base_url: str, fate: Fate) -> None:
        self._endpoint, self._fate = HttpEndpoint(Address(base_url, "replay")), fate

    async def ask(self, request: Request) -> Reply:
        self._fate.comes_to("request")
        reply = await self._endpoint.ask(request)
        self._fate.comes_to("reply")
        return reply

    async def close(self) -> None:
        await self._endpoint.close()


def killed(task: Callable[..., None], *arguments: Any) -> bool:
    """Run a task in a process of its own; returns whether it was killed, and otherwise it has ended."""
    process = CONTEXT.Process(target=task, args=arguments)
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def kill(fates: Sequence[Fate], task: Callable[..., None], *arguments: Any) -> None:
    """Run a task once for each fate, all of which kill it, and then to its end."""
    assert all(killed(task, fate, *arguments) for fate in fates)
    assert not killed(task, Fate(), *arguments)


def run_certify(fate: Fate, run: Path, base_url: str) -> None:
    fate.surrounds(Certificate, "save")
    certify(run, 0.9, endpoint=fate.endpoint(base_url), limits=LIMITS)


def test_certifications(tmp_path: Path) -> None:
    """Only what was under way is asked again, and the certificate is the same."""
    steps = (("request", 40), ("reply", 90), ("request", 150), ("reply", 150))
    fates = [*(Fate(*step) for step in steps), Fate("before save"), Fate("after save")]
    labels, p = model(900, 5)
    items = write_items(tmp_path / "items.jsonl", labels)
    with serving(items, p) as server, without_page():
        run = audited(items, server, tmp_path / "run", resamples=20)
        shutil.copytree(run, tmp_path / "alone")
        before = server.answered
        alone = certify(tmp_path / "alone", 0.9)
        expected, before = server.answered - before, server.answered
        kill(fates, run_certify, run, server.base_url)
        again = server.answered - before - expected
    assert 0 <= again <= len(fates) * CONCURRENCY
    assert Certificate.load(run / "certificate.json") == alone


def run_decide(fate: Fate, rule: Path, items: Path, out: Path, base_url: str) -> None:
    fate.surrounds(DecisionResult, "save")
    decide(rule, items, out=out, endpoint=fate.endpoint(base_url), limits=LIMITS)


def test_decisions(tmp_path: Path) -> None:
    """With refused items and requests that fail, only what was in flight is asked again."""
    steps = (("reply", 5), ("request", 8), ("reply", 20), ("request", 25), ("reply", 30), ("request", 12))
    fates = [*(Fate(*step) for step in steps), Fate("before save")]
    labelled, rule, whole, out = (tmp_path / name for name in ("items.jsonl", "rule.json", "whole", "out"))
    killing.write_items(labelled, 80)
    items = without_labels(labelled, tmp_path / "unlabelled.jsonl")
    with killing.serving(labelled, failing=0.0) as server, without_page():
        settings = Settings(model="replay", base_url=server.base_url, method="latent", resamples=20)
        audit(labelled, settings, out=tmp_path / "audit")
        certificate_of(tmp_path / "audit", 0.7, 0.3).save(rule)
        before = server.settled
        kill([], run_decide, rule, items, whole, server.base_url)
        expected = server.settled - before
    with killing.serving(labelled, seed=1) as server:
        kill(fates, run_decide, rule, items, out, server.base_url)
        again = server.settled - expected
    assert 0 <= again <= len(fates) * CONCURRENCY
    for name in ("decisions.csv", "decisions.jsonl"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    assert sum(REFUSAL in (line["reason"] or "") for line in read_lines(out)) == 80 // 20
    assert json.loads((out / "summary.json").read_text())["undecided"] == 0


def run_watch(fate: Fate, run: Path, stream: Path, out: Path, base_url: str, more: dict[str, Any]) -> None:
    fate.surrounds(WatchStore, "begin_look", "end_look")
    fate.surrounds(WatchResult, "save")
    with copied_monitors(run.parent):
        watch(stream, run, out=out, endpoint=fate.endpoint(base_url), limits=LIMITS, **more)


def watched(out: Path) -> WatchResult:
    """What a watch wrote, apart from where and when, and from the number of requests that failed."""
    result = WatchResult.load(out)
    spend = replace(result.spend, attempts=0)
    return replace(result, folder="", started="", looked="", first_seen={}, spend=spend)


def test_watches(tmp_path: Path) -> None:
    """With failing requests, late labels and a share of the items: the same result to the last digit."""
    luck = random.Random(15)
    steps = ("before begin_look", "after begin_look", "before end_look", "after end_look", "before save")
    fates = [Fate(step) for step in steps for _ in range(2)]
    fates += [Fate(step, luck.randint(5, 40)) for step in ("request", "reply") for _ in range(5)]
    luck.shuffle(fates)
    whole, out = tmp_path / "whole", tmp_path / "killed"
    with production(tmp_path, fault="500", fault_share=0.05) as live:
        stream = write(tmp_path / "stream.jsonl", live.records(labelled=False))
        rows = [{"id": f"q{k}", "label": int(live.labels[k])} for k in range(150, 390)]
        more = {"labels": write(tmp_path / "labels.jsonl", rows), "rate": 0.8, "every": 15}
        url, before = live.server.base_url, live.server.answered
        kill([], run_watch, live.run, stream, whole, url, more)
        alone, before = live.server.answered - before, live.server.answered
        expected = watched(whole)
        assert not expected.raised, (expected.state.alarms, expected.facts)
        kill(fates, run_watch, live.run, stream, out, url, more)
        again = live.server.answered - before - alone
        assert live.asked(out) == live.asked(whole)
    assert 0 <= again <= len(fates) * CONCURRENCY
    assert expected.look == 13
    assert expected.labelled > 150
    assert watched(out) == expected
