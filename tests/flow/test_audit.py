"""The whole audit over real HTTP: what it finds, refuses, keeps and writes, in Python and as a command."""

from __future__ import annotations

import asyncio
import csv
import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup

from blindcal.asking.controls import stored_controls
from blindcal.asking.run_context import Limits
from blindcal.auditing.audit import audit, audit_async, default_folder
from blindcal.cli.result_summary import print_result
from blindcal.errors import (
    BlindcalError,
    EndpointError,
    InputError,
    NotIdentifiedError,
    UnfitError,
)
from blindcal.estimate.published import findings_at_face_value
from blindcal.estimate.truth import binned_ece
from blindcal.items.catalogue import open_items
from blindcal.items.record_format import RecordFormat
from blindcal.items.score_files import asked_of
from blindcal.prices import Prices
from blindcal.progress_bar import ProgressBar
from blindcal.records import Estimate, Progress, Usage
from blindcal.results.result import AuditResult
from blindcal.results.run import open_result
from blindcal.settings import Settings
from blindcal.store.run_store import RUN_FILE, Store
from commanding import blindcal, printed_error
from misbehaving import Behaviour, Server
from results import result
from serving import replaying, settings_of, write_records

N = 400
HOSTILE = ['=HYPERLINK("http://x")', "\x1b[2Jwiped", "+1", "@x", "a\x00b", "\u202egnp", "{q.__class__}"]


def truth() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.random.default_rng(2).beta(0.4, 0.4, N)


@pytest.fixture
def items(tmp_path: Path) -> Path:
    """A file of questions, some of them with hostile ids and texts."""
    labels = (np.random.default_rng(3).random(N) < truth() ** 2).astype(int).tolist()
    names = [*HOSTILE, *(f"q{k}" for k in range(len(HOSTILE), N))]
    records = (
        {"id": name, "prompt": f"{name} SECRET{k}?", "label": labels[k]} for k, name in enumerate(names)
    )
    return write_records(tmp_path / "items.jsonl", records)


@pytest.fixture
def scores(items: Path, tmp_path: Path) -> Path:
    """The truth as a score file."""
    path = tmp_path / "scores.csv"
    loaded = open_items(items)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "label", "p"])
        table.writerows([item.id, item.label, p] for item, p in zip(loaded, truth(), strict=True))
    return path


def serving(items: Path, **behaviour: Any) -> Any:
    return replaying(items, truth(), **behaviour)


@pytest.fixture
def server(items: Path) -> Iterator[Server]:
    with serving(items) as one:
        yield one


def settings(server: Server, **more: Any) -> Settings:
    return settings_of(server, **{"method": "blind", **more})


def at(server: Server) -> tuple[str, ...]:
    """The options that name a server's model."""
    return "--model", "replay", "--base-url", server.base_url


def test_an_audit_finds_and_writes_everything(
    items: Path, scores: Path, server: Server, tmp_path: Path
) -> None:
    """A result with its files; the same call again asks nothing, and the folder is no other audit's."""
    out = tmp_path / "run"
    found = audit(items, settings(server), out=out, oracle=scores, prices=Prices(1, 2))
    spend, counts = found.spend, found.counts
    assert found.complete
    assert (counts.items, counts.invalid) == (N, 0)
    assert spend.queries - spend.probe_queries - spend.control_queries == counts.positive + counts.negative
    assert spend.cost == pytest.approx((spend.prompt_tokens + 2 * spend.completion_tokens) / 1e6)
    assert found.oracle is not None
    true = binned_ece(open_items(items).labels, truth(), len(found.bins)).ece
    assert found.oracle.ece == pytest.approx(true.value)
    assert found.probe is not None
    assert found.probe.verdict == "thresholds"
    assert AuditResult.load(out / "result.json") == found
    assert {path.name for path in out.iterdir()} >= {"run.sqlite", "result.json", "answers.csv"}
    asked = server.requests
    again = audit(items, settings(server, level=0.9, api_key_env="OTHER", timeout=9), out=out)
    assert (again.level, again.bins, again.spend.queries) == (0.9, found.bins, spend.queries)
    with pytest.raises(InputError, match="seed: 0 then, 1 now"):
        audit(items, settings(server, seed=1), out=out)
    items.write_text(items.read_text().replace("SECRET9?", "SECRET9!"))
    with pytest.raises(InputError, match=r"other settings \(the questions changed"):
        audit(items, settings(server), out=out)
    assert server.requests == asked


