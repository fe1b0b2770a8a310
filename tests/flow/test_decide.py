"""`blindcal decide`: the certified rule on items without labels, as safe as an audit."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import blindcal as bc
from blindcal.asking.controls import stored_controls
from blindcal.certifying.decide import CHECKED, decide, decide_async
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.errors import InputError, NotCertifiedError, NotIdentifiedError, ReplyError, UnfitError
from blindcal.estimate.noise import ControlCounts
from blindcal.items.catalogue import open_items
from blindcal.items.record_format import RecordFormat
from blindcal.methods import control_spacing
from blindcal.records import Reply, Request
from blindcal.results.decisions import Decision
from blindcal.simulation.http_server import HttpResponse
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from blindcal.store.run_file import ServedModel
from blindcal.store.run_store import RUN_FILE, Store
from certified_runs import at, certificate_of, read_lines, ruled, without_labels
from commanding import blindcal, printed_error
from deciding import TEMPLATE, audited, model, serving, write_items
from finished_runs import without_page
from misbehaving import Behaviour, Server

N = 240
LABELS, P = model(N, 5)
NO_WORD, BLOCKED = "neither answer word", "blocked by the content filter"


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions with labels, which were audited."""
    return write_items(tmp_path_factory.mktemp("decide") / "questions.jsonl", LABELS)


@pytest.fixture(scope="module")
def items(labelled: Path) -> Path:
    """The same questions without labels: as well as any others, and their true probabilities are known."""
    return without_labels(labelled, labelled.parent / "new.jsonl")


@pytest.fixture(scope="module")
def server(labelled: Path) -> Iterator[Server]:
    with serving(labelled, P) as server:
        yield server


@pytest.fixture(scope="module")
def run(labelled: Path, server: Server) -> Path:
    """A finished audit."""
    with without_page():
        return audited(labelled, server, labelled.parent / "run", resamples=20)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def verdicts(found: bc.DecisionResult) -> list[str]:
    return [decision.decision for decision in found]


@pytest.mark.parametrize("reject", [None, 0.3])
def test_every_decision_is_that_of_the_rule(run: Path, items: Path, out: Path, reject: float | None) -> None:
    """On all items, with one threshold and with two; the files say what is returned."""
    rule = certificate_of(run, 0.8, reject)
    result, wanted = decide(rule, items, out=out), ruled(P, rule)
    assert verdicts(result) == wanted
    assert [decision.id for decision in result] == [f"q{k}" for k in range(N)]
    counts = result.accepted, result.rejected, result.abstained, result.undecided
    assert counts == (*map(wanted.count, ("accept", "reject", "abstain")), 0)
    assert result.spend.queries - result.spend.probe_queries - result.spend.control_queries == N + (
        0 if reject is None else N - result.accepted
    )
    assert result.spend.probe_queries == 2 * CHECKED
    with (out / "decisions.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    lines = read_lines(out)
    assert [
        {name: "" if value is None else str(value) for name, value in line.items()} for line in lines
    ] == table
    of = {("Yes", None): "accept", ("No", None): "reject", ("No", "No"): "reject", ("No", "Yes"): "abstain"}
    for line in lines:
        assert line["decision"] == of[line["at_accept"], line["at_reject"]]
        assert (line["reason"] == "between the thresholds") == (line["decision"] == "abstain")
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["accepted"], summary["expires"]) == (result.accepted, str(rule.expires))
    assert "precision at least 0.953, 95% sure" in result.promise("accept")
    with Store.read(out / RUN_FILE) as store:
        controls = stored_controls(store)
    assert len(controls) >= N // control_spacing(N)
    assert result.controls.failed == result.controls.disagreed == 0


