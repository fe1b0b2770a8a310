"""An audit through batches, in Python and as a command: what it says, costs, refuses and ends with."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blindcal.auditing import canaries
from blindcal.auditing.audit import audit
from blindcal.auditing.batch_sender import Polling
from blindcal.auditing.limits import Limits
from blindcal.errors import ConfigError, EndpointError, FatalError, PendingError
from blindcal.prices import Prices
from blindcal.records import Usage
from blindcal.settings import Settings
from blindcal.simulation.recording import RecordedTexts
from blindcal.simulation.replay_batches import error_response
from blindcal.store.run_store import RUN_FILE, UNASKED, Store
from commanding import blindcal, printed_error
from hostile_batches import BatchBehaviour, HostileServer
from serving import replaying

N = 120
ASKED = N * 2 // 3  # by blind, in three bins
CANARIES = 2 * canaries.ITEMS
SOON = Polling(every=0.002, longest=0.01, settle=0.05)
PRICED = ("--price-in", "1000", "--price-out", "2000")


@pytest.fixture
def items(tmp_path: Path) -> Path:
    path = tmp_path / "items.jsonl"
    labels = np.random.default_rng(3).random(N) < 0.5
    with path.open("w") as file:
        for k in range(N):
            file.write(json.dumps({"id": f"i{k}", "prompt": f"number {k}?", "label": int(labels[k])}) + "\n")
    return path


def serving(items: Path, *, batches: dict[str, Any] | None = None, **more: Any) -> Any:
    p = np.random.default_rng(2).beta(0.4, 0.4, N)
    return replaying(items, p, batches=BatchBehaviour(**batches or {}), **more)


def settings(server: HostileServer, **more: Any) -> Settings:
    return Settings(**{"model": "replay", "base_url": server.base_url, "resamples": 20, **more})


def asking(items: Path, server: HostileServer, out: Path, *more: object) -> tuple[object, ...]:
    base = ("audit", items, "--model", "replay", "--base-url", server.base_url, "--out", out)
    return (*base, "--resamples", 20, "--poll", 0.002, *more)


@pytest.mark.parametrize("method", ["blind", "sampling"])
def test_the_result_is_that_of_a_live_audit(method: str, items: Path, tmp_path: Path) -> None:
    """The same design and seed find the same, live and through batches; only the spend differs."""
    with serving(items) as server:
        how = {"method": method, "send_seed": True}
        live = audit(items, settings(server, **how), out=tmp_path / "live", prices=Prices(1, 2))
        batched = audit(
            items,
            settings(server, **how, batch=True),
            out=tmp_path / "batched",
            prices=Prices(1, 2),
            polling=SOON,
        )
    same = ("ece", "bins", "curve", "confidence", "operating", "accuracy", "auroc", "brier", "leaning")
    assert [getattr(batched, name) for name in same] == [getattr(live, name) for name in same]
    assert (batched.counts, batched.example) == (live.counts, live.example)
    assert (batched.spend.batches, live.spend.batches) == (1, 0)
    assert batched.spend.asked == live.spend.asked
    assert batched.spend.control_queries == CANARIES
    probe = Prices(1, 2).cost(probed(tmp_path / "batched"))
    whole = (batched.spend.prompt_tokens + 2 * batched.spend.completion_tokens) / 1e6
    assert batched.spend.cost == pytest.approx(probe + (whole - probe) / 2)


def probed(folder: Path) -> Usage:
    """What the probe of a run took."""
    with Store.read(folder / RUN_FILE) as store:
        return Usage(**store.note("ready")["spent"])


def test_one_query_an_item_is_one_batch(items: Path, tmp_path: Path) -> None:
    """latent, which goes in two rounds when asked live, is one round and one batch here."""
    with serving(items) as server:
        audit(items, settings(server, batch=True), out=tmp_path / "run", polling=SOON)
        assert len(server.desk.batches) == 1
        twice = settings(server, batch=True, queries=2)
        found = audit(items, twice, out=tmp_path / "twice", polling=SOON)
        assert found.spend.batches == len(server.desk.batches) - 1 == 3


def test_submit_look_and_collect(items: Path, tmp_path: Path) -> None:
    """The command submits and returns with 5; again it looks; when the batch is done it ends as any audit."""
    out = tmp_path / "run"
    with serving(items, batches={"looks": None}) as server:
        command = asking(items, server, out, "--batch", *PRICED)
        first = blindcal(*command)
        assert first.exit_code == 5, first.output
        assert f"batches    {N} queries are with the provider in 1 batch: batch_" in first.stdout
        assert "the same command collects it" in first.stdout
        server.desk.step()
        again = blindcal(*command, "--json")
        assert again.exit_code == 5
        (batch,) = json.loads(again.stdout)["batches"]
        assert (batch["status"], batch["queries"], batch["collected"]) == ("in_progress", N, False)
        status = blindcal("status", out)
        assert "state      1 batch with the provider; its audit command collects" in status.output
        assert f"batch 1    {batch['id']}: in_progress, {N} queries" in status.output
        server.desk.step()
        server.desk.step()
        last = blindcal(*command)
        assert last.exit_code == 0, last.output
        assert f"to probe, {CANARIES} to control, the rest in 1 batch)" in last.stdout
        assert len(server.desk.batches) == 1
        status = blindcal("status", out)
        assert "state      finished" in status.output
        assert f"batch 1    {batch['id']}: completed, {N} answers to {N} queries" in status.output
        assert json.loads(blindcal("status", out, "--json").output)["batches"][0]["answers"] == N


def test_wait_stays_and_a_plain_audit_of_the_run_collects(items: Path, tmp_path: Path) -> None:
    """``--wait`` ends with the result; so does the command without ``--batch`` on a run begun with it."""
    with serving(items, batches={"fates": ("expired",)}) as server:
        waited = blindcal(*asking(items, server, tmp_path / "a", "--batch", "--wait"))
        assert waited.exit_code == 0, waited.output
        assert re.search(rf"\d\d of {N} answers from batch batch_", waited.stderr)
        assert "This request was not executed: expired" in waited.stderr
        begun = blindcal(*asking(items, server, tmp_path / "b", "--batch", "--quiet"))
        assert (begun.exit_code, begun.output) == (5, "")
        ended = blindcal(*asking(items, server, tmp_path / "b"))
        assert ended.exit_code == 0, ended.output
        assert len(server.desk.batches) == 3
        assert max(server.desk.billed.values()) == 2  # the two runs
        assert Counter(server.desk.billed.values())[2] >= N
    alone = blindcal(*asking(items, server, tmp_path / "c", "--wait"))
    assert alone.exit_code == 2
    assert "--wait goes with --batch" in alone.output


def test_an_endpoint_without_batches_is_told_before_anything_is_asked(items: Path, tmp_path: Path) -> None:
    """Neither a probe nor a file goes to a service that has no batches, or to Azure's form."""
    with serving(items, batches={"offered": False}) as server:
        with pytest.raises(FatalError, match=r"no batches \(404 at /files\): leave batch=True out"):
            audit(items, settings(server, batch=True), out=tmp_path / "run")
        azure = settings(server, batch=True, api_version="2024-10-21")
        with pytest.raises(ConfigError, match="Azure"):
            audit(items, azure, out=tmp_path / "azure")
        assert server.requests == 0