@pytest.mark.parametrize(
    ("behaviour", "method", "unverified"),
    [
        ({}, "blind", None),
        ({"temperature": "ignored"}, "blind", "the scale of logit_bias"),
        ({"bias": "rejected"}, "temperature", "the scale of temperature"),
        ({}, "temperature", None),
    ],
)
def test_an_unverified_scale_is_in_the_headline(
    behaviour: dict[str, Any],
    method: str,
    unverified: str | None,
    items: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where nothing shows by which factor bias or temperature act, console and page say so."""
    with serving(items, **behaviour) as server:
        found = audit(items, settings(server, method=method, resamples=20), out=tmp_path / "run")
    assert found.unverified == unverified
    print_result(found, tmp_path / "run")
    for shown in (capsys.readouterr().out, (tmp_path / "run" / "report.html").read_text()):
        assert ("the scale of" in shown) == (unverified is not None)
        assert unverified is None or unverified in shown


def test_an_ignored_bias_is_refused_unless_forced(items: Path, tmp_path: Path) -> None:
    """There is no audit by thresholds; forcing one leaves a mark, and a refusal is not kept."""
    out = tmp_path / "run"
    with serving(items, bias="ignored") as server:
        with pytest.raises(UnfitError, match=r"ignored: use method='temperature'; or force=True continues"):
            audit(items, settings(server), out=out)
        forced = audit(items, settings(server), out=tmp_path / "forced", force=True)
        assert audit(items, settings(server, method="temperature"), out=tmp_path / "heat").complete
        server.behaviour = Behaviour()
        assert audit(items, settings(server), out=out).complete
    assert forced.probe is not None
    assert forced.probe.verdict == "temperature"
    assert forced.objection == "logit_bias is accepted but ignored"


@pytest.mark.parametrize(
    ("behaviour", "cures"),
    [
        (
            {"clamp": 10.0},
            r"run it again with offset=\S+ and limit=\S+; or use method='temperature'; or force",
        ),
        ({"fault": "empty"}, r"^(?!.*force)"),  # where nothing usable is answered, forcing is no way out
    ],
)
def test_a_refusal_names_what_would_fit(
    behaviour: dict[str, Any], cures: str, items: Path, tmp_path: Path
) -> None:
    """A clamped bias is refused with the options that suit it, then temperature, and force last."""
    with serving(items, **behaviour) as server, pytest.raises(UnfitError, match=cures):
        audit(items, settings(server), out=tmp_path / "run")


def test_the_bound_of_invalid_answers_holds() -> None:
    """Whatever items join, the ECE stays inside the bound."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        n, extra = rng.integers(5, 50), rng.integers(1, 30)
        y, p = rng.integers(0, 2, n + extra), rng.random(n + extra)
        known = np.where(np.arange(n + extra) < n, p, np.nan)
        low, high = findings_at_face_value(y, known, 5).ece_if_invalid
        assert low - 1e-12 <= float(binned_ece(y, p, 5).ece) <= high + 1e-12


@pytest.mark.parametrize(
    ("limits", "paid", "message"),
    [
        (Limits(max_queries=5), 5, "max_queries=5 does not pay for the probe, which takes about 200 queries"),
        (Limits(max_cost=6e-3), 0, r"max_cost=0\.006 does not pay for the probe: its about 200 queries cost"),
    ],
)
def test_a_limit_below_the_probe_is_named(
    items: Path, server: Server, tmp_path: Path, limits: Limits, paid: int, message: str
) -> None:
    """The error names it, what was paid for is kept, and a limit that only the probe fits says so."""
    out, prices = tmp_path / "run", Prices(10, 10)
    with pytest.raises(InputError, match=message):
        audit(items, settings(server), out=out, limits=limits, prices=prices)
    assert server.answered == paid
    spend = audit(items, settings(server), out=out, prices=prices).spend
    assert spend.queries == server.answered
    probed, only = spend.probe_queries, Limits(max_queries=spend.probe_queries)
    why = f"= {probed} reached before .* alone took {probed} queries"
    with serving(items) as fresh, pytest.raises(NotIdentifiedError, match=why):
        audit(items, settings(fresh), out=tmp_path / "only", limits=only)


def test_answers_are_safe_in_a_spreadsheet(items: Path, server: Server, tmp_path: Path) -> None:
    """No cell starts a formula or holds a control character; prompts that are not kept are nowhere."""
    audit(items, settings(server, keep_prompts=False), out=tmp_path / "run")
    text = (tmp_path / "run" / "answers.csv").read_text()
    assert not set(text.replace("\n", "")) & {chr(code) for code in [*range(32), 127, 0x202E]}
    rows = list(csv.DictReader(text.splitlines()))
    assert all(cell[0] not in "=+@" for row in rows for cell in row.values() if cell)
    assert all(row["id"][0] != "-" and row["text"] in ("Yes", "No") for row in rows)
    assert not any(b"SECRET" in path.read_bytes() for path in (tmp_path / "run").iterdir())


def test_it_works_inside_a_running_loop(items: Path, server: Server, tmp_path: Path) -> None:
    """A notebook has a loop already: both forms work there."""

    async def notebook() -> tuple[AuditResult, AuditResult]:
        return audit(items, settings(server), out=tmp_path / "a"), await audit_async(
            items, settings(server), out=tmp_path / "b"
        )

    one, two = asyncio.run(notebook())
    assert one.ece == two.ece


def test_an_oracle_of_other_questions_is_refused(
    items: Path, scores: Path, server: Server, tmp_path: Path
) -> None:
    """A score file must hold every item with its label and a probability."""
    text = scores.read_text()
    label = int(text.split("\nq9,")[1][0])
    for old, new, message in [
        ("q100,", "q100000,", "no score for item 'q100'"),
        ("id,label,p", "id,label,q", "must have the columns"),
        (f"\nq9,{label},", f"\nq9,{1 - label},", "are these scores of other questions"),
        (f"\nq9,{label},", f"\nq9,{label},x", r"must be a number in \[0, 1\]"),
    ]:
        assert old in text
        scores.write_text(text.replace(old, new))
        with pytest.raises(InputError, match=message):
            audit(items, settings(server), out=tmp_path / "run", oracle=scores)
    assert server.requests == 0


def test_a_server_that_dies_during_the_probe(items: Path, tmp_path: Path) -> None:
    """The error says that nothing is lost, and the same audit then asks only what was not answered."""
    dead = Behaviour(fault="500")
    with serving(items, later=dead, later_from=40) as server:
        with pytest.raises(EndpointError, match=r"no answer for .*every answer so far is kept; run the same"):
            audit(items, settings(server), out=tmp_path / "run", limits=Limits(patience=0.1))
        answered = server.answered
        server.behaviour = Behaviour()
        found = audit(items, settings(server), out=tmp_path / "run")
        assert 30 < answered < 40
        assert found.complete
        assert found.spend.queries == server.answered


def test_an_oracle_of_other_prompts_or_models(
    items: Path, scores: Path, server: Server, tmp_path: Path
) -> None:
    """Scores of other prompts are refused before anything is asked; another model's name is a warning."""
    rows = list(csv.reader(scores.read_text().splitlines()))

    def scored(model: str, **reading: Any) -> None:
        loaded = open_items(items, RecordFormat(**reading))
        with scores.open("w", newline="") as file:
            asked = ["asked", *(asked_of(item, model) for item in loaded)]
            csv.writer(file).writerows([*row, mark] for row, mark in zip(rows, asked, strict=True))

    scored("replay", system="Be brief.")
    with pytest.raises(InputError, match=r"was scored with another prompt: .*same template, system message"):
        audit(items, settings(server), out=tmp_path / "run", oracle=scores)
    assert server.requests == 0
    for model, other in (("replay", None), ("replay float32", None), ("replayed", "replayed")):
        scored(model)
        found = audit(items, settings(server), out=tmp_path / "run", oracle=scores)
        assert found.oracle is not None
        assert found.oracle.other_model == other
    page = (tmp_path / "run" / "report.html").read_text()
    assert re.search(r"The file was scored with <strong>.*replayed.*If that is another model", page)


def test_broken_results_are_refused(tmp_path: Path) -> None:
    """A file that is no result is refused by name."""
    path = tmp_path / "result.json"
    for content, message in [
        ('{"schema_version": 1}', r"result\.json: not a result"),
        ('{"ece": 1}', r"result\.json: not a result"),
        ('{"schema_version": 0}', "in format 0, and this version of blindcal reads 1"),
        ('{"schema_version": 2}', "in format 2, and this version of blindcal reads 1"),
    ]:
        path.write_text(content)
        with pytest.raises(InputError, match=message):
            AuditResult.load(path)


def test_the_direction_is_undecided_inside_the_interval() -> None:
    """A sign is claimed only where the interval has one."""
    over = [Estimate(0.1, 0.05, 0.2), Estimate(-0.1, -0.2, -0.05), Estimate(0.1, -0.1, 0.2), Estimate(None)]
    seen = [replace(result(), overconfidence=one).direction for one in [*over, Estimate(0.1)]]
    assert seen == ["overconfident", "underconfident", "undecided", "undecided", "undecided"]


def test_the_default_folder_is_safe_and_stable() -> None:
    """Slashes and dots in names lead nowhere."""
    assert default_folder("a/b.jsonl.gz", "org/../model:1") == Path("runs/b-org-..-model-1")


def test_a_bar_shows_its_last_state_with_invalid_share_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    """However soon after the one before, closed or not, because a notebook closes none."""
    bar = ProgressBar(mininterval=3600)
    for done in (1, 489, 600):
        usage = Usage(queries=done, attempts=done, invalid=done // 10)
        bar(Progress(done=done, total=600, usage=usage, cost=0.5, concurrency=32))
    shown = capsys.readouterr().err
    bar.close()
    assert all(word in shown for word in ("600/600", "invalid=10.0%", "cost=$0.5000"))


def test_the_summary_says_what_its_estimates_are_worth(capsys: pytest.CaptureFixture[str]) -> None:
    """Forced, few, without an interval, of one label: the headline says each."""
    usual = result(
        method="blind", estimator="blind", overconfidence=Estimate(0.1), auroc=Estimate(None), parts=()
    )
    few = replace(usual.counts, items=99, positive_labels=99)
    forced = result(auroc=Estimate(None), calibrated_pvalue=0.0001, counts=few, objection="ignored\x1b")
    shown = []
    for found in (usual, forced):
        print_result(found, Path("run"), verbose=True)
        shown.append(capsys.readouterr().out)
    assert "direction  no interval by this method: " in shown[0]
    assert "AUROC      unknown" in shown[0]
    assert not any(word in shown[0] for word in ("WARNING", "only"))
    assert "\nWARNING    forced: ignored\\x1b; these estimates may mean nothing\nWARNING " in shown[1]
    for words in (
        "AUROC      needs items of both labels",
        "p-value    0.0001 for perfect calibration",
        "WARNING    Every item has the positive label. Nothing is known about",
        "WARNING    There are only 99 items: rely on the intervals, not on the estimates.",
    ):
        assert words in shown[1]


# The command line


def test_the_command_prints_the_headline(items: Path, scores: Path, server: Server, tmp_path: Path) -> None:
    """``blindcal audit`` says what the page says first, and the next step; ``-v`` says all."""
    out = tmp_path / "run"
    options = ("--out", out, "--oracle", scores, "--prices", "1,1", "--set", "resamples=50")
    done = blindcal("audit", items, *at(server), *options)
    assert done.exit_code == 0, done.output
    page = Markup((out / "report.html").read_text()).striptags()
    lines = done.stdout.splitlines()
    assert lines[1] in " ".join(page.split())
    assert [line.split()[0] for line in lines[-4:]] == ["ECE", "oracle", "report", "next"]
    assert blindcal(*shlex.split(lines[-1])[2:], "--resamples", 20).exit_code == 0
    verbose = blindcal("audit", items, *at(server), *options, "-v").stdout
    words = "direction ", "AUROC ", "accuracy ", "queries ", "$", "files "
    assert all(word in verbose and word not in done.stdout for word in words)
    status = blindcal("status", out)
    assert status.exit_code == 0
    assert "state      finished" in status.output
    assert json.loads(blindcal("status", out / RUN_FILE, "--json").output)["items"] == N


def test_another_prompt_has_another_folder(
    items: Path, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --out each prompt goes on with a run of its own, which may have a name."""
    monkeypatch.chdir(tmp_path)
    given = ("audit", items, *at(server), "--method", "blind", "--quiet")
    for options, folder in (
        ((), "items-replay"),
        (("--template", "{prompt}"), "items-replay-2"),
        ((), "items-replay"),
        (("--template", "{prompt}"), "items-replay-2"),
        (("--template", "{prompt}", "--name", "in braces"), "items-replay-in-braces"),
    ):
        assert blindcal(*given, *options, "--max-queries", 60).exit_code in (1, 3)
        assert (tmp_path / "runs" / folder / RUN_FILE).exists(), folder
    assert len(list((tmp_path / "runs").iterdir())) == 3
    assert blindcal(*given, "--name", "a", "--out", "b").exit_code == 2


def test_json_and_quiet(items: Path, server: Server, tmp_path: Path) -> None:
    """``--json --quiet`` prints the result and nothing else; ``--quiet`` nothing at all, or a missing key."""
    given = ("audit", items, *at(server), "--out", tmp_path / "run", "--method", "blind", "--quiet")
    assert json.loads(blindcal(*given, "--json").output)["schema_version"] == 1
    assert blindcal(*given).output == ""
    named = blindcal(*given, "--api-key-env", "BLINDCAL_NO_SUCH_KEY").output
    assert named.startswith("warning: BLINDCAL_NO_SUCH_KEY, named by --api-key-env, is not set")


def test_exit_codes(items: Path, server: Server, tmp_path: Path) -> None:
    """Each way to end has its own exit code, and a message of one line."""
    base = ("audit", items, "--method", "blind", "--quiet", "--out", tmp_path / "run")
    assert blindcal(*base, *at(server), "--max-queries", 200).exit_code == 3
    wrong = blindcal(*base[:-1], tmp_path / "b", *at(server), "--model", "other")
    assert "no model 'other'" in printed_error(wrong)
    assert blindcal(*base, "--base-url", server.base_url).exit_code == 2
    assert blindcal(*base, *at(server), "--max-cost", 1).exit_code == 2
    with serving(items, bias="ignored") as deaf:
        unfit = blindcal(*base[:-1], tmp_path / "d", *at(deaf))
    assert unfit.exit_code == 4
    assert "--force" in unfit.output
    assert isinstance(blindcal("status", tmp_path / "none").exception, BlindcalError)


def test_a_dry_run_asks_nothing(items: Path, server: Server, tmp_path: Path) -> None:
    """``--dry-run`` prints queries, tokens and cost, and makes no folder."""
    out = tmp_path / "run"
    shown = blindcal("audit", items, *at(server), "--out", out, "--dry-run", "--prices", "1,1")
    for method in ("decisions", "logprobs", "latent", "temperature", "repeated"):
        assert re.search(rf"^{method} +{N} .*~\$0", shown.output, re.MULTILINE)
    named = blindcal("audit", items, *at(server), "--method", "latent", "--dry-run", "--prices", "1,1")
    assert f"queries    {N} by latent" in named.output
    assert "cost       about $" in named.output
    assert not out.exists()
    assert server.requests == 0


@pytest.mark.parametrize(
    ("options", "methods", "out", "said"),
    [
        ("--model gpt-5", ["repeated"], 512, "gpt-5 reasons before it answers, and"),
        ("--model gpt-5 --set max_tokens=2000", ["repeated"], 2000, "text of up to 2,000 tokens"),
        ("--model openai/o4-mini --set answer_format=sentence", ["repeated"], 512, "openai/o4-mini reasons"),
        ("--model gpt-5-2025-08-07", ["repeated"], 512, "gpt-5-2025-08-07 reasons"),
        ("--model gpt-5.6-luna", ["repeated"], 512, "not with --set reasoning_effort=none"),
        ("--model gpt-5.6-luna --set reasoning_effort=none", ["logprobs", "latent", "temperature"], 1, ""),
        ("--model gpt-5.4", ["decisions", "logprobs", "latent"], 1, ""),
        ("--model gpt-5.4 --set reasoning_effort=low", ["repeated"], 512, "gpt-5.4 reasons"),
        ("--model mine --set reasoning_effort=low", ["temperature", "repeated"], 512, "mine reasons"),
        ("--model mine --set max_tokens=9", ["decisions", "logprobs", "temperature", "repeated"], 9, ""),
        ("--model mine --set answer_format=json", ["temperature", "repeated"], 64, ""),
    ],
)
def test_a_dry_run_counts_the_reasoning_of_known_models(
    options: str, methods: list[str], out: int, said: str, items: Path
) -> None:
    """It plans what such a model allows, at the most that its answers may take, and says what it knows."""
    command = ["audit", items, *options.split(), "--dry-run", "--prices", "1,1"]
    shown = blindcal(*command).output
    plans = json.loads(blindcal(*command, "--json").stdout)
    assert list(plans)[: len(methods)] == methods
    assert len(plans) == len(methods) or methods[-1] in ("latent", "temperature")
    plan = plans[methods[-1]]
    asked = plan["queries"] + plan["control_queries"] + plan["probe_queries"]
    assert plan["completion_tokens"] == out * asked
    assert said in shown
    assert ("model      " in shown) == bool(said)
    assert "dearest" not in shown


def test_a_dry_run_of_an_unknown_model_says_the_dearest_case(items: Path) -> None:
    """Only the probe tells whether it reasons, and what whole texts would cost is said before."""
    command = ["audit", items, "--model", "mine", "--dry-run"]
    most = json.loads(blindcal(*command, "--json", "--prices", "0,1").stdout)["temperature"]["in_text"]
    assert most["completion_tokens"] == 512 * (most["queries"] + most["probe_queries"])
    shown = blindcal(*command, "--prices", "0,1").output
    assert f"up to {most['completion_tokens']:,} tokens out by temperature, ${most['cost']:,.4f}" in shown
    assert "tokens out by temperature, if the model reasons" in blindcal(*command).output
    assert "dearest" in blindcal(*command, "--method", "repeated").output
    assert "dearest" not in blindcal(*command, "--method", "latent").output


def test_templates_may_hold_line_breaks(items: Path) -> None:
    """A backslash and an n, as a shell passes them on, are a line break in a template."""
    broken = blindcal("audit", items, "--model", "gpt-4o", "--template", "{prompt}\\n{x}", "--dry-run")
    assert "field 'x'" in str(broken.exception)
    shown = blindcal("audit", items, "--model", "gpt-4o", "--template", "{prompt}\\n", "--dry-run", "--json")
    plain = blindcal("audit", items, "--model", "gpt-4o", "--dry-run", "--json")
    tokens = [json.loads(done.stdout)["latent"]["prompt_tokens"] for done in (shown, plain)]
    more = tokens[0] - tokens[1]
    assert 0 <= more <= N  # at most one token each, where two characters would be two


def test_hostile_settings_do_not_reach_the_terminal(tmp_path: Path) -> None:
    """What a run file says is shown with its escapes written out."""
    with Store.open(tmp_path / "run" / RUN_FILE) as store:
        store.begin({"model": "\x1b[2Jm", "base_url": "u\x07", "method": "x", "queries": 1, "seed": 0}, [])
    shown = blindcal("status", tmp_path / "run").output
    assert "\x1b" not in shown
    assert "\\x1b[2Jm" in shown


def interrupted(arguments: list[str], stage: str, by: int) -> str:
    """What a command prints after a signal in a stage; it exits with 130."""
    command = [sys.executable, "-m", "blindcal", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any(line.startswith(stage) for line in process.stderr)
    process.send_signal(by)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130, rest
    return rest


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGHUP")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_drains_and_the_next_run_finishes(name: str, items: Path, tmp_path: Path) -> None:
    """After Ctrl-C or `docker stop` every answer is kept, and the same command finishes."""
    out = tmp_path / "run"
    with serving(items) as server:
        given = ["audit", str(items), *at(server), "--method", "blind", "--concurrency", "4"]
        given += ["--out", str(out)]
        assert blindcal(*given, "--max-queries", "300").exit_code == 3
        # what is left takes half a minute; what is under way, half a second
        server.behaviour = Behaviour(latency=0.5)
        assert "the same command goes on" in interrupted(given, "asking", signal.Signals[name])
        paid = server.answered
        with Store.read(out / RUN_FILE) as store:
            kept, controls = store.usage("design").queries, len(stored_controls(store))
        assert kept < N * 2 // 3
        server.behaviour = Behaviour()
        done = blindcal(*given)
        assert done.exit_code == 0, done.output
        controls = open_result(out).spend.control_queries - controls
        assert server.answered - paid == N * 2 // 3 - kept + controls


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGHUP")
def test_a_signal_ends_a_slow_probe_at_once(items: Path, tmp_path: Path) -> None:
    """Interrupted while it probes, the command does not finish the probe first."""
    with serving(items, latency=600.0) as server:  # a first answer would come in ten minutes
        given = ["audit", str(items), *at(server), "--out", str(tmp_path / "run")]
        interrupted(given, "choosing", signal.SIGHUP)
        assert server.answered < 20  # the whole probe takes some eighty
