"""`blindcal certify` over real HTTP: it certifies what the endpoint does, and asks nothing twice."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

import blindcal as bc
from blindcal.asking.run_context import Limits
from blindcal.certifying.certify import certify
from blindcal.certifying.design import CertifyGoal, plan_certification
from blindcal.errors import NotCertifiedError, NotIdentifiedError, StoreError
from blindcal.records import IntArray
from blindcal.results.certificate import Certificate
from blindcal.results.run import Run, open_run
from blindcal.simulation.replay import Server
from blindcal.store.run_store import RUN_FILE, Store
from commanding import blindcal
from deciding import audited, decided, model, serving, write_items
from finished_runs import FinishedRuns, without_page

N = 900
LABELS, P = model(N, 5)


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_items(tmp_path_factory.mktemp("certify") / "items.jsonl", LABELS)


@pytest.fixture(scope="module")
def server(items: Path) -> Iterator[Server]:
    with serving(items, P) as server:
        yield server


@pytest.fixture(scope="module")
def audit_folder(items: Path, server: Server) -> Path:
    """A finished audit, which no test changes."""
    with without_page():
        return audited(items, server, items.parent / "run", resamples=20)


@pytest.fixture
def run(audit_folder: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(audit_folder, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def made(audit_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A certificate of the audit by its own endpoint."""
    folder = tmp_path_factory.mktemp("made") / "run"
    shutil.copytree(audit_folder, folder)
    return certify(folder, 0.9)


def moved(run: Path, server: Server) -> None:
    """Let a run be about an endpoint at another address."""
    with Store.open(run / RUN_FILE) as store:
        store.set_note("config", {**store.note("config"), "base_url": server.base_url})


def certifying(run: Path, *goal: float) -> IntArray:
    return np.array(plan_certification(open_run(run), CertifyGoal(*goal)).items)


def check_counts(made: Certificate, mine: IntArray) -> None:
    """The counts are those of all certifying items at the threshold, and the bound is reached."""
    for side, label in ((made.accept, 1), (made.reject, 0)):
        if side is not None:
            here = (P[mine] >= side.threshold) == (label == 1)
            assert (side.decided, side.right) == (here.sum(), (LABELS[mine][here] == label).sum())
            assert side.bound >= side.wanted
            assert side.items == mine.size
            assert side.threshold == pytest.approx(expit(-side.shift))


def test_a_certificate_counts_what_the_endpoint_decides(run: Path, server: Server) -> None:
    """Its counts are the truth, its request takes the decision, and the same again asks nothing."""
    asked = server.answered
    done = blindcal("certify", run, "--precision", 0.9)
    assert done.exit_code == 0, done.output
    made = Certificate.load(run / "certificate.json")
    check_counts(made, certifying(run, 0.9))
    assert made.queries == server.answered - asked
    assert made.reused > 0
    assert made.reject is None
    assert (made.expires - made.made).days == 90
    assert f"accept     from {made.accept.threshold:.4f}, by 'Yes': precision at least 0.9" in done.stdout
    near = np.argsort(np.abs(P - made.accept.threshold))[:10]
    for k in near[np.abs(P[near] - made.accept.threshold) > 1e-4]:
        assert decided(made.request.accept, made.request.url, int(k)) == (P[k] >= made.accept.threshold)
    asked = server.answered
    assert bc.certify(run, 0.9, out=run / "again.json") == made == Certificate.load(run / "again.json")
    assert server.answered == asked


def test_two_thresholds_abstain_between_them(run: Path) -> None:
    """Each side has its own bound at half of what may go wrong, and JSON is the certificate itself."""
    wish = ("--precision", 0.9, "--negative-precision", 0.8, "--expires", 7)
    done = blindcal("certify", run, *wish, "--out", run / "rule.json", "--json")
    assert done.exit_code == 0, done.output
    assert done.stdout == (run / "rule.json").read_text()
    made = Certificate.load(run / "rule.json")
    check_counts(made, certifying(run, 0.9, 0.8))
    assert made.reject is not None
    assert made.reject.threshold <= made.accept.threshold
    assert made.accept.level == made.reject.level == pytest.approx(1 - 0.05 * 2 / 3 / 2)
    assert (made.accept.wanted, made.reject.wanted) == (0.9, 0.8)
    assert (made.expires - made.made).days == 7
    assert not (run / "certificate.json").exists()