def test_a_certificate_is_applied_as_it_was_certified(run: Path, items: Path, out: Path) -> None:
    """From an audit over a certificate to decisions: the bound and the rule are those of the file."""
    path = out.parent / "c.json"
    rule = bc.certify(run, 0.8, negative_precision=0.7, out=path)
    result = decide(path, items, out=out)
    assert verdicts(result) == ruled(P, rule)
    assert not result.doubts
    assert result.audited == N
    assert all(decision.audited for decision in result)
    assert min(result.accepted, result.rejected) > 0
    assert result.accept == rule.accept
    assert bc.check(path).outcome == "passed"


def test_the_certified_body_is_sent(run: Path, labelled: Path, items: Path, out: Path) -> None:
    """Each question is asked by the certificate's own request, with the question filled in."""

    class KeepingServer(Server):
        def _complete(self, body: bytes, *, chat: bool) -> HttpResponse:
            sent.append(rounded(json.loads(body)))
            return super()._complete(body, chat=chat)

    def rounded(body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "logit_bias": {token: round(bias, 9) for token, bias in body["logit_bias"].items()}}

    def filled(body: dict[str, Any], k: int) -> dict[str, Any]:
        return {**body, "messages": [{"role": "user", "content": TEMPLATE.replace("{n}", str(k))}]}

    sent: list[dict[str, Any]] = []
    rule, asked = certificate_of(run, 0.8, 0.3), list(open_items(labelled, RecordFormat(template=TEMPLATE)))
    with running(
        KeepingServer(Recording.from_probabilities([item.id for item in asked], P), asked)
    ) as server:
        decide(at(rule, server.base_url), items, out=out)
    assert rule.request.reject is not None
    for k, verdict in enumerate(ruled(P, rule)):
        assert sent.count(filled(rule.request.accept, k)) == 1
        assert sent.count(filled(rule.request.reject, k)) == (verdict != "accept")


def test_labels_are_not_read_and_the_id_may_have_another_name(
    run: Path, labelled: Path, items: Path, server: Server, out: Path
) -> None:
    """Unreadable labels change nothing, and the summary says so; an audit of unlabelled items is refused."""
    odd = out.parent / "odd.jsonl"
    odd.write_text(labelled.read_text().replace('"label": 1', '"label": "perhaps"'))
    certificate_of(run).save(out.parent / "c.json")
    done = blindcal("decide", out.parent / "c.json", odd, "--out", out)
    assert done.exit_code == 0, done.output
    assert "the items have labels, which were not read" in done.stdout
    assert [line["decision"] for line in read_lines(out)] == ruled(P, certificate_of(run))
    with pytest.raises(InputError, match="field 'label' is missing"):
        audited(items, server, out.parent / "run")
    named = out.parent / "new.csv"
    named.write_text("name,n\n" + "".join(f"item {k},{k}\n" for k in range(20)))
    result = decide(certificate_of(run), named, out=out.parent / "named", id_field="name")
    assert [decision.id for decision in result] == [f"item {k}" for k in range(20)]
    assert verdicts(result) == ruled(P[:20], certificate_of(run))


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"text": "x"}, "field 'n', named in the template, is missing"),
        ({"n": 1, "answer_words": "True/False"}, "is answered with True, False"),
        ({"n": 1, "answers": ["a", "b", "c"]}, "is answered with a, b, c"),
    ],
)
def test_what_is_asked_otherwise_is_refused(run: Path, out: Path, record: dict[str, Any], why: str) -> None:
    """Records without the template's fields, and those that name other answer words."""
    path = out.parent / "new.jsonl"
    path.write_text(json.dumps({"id": "a", **record}))
    with pytest.raises(InputError, match=why):
        decide(certificate_of(run), path, out=out)
    assert not out.exists()


