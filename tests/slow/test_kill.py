"""Audits, certifications, decisions and watches that are killed again and again end as those left alone.

One item in twenty is refused by a content filter, and requests fail now and then.
"""

from __future__ import annotations

import contextlib
import csv
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blindcal.asking import governor
from blindcal.asking.run_context import Limits
from blindcal.auditing.audit import audit
from blindcal.certifying.certify import certify
from blindcal.certifying.decide import decide
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.errors import StoreError
from blindcal.items.catalogue import open_items
from blindcal.records import Item, Reply, Request
from blindcal.results.certificate import Certificate
from blindcal.results.decisions import DecisionResult
from blindcal.results.result import AuditResult
from blindcal.results.watch_result import WatchResult
from blindcal.settings import Settings
from blindcal.simulation.http_server import HttpResponse
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import error, running
from blindcal.store.run_store import RUN_FILE, UNASKED, Store
from blindcal.store.watch_store import WatchStore
from blindcal.watching.watch import watch
from certified_runs import certificate_of, read_lines, without_labels
from deciding import audited, model
from deciding import serving as serving_model
from deciding import write_items as write_labelled
from finished_runs import without_page
from misbehaving import Behaviour, Reset, Server
from watching import copied_monitors, production, write

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
CONCURRENCY = 4
LIMITS = Limits(concurrency=CONCURRENCY, backoff=0.005)


FAILING = 0.2
REFUSED = b"about weapons"
REFUSAL = "blocked by the content filter"
IN_A_ROW = 3  # failures of one request; the probe tries six times
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["blindcal.auditing.audit", "blindcal.report.page"])


def write_items(path: Path, n: int) -> None:
    """Write questions to a file; the filter refuses one in twenty."""
    rng = np.random.default_rng(11)
    with path.open("w") as file:
        for k in range(n):
            prompt = f"question {k} about {'weapons' if k % 20 == 7 else 'numbers'}?"
            file.write(json.dumps({"id": f"q{k}", "prompt": prompt, "label": int(rng.random() < 0.5)}) + "\n")


def recorded(path: Path) -> tuple[Recording, list[Item]]:
    """A model that has an answer to each of the questions in a file, and these."""
    loaded = open_items(path)
    items = list(loaded)
    p = np.random.default_rng(12).beta(0.5, 0.5, len(items))
    return Recording.from_probabilities([item.id for item in items], p), items


class FailingServer(Server):
    """A service with a content filter that fails now and then.

    ``settled`` counts the requests that it answered or refused for good: what must not be asked again.
    """

    def __init__(self, recording: Recording, items: Sequence[Item], *, failing: float, seed: int) -> None:
        super().__init__(recording, items, Behaviour(latency=0.002))
        self.settled = 0
        self._failing, self._luck = failing, random.Random(seed)
        self._failures: Counter[bytes] = Counter()

    def _complete(self, body: bytes, *, chat: bool) -> HttpResponse:
        if self._luck.random() < self._failing and self._failures[body] < IN_A_ROW:
            self._failures[body] += 1
            status = self._luck.choice((503, 429, None))
            return Reset() if status is None else error(status, "not now", None)
        self._failures[body] = 0
        response = super()._complete(body, chat=chat)
        if REFUSED in body:
            self.settled += 1
            refusal = error(400, REFUSAL, None)
            return replace(response, status=refusal.status, body=refusal.body)
        self.settled += response.status == 200
        return response


@contextlib.contextmanager
def serving(path: Path, *, failing: float = FAILING, seed: int = 0) -> Iterator[FailingServer]:
    """A service that answers the questions of a file."""
    with running(FailingServer(*recorded(path), failing=failing, seed=seed)) as server:
        yield server


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

    def surrounds(self, kind: type, method: str) -> None:
        """Make what comes before and after a method two steps."""
        usual = getattr(kind, method)

        def surrounded(*args: Any, **more: Any) -> Any:
            self.comes_to(f"before {method}")
            found = usual(*args, **more)
            self.comes_to(f"after {method}")
            return found

        setattr(kind, method, surrounded)

    def begins(self) -> None:
        """Make requests and replies steps; requests that fail do not wait long."""
        governor.backoff = lambda *_: 0.005
        usual = HttpEndpoint.ask

        async def ask(endpoint: HttpEndpoint, request: Request) -> Reply:
            self.comes_to("request")
            reply = await usual(endpoint, request)
            self.comes_to("reply")
            return reply

        setattr(HttpEndpoint, "ask", ask)  # noqa: B010 - in a process of its own


def killed(task: Callable[..., None], *arguments: Any) -> bool:
    """Run a task in a process of its own; returns whether it was killed, and otherwise it has ended."""
    process = CONTEXT.Process(target=task, args=arguments)
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