def test_attempts_on_a_run_share_the_confidence(run: Path) -> None:
    """Each further goal is tested more strictly, and the same goal again is no further attempt.

    A rule that was certified for more serves where an attempt itself fails.
    """
    first, second = certify(run, 0.9), certify(run, 0.8)
    assert certify(run, 0.9) == first
    assert (first.attempt, second.attempt) == (1, 2)
    assert (first.level, second.level) == (0.95, 0.95)
    assert 1 - first.accept.level == pytest.approx(0.05 * 2 / 3)
    assert 1 - second.accept.level == pytest.approx(0.05 * 2 / 9)
    shown = blindcal("certify", run, "--precision", 0.85, "--dry-run").stdout
    assert "attempt    3 on this run: each side is tested with an error of at most 0.37%" in shown
    with Store.open(run / RUN_FILE) as store:
        store.set_note("attempts", [*store.note("attempts"), *map(str, range(9))])
    with pytest.raises(NotCertifiedError):
        certify(run, 0.91)
    assert certify(run, 0.895) == first
    assert certify(run, 0.895, confidence=0.9).level == 0.95


def test_an_audit_that_grows_keeps_its_attempts(items: Path, server: Server, tmp_path: Path) -> None:
    """To certify again after more items is a further attempt; one in which nothing was asked is none."""
    for sample, attempts in ((200, 1), (240, 2)):
        with without_page():
            run = audited(items, server, tmp_path / "run", resamples=20, sample=sample)
        with pytest.raises(NotCertifiedError, match="no threshold has a chance"):
            certify(run, 0.99999)
        with pytest.raises(NotCertifiedError, match="before a threshold was tested"):
            certify(run, 0.8, limits=Limits(max_queries=1))
        with Store.read(run / RUN_FILE) as store:
            assert len(store.note("attempts")) == attempts
    assert certify(run, 0.8).attempt == 2


def test_what_does_not_pass_is_not_written(run: Path, server: Server) -> None:
    """Its own exit status, and what was seen; if even luck would not do, nothing is paid for."""
    before = server.answered
    hopeless = blindcal("certify", run, "--precision", 0.99999)
    assert hopeless.exit_code == 6
    assert "no threshold has a chance to pass" in hopeless.stderr
    assert server.answered == before
    assert not list(run.glob("certify-*"))
    done = blindcal("certify", run, "--precision", 0.98, "--json")
    assert done.exit_code == 6
    assert json.loads(done.stdout)["certified"] is False
    assert "no threshold passes: of 675 items," in done.stderr
    assert "0.98 is wanted" in done.stderr
    assert not (run / "certificate.json").exists()


def test_a_limit_stops_and_the_same_again_goes_on(run: Path, server: Server) -> None:
    """What was asked before the limit is not asked again, and the plan stays the one it was begun with.

    After a first pass, what passed holds, with the worst that open items could make of it.
    """
    before = server.answered
    done = blindcal("certify", run, "--precision", 0.9, "--max-queries", 100)
    assert done.exit_code == 3, done.output
    assert server.answered - before == 100
    assert "what was asked is kept" in done.stderr
    queries = plan_certification(open_run(run), CertifyGoal(0.9)).first_queries + 60
    part = certify(run, 0.9, limits=Limits(max_queries=queries))
    assert part.queries <= queries
    assert part.accept.bound >= 0.9
    made = certify(run, 0.9)
    assert made.queries == server.answered - before > part.queries
    assert part.accept.threshold >= made.accept.threshold
    check_counts(made, certifying(run, 0.9))


def test_a_dry_run_says_what_it_takes_at_most(run: Path, server: Server, made: Certificate) -> None:
    """It asks nothing, and the certification keeps to it."""
    before = server.answered
    plan = json.loads(blindcal("certify", run, "--precision", 0.9, "--dry-run", "--json").stdout)
    shown = blindcal("certify", run, "--precision", 0.9, "--dry-run", "--prices", "1,2").stdout
    assert f"at most {plan['most_queries']:,}, controls included" in shown
    assert "at most $" in shown
    assert server.answered == before
    assert not list(run.glob("certify-*"))
    assert plan["choosing"] + plan["certifying"] == N
    assert made.queries <= plan["most_queries"]


