"""What a new user meets first: no key, nothing reachable, a run cut short, a terminal that is narrow."""

from __future__ import annotations

import ast
import asyncio
import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest
from scipy.special import expit, logsumexp

from blindcal.auditing.audit import audit
from blindcal.auditing.probe_endpoint import EndpointProbe, probe
from blindcal.cli import COMMANDS, app
from blindcal.cli.console import command_line_option
from blindcal.cli.result_summary import print_result
from blindcal.endpoints.address import Address
from blindcal.errors import BlindcalError, InputError
from blindcal.estimate.truth import binned_ece
from blindcal.evidence import measures
from blindcal.items.files import load
from blindcal.progress_bar import ProgressBar
from blindcal.records import Estimate, Progress, Usage
from blindcal.results.result import AuditResult
from blindcal.settings import Settings
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from commanding import blindcal, printed_error
from misbehaving import Behaviour, Server
from paths import ROOT
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
    loaded = load(items)
    asked = list(loaded)
    p = np.random.default_rng(1).beta(0.5, 0.5, N)
    with running(Server(Recording.from_probabilities([item.id for item in asked], p), asked)) as one:
        yield one


@pytest.mark.parametrize("command", ["audit", "probe", "score"])
def test_a_missing_key_is_noticed_before_anything_is_read(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenAI's address without a key is an error that names the variable, before the file is read."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.csv").write_text("no label\n")
    given = {
        "score": ("broken.csv", "--out", "scores.csv"),
    }.get(command, ("broken.csv",))
    refused = blindcal(command, *given, "--model", "gpt-4o-mini")
    assert isinstance(refused.exception, InputError)
    assert "export OPENAI_API_KEY=..., or name the variable that holds it with --api-key-env" in (
        printed_error(refused)
    )
    with pytest.raises(InputError, match=r"export OPENAI_API_KEY=\.\.\."):
        audit("broken.csv", Settings(model="gpt-4o-mini"))
    assert [path.name for path in tmp_path.iterdir()] == ["broken.csv"]


def test_only_other_machines_want_keys() -> None:
    """A key is missed over https on another machine, and needed where nothing is answered without one."""
    asked = Address("https://api.openai.com/v1", "m")
    assert asked.keyless_host({}) == "api.openai.com"
    with pytest.raises(InputError, match=r"api.openai.com wants an API key"):
        asked.check_key({})
    assert asked.keyless_host({"OPENAI_API_KEY": "sk"}) is None
    asked.check_key({"OPENAI_API_KEY": "sk"})
    own = replace(asked, base_url="https://models.example/v1")
    assert own.keyless_host({}) == "models.example"
    own.check_key({})
    assert replace(asked, base_url="https://localhost:8000/v1").keyless_host({}) is None
    assert replace(asked, base_url="http://10.0.0.7/v1").keyless_host({}) is None


def test_a_finished_run_is_read_anew_without_a_key(
    items: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a run is begun, a missing key is a warning: it may need nothing more of the endpoint."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
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
    assert "--max-queries 7 does not pay for the probe, which takes about 170 queries" in refused
    assert "probe      7 queries, " in blindcal("status", tmp_path / "run").output
    assert blindcal(*given).exit_code == 0
    found = json.loads(blindcal("status", tmp_path / "run", "--json").output)
    assert sum(found[part]["queries"] for part in ("probe", "controls", "usage")) == server.answered
    assert (
        sum(found[part]["prompt_tokens"] for part in ("probe", "controls", "usage"))
        == (json.loads((tmp_path / "run" / "result.json").read_text())["spend"]["prompt_tokens"])
    )


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
    loaded = load(items)
    asked = list(loaded)
    out = tmp_path / "run"
    with running(Server(Recording.load(path), asked)) as server:
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


def test_a_plan_says_where_its_number_of_items_comes_from() -> None:
    """A number that nobody gave is called an assumption, with the cure; a given one is not."""
    assert "items      1,000, assumed: give a file of items or --sample N" in blindcal("plan").output
    assert "items      300\n" in blindcal("plan", "--sample", 300).output


def test_an_endpoint_without_logprobs_cannot_be_scored_and_it_says_what_can(
    items: Path, server: Server, tmp_path: Path
) -> None:
    """Refusing logprobs is what a black box does: the error says which servers show them."""
    given = ("--model", "replay", "--base-url", server.base_url, "--out", tmp_path / "scores.csv")
    refused = printed_error(blindcal("score", items, *given))
    assert "shows no logprobs" in refused
    assert "llama.cpp or vLLM, or load the model itself with --transformers" in refused
    assert not (tmp_path / "scores.csv").exists()


def test_the_parts_are_on_the_console(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A result by a field prints one line per part and whether they differ; of many parts the largest."""
    result = replace(made_up(), by="topic\x1b", parts_pvalue=0.4)
    print_result(result, tmp_path)
    shown = capsys.readouterr().out
    assert "parts      by topic\\x1b; their differences may be chance (p-value 0.4)" in shown
    assert "law" in shown
    assert "60 items  ECE 0.200 (95%: 0.100 to 0.300)" in shown
    many = tuple(part(f"part {k}", around(0.1), 100 + k) for k in range(30))
    print_result(replace(result, parts=many, parts_pvalue=0.001), tmp_path)
    shown = capsys.readouterr().out
    assert "the 12 largest of 30; they differ by more than chance (p-value 0.001)" in shown
    assert "part 29" in shown
    assert "part 3 " not in shown


def test_the_summary_says_what_estimates_and_intervals_refer_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Estimates are for the items asked, intervals for all questions like them: said where there are any."""
    print_result(made_up(), tmp_path)
    note = "note       the intervals refer to all questions like these, the estimates to these 1,000"
    assert note in capsys.readouterr().out
    print_result(made_up(ece=Estimate(0.1)), tmp_path)
    assert "the intervals refer to" not in capsys.readouterr().out


def test_what_is_measured_names_the_number_of_answers() -> None:
    """The number of queries stands where the list of methods says K."""
    one = measures("latent", "pair", "latent", 1.0)
    assert "; from one threshold answer per item" in one
    assert "; from 2.5 threshold answers per item" in measures("latent", "pair", "latent", 2.5)
    assert "; from 3 answers per item drawn" in measures("temperature", "sum", "latent", 3.0)
    assert "K " not in one


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_long_fields_are_wrapped_on_a_terminal_and_not_in_a_pipe() -> None:
    """On a terminal a long field is wrapped under its own beginning; in a pipe it stays one line."""
    code = "from blindcal.cli.console import print_field; print_field('measures', 'word ' * 30)"
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


def test_an_endpoint_is_probed_from_python(items: Path, server: Server) -> None:
    """One call finds the tokens and the verdict, reports every reply, and works inside an event loop too."""
    heard: list[Progress] = []
    settings = Settings(model="replay", base_url=server.base_url)
    found = probe(items, settings, progress=heard.append)
    assert found.verdict == "thresholds"
    assert found.reason in repr(found)
    assert "\n" not in repr(found)
    assert [token.text for token in (*found.choice.targets.positive, *found.probe.targets.negative)] == [
        "Yes",
        "No",
    ]
    assert [one.done for one in heard] == list(range(1, server.answered + 1))
    assert found.queries == server.requests
    assert all(one.probing for one in heard)

    async def in_a_notebook() -> EndpointProbe:
        return probe(items, settings)

    assert asyncio.run(in_a_notebook()).verdict == "thresholds"


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")
def test_ctrl_c_ends_a_probe_at_once(items: Path, server: Server) -> None:
    """An interrupted probe waits for no reply."""
    server.behaviour = Behaviour(latency=600.0)  # a first answer would come in ten minutes
    command = [sys.executable, "-c", "from blindcal.cli import main; main()", "probe", str(items)]
    command += ["--model", "replay", "--base-url", server.base_url]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not server.requests:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, shown = process.communicate(timeout=60)
    assert (process.returncode, shown.splitlines()[-1]) == (130, "interrupted")


def test_an_error_is_one_line_with_flags(tmp_path: Path) -> None:
    """What the library says with Python's arguments, the command line says with its flags; no traceback."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    command = [
        sys.executable,
        "-c",
        "from blindcal.cli import main; main()",
        "audit",
        "builtin",
        "--model",
        "m",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=clean)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: api.openai.com wants an API key and OPENAI_API_KEY is not set: ")
    assert line.endswith("with --api-key-env")


@pytest.mark.parametrize(
    ("name", "value", "flag"),
    [
        ("max_cost", 0.25, "--max-cost 0.25"),
        ("keep_prompts", False, "--set keep_prompts=false"),
        ("positive_ids", (9642, 10035), "--set positive_ids=9642,10035"),
    ],
)
def test_an_option_is_named_as_the_command_line_takes_it(name: str, value: object, flag: str) -> None:
    """An option of Python in an error is printed as the flag that does the same."""
    assert command_line_option(name, value) == flag


def test_every_flag_in_an_error_exists() -> None:
    """Options that errors of the library name are options of the command line, by the names it prints."""
    source = ROOT / "src" / "blindcal"
    named = set()
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "options" and isinstance(node.value, ast.Dict):
                named |= {key.value for key in node.value.keys if isinstance(key, ast.Constant)}
    assert {"out", "api_key_env", "template"} <= named
    flags = {command_line_option(str(name), ...).split()[0] for name in named}
    context = click.Context(app)
    known = set()
    for name in COMMANDS:
        command = app.get_command(context, name)
        assert command is not None
        known |= {flag for option in command.params for flag in option.opts}
    assert flags <= known


def test_a_mistyped_command_is_answered_with_the_right_one() -> None:
    """A typo is met with what was probably meant, and with nothing where that cannot be guessed."""
    assert "No such command 'adit'. Did you mean 'audit'?" in blindcal("adit").output
    assert "Did you mean" not in blindcal("xyzzy").output


def test_a_missing_run_is_answered_with_those_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong folder is answered with the existing runs; where there is none, with how one is made."""
    monkeypatch.chdir(tmp_path)
    for command in ("status", "report", "threshold"):
        assert "no such run; 'blindcal audit' creates one" in str(blindcal(command, "runs/m").exception)
    (tmp_path / "runs" / "items-m").mkdir(parents=True)
    (tmp_path / "runs" / "items-m" / "run.sqlite").touch()
    asked: tuple[tuple[object, ...], ...] = (("status", "m"), ("compare", "m", "n"), ("check", "m"))
    for arguments in asked:
        assert f"m: no such run; existing runs: {Path('runs/items-m')}" in str(blindcal(*arguments).exception)


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")
def test_ctrl_c_is_told_apart_from_an_error(tmp_path: Path) -> None:
    """Any command that is interrupted says so and exits with 130."""
    code = (
        "import signal, blindcal.simulation.simulate as s; from blindcal.cli import main;"
        "signal.signal(signal.SIGINT, signal.default_int_handler);"
        "s.generate = lambda *_: signal.raise_signal(signal.SIGINT); main()"
    )
    command = [sys.executable, "-c", code, "simulate", "--generate", "50"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


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


def test_a_bar_shows_the_probe_and_then_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The probe's queries have a bar of their own, and the run's begins anew."""
    with ProgressBar(mininterval=0, ncols=100) as bar:
        for asked in (40, 80):
            bar(
                Progress(
                    done=asked,
                    total=90,
                    usage=Usage(queries=asked, attempts=asked),
                    cost=None,
                    concurrency=8,
                    probing=True,
                )
            )
        bar(Progress(done=0, total=500, usage=Usage(), cost=None, concurrency=8))
        bar(Progress(done=250, total=500, usage=Usage(queries=250, attempts=250), cost=None, concurrency=8))
    shown = capsys.readouterr().err
    assert "probing:  89%" in shown
    assert "80/90" in shown
    assert "250/500" in shown.splitlines()[-1]


def test_lines_of_text_and_the_bar_do_not_run_into_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed while a bar is shown stands on a line of its own; only a finished bar stays."""
    with ProgressBar(mininterval=0, ncols=80) as bar:
        print_line = bar.wrap_print(lambda text: print(text, file=sys.stderr))
        print_line("asking")
        bar(Progress(done=200, total=500, usage=Usage(queries=200, attempts=200), cost=None, concurrency=8))
        print_line("200 of 500")
        bar(Progress(done=500, total=500, usage=Usage(queries=500, attempts=500), cost=None, concurrency=8))
        print_line("estimating")
    lines = [line.split("\r")[-1].rstrip() for line in capsys.readouterr().err.split("\n")]
    assert lines[:2] == ["asking", "200 of 500"]
    assert "500/500" in lines[2]
    assert lines[3:] == ["estimating", ""]


def test_an_audit_tells_how_far_its_probe_is(items: Path, server: Server, tmp_path: Path) -> None:
    """Progress counts the queries of the probe first, then those of the run, each from one up."""
    heard: list[Progress] = []
    settings = Settings(model="replay", base_url=server.base_url, method="blind")
    found = audit(items, settings, out=tmp_path / "run", progress=heard.append)
    probing = [one for one in heard if one.probing]
    assert [one.done for one in probing] == list(range(1, found.spend.probe_queries + 1))
    assert heard[: len(probing)] == probing
    assert heard[-1].done == heard[-1].total == found.spend.asked