# An audit

N, ROUNDS = 140, 2
PHASES = ("probe", "first round", "later rounds", "conclude")
AUDIT = [("request", 20), ("reply", 60), ("request", 120), ("reply", 40), ("reply", 60), ("request", 130)]
AUDIT_FATES = [*(Fate(*step) for step in AUDIT), Fate("before save"), Fate("after save")]


def run_audit(items: Path, out: Path, base_url: str, fate: Fate) -> None:
    fate.surrounds(AuditResult, "save")
    fate.begins()
    # the second round follows from the answers to the first
    settings = Settings(model="replay", base_url=base_url, method="extraction", queries=ROUNDS, resamples=20)
    audit(items, settings, out=out, limits=LIMITS)


def phase_on_disk(out: Path) -> str:
    """The phase in which an audit was killed, by what it left on disk."""
    try:
        with Store.read(out / RUN_FILE) as store:
            sizes = [len(one) for one in store.rounds()]
            if store.note("ready") is None or not sizes:
                return "probe"
            done = UNASKED not in store.answers(0, sum(sizes))
    except StoreError:  # there is no file yet, or an empty one
        return "probe"
    return "first round" if len(sizes) < ROUNDS else "conclude" if done else "later rounds"


def answers_in(out: Path) -> list[tuple[str, ...]]:
    with (out / "answers.csv").open(newline="") as file:
        rows = csv.DictReader(file)
        return [tuple(value for name, value in row.items() if name != "seconds") for row in rows]


def test_kills_in_every_phase_of_an_audit_lose_nothing_and_cost_little(tmp_path: Path) -> None:
    """With refused items and failures, only what was in flight is asked again."""
    items, whole, out = tmp_path / "items.jsonl", tmp_path / "whole", tmp_path / "killed"
    write_items(items, N)
    with serving(items, failing=0.0) as server:
        assert not killed(run_audit, items, whole, server.base_url, Fate())
        expected = server.settled
    phases = []
    with serving(items, seed=1) as server:
        for fate in AUDIT_FATES:
            assert killed(run_audit, items, out, server.base_url, fate), fate
            phases.append(phase_on_disk(out))
        assert not killed(run_audit, items, out, server.base_url, Fate())
        again = server.settled - expected
    assert set(phases) == set(PHASES), phases
    assert 0 <= again <= len(AUDIT_FATES) * CONCURRENCY
    result, alone = (AuditResult.load(folder / "result.json") for folder in (out, whole))
    assert result.complete
    assert alone.counts.invalid == ROUNDS * N // 20
    for name in ("ece", "bins", "accuracy", "counts", "invalid_reasons"):
        assert getattr(result, name) == getattr(alone, name), name
    assert result.spend.queries == alone.spend.queries
    assert answers_in(out) == answers_in(whole)


# Certificates and decisions

LABELS, P = model(900, 5)
CERTIFY = [("request", 40), ("reply", 90), ("request", 150), ("reply", 150)]
CERTIFY_FATES = [*(Fate(*step) for step in CERTIFY), Fate("before save"), Fate("after save")]
DECIDE = [("reply", 5), ("request", 8), ("reply", 20), ("request", 25), ("reply", 30), ("request", 12)]
DECIDE_FATES = [*(Fate(*step) for step in DECIDE), Fate("before save")]


def run_certify(run: Path, fate: Fate) -> None:
    fate.surrounds(Certificate, "save")
    fate.begins()
    certify(run, 0.9, limits=LIMITS)


def test_a_killed_certification_ends_with_the_same_certificate(tmp_path: Path) -> None:
    """Only what was under way is asked again."""
    items = write_labelled(tmp_path / "items.jsonl", LABELS)
    with serving_model(items, P) as server, without_page():
        run = audited(items, server, tmp_path / "run", resamples=20)
        shutil.copytree(run, tmp_path / "alone")
        before = server.answered
        alone = certify(tmp_path / "alone", 0.9)
        expected, before = server.answered - before, server.answered
        assert all(killed(run_certify, run, fate) for fate in CERTIFY_FATES)
        assert not killed(run_certify, run, Fate())
        again = server.answered - before - expected
    assert 0 <= again <= len(CERTIFY_FATES) * CONCURRENCY
    assert Certificate.load(run / "certificate.json") == alone


def run_decide(rule: Path, items: Path, out: Path, base_url: str, fate: Fate) -> None:
    fate.surrounds(DecisionResult, "save")
    fate.begins()
    endpoint = HttpEndpoint(Address(base_url, "replay"))
    decide(rule, items, out=out, endpoint=endpoint, limits=LIMITS)


