"""What a new user meets first: no key, nothing reachable, a run cut short, a terminal that is narrow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from blindcal.cli import app
from blindcal.cli.audit import show
from blindcal.endpoints.http import Address, keyless
from blindcal.endpoints.recording import Recording
from blindcal.endpoints.replay import Server, running
from blindcal.errors import BlindcalError, ConfigError
from blindcal.items.files import load
from blindcal.methods import measures
from results import around, part
from results import result as made_up

N = 60


@pytest.fixture
def items(tmp_path: Path) -> Path:
    """A file of questions."""
    path = tmp_path / "items.jsonl"
    records = [{"id": f"q{k}", "prompt": f"Is {k} odd?", "label": k % 2} for k in range(N)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def server(items: Path) -> Iterator[Server]:
    """A model that answers these questions."""
    with load(items) as loaded:
        asked = list(loaded)
    p = np.random.default_rng(1).beta(0.5, 0.5, N)
    with running(Recording.from_probabilities([item.id for item in asked], p), asked) as one:
        yield one


def blindcal(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("command", ["audit", "probe", "score", "reproduce"])
def test_a_missing_key_is_noticed_before_anything_is_read(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenAI's address without a key is an error that names the variable, even before a missing file."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    given = {
        "score": ("none.csv", "--out", "scores.csv"),
        "reproduce": ("--data", "none.csv"),
    }.get(command, ("none.csv",))
    refused = blindcal(command, *given, "--model", "gpt-4o-mini")
    assert isinstance(refused.exception, ConfigError)
    assert "export OPENAI_API_KEY=..." in str(refused.exception)
    assert list(tmp_path.iterdir()) == []


def test_only_other_machines_want_keys() -> None:
    """A key is missed over https on another machine, and needed where nothing is answered without one."""
    asked = Address("https://api.openai.com/v1", "m")
    found = keyless(asked, {})
    assert found is not None
    assert (found.host, found.needed) == ("api.openai.com", True)
    assert keyless(asked, {"OPENAI_API_KEY": "sk"}) is None
    own = keyless(replace(asked, base_url="https://models.example/v1"), {})
    assert own is not None
    assert not own.needed
    assert keyless(replace(asked, base_url="https://localhost:8000/v1"), {}) is None
    assert keyless(replace(asked, base_url="http://10.0.0.7/v1"), {}) is None


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
    given = ("audit", items, "--model", "replay", "--base-url", server.base_url, "--quiet")
    given += ("--method", "blind", "--out", tmp_path / "run")
    assert "does not even pay for the probe" in str(blindcal(*given, "--max-queries", 7).exception)
    assert "probe      7 queries, " in blindcal("status", tmp_path / "run").output
    assert blindcal(*given).exit_code == 0
    found = json.loads(blindcal("status", tmp_path / "run", "--json").output)
    assert found["probe"]["queries"] + found["usage"]["queries"] == server.answered
    assert (
        found["probe"]["prompt_tokens"] + found["usage"]["prompt_tokens"]
        == (json.loads((tmp_path / "run" / "result.json").read_text())["spend"]["prompt_tokens"])
    )


def test_the_parts_are_on_the_console(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A result by a field prints a line a part and whether they differ; of many parts the largest."""
    result = replace(made_up(), by="topic\x1b", parts_pvalue=0.4)
    show(result, tmp_path)
    shown = capsys.readouterr().out
    assert "parts      by topic\\x1b; they differ no more than by chance (p-value 0.4)" in shown
    assert "law" in shown
    assert "60 items  ECE 0.200 (0.100 to 0.300)" in shown
    many = tuple(part(f"part {k}", around(0.1), 100 + k) for k in range(30))
    show(replace(result, parts=many, parts_pvalue=0.001), tmp_path)
    shown = capsys.readouterr().out
    assert "the 12 largest of 30; they differ by more than chance (p-value 0.001)" in shown
    assert "part 29" in shown
    assert "part 3 " not in shown


def test_what_is_measured_names_the_number_of_answers() -> None:
    """The number of queries stands where the list of methods says K."""
    one = measures("latent", "pair", "latent", 1.0)
    assert "; from one threshold answer an item" in one
    assert "; from 2.5 threshold answers an item" in measures("latent", "pair", "latent", 2.5)
    assert "; from 3 answers an item drawn" in measures("temperature", "sum", "latent", 3.0)
    assert "K " not in one


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_long_facts_are_wrapped_on_a_terminal_and_not_in_a_pipe() -> None:
    """On a terminal a long line is wrapped under its own beginning; in a pipe it stays one line."""
    code = "from blindcal.cli.facts import fact; fact('measures', 'word ' * 30)"
    env = {**os.environ, "COLUMNS": "60"}
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert piped.stdout.count("\n") == 1
    import pty  # not there on Windows

    ours, theirs = pty.openpty()
    subprocess.run([sys.executable, "-c", code], stdout=theirs, check=True, env=env)
    os.close(theirs)
    lines = os.read(ours, 10_000).decode().splitlines()
    os.close(ours)
    assert len(lines) > 2
    assert all(len(line) <= 60 for line in lines)
    assert all(line.startswith(" " * 11 + "word") for line in lines[1:])
