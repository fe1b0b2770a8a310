"""What a new user meets first: no key, nothing reachable, a run cut short, a terminal that is narrow."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit, logsumexp

from blindcal.auditing.audit import audit
from blindcal.auditing.prepare import probe
from blindcal.errors import BlindcalError, InputError
from blindcal.estimate.truth import binned_ece
from blindcal.items.catalogue import open_items
from blindcal.records import Progress
from blindcal.results.result import AuditResult
from blindcal.settings import Settings
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from commanding import blindcal, printed_error
from misbehaving import Server
from serving import replaying, settings_of, write_items

N = 60
PARTS = ("probe", "controls", "usage")


@pytest.fixture
def items(tmp_path: Path) -> Path:
    """A file of questions."""
    return write_items(tmp_path / "items.jsonl", np.arange(N) % 2)


@pytest.fixture
def server(items: Path) -> Iterator[Server]:
    """A model that answers these questions."""
    with replaying(items, np.random.default_rng(1).beta(0.5, 0.5, N)) as one:
        yield one


@pytest.mark.parametrize("command", ["audit", "probe"])
def test_a_missing_key_is_noticed_before_anything_is_read(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenAI's address without a key is an error that names the variable, before the file is read."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.csv").write_text("no label\n")
    refused = blindcal(command, "broken.csv", "--model", "gpt-4o-mini")
    assert "export OPENAI_API_KEY=..., or name the variable that holds it with --api-key-env" in (
        printed_error(refused)
    )
    with pytest.raises(InputError, match=r"export OPENAI_API_KEY=\.\.\."):
        audit("broken.csv", Settings(model="gpt-4o-mini"))
    assert [path.name for path in tmp_path.iterdir()] == ["broken.csv"]


def test_a_finished_run_is_read_anew_without_a_key(
    items: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a run is begun, a missing key is a warning: it may need nothing more of the endpoint."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    out = tmp_path / "run"
    out.mkdir()
    (out / "run.sqlite").write_text("not a run")
    refused = blindcal("audit", items, "--model", "gpt-4o-mini", "--out", out)
    assert "warning: OPENAI_API_KEY is not set, so no key is sent to api.openai.com" in refused.output
    assert "not a run file" in str(refused.exception)


def test_an_audit_that_asked_nothing_leaves_nothing(items: Path, server: Server, tmp_path: Path) -> None:
    """Whatever fails before the first reply, no folder is left; one that was there is left as it was."""
    given = ("--model", "replay", "--quiet", "--out", tmp_path / "deep" / "run")
    nowhere = ("--base-url", "http://127.0.0.1:9/v1")
    for wrong in (
        (tmp_path / "none.jsonl", *nowhere),
        (items, *nowhere),
        (items, "--base-url", server.base_url, "--oracle", tmp_path / "none.csv"),
    ):
        failed = blindcal("audit", *wrong, *given)
        assert isinstance(failed.exception, BlindcalError), failed.output
        assert not (tmp_path / "deep").exists()
    (tmp_path / "deep" / "run").mkdir(parents=True)
    (tmp_path / "deep" / "run" / "notes.txt").write_text("mine")
    assert blindcal("audit", items, *nowhere, *given).exit_code == 1
    assert [path.name for path in (tmp_path / "deep" / "run").iterdir()] == ["notes.txt"]


def test_status_counts_what_the_probe_was_paid(items: Path, server: Server, tmp_path: Path) -> None:
    """Cut short while it probes, a run keeps and counts every reply; the next call asks only the rest."""
    given: tuple[object, ...] = ("audit", items, "--model", "replay", "--base-url", server.base_url)
    given += ("--quiet", "--method", "blind", "--out", tmp_path / "run")
    refused = printed_error(blindcal(*given, "--max-queries", 7))
    assert "--max-queries 7 does not pay for the probe, which takes about 70 queries" in refused
    assert "probe      7 queries, " in blindcal("status", tmp_path / "run").output
    assert blindcal(*given).exit_code == 0
    parts = list(map(json.loads(blindcal("status", tmp_path / "run", "--json").output).get, PARTS))
    assert sum(part["queries"] for part in parts) == server.answered
    spend = json.loads((tmp_path / "run" / "result.json").read_text())["spend"]
    assert sum(part["prompt_tokens"] for part in parts) == spend["prompt_tokens"]


def test_a_logit_file_is_an_oracle_and_can_be_simulated(items: Path, tmp_path: Path) -> None:
    """What ``serve --scores`` replays, ``audit --oracle`` compares with, of the tokens that were asked."""
    rng = np.random.default_rng(4)
    logits = 3 * rng.standard_normal((N, 4)) + (0, 6, 6, 0)  # " True" and "False" are its favourites
    path = tmp_path / "m__d__logits.csv"
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "label", "True|1", " True|2", "False|3", " False|4", "lse", "argmax"])
        for k, row in enumerate(logits):
            whole = [*row.tolist(), float(logsumexp(row)) + 1e-6, int(row.argmax()) + 1]
            table.writerow([f"q{k}", k % 2, *whole])
    out = tmp_path / "run"
    with running(Server(Recording.load(path), open_items(items))) as server:
        done = blindcal(
            "audit", items, "--model", "m__d__logits", "--base-url", server.base_url, "--out", out,
            "--oracle", path, "--set", "positive=True", "--set", "negative=False", "--quiet",
            "--method", "blind",
        )  # fmt: skip
    assert done.exit_code == 0, done.output
    found = AuditResult.load(out / "result.json")
    assert found.oracle is not None
    assert [token.id for token in (*found.targets.positive, *found.targets.negative)] == [2, 3]
    assert found.oracle.column == " True|2 against False|3"
    labels = np.arange(N) % 2
    truth = float(binned_ece(labels, expit(logits[:, 1] - logits[:, 2]), len(found.bins)).ece)
    assert found.oracle.ece == pytest.approx(truth)
    shown = blindcal("simulate", path, "--method", "blind", "--repeats", 1, "--json")
    assert shown.exit_code == 0, shown.output
    alone = float(binned_ece(labels, expit(logits[:, 0] - logits[:, 2]), 5).ece)
    assert json.loads(shown.output)["oracle"] == pytest.approx(alone)


def test_an_endpoint_is_probed_from_python(items: Path, server: Server) -> None:
    """One call finds the tokens and the verdict, and reports every reply."""
    heard: list[Progress] = []
    settings = settings_of(server)
    found = probe(items, settings, progress=heard.append)
    assert found.verdict == "thresholds"
    assert found.reason in repr(found)
    assert found.choice.targets.positive[0].text == "Yes"
    assert [one.done for one in heard] == list(range(1, server.answered + 1))
    assert found.queries == server.requests
    assert all(one.probing for one in heard)


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")
def test_a_second_ctrl_c_does_not_wait(items: Path, server: Server, tmp_path: Path) -> None:
    """However long something takes to compute, Ctrl-C twice ends the command; it says so the first time."""
    code = (
        "import signal, sys, threading, blindcal.auditing.audit as a; from blindcal.cli import main;"
        "signal.signal(signal.SIGINT, signal.default_int_handler);"
        "a.conclude = lambda *_: (print('computing', file=sys.stderr, flush=True), threading.Event().wait());"
        "main()"
    )
    command = [sys.executable, "-c", code, "audit", str(items), "--model", "replay", "--method", "blind"]
    command += ["--base-url", server.base_url, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for start in ("computing", "stopping, and keeping what is under way"):
        assert any(line.startswith(start) for line in process.stderr)
        process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert rest.splitlines()[-1].startswith("interrupted; everything answered is kept")