def test_json_pipes(run: Path, items: Path, server: Server, out: Path) -> None:
    """Standard output has one object per item and nothing else; the same again asks nothing."""
    rule = certificate_of(run, 0.8, 0.3)
    rule.save(out.parent / "c.json")
    command = ("decide", out.parent / "c.json", items, "--out", out, "--json")
    done = blindcal(*command)
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["decision"] for line in done.stdout.splitlines()] == ruled(P, rule)
    assert f"decisions  {N} of {N} items" in done.stderr
    assert "accept     precision at least 0.953, 95% sure" in done.stderr
    assert f"expires    {rule.expires}" in done.stderr
    before = server.requests
    quiet = blindcal(*command, "--quiet")
    assert (quiet.stdout, quiet.stderr) == (done.stdout, "")
    assert server.requests == before
    assert "not a certificate of blindcal" in printed_error(blindcal("decide", items, items, "--out", out))


def test_without_an_answer_there_is_no_decision(run: Path, labelled: Path, items: Path, out: Path) -> None:
    """What is no answer word is never read as one, and a content filter refuses for good: both abstain."""

    class Filtered(HttpEndpoint):
        async def ask(self, request: Request) -> Reply:
            if '"1' in request.messages[-1].content:
                raise ReplyError(BLOCKED, status=400)
            return await super().ask(request)

    with serving(labelled, P, outside=0.1) as server:
        rule = at(certificate_of(run, 0.8, 0.3), server.base_url)
        result = decide(rule, items, out=out, endpoint=Filtered(Address(server.base_url, "replay")))
    others = [decision for decision in result if decision.reason == NO_WORD]
    assert result.reasons[NO_WORD] == len(others) > 5
    assert {(one.decision, one.at_reject or one.at_accept) for one in others} == {("abstain", "The")}
    for k, (decision, wanted) in enumerate(zip(result, ruled(P, rule), strict=True)):
        if str(k).startswith("1"):
            assert decision == Decision(id=f"q{k}", decision="abstain", at_accept=None, reason=BLOCKED)
        else:
            assert decision.reason == NO_WORD or decision.decision == wanted


def test_an_expired_certificate_is_refused(run: Path, items: Path, server: Server, out: Path) -> None:
    """Nothing is asked; if it is forced, the output says that nothing is promised."""
    old = certificate_of(run, expires=date(2026, 1, 31))
    old.save(out.parent / "c.json")
    before = server.requests
    done = blindcal("decide", out.parent / "c.json", items, "--out", out)
    assert done.exit_code == 4
    assert "the certificate expired on 2026-01-31: certify again; or --force goes on" in done.stderr
    assert server.requests == before
    assert not out.exists()
    forced = blindcal("decide", out.parent / "c.json", items, "--out", out, "--force")
    assert forced.exit_code == 0
    assert "accept     nothing is promised: the certificate expired on 2026-01-31" in forced.stdout
    again = decide(old, items, out=out)
    assert again.doubts == ("the certificate expired on 2026-01-31",)
    assert verdicts(again) == ruled(P, old)


