"""Rules on probabilities that an endpoint shows: thresholds, certificates and decisions, over real HTTP."""

from __future__ import annotations

import json
import math
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from blindcal.auditing.audit import audit
from blindcal.certifying.certify import certify
from blindcal.certifying.decide import decide
from blindcal.certifying.design import CertifyGoal, plan_certification
from blindcal.certifying.shown_probability import shown_probability
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.query_format import DecisionQuestion, LogprobQuestion
from blindcal.errors import InputError, NotCertifiedError
from blindcal.estimate.truth import binned_ece
from blindcal.items.catalogue import open_items
from blindcal.records import Item, Message
from blindcal.report.page import render
from blindcal.results.certificate import Certificate
from blindcal.results.run import open_run
from blindcal.settings import Settings
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from blindcal.store.run_store import RUN_FILE, Store
from certified_runs import at, read_lines, ruled, without_labels
from commanding import blindcal
from deciding import model, write_items
from decision_server import Deciding, DecisionServer
from finished_runs import without_page

N = 900
LABELS, P = model(N, 5)
WAYS = ("decisions", "systemone", "logprobs")
FIELDS = {
    "decisions": "answers[0].probability",
    "systemone": "answers.answer.noul",
    "logprobs": "choices[0].logprobs.content[0].top_logprobs",
}


def wording(way: str) -> dict[str, Any]:
    if way == "logprobs":
        return {"template": 'Is "{n}" one of them? Yes or No.', "method": "logprobs"}
    return {"template": "Number {n}", "instructions": 'Is "{n}" one of them?', "api": way}


def serving(items: Path, way: str, p: Any = P, **behaviour: Any) -> Any:
    loaded = open_items(items, Settings(model="replay", **wording(way)).prompt)
    recording = Recording.from_probabilities([item.id for item in loaded], p)
    return running(DecisionServer(recording, loaded, Deciding(logprobs=True, **behaviour)))


def audited(items: Path, server: DecisionServer, way: str, out: Path, **more: Any) -> Path:
    with without_page():
        asked = Settings(model="replay", base_url=server.base_url, resamples=40, **wording(way), **more)
        audit(items, asked, out=out)
    return out


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_items(tmp_path_factory.mktemp("rules") / "items.jsonl", LABELS)


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(items: Path, way: str) -> Iterator[DecisionServer]:
    with serving(items, way) as server:
        yield server


@pytest.fixture(scope="module")
def run(items: Path, server: DecisionServer, way: str) -> Path:
    return audited(items, server, way, items.parent / way)


def test_the_printed_request_shows_what_to_compare(run: Path, way: str, tmp_path: Path) -> None:
    """No bias: the audit's own request, the field of its reply, and a program that compares it."""
    wish = ("threshold", run, "--precision", 0.9, "--resamples", 50)
    printed = blindcal(*wish)
    assert "queries tested thresholds" not in printed.stderr
    assert FIELDS[way] in printed.stdout
    found = json.loads(blindcal(*wish, "--json").stdout)
    assert found["logit_bias"] is None
    assert FIELDS[way] in found["probability"]
    threshold = found["threshold"]["value"]
    assert f"at least {threshold:.6g}"[:14] in blindcal(*wish, "--snippet", "curl").stdout
    program, script = blindcal(*wish, "--snippet", "python").stdout, tmp_path / "rule.py"
    near = np.argsort(np.abs(P - threshold))[:60:12]
    for item in [*near[np.abs(P[near] - threshold) > 1e-5], np.argmax(P), np.argmin(P)]:
        script.write_text(program.replace("{n}", str(item)))
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == ("positive" if P[item] >= threshold else "negative")


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("form", ["decisions", "systemone"])
def test_of_several_answers_the_likeliest_counts(form: str, graded: bool) -> None:
    """The printed program reads what every server of the form replies."""
    words, p = ("a", "b", "c"), np.array([0.2, 0.7, 0.1])
    question = DecisionQuestion(words, graded)
    request = question.request((Message("user", "x"),), 0.0, 0.0)
    endpoint = HttpEndpoint(Address("http://127.0.0.1:1/v1", "m", form))  # type: ignore[arg-type]
    asked = json.loads(endpoint.body(request))["questions"]
    (asked,) = asked if form == "decisions" else asked.values()
    server = DecisionServer(Recording.of_choices(["q"], np.log([p]), words), [Item("q", 0, ())], Deciding())
    answer = server._typed(form, asked, 0, b"")
    found: dict[str, Any] = {"reply": {"answers": [answer] if form == "decisions" else {"answer": answer}}}
    exec(shown_probability(question, form).python, found)
    assert found["probabilities"] == pytest.approx(dict(zip(words, p, strict=True)))


# Certificates and decisions