def test_killed_decisions_are_the_same(tmp_path: Path) -> None:
    """With refused items and requests that fail, only what was in flight is asked again."""
    labelled, items, rule = (tmp_path / name for name in ("labelled.jsonl", "items.jsonl", "rule.json"))
    write_items(labelled, 80)
    without_labels(labelled, items)
    whole, out = tmp_path / "whole", tmp_path / "out"
    with serving(labelled, failing=0.0) as server, without_page():
        settings = Settings(model="replay", base_url=server.base_url, method="latent", resamples=20)
        audit(labelled, settings, out=tmp_path / "audit")
        certificate_of(tmp_path / "audit", 0.7, 0.3).save(rule)
        before = server.settled
        assert not killed(run_decide, rule, items, whole, server.base_url, Fate())
        expected = server.settled - before
    with serving(labelled, seed=1) as server:
        assert all(killed(run_decide, rule, items, out, server.base_url, fate) for fate in DECIDE_FATES)
        assert not killed(run_decide, rule, items, out, server.base_url, Fate())
        again = server.settled - expected
    assert 0 <= again <= len(DECIDE_FATES) * CONCURRENCY
    for name in ("decisions.csv", "decisions.jsonl"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    assert len([line for line in read_lines(out) if REFUSAL in (line["reason"] or "")]) == 4
    assert json.loads((out / "summary.json").read_text())["undecided"] == 0


# A watch

STEPS = ("before begin_look", "after begin_look", "before end_look", "after end_look", "before save")


def run_watch(run: Path, stream: Path, out: Path, fate: Fate, more: dict[str, Any]) -> None:
    for kind, method in ((WatchStore, "begin_look"), (WatchStore, "end_look"), (WatchResult, "save")):
        fate.surrounds(kind, method)
    fate.begins()
    with copied_monitors(run.parent):
        watch(stream, run, out=out, limits=LIMITS, **more)


def result_of(out: Path) -> WatchResult:
    """What a watch wrote, apart from where and when, and from the number of requests that failed."""
    result = WatchResult.load(out)
    spend = replace(result.spend, attempts=0)
    return replace(result, folder="", started="", looked="", first_seen={}, spend=spend)


def test_twenty_kills_of_a_watch_change_nothing_and_cost_little(tmp_path: Path) -> None:
    """With failing requests, late labels and a share of the items: the same result to the last digit.

    At most what was in flight is asked again, and nothing is lost that was counted.
    """
    luck = random.Random(15)
    fates = [Fate(step) for step in STEPS for _ in range(2)]
    fates += [Fate(step, luck.randint(5, 40)) for step in ("request", "reply") for _ in range(5)]
    luck.shuffle(fates)
    whole, out = tmp_path / "whole", tmp_path / "killed"
    with production(tmp_path, fault="500", fault_share=0.05) as live:
        stream = write(tmp_path / "stream.jsonl", live.records(labelled=False))
        rows = [{"id": f"q{k}", "label": int(live.labels[k])} for k in range(150, 390)]
        more = {"labels": write(tmp_path / "labels.jsonl", rows), "rate": 0.8, "every": 15}
        before = live.server.answered
        assert not killed(run_watch, live.run, stream, whole, Fate(), more)
        alone, before = live.server.answered - before, live.server.answered
        expected = result_of(whole)
        assert not expected.raised, (expected.state.alarms, expected.facts)
        assert all(killed(run_watch, live.run, stream, out, fate, more) for fate in fates)
        assert not killed(run_watch, live.run, stream, out, Fate(), more)
        again = live.server.answered - before - alone
        assert live.asked(out) == live.asked(whole)
    assert 0 <= again <= len(fates) * CONCURRENCY
    assert expected.look == 13
    assert expected.labelled > 150
    assert result_of(out) == expected


# Processes of `blindcal reproduce`


def test_a_killed_reproduce_leaves_no_process(tmp_path: Path) -> None:
    """After kill -9 its workers end, though they are at work."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    script = (
        "from pathlib import Path\n"
        "from blindcal.reproduce import sources, table\n"
        "from blindcal.simulation.simulate import generate\n"
        "def held(run):\n"
        f"    return [] if run.seed < 2 else Path({str(gate)!r}).read_text()  # nobody writes\n"
        "table.TableRun.measure = held\n"
        "if __name__ == '__main__':\n"
        "    known = sources.from_probabilities('made', 'up', *generate(300, 0))\n"
        "    runs = table.table_runs(known, methods=('blind',))\n"
        "    for cells in table.measure_runs(runs, jobs=2):\n"
        "        print(cells, flush=True)\n"
    )
    (tmp_path / "work.py").write_text(script)
    child = subprocess.Popen([sys.executable, tmp_path / "work.py"], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == "[]\n"
        child.send_signal(signal.SIGKILL)
        child.stdout.read()  # ends when the last worker that shares it has