def test_a_certificate_that_expires_later_is_said_to_have_expired(
    run: Path, items: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decisions that are finished keep their promise, and a run that is not finished is refused."""
    rule = certificate_of(run)
    finished = decide(rule, items, out=out)
    with pytest.raises(NotIdentifiedError, match="before the first answer"):
        decide(rule, items, out=out.parent / "begun", limits=bc.Limits(max_queries=2 * CHECKED))
    monkeypatch.setattr(bc.Certificate, "expired", lambda _: True)
    again = decide(rule, items, out=out)
    assert again == replace(finished, expired=True)
    assert finished.promise("accept") in again.promise("accept")
    assert f"has expired since, on {rule.expires}" in again.promise("accept")
    with pytest.raises(NotCertifiedError, match="expired on"):
        decide(rule, items, out=out.parent / "begun")


@pytest.mark.parametrize("now", ["fp_2", None])
def test_another_system_is_refused(
    run: Path, labelled: Path, items: Path, out: Path, now: str | None
) -> None:
    """A fingerprint that was not certified ends the run, at the check of the endpoint or in the middle."""
    certified = certificate_of(run, served=(ServedModel("replay", "fp_1"),))
    with serving(labelled, P, fingerprint=now) as server:
        rule = at(certified, server.base_url)
        with pytest.raises(NotCertifiedError, match=r"what was certified is replay \(fp_1"):
            decide(rule, items, out=out)
        assert server.requests == 2 * CHECKED
    later = Behaviour(fingerprint=now)
    with serving(labelled, P, fingerprint="fp_1", later=later, later_from=200) as server:
        rule, out = at(rule, server.base_url), out.parent / "later"
        for _ in range(2):
            with pytest.raises(NotCertifiedError, match="replies come from replay"):
                decide(rule, items, out=out)
        asked = server.requests
        forced = decide(rule, items, out=out, force=True)
        assert server.requests < asked + N
        assert decide(rule, items, out=out) == forced
    assert forced.complete
    assert "nothing is promised: replies come from replay" in forced.promise("accept")
    assert verdicts(forced) == ruled(P, rule)


def test_a_bias_that_does_not_act_is_refused(run: Path, labelled: Path, items: Path, out: Path) -> None:
    """The check notices it before anything is decided, and asks again the next time."""
    with serving(labelled, P, bias="ignored") as server:
        rule = at(certificate_of(run), server.base_url)
        for asked in (1, 2):
            with pytest.raises(UnfitError, match="logit_bias acted when this was certified but does not now"):
                decide(rule, items, out=out)
            assert server.requests == 2 * CHECKED * asked
        rule.save(out.parent / "c.json")
        assert blindcal("decide", out.parent / "c.json", items, "--out", out).exit_code == 4
        forced = decide(rule, items, out=out, force=True)
    assert forced.promise("accept").startswith("nothing is promised: logit_bias acted when")
    assert forced.spend.control_queries == 0


def test_a_bias_that_stops_acting_ends_the_run(run: Path, labelled: Path, items: Path, out: Path) -> None:
    """Control queries notice it, and a forced run says that nothing is promised."""
    with serving(labelled, P, later=Behaviour(bias="ignored"), later_from=150) as server:
        rule = at(certificate_of(run), server.base_url)
        with pytest.raises(UnfitError, match="acted in the probe but no longer does") as raised:
            decide(rule, items, out=out)
        assert "certify again" in raised.value.remedy
        forced = decide(rule, items, out=out, force=True)
        assert forced.doubts == ("logit_bias stopped acting during the run",)
        assert decide(rule, items, out=out) == forced


def test_nothing_is_promised_of_answers_that_are_not_as_certified(
    run: Path, labelled: Path, items: Path, out: Path
) -> None:
    """A model that is exchanged in silence: its own exit status, and no bound in any output."""
    with serving(labelled, P, later=Behaviour(drift=6.0), later_from=80) as server:
        at(certificate_of(run, 0.9, 0.3), server.base_url).save(out.parent / "c.json")
        command = ("decide", out.parent / "c.json", items, "--out", out)
        done = [blindcal(*command), blindcal(*command, "--json"), blindcal(*command, "--quiet")]
    assert [each.exit_code for each in done] == [5, 5, 5], done[0].output
    for each in done:
        assert "nothing is promised: the answers are noisier than when they were certified" in each.stderr
        assert "answered differently" in each.stderr
        assert "0.953" not in each.output
    summary = json.loads((out / "summary.json").read_text())
    assert summary["accept"] is None
    assert summary["reject"] is None
    assert len(summary["doubts"]) > 0
    assert len(read_lines(out)) == N


def test_noise_like_that_of_the_certification_breaks_no_promise(
    run: Path, labelled: Path, items: Path, out: Path
) -> None:
    """What the bound was measured with is no reason to take it back."""
    noisy = ControlCounts(40, 1, 40, 6)
    with serving(labelled, P, jitter=1.0) as server:
        rule = at(certificate_of(run, 0.9, controls=noisy), server.base_url)
        result = decide(rule, items, out=out)
    assert result.controls.disagreed > 0
    assert not result.doubts
    assert result.accept == rule.accept


def test_a_limit_stops_and_the_same_goes_on(run: Path, items: Path, server: Server, out: Path) -> None:
    """What was decided by then is written; in the end nothing was asked twice."""
    rule = certificate_of(run, 0.8, 0.3)
    rule.save(out.parent / "c.json")
    call, before = ("decide", out.parent / "c.json", items, "--out", out), server.requests
    stopped = blindcal(*call, "--max-queries", 200)
    assert stopped.exit_code == 3, stopped.output
    assert server.requests - before == 200
    assert "stopped    max_queries = 200 reached; the same command goes on" in stopped.stdout
    wanted = dict(zip((f"q{k}" for k in range(N)), ruled(P, rule), strict=True))
    lines = read_lines(out)
    assert 0 < len(lines) < N
    assert {line["decision"] for line in lines} == {"accept"}  # none was asked at the lower threshold yet
    assert all(wanted[line["id"]] == line["decision"] for line in lines)
    assert blindcal(*call).exit_code == 0
    whole = decide(rule, items, out=out)
    assert server.requests - before == whole.spend.queries
    assert verdicts(whole) == ruled(P, rule)


def test_limits_that_pay_for_nothing(run: Path, items: Path, out: Path) -> None:
    """A limit below the check of the endpoint, and a cost that nobody can compute, are errors."""
    rule = certificate_of(run)
    with pytest.raises(InputError, match="does not pay for the check of the endpoint"):
        decide(rule, items, out=out, limits=bc.Limits(max_queries=5))
    with pytest.raises(InputError, match="limits nothing"):
        decide(rule, items, out=out, limits=bc.Limits(max_cost=1.0))
    with pytest.raises(NotIdentifiedError, match="before the first answer"):
        decide(rule, items, out=out, limits=bc.Limits(max_queries=2 * CHECKED))
    result = decide(rule, items, out=out, limits=bc.Limits(max_cost=0.01), prices=bc.Prices(10.0, 10.0))
    assert result.stopped == "max_cost = 0.01 reached"
    assert result.spend.cost is not None
    assert result.spend.cost <= 0.01


def test_a_stopped_run_keeps_what_was_under_way(run: Path, items: Path, server: Server, out: Path) -> None:
    """Stopping, as Ctrl-C does, keeps every answer that was paid for, and the same call finishes."""
    rule, before, slow = certificate_of(run), server.requests, bc.Limits(rpm=12_000)

    async def stopped() -> bc.DecisionResult:
        stop = asyncio.Event()

        def progress(so_far: Any) -> None:
            if not so_far.probing and so_far.done >= 50:
                stop.set()

        return await decide_async(rule, items, out=out, limits=slow, progress=progress, stop=stop)

    result = asyncio.run(stopped())
    assert result.stopped == "interrupted"
    assert 50 <= N - result.undecided < N
    whole = decide(rule, items, out=out)
    assert verdicts(whole) == ruled(P, rule)
    assert server.requests - before == whole.spend.queries


def test_a_folder_is_for_one_certificate_and_one_file(
    run: Path, items: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another certificate, other items and the folder of an audit are refused; decisions have their own."""
    monkeypatch.chdir(tmp_path)
    certificate_of(run, 0.8).save("c.json")
    assert blindcal("decide", "c.json", items, "--quiet").exit_code == 0
    out = tmp_path / "decisions" / "new-replay"
    assert (out / "decisions.csv").is_file()
    assert "finished" in blindcal("status", out).stdout
    few = tmp_path / "few.jsonl"
    few.write_text("".join(items.read_text().splitlines(keepends=True)[:50]))
    for threshold, path, folder in ((0.7, items, out), (0.8, few, out), (0.8, items, run)):
        with pytest.raises(InputError, match="was begun with other settings"):
            decide(certificate_of(run, threshold), path, out=folder)
