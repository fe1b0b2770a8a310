"""`blindcal certify` over real HTTP: it certifies what the endpoint does, and asks nothing twice."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

import blindcal as bc
from answering import audited as audited_choices
from answering import serving as serving_choices
from answering import write_choices
from blindcal.asking.limits import Limits
from blindcal.certifying.certify import certify
from blindcal.certifying.design import CertifyDesign, CertifyGoal, plan_certification
from blindcal.errors import NotCertifiedError, NotIdentifiedError
from blindcal.results.certificate import Certificate
from blindcal.results.run import open_run
from blindcal.simulation.replay import Server
from blindcal.store.run_store import RUN_FILE, Store
from commanding import blindcal, printed_error
from deciding import audited, decided, model, serving, write_items
from killing import CONTEXT

N = 900
LABELS, P = model(N, 5)


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_items(tmp_path_factory.mktemp("certify") / "items.jsonl", LABELS)


@pytest.fixture(scope="module")
def server(items: Path) -> Iterator[Server]:
    with serving(items, P) as one:
        yield one


@pytest.fixture(scope="module")
def audit_folder(items: Path, server: Server) -> Path:
    """A finished audit, which no test changes."""
    return audited(items, server, items.parent / "run")


@pytest.fixture
def run(audit_folder: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(audit_folder, tmp_path / "run")
    return tmp_path / "run"


def certifying(run: Path, goal: CertifyGoal) -> Any:
    return np.array(plan_certification(open_run(run), goal).items)


def check_counts(made: Certificate, mine: Any) -> None:
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
    check_counts(made, certifying(run, CertifyGoal(0.9)))
    assert made.queries == server.answered - asked
    assert made.reused > 0
    assert made.reject is None
    assert (made.expires - made.made).days == 90
    assert f"accept     from {made.accept.threshold:.4f}, by 'Yes': precision at least 0.9" in done.stdout
    near = np.argsort(np.abs(P - made.accept.threshold))[:20]
    for k in near[np.abs(P[near] - made.accept.threshold) > 1e-4]:
        assert decided(made.request.accept, made.request.url, int(k)) == (P[k] >= made.accept.threshold)
    asked = server.answered
    again = bc.certify(run, 0.9, out=run / "again.json")
    assert again == made == Certificate.load(run / "again.json")
    assert server.answered == asked


def test_two_thresholds_abstain_between_them(run: Path) -> None:
    """Each side has its own bound at half of what may go wrong, and JSON is the certificate itself."""
    wish = ("--precision", 0.9, "--negative-precision", 0.8, "--expires", 7)
    done = blindcal("certify", run, *wish, "--out", run / "rule.json", "--json")
    assert done.exit_code == 0, done.output
    assert done.stdout == (run / "rule.json").read_text()
    made = Certificate.load(run / "rule.json")
    check_counts(made, certifying(run, CertifyGoal(0.9, 0.8)))
    assert made.reject is not None
    assert made.reject.threshold <= made.accept.threshold
    assert made.accept.level == made.reject.level == 0.975
    assert (made.accept.wanted, made.reject.wanted) == (0.9, 0.8)
    assert (made.expires - made.made).days == 7
    assert made.request.reject is not None
    assert not (run / "certificate.json").exists()


def test_what_does_not_pass_is_not_written(run: Path) -> None:
    """Its own exit status, and what was seen; nothing that a later step could take for a certificate."""
    done = blindcal("certify", run, "--precision", 0.98)
    assert done.exit_code == 6
    assert "no threshold passes: of 675 items," in done.stderr
    assert "0.98 is wanted" in done.stderr
    assert not (run / "certificate.json").exists()
    shown = blindcal("certify", run, "--precision", 0.98, "--json")
    assert shown.exit_code == 6
    assert json.loads(shown.stdout)["certified"] is False


def test_what_has_no_chance_is_not_asked(run: Path, server: Server) -> None:
    """If no threshold could pass even with luck, nothing is paid for."""
    before = server.answered
    done = blindcal("certify", run, "--precision", 0.99999)
    assert done.exit_code == 6
    assert "no threshold has a chance to pass" in done.stderr
    assert server.answered == before
    assert not list(run.glob("certify-*"))


def test_a_limit_stops_and_the_same_again_goes_on(run: Path, server: Server) -> None:
    """What was asked before the limit is not asked again, and the plan stays the one it was begun with."""
    before = server.answered
    done = blindcal("certify", run, "--precision", 0.9, "--max-queries", 100)
    assert done.exit_code == 3, done.output
    assert server.answered - before == 100
    assert "what was asked is kept" in done.stderr
    made = certify(run, 0.9)
    assert made.queries == server.answered - before
    check_counts(made, certifying(run, CertifyGoal(0.9)))


def test_a_limit_after_a_pass_certifies_what_passed(run: Path) -> None:
    """The sequence may end anywhere: what passed holds, with the worst that open items could make of it."""
    whole = certify(run, 0.9, out=run / "whole.json")
    first = plan_certification(open_run(run), CertifyGoal(0.9))
    shutil.rmtree(next(run.glob("certify-*")))
    limits = Limits(
        max_queries=first.with_controls(CertifyDesign.of(open_run(run), first).first_queries()) + 60
    )
    part = certify(run, 0.9, limits=limits)
    assert part.queries <= limits.max_queries < whole.queries  # type: ignore[operator]
    assert part.accept.threshold >= whole.accept.threshold
    assert part.accept.bound >= 0.9


def test_a_dry_run_says_what_it_takes_at_most(run: Path, server: Server) -> None:
    """It asks nothing, and the certification keeps to it."""
    before = server.answered
    plan = json.loads(blindcal("certify", run, "--precision", 0.9, "--dry-run", "--json").stdout)
    shown = blindcal("certify", run, "--precision", 0.9, "--dry-run", "--prices", "1,2")
    assert f"at most {plan['most_queries']:,}, controls included" in shown.stdout
    assert "at most $" in shown.stdout
    assert server.answered == before
    assert not list(run.glob("certify-*"))
    assert plan["choosing"] + plan["certifying"] == N
    assert certify(run, 0.9).queries <= plan["most_queries"]


def test_the_order_follows_from_the_choosing_items_alone(run: Path) -> None:
    """Other labels and answers of the certifying items change neither the split nor the candidates."""
    opened = open_run(run)
    plan = plan_certification(opened, CertifyGoal(0.9))
    labels = opened.labels.copy()
    mine = list(plan.items)
    labels[mine] = 1 - labels[mine]
    theirs = np.isin(opened.answered.items, plan.items)
    answers = np.where(theirs, 1 - opened.answered.answers, opened.answered.answers)
    other = replace(opened, labels=labels, answered=replace(opened.answered, answers=answers))
    again = plan_certification(other, CertifyGoal(0.9))
    assert again.items == plan.items
    assert again.sides == plan.sides


def run_certify(run: Path, told: Connection) -> None:
    """Certify in a process of its own, and tell how many answers are on disk."""
    certify(run, 0.9, limits=Limits(concurrency=4), progress=lambda so_far: told.send(so_far.done))


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_killed_again_and_again_it_ends_as_one_left_alone(run: Path, items: Path, tmp_path: Path) -> None:
    """Only what was under way is asked again, and the certificate is the same."""
    with serving(items, P, latency=0.002) as server:
        settings = {"base_url": server.base_url}
        for folder in (run, tmp_path / "alone"):
            if folder != run:
                shutil.copytree(run, folder)
            with Store.open(folder / RUN_FILE) as store:
                store.set_note("config", {**store.note("config"), **settings})
        alone = certify(tmp_path / "alone", 0.9)
        expected, kills = server.answered, 0
        for enough in (40, 150, 300, 450, 600, None):
            ours, theirs = CONTEXT.Pipe(duplex=False)
            process = CONTEXT.Process(target=run_certify, args=(run, theirs))
            process.start()
            theirs.close()
            with contextlib.suppress(EOFError):
                while enough is None or ours.recv() < enough:
                    if enough is None:
                        ours.recv()
            if enough is not None and process.is_alive():
                assert process.pid is not None
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
            process.join()
        again = server.answered - 2 * expected
    assert kills >= 4
    assert 0 <= again <= kills * 4
    made = Certificate.load(run / "certificate.json")
    assert replace(made, queries=alone.queries) == alone
    assert made.queries == alone.queries


def test_a_noisy_endpoint_is_asked_at_each_threshold_itself(items: Path, tmp_path: Path) -> None:
    """An answer at another threshold is not what the deployed request would get, so none is reused."""
    with serving(items, P, jitter=0.3) as server:
        run = audited(items, server, tmp_path / "run")
        assert open_run(run).noise.best.jitter > 0
        plan = plan_certification(open_run(run), CertifyGoal(0.85))
        made = certify(run, 0.85)
    assert plan.reuse == "none"
    assert made.reused == 0
    with Store.read(next(run.glob("certify-*")) / RUN_FILE) as store:
        asked = store.answered()
    mine = asked.shifts == made.accept.shift
    assert sorted(asked.items[mine]) == list(plan.items)
    assert made.accept.decided == asked.answers[mine].sum()


def test_noise_that_shows_while_certifying_ends_reuse(run: Path, items: Path) -> None:
    """Once repeated queries disagree, every item is asked at the threshold itself, from the first on."""
    told: list[str] = []
    with serving(items, P, jitter=1.0) as server:
        with Store.open(run / RUN_FILE) as store:
            store.set_note("config", {**store.note("config"), "base_url": server.base_url})
        made = certify(run, 0.8, stage=told.append)
    assert any("answered differently" in text for text in told)
    assert made.reused == 0
    with Store.read(next(run.glob("certify-*")) / RUN_FILE) as store:
        asked = store.answered()
        assert store.note("reuse") == "none"
    mine = asked.shifts == made.accept.shift
    assert made.accept.decided == asked.answers[mine].sum()


def test_another_fingerprint_ends_the_reuse_of_the_runs_answers(items: Path, tmp_path: Path) -> None:
    """The certificate is about the endpoint as it is now: all items are asked, and the user is told."""
    told: list[str] = []
    with serving(items, P, fingerprint="fp_1") as server:
        run = audited(items, server, tmp_path / "run")
        shutil.copytree(run, tmp_path / "same")
        same = certify(tmp_path / "same", 0.9)
    with serving(items, P, fingerprint="fp_2") as server:
        with Store.open(run / RUN_FILE) as store:
            store.set_note("config", {**store.note("config"), "base_url": server.base_url})
        made = certify(run, 0.9, stage=told.append)
    assert same.reused > 0
    assert [one.fingerprint for one in same.served] == ["fp_1"]
    assert [one.fingerprint for one in made.served] == ["fp_2"]
    assert any("no answer of the run is reused" in text for text in told)
    assert made.reused == 0
    assert made.queries > same.queries
    assert replace(made.accept) == same.accept  # the model is the same, and so are the counts


def test_an_endpoint_that_changed_in_silence_is_noticed(run: Path, items: Path) -> None:
    """A few items are asked again although the run decides them; if they differ, no answer is reused."""
    told: list[str] = []
    with serving(items, P, drift=-1.0) as server:
        with Store.open(run / RUN_FILE) as store:
            store.set_note("config", {**store.note("config"), "base_url": server.base_url})
        made = certify(run, 0.9, stage=told.append)
    assert any("no longer answers as in the run" in text for text in told)
    assert made.reused == 0
    mine = certifying(run, CertifyGoal(0.9))
    here = expit(np.log(P / (1 - P)) - 1.0)[mine] >= made.accept.threshold
    assert (made.accept.decided, made.accept.right) == (here.sum(), LABELS[mine][here].sum())


def test_items_in_groups_certify_one_each(items: Path, server: Server, tmp_path: Path) -> None:
    """Whole groups choose, and of each other group one item certifies."""
    lines = [json.loads(line) for line in items.read_text().splitlines()]
    grouped = tmp_path / "grouped.jsonl"
    rows = ({**line, "group": f"g{number // 3}"} for number, line in enumerate(lines))
    grouped.write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = plan_certification(open_run(audited(grouped, server, tmp_path / "run")), CertifyGoal(0.8))
    assert len(plan.items) == len({k // 3 for k in plan.items}) == 225
    assert plan.choosing == 225


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"method": "temperature", "queries": 1}, "sends no logit_bias"),
        ({"keep_prompts": False}, "keeps only hashes of its prompts"),
        ({"sample": 50}, "the least are 40"),
    ],
)
def test_runs_that_cannot_be_certified_say_why(
    items: Path, server: Server, tmp_path: Path, more: dict[str, Any], why: str
) -> None:
    """An error with the reason, before anything is asked."""
    run = audited(items, server, tmp_path / "run", **more)
    before = server.answered
    done = blindcal("certify", run, "--precision", 0.9)
    assert why in printed_error(done)
    assert server.answered == before
    assert not list(run.glob("certify-*"))


def test_forced_and_unsteady_runs_are_refused(run: Path) -> None:
    """Where the probe or the run itself objected, a certified shift may do nothing."""
    opened = open_run(run)
    assert opened.result.steadiness is not None
    forced = replace(opened.result, objection="no bias")
    changed = replace(opened.result.steadiness, warnings=("The answers changed.",))
    unsteady = replace(opened.result, steadiness=changed)
    with pytest.raises(NotIdentifiedError, match="forced although its probe"):
        certify(replace(opened, result=forced), 0.9)
    with pytest.raises(NotIdentifiedError, match="was not steady: The answers changed"):
        certify(replace(opened, result=unsteady), 0.9)


def test_more_than_two_answers_are_refused(tmp_path: Path) -> None:
    """No single query decides by the probability of one of several answers."""
    rng = np.random.default_rng(0)
    path = write_choices(tmp_path / "quiz.jsonl", rng.integers(0, 4, 60), [4] * 60)
    with serving_choices(path, rng.normal(0, 2, (60, 4))) as server:
        audited_choices(path, server, tmp_path / "run")
    with pytest.raises(NotIdentifiedError, match="more than two answers"):
        certify(tmp_path / "run", 0.9)


def test_refused_items_count_against_the_rule(items: Path, tmp_path: Path) -> None:
    """An item that gets no answer is a wrong decision; the error says how many there were."""
    with serving(items, P, outside=0.1) as server:
        run = audited(items, server, tmp_path / "run")
        with pytest.raises(NotCertifiedError, match="without a valid answer as wrong"):
            certify(run, 0.95)


def test_wrong_goals_are_refused(run: Path) -> None:
    """In Python by name, on the command line as usage."""
    with pytest.raises(bc.InputError, match="precision: must be between 0 and 1"):
        certify(run, 1.5)
    assert blindcal("certify", run).exit_code == 2