def test_the_order_follows_from_the_choosing_items_alone(audit_folder: Path) -> None:
    """Other labels and answers of the certifying items change nothing; of a group one item certifies."""
    opened = open_run(audit_folder)
    plan = plan_certification(opened, CertifyGoal(0.9))
    labels, theirs = opened.labels.copy(), np.isin(opened.answered.items, plan.items)
    labels[list(plan.items)] = 1 - labels[list(plan.items)]
    answers = np.where(theirs, 1 - opened.answered.answers, opened.answered.answers)
    other = replace(opened, labels=labels, answered=replace(opened.answered, answers=answers))
    again = plan_certification(other, CertifyGoal(0.9))
    assert (again.choosing, again.items, again.sides) == (plan.choosing, plan.items, plan.sides)
    grouped = replace(opened, group_names=tuple(f"g{k // 3}" for k in range(N)))
    plan = plan_certification(grouped, CertifyGoal(0.8))
    assert len(plan.items) == len({k // 3 for k in plan.items}) == plan.choosing == 225


@pytest.mark.parametrize("known", [True, False], ids=["in the audit", "while certifying"])
def test_a_noisy_endpoint_is_asked_at_each_threshold_itself(
    run: Path, items: Path, tmp_path: Path, known: bool
) -> None:
    """An answer at another threshold is not what the deployed request would get, so none is reused."""
    stages: list[str] = []
    with serving(items, P, jitter=0.3 if known else 1.0) as server, without_page():
        if known:
            run = audited(items, server, tmp_path / "noisy", resamples=20)
            assert open_run(run).noise.best.jitter > 0
            assert plan_certification(open_run(run), CertifyGoal(0.8)).reuse == "none"
        else:
            moved(run, server)
        made = certify(run, 0.8, stage=stages.append)
    assert any("answered differently" in stage for stage in stages) != known
    assert made.reused == 0
    with Store.read(next(run.glob("certify-*")) / RUN_FILE) as store:
        asked = store.answered()
    mine = asked.shifts == made.accept.shift
    assert sorted(asked.items[mine]) == certifying(run, 0.8).tolist()
    assert made.accept.decided == asked.answers[mine].sum()


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ({"fingerprint": "fp_2"}, "no answer of the run is reused"),
        ({"drift": -1.0}, "no longer answers as in the run"),
    ],
)
def test_another_endpoint_ends_the_reuse_of_the_runs_answers(
    run: Path, items: Path, made: Certificate, behaviour: dict[str, Any], words: str
) -> None:
    """By its name or, since a few items are asked again although the run decides them, by its answers.

    The certificate is about the endpoint as it is now: all items are asked, and the user is told.
    """
    stages: list[str] = []
    with serving(items, P, **behaviour) as server:
        moved(run, server)
        now = certify(run, 0.9, stage=stages.append)
    assert any(words in stage for stage in stages)
    assert now.reused == 0
    assert now.queries > made.queries
    assert [name.fingerprint for name in now.served] == [behaviour.get("fingerprint", "")]
    mine = certifying(run, 0.9)
    p = expit(np.log(P / (1 - P)) + behaviour.get("drift", 0.0))
    here = p[mine] >= now.accept.threshold
    assert (now.accept.decided, now.accept.right) == (here.sum(), LABELS[mine][here].sum())


def unsteady(run: Run) -> Run:
    assert run.result.steadiness is not None
    steadiness = replace(run.result.steadiness, warnings=("The answers changed.",))
    return replace(run, result=replace(run.result, steadiness=steadiness))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda run: replace(run, result=replace(run.result, objection="no bias")),
            "forced although its probe",
        ),
        (unsteady, "was not steady: The answers changed"),
        (lambda run: replace(run, answered=run.answered.rows(run.answered.items < 50)), "the least are 40"),
    ],
)
def test_runs_that_cannot_be_certified_say_why(audit_folder: Path, change: Any, why: str) -> None:
    """Where the probe or the run itself objected a certified shift may do nothing; few items say nothing."""
    with pytest.raises(NotIdentifiedError, match=why):
        certify(change(open_run(audit_folder)), 0.9)


def test_runs_of_other_kinds_are_refused(run: Path, finished_runs: FinishedRuns) -> None:
    """Several answers, no logit_bias, and prompts that were not kept: nothing is asked."""
    for name, why in (("choices", "more than two answers"), ("repeated", "sends no logit_bias")):
        with pytest.raises(NotIdentifiedError, match=why):
            certify(finished_runs.original(name).folder, 0.9)
    with sqlite3.connect(run / RUN_FILE) as db:
        db.execute("UPDATE items SET messages = NULL")
    with pytest.raises(NotIdentifiedError, match="keeps only hashes of its prompts"):
        certify(run, 0.9)
    assert not list(run.glob("certify-*"))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("label = 1 - label WHERE item < 9", "its labels, prompts or groups were changed"),
        ("grp = 'a' WHERE item < 9", "its labels, prompts or groups were changed"),
        ("messages = replace(messages, 'one of', 'none of')", "its prompts were changed"),
    ],
)
def test_changed_items_are_not_certified(run: Path, server: Server, change: str, why: str) -> None:
    """Labels decide what is certified: those of the run file must be those of the audit."""
    before = server.answered
    with sqlite3.connect(run / RUN_FILE) as db:
        db.execute(f"UPDATE items SET {change}")
    with pytest.raises(StoreError, match=why):
        certify(run, 0.9)
    assert server.answered == before


def test_wrong_goals_are_refused(run: Path) -> None:
    """By name, before anything is asked."""
    with pytest.raises(bc.InputError, match="precision: must be between 0 and 1"):
        certify(run, 1.5)