@pytest.fixture
def own(run: Path, tmp_path: Path) -> Path:
    """A copy of the run, to certify."""
    shutil.copytree(run, tmp_path / "run")
    return tmp_path / "run"


def test_the_readings_of_the_audit_certify_without_a_query(own: Path, server: DecisionServer) -> None:
    """Every certifying item is decided by what the audit read, and attempts are counted as ever."""
    asked = server.answered
    wish = ("certify", own, "--precision", 0.9, "--negative-precision", 0.8)
    planned = blindcal(*wish, "--dry-run").stdout
    assert "queries    0 for the first threshold, at most 0" in planned
    assert "cost       at most $0" in planned
    with Store.open(own / RUN_FILE) as store:  # another address, which needs a key
        store.set_note("config", {**store.note("config"), "base_url": "https://api.example.com/v1"})
    with sqlite3.connect(own / RUN_FILE) as db:
        db.execute("UPDATE items SET messages = NULL")
    assert blindcal(*wish).exit_code == 0
    made = Certificate.load(own / "certificate.json")
    assert (server.answered, made.queries, made.reused) == (asked, 0, made.items)
    mine = np.array(plan_certification(open_run(own), CertifyGoal(0.9, 0.8)).items)
    for side, label in ((made.accept, 1), (made.reject, 0)):
        assert side is not None
        here = (P[mine] >= side.threshold) == (label == 1)
        assert (side.decided, side.right) == (here.sum(), (LABELS[mine][here] == label).sum())
        assert side.items == mine.size
    assert certify(own, 0.9, negative_precision=0.8) == made
    assert (made.attempt, certify(own, 0.85).attempt) == (1, 2)
    assert made.request.probability is not None
    assert "logit_bias" not in made.request.accept
    assert made.request.reject == made.request.accept
    with pytest.raises(NotCertifiedError, match="lower"):
        certify(own, 0.999)


@pytest.fixture
def rule(own: Path) -> Certificate:
    return certify(own, 0.9, negative_precision=0.8)


def test_one_request_decides_by_both_thresholds(
    rule: Certificate, items: Path, server: DecisionServer, tmp_path: Path
) -> None:
    """Each item is asked as in the audit, and the probability in the reply is written beside its decision."""
    asked = server.answered
    result = decide(rule, without_labels(items, tmp_path / "new.jsonl"), out=tmp_path / "out")
    assert [decision.decision for decision in result] == ruled(P, rule)
    assert [decision.probability for decision in result] == pytest.approx(P, abs=1e-4)
    assert not result.doubts
    assert min(result.accepted, result.rejected, result.abstained) > 0
    assert server.answered - asked == N + result.spend.control_queries
    assert result.spend.probe_queries == 0
    assert result.accept == rule.accept


def test_a_certificate_of_another_reading_is_refused(rule: Certificate, tmp_path: Path) -> None:
    """One body serves both thresholds, and biases nothing."""
    for accept in ({}, {**rule.request.accept, "logit_bias": {}}):
        edited = replace(rule, request=replace(rule.request, accept=accept))
        edited.save(tmp_path / "edited.json")
        with pytest.raises(InputError, match="contradicts itself"):
            Certificate.load(tmp_path / "edited.json")