def test_a_live_run_does_not_turn_into_batches(items: Path, tmp_path: Path) -> None:
    """A folder that holds a live audit is not gone on with through batches."""
    with serving(items) as server:
        audit(items, settings(server, method="blind"), out=tmp_path / "run")
        with pytest.raises(ConfigError, match="batch: null then, true now"):
            audit(items, settings(server, method="blind", batch=True), out=tmp_path / "run")


def test_a_dry_run_shows_the_batch_price_and_the_probe(items: Path) -> None:
    """``--dry-run`` counts the probe, which is live, and the rest at the batch price."""
    base = ("audit", items, "--model", "m", "--base-url", "http://x/v1", *PRICED, "--dry-run")
    live, half, third = (
        json.loads(blindcal(*base, "--json", *more).output)
        for more in ((), ("--batch",), ("--batch", "--batch-price", "0.25"))
    )
    assert live["queries"] == half["queries"] == N
    probes, controls = live["probe_queries"], live["control_queries"]
    assert half["probe_queries"] == probes > 0
    assert controls > half["control_queries"] == 0
    assert live["completion_tokens"] == N + controls + probes
    each = live["cost"] / live["completion_tokens"]
    assert half["cost"] == pytest.approx((probes + N / 2) * each, rel=0.02)
    assert third["cost"] == pytest.approx((probes + N / 4) * each, rel=0.02)
    shown = blindcal(*base, "--batch").output
    assert f"queries    {N} by latent (if the endpoint allows it), through batches" in shown
    assert "and about 170 for the probe, always live" in shown


def test_limits_end_in_a_partial_result(items: Path, tmp_path: Path) -> None:
    """A limit on queries bounds the batch; the result says so, and a higher one goes on."""
    with serving(items) as server:
        some = audit(
            items,
            settings(server, batch=True, method="blind", send_seed=True),
            out=tmp_path / "run",
            polling=SOON,
        )
        seeded = ("--method", "blind", "--batch", "--wait", "--send-seed")
        command = asking(items, server, tmp_path / "part", *seeded)
        part = blindcal(*command, "--max-queries", some.spend.probe_queries + CANARIES + 10)
        assert len(server.desk.submitted) == ASKED + CANARIES
        assert sum(server.desk.submitted.values()) == ASKED + 2 * CANARIES + 10
        assert part.exit_code == 3, part.output
        assert "max_queries" in part.stdout
        assert blindcal(*command).exit_code == 0
        assert set(server.desk.submitted.values()) == {2}  # the two runs


def test_what_the_probe_learns_of_the_endpoint_is_remembered_for_the_batch(
    items: Path, tmp_path: Path
) -> None:
    """A model that takes only max_completion_tokens gets it in a batch too, also when probed earlier."""
    with serving(items, limit_name="max_completion_tokens", batches={"looks": None}) as server:
        how = settings(server, method="blind", batch=True)
        server.desk.trouble = lambda name: "refused" if name == "upload" else None
        with pytest.raises(EndpointError, match="no success in"):
            audit(items, how, out=tmp_path / "run", limits=Limits(patience=0.01))
        server.desk.trouble = lambda _: None
        probed = server.answered
        with pytest.raises(PendingError):
            audit(items, how, out=tmp_path / "run", polling=Polling(wait=False))
        for _ in range(3):
            server.desk.step()
        found = audit(items, how, out=tmp_path / "run", polling=SOON)
        assert found.complete
        assert server.answered - probed == found.spend.asked + CANARIES


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")
def test_ctrl_c_while_waiting_loses_nothing(items: Path, tmp_path: Path) -> None:
    """Interrupted while it waits, the command exits with 130, and the next one collects the same batch."""
    with serving(items, batches={"looks": None}) as server:
        arguments = [str(one) for one in asking(items, server, tmp_path / "run", "--batch", "--wait")]
        command = [sys.executable, "-c", "from blindcal.cli import main; main()", *arguments]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ})
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("submitting"):
                break
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130, said
        assert "the same command goes on" in said
        for _ in range(3):
            server.desk.step()
        assert blindcal(*asking(items, server, tmp_path / "run", "--batch", "--quiet")).exit_code in (0, 5)
        for _ in range(3):
            server.desk.step()
        assert blindcal(*asking(items, server, tmp_path / "run", "--batch", "--quiet")).exit_code == 0
        assert len(server.desk.batches) == 1


def test_cancelling_keeps_what_was_answered(items: Path, tmp_path: Path) -> None:
    """The provider ends the batch, what it answered is the result, and the rest can be asked later."""
    with serving(items, batches={"looks": 4}) as server:
        command = asking(items, server, tmp_path / "run", "--batch", *PRICED)
        assert blindcal(*command).exit_code == 5
        cancelled = blindcal(*command, "--cancel")
        assert cancelled.exit_code == 3, cancelled.output
        assert "stopped    cancelled; the same command goes on" in cancelled.output
        result = json.loads((tmp_path / "run" / "result.json").read_text())
        answered = result["counts"]["positive"] + result["counts"]["negative"]
        assert N // 3 < answered < N
        assert result["spend"]["cost"] > 0
        refused = blindcal(*command, "--cancel")
        assert isinstance(refused.exception, ConfigError)
        assert "there is nothing to cancel" in str(refused.exception)
        assert blindcal(*command, "--wait").exit_code == 0
        assert len(server.desk.batches) == 2
        assert set(server.desk.billed.values()) == {1}


def test_cancelling_needs_a_run_with_batches(items: Path, tmp_path: Path) -> None:
    """Where there is none nothing is begun, and it is said why."""
    with serving(items) as server:
        nowhere = blindcal(*asking(items, server, tmp_path / "run", "--batch", "--cancel"))
        live = blindcal(*asking(items, server, tmp_path / "run", "--cancel"))
        assert (nowhere.exit_code, live.exit_code) == (2, 2)
        assert "there is no run in" in nowhere.output
        assert "--cancel goes with --batch" in live.output
        assert not (tmp_path / "run").exists()
        assert server.requests == 0