@pytest.fixture(scope="module", params=["decisions", "logprobs"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def moving(items: Path, form: str, tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A certificate of an endpoint whose probabilities move by .02, and which refuses some questions."""
    out = tmp_path_factory.mktemp("moving") / "run"
    behaviour = {"moves": 0.02, "refusable": tuple(np.flatnonzero(LABELS)), "refused": 0.1}
    with serving(items, form, **behaviour) as server:
        return certify(audited(items, server, form, out), 0.9)


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ({"moves": 0.02}, None),
        ({"moves": 0.02, "refusable": tuple(range(N)), "refused": 0.1}, None),
        ({"moves": 0.1}, "the probability of the same question moves by up to 0."),
        ({"moves": 0.02, "swapped_from": N // 2}, "the answers changed during the run"),
    ],
)
def test_nothing_is_promised_if_probabilities_move_more_than_in_the_audit(
    moving: Certificate, form: str, behaviour: dict[str, Any], why: str | None, items: Path, tmp_path: Path
) -> None:
    """As far as in the audit they may move, and refused questions are left undecided."""
    with serving(items, form, **behaviour) as server:
        at(moving, server.base_url).save(tmp_path / "rule.json")
        done = blindcal("decide", tmp_path / "rule.json", items, "--out", tmp_path / "out")
    assert done.exit_code == (0 if why is None else 5), done.output
    assert why is None or why in " ".join(done.output.split())
    lines = read_lines(tmp_path / "out")
    refused = [line for line in lines if line["reason"] == "no probability"]
    assert bool(refused) == ("refused" in behaviour and form == "decisions")
    assert all(line["decision"] == "abstain" for line in refused)


def test_another_model_decides_nothing(moving: Certificate, form: str, items: Path, tmp_path: Path) -> None:
    with serving(items, form, named="another-model", fingerprint="another") as server:
        at(moving, server.base_url).save(tmp_path / "rule.json")
        done = blindcal("decide", tmp_path / "rule.json", items, "--out", tmp_path / "out")
    assert done.exit_code == 4
    other = "another-model" if form == "decisions" else "another"
    assert re.search(rf"replies come from [^,;]*\b{other}\b", " ".join(done.output.split())), done.output


# With more than two answers: the given one is accepted, or the rule abstains

CHOICES, WORDS = 1200, ("A", "B", "C")
LOGITS = 1.6 * np.random.default_rng(3).standard_normal((CHOICES, len(WORDS)))
RIGHT = (LOGITS + np.random.default_rng(4).gumbel(size=LOGITS.shape)).argmax(axis=1)
TOP = softmax(LOGITS, axis=1).max(axis=1)


def choosing(way: str) -> dict[str, Any]:
    asked = {"method": way} if way == "logprobs" else {"api": way, "instructions": "Which is it?"}
    return {"template": "A, B or C: {n}?", "answers": WORDS, **asked}


@pytest.mark.parametrize("way", WAYS)
def test_the_given_answer_is_accepted_from_a_threshold(way: str, tmp_path: Path) -> None:
    """The certificate counts right answers; each item is asked once, and the answer taken is written down."""
    items = write_items(tmp_path / "items.jsonl", RIGHT)
    loaded = open_items(items, Settings(model="replay", **choosing(way)).prompt)
    recording = Recording.of_choices([item.id for item in loaded], LOGITS, WORDS)
    with running(DecisionServer(recording, loaded, Deciding(logprobs=True))) as server, without_page():
        asked = Settings(model="replay", base_url=server.base_url, resamples=40, **choosing(way))
        found = audit(items, asked, out=tmp_path / "run")
        before = server.answered
        with pytest.raises(InputError, match="no decision is negative"):
            certify(tmp_path / "run", 0.9, negative_precision=0.9)
        assert blindcal("certify", tmp_path / "run", "--precision", 0.85).exit_code == 0
        assert server.answered == before
        made = Certificate.load(tmp_path / "run" / "certificate.json")
        mine = np.array(plan_certification(open_run(tmp_path / "run"), CertifyGoal(0.85)).items)
        here = TOP[mine] >= made.accept.threshold
        right = LOGITS.argmax(axis=1) == RIGHT
        assert (made.accept.decided, made.accept.right) == (here.sum(), right[mine][here].sum())
        assert 0.2 < made.accept.share < 1
        assert made.request.positive == WORDS
        result = decide(made, without_labels(items, tmp_path / "new.jsonl"), out=tmp_path / "out")
        assert server.answered - before == CHOICES + result.spend.control_queries
    p = softmax(LOGITS, axis=1)
    known = [float(binned_ece(k == RIGHT, p[:, k], 5).ece) for k in range(3)]
    assert [float(part.classwise) for part in found.by_answer] == pytest.approx(known, abs=2e-3)
    assert float(found.classwise) == pytest.approx(np.mean(known), abs=2e-3)
    assert all(part.classwise.has_interval for part in found.by_answer)
    assert "Classwise calibration error" in render(found)
    accepted = made.accept.threshold <= TOP
    assert [each.decision for each in result] == np.where(accepted, "accept", "abstain").tolist()
    assert [each.answer for each in result] == [WORDS[k] for k in LOGITS.argmax(axis=1)]
    assert [each.probability for each in result] == pytest.approx(TOP, abs=1e-4)
    assert result.reasons == {"below the threshold": (~accepted).sum()}
    assert not result.doubts


@pytest.mark.parametrize(
    ("semantics", "share"), [("sum", 0.6 / 0.9), ("max", 0.4 / 0.7), ("pair", 0.4 / 0.7)]
)
def test_logprobs_are_added_up_as_the_audit_does(semantics: Any, share: float) -> None:
    """All spellings, the likeliest one, or the token itself; in both dialects, and 0 if none is shown."""
    question = LogprobQuestion(("Yes", "No"), semantics)
    for logprobs, wanted in (({"Yes": 0.4, " yes": 0.2, "No": 0.3}, share), ({"Maybe": 0.9}, 0.0)):
        logged = {token: float(np.log(p)) for token, p in logprobs.items()}
        rows = [{"token": token, "logprob": value} for token, value in logged.items()]
        for api, shown in (
            ("chat", {"content": [{"top_logprobs": rows}]}),
            ("completions", {"top_logprobs": [logged]}),
        ):
            found: dict[str, Any] = {"reply": {"choices": [{"logprobs": shown}]}, "math": math}
            exec(shown_probability(question, api).python, found)
            assert found["probabilities"]["positive"] == pytest.approx(wanted)