def test_a_batch_that_nobody_heard_of_is_cancelled_too(items: Path, tmp_path: Path) -> None:
    """Asked for and lost, it is found by its token; asked for and never made, it is forgotten."""
    with serving(items, batches={"looks": 4}) as server:
        command = asking(items, server, tmp_path / "run", "--batch")
        assert blindcal(*command).exit_code == 5
        with Store.open(tmp_path / "run" / RUN_FILE) as store:
            store.set_batch(replace(store.batches()[0], batch_id=None, creating=1.0))
        assert blindcal(*command, "--cancel").exit_code == 3
        assert [one.shown["status"] for one in server.desk.batches.values()] == ["cancelled"]
        with Store.open(tmp_path / "run" / RUN_FILE) as store:
            unsent = store.batches()[0]
            assert unsent.answered > 0
            left = np.setdiff1d(np.arange(N), np.flatnonzero(store.answers(0, N) != UNASKED))
            store.add_batches([left])
        assert blindcal(*command, "--cancel").exit_code == 3
        with Store.read(tmp_path / "run" / RUN_FILE) as store:
            assert [(one.ended, one.batch_id is None) for one in store.batches()] == [
                (True, False),
                (True, True),
            ]
        assert len(server.desk.batches) == 1


def test_a_batch_that_nobody_confirms_is_resubmitted_only_if_told_to(items: Path, tmp_path: Path) -> None:
    """The command says what is not known, where to look, and which flags go on; neither is taken alone."""
    with serving(items, batches={"looks": 1}) as server:
        command = asking(items, server, tmp_path / "run", "--batch", "--method", "blind")
        assert blindcal(*command, "--resubmit", "--cancel").exit_code == 2
        assert blindcal(*command[:-3], "--resubmit").exit_code == 2
        server.desk.instead = {"create": [error_response(504, "gateway time-out")]}
        server.desk.answers["list"] = lambda response: (
            response if server.desk.operations.count("list") <= 2 else error_response(404, "gone")
        )
        for _ in range(2):
            asked = blindcal(*command)
            assert asked.exit_code == 1
            assert re.search(
                r"not known whether .* metadata \w{32}: .* --resubmit submits it again, and --cancel",
                printed_error(asked),
            )
            assert server.desk.operations.count("create") == 1
        shown = blindcal("status", tmp_path / "run").output
        assert f"no id yet: submission not confirmed, {ASKED} queries" in shown
        assert blindcal(*command, "--resubmit").exit_code == 5
        assert blindcal(*command).exit_code == 0
        assert set(server.desk.billed.values()) == {1}


def test_a_bias_that_does_nothing_in_batches_is_noticed(items: Path, tmp_path: Path) -> None:
    """Where logit_bias acts live and not in batches, the audit says so instead of a wrong figure."""
    with serving(items) as server:
        honest = server.desk.answer

        def deaf(body: bytes, chat: bool) -> Any:
            asked = json.loads(body)
            asked.pop("logit_bias", None)
            return honest(json.dumps(asked).encode(), chat)

        server.desk.answer = deaf
        command = asking(items, server, tmp_path / "run", "--batch", "--wait")
        for _ in range(2):  # the second time costs nothing more
            refused = blindcal(*command)
            assert isinstance(refused.exception, EndpointError)
            assert "logit_bias acts live but not in this endpoint's batches" in str(refused.exception)
        assert len(server.desk.batches) == 1
        heat = audit(
            items,
            settings(server, method="temperature", batch=True),
            out=tmp_path / "heat",
            polling=SOON,
        )
        assert heat.complete  # no bias, no canary
        assert sum(server.desk.submitted.values()) == N + CANARIES + 3 * N


def test_canaries_go_along_until_they_are_heard(items: Path, tmp_path: Path) -> None:
    """A batch that expires before its canaries are answered leaves the question to the next one."""
    with serving(items, batches={"fates": ("expired",), "answered": 0.0}) as server:
        found = audit(items, settings(server, batch=True), out=tmp_path / "run", polling=SOON)
        assert found.complete
        assert set(server.desk.submitted.values()) == {2}
        assert set(server.desk.billed.values()) == {1}
        assert len(server.desk.billed) == N + CANARIES
        assert found.spend.batches == 2


def test_confidence_in_words_goes_through_batches_after_one_live_question(
    items: Path, tmp_path: Path
) -> None:
    """verbalized, which has no probe, is asked once live first: what that tells would come a day late."""
    said = RecordedTexts(
        {f"i{k}": f"{'Yes' if k % 3 else 'No'}, {50 + k % 50}%" for k in range(N)}, ("Yes", "No")
    )
    with serving(items, spoken=said, limit_name="max_completion_tokens") as server:
        how = {"method": "verbalized"}
        live = audit(items, settings(server, **how), out=tmp_path / "live")
        batched = audit(items, settings(server, **how, batch=True), out=tmp_path / "batched", polling=SOON)
        assert (batched.ece, batched.bins, batched.counts) == (live.ece, live.bins, live.counts)
        assert (batched.spend.queries, batched.spend.probe_queries) == (N + 1, 1)
        with pytest.raises(FatalError, match="no model 'other'"):
            audit(items, settings(server, **how, batch=True, model="other"), out=tmp_path / "other")
        assert len(server.desk.batches) == 1
