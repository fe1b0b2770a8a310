"""The whole audit over real HTTP: what it finds, refuses, keeps and writes, in Python and as a command."""

from __future__ import annotations

import asyncio
import csv
import json
import re
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
from blindcal.items.question_files import load
from blindcal.items.record_format import RecordFormat
from blindcal.items.score_files import asked_of, read_scores
from blindcal.prices import Prices
from blindcal.progress_bar import ProgressBar
from blindcal.records import Estimate, Progress, Reply, Request, Targets, Token, Usage
from blindcal.report.page import render
from blindcal.results.result import AuditResult
from blindcal.results.run import open_result
from blindcal.settings import Settings
from blindcal.simulation.simulate import simulate
from blindcal.store.run_store import RUN_FILE, Store
from commanding import blindcal
from misbehaving import Behaviour, Server
from serving import replaying

N = 400
HOSTILE = ['=HYPERLINK("http://x")', "\x1b[2Jwiped", "+1", "@x", "a\x00b", "\u202egnp", "{q.__class__}"]


def truth() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.random.default_rng(2).beta(0.4, 0.4, N)


@pytest.fixture
def items(tmp_path: Path) -> Path:
    """A file of questions, some of them with hostile ids and texts."""
    path = tmp_path / "items.jsonl"
    labels = np.random.default_rng(3).random(N) < truth() ** 2
    with path.open("w") as file:
        for k in range(N):
            name = HOSTILE[k] if k < len(HOSTILE) else f"q{k}"
            record = {"id": name, "prompt": f"{name} SECRET{k}?", "label": int(labels[k])}
            file.write(json.dumps(record) + "\n")
    return path


@pytest.fixture
def scores(items: Path, tmp_path: Path) -> Path:
    """The truth as a score file."""
    path = tmp_path / "scores.csv"
    loaded = load(items)
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
    base = {"model": "replay", "base_url": server.base_url, "method": "blind", "resamples": 50}
    return Settings(**{**base, **more})


def test_an_audit_finds_and_writes_everything(
    items: Path, scores: Path, server: Server, tmp_path: Path
) -> None:
    """An audit ends with a result, the same in its file, beside the answers and the run."""
    found = audit(items, settings(server), out=tmp_path / "run", oracle=scores, prices=Prices(1, 2))
    assert found.complete
    assert found.counts.items == N
    assert found.counts.invalid == 0
    assert found.spend.asked == found.counts.positive + found.counts.negative
    assert found.spend.cost == pytest.approx(
        (found.spend.prompt_tokens + 2 * found.spend.completion_tokens) / 1e6
    )
    assert found.oracle is not None
    loaded = load(items)
    true = binned_ece(loaded.labels, truth(), len(found.bins)).ece
    assert found.oracle.ece == pytest.approx(true.value)
    assert found.probe is not None
    assert found.probe.verdict == "thresholds"
    assert AuditResult.load(tmp_path / "run" / "result.json") == found
    assert AuditResult.load(str(tmp_path / "run" / "result.json")) == found
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {
        "run.sqlite",
        "result.json",
        "answers.csv",
    }


@pytest.mark.parametrize("temperature", ["honoured", "ignored"])
def test_an_unverified_scale_is_in_the_headline(
    items: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], temperature: str
) -> None:
    """Where nothing shows by which factor the bias acts, console and page say so; else they do not."""
    with replaying(items, truth(), temperature=temperature) as server:
        found = audit(items, settings(server), out=tmp_path / "run")
    print_result(found, tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text()
    for shown in (capsys.readouterr().out, page):
        assert ("the scale of logit_bias" in shown) == (temperature == "ignored")


@pytest.mark.parametrize("method", ["latent", "blind", "extraction", "sampling", "temperature"])
def test_every_method_finds_over_http_what_a_simulation_finds(
    method: str, items: Path, scores: Path, server: Server, tmp_path: Path
) -> None:
    """The same design, seed and probabilities give the same ECE to the last digit, over HTTP or not."""
    queries = {"extraction": 8, "sampling": 8, "temperature": 6}.get(method)
    chosen = settings(server, method=method, queries=queries, send_seed=True)
    found = audit(items, chosen, out=tmp_path / "run", oracle=scores)
    labels = read_scores(scores).labels
    known = simulate(method, labels, truth(), queries=queries or 1, bins=len(found.bins), repeats=1)
    assert found.ece.value == known.estimates[0]
    assert found.oracle is not None
    assert found.oracle.ece == known.oracle
    assert found.oracle.difference == known.estimates[0] - known.oracle
    assert found.semantics == ("sum" if method == "temperature" else "pair")


def test_the_same_call_again_costs_nothing(items: Path, server: Server, tmp_path: Path) -> None:
    """A finished audit is read back: no query, the same figures."""
    first = audit(items, settings(server), out=tmp_path / "run")
    asked = server.requests
    second = audit(items, settings(server), out=tmp_path / "run")
    assert server.requests == asked
    assert (second.ece, second.bins, second.spend) == (first.ece, first.bins, first.spend)


def test_other_settings_are_refused(items: Path, server: Server, tmp_path: Path) -> None:
    """A folder that holds another audit is not touched, and the difference is shown."""
    audit(items, settings(server), out=tmp_path / "run")
    with pytest.raises(InputError, match="seed: 0 then, 1 now"):
        audit(items, settings(server, seed=1), out=tmp_path / "run")
    items.write_text(items.read_text().replace("SECRET9?", "SECRET9!"))
    with pytest.raises(InputError, match=r"other settings \(the questions changed"):
        audit(items, settings(server), out=tmp_path / "run")


def test_blind_takes_no_number_of_queries() -> None:
    """The blind design asks what it asks; another number is refused, not ignored."""
    with pytest.raises(InputError, match="blind always asks 1 - 1/bins per item, not 3"):
        Settings(model="m", method="blind", queries=3)


def test_the_level_and_the_key_may_change(items: Path, server: Server, tmp_path: Path) -> None:
    """What shapes no query does not bind a run."""
    audit(items, settings(server), out=tmp_path / "run")
    again = audit(items, settings(server, level=0.9, api_key_env="OTHER", timeout=9), out=tmp_path / "run")
    assert again.level == 0.9


def test_an_ignored_bias_is_refused_unless_forced(items: Path, tmp_path: Path) -> None:
    """Where logit_bias does nothing there is no audit by thresholds; forcing one leaves a mark."""
    with serving(items, bias="ignored") as server:
        with pytest.raises(UnfitError, match=r"ignored: use method='temperature'; or force=True continues"):
            audit(items, settings(server), out=tmp_path / "run")
        forced = audit(items, settings(server), out=tmp_path / "forced", force=True)
        by_heat = audit(items, settings(server, method="temperature"), out=tmp_path / "heat")
    assert forced.probe is not None
    assert forced.probe.verdict == "temperature"
    assert forced.objection == "logit_bias is accepted but ignored"
    assert by_heat.complete


def test_a_clamp_is_refused_with_what_would_fit(items: Path, tmp_path: Path) -> None:
    """A clamped bias is refused with the options that suit it, then temperature, and force last."""
    cures = r"run it again with offset=\S+ and limit=\S+; or use method='temperature'; or force=True"
    with serving(items, clamp=10.0) as server, pytest.raises(UnfitError, match=cures):
        audit(items, settings(server), out=tmp_path / "run")


def test_an_endpoint_without_replies_is_not_offered_force(items: Path, tmp_path: Path) -> None:
    """Where nothing usable is answered, forcing is no way out and is not named."""
    with serving(items, fault="empty") as server, pytest.raises(UnfitError) as refused:
        audit(items, settings(server), out=tmp_path / "run")
    assert "--force" not in str(refused.value)


def test_a_refused_endpoint_is_probed_afresh(items: Path, tmp_path: Path) -> None:
    """After a refusal the next call asks again: the endpoint may have been mended."""
    with serving(items, bias="ignored") as server:
        with pytest.raises(UnfitError):
            audit(items, settings(server), out=tmp_path / "run")
        server.behaviour = Behaviour()
        assert audit(items, settings(server), out=tmp_path / "run").complete


def test_invalid_answers_are_counted_and_bounded(items: Path, tmp_path: Path) -> None:
    """Answers outside the targets widen what the ECE can be, and the result says how much."""
    with serving(items, outside=0.05) as server:
        found = audit(items, settings(server), out=tmp_path / "run")
    assert found.ece.value is not None
    low, high = found.ece_if_invalid
    assert found.counts.invalid > 0
    assert low < found.ece.value < high


def test_the_bound_of_invalid_answers_holds() -> None:
    """Whatever items join, the ECE stays inside the bound."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        n, extra = rng.integers(5, 50), rng.integers(1, 30)
        y, p = rng.integers(0, 2, n + extra), rng.random(n + extra)
        known = np.where(np.arange(n + extra) < n, p, np.nan)
        low, high = findings_at_face_value(y, known, 5).ece_if_invalid
        assert low - 1e-12 <= float(binned_ece(y, p, 5).ece) <= high + 1e-12


def test_a_stopped_audit_says_so_and_goes_on(items: Path, server: Server, tmp_path: Path) -> None:
    """With a limit reached the result is partial; without it the same call finishes."""
    partial = audit(items, settings(server), out=tmp_path / "run", limits=Limits(max_queries=300))
    assert not partial.complete
    assert partial.stopped == "max_queries = 300 reached"
    assert partial.spend.queries <= 300
    assert partial.counts.unanswered > 0
    assert audit(items, settings(server), out=tmp_path / "run").complete


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (
            Limits(max_queries=5),
            "max_queries=5 does not pay for the probe, which takes about 170 queries",
        ),
        (Limits(max_cost=6e-3), r"max_cost=0\.006 does not pay for the probe, .* 170 queries, \$0\.0"),
    ],
)
def test_a_limit_below_the_probe_is_named(
    items: Path, server: Server, tmp_path: Path, limits: Limits, message: str
) -> None:
    """A limit that the probe alone reaches is an error that names it, and what was paid for is kept."""
    prices = Prices(10, 10)
    with pytest.raises(InputError, match=message):
        audit(items, settings(server), out=tmp_path / "run", limits=limits, prices=prices)
    assert 0 < server.answered < 150
    found = audit(items, settings(server), out=tmp_path / "run", prices=prices)
    assert found.spend.queries == server.answered


def test_a_limit_that_only_the_probe_fits_is_named(items: Path, tmp_path: Path) -> None:
    """With nothing left after the probe the error says what it took, not that nothing can be estimated."""
    with serving(items) as server:
        probed = audit(items, settings(server), out=tmp_path / "a").spend.probe_queries
    only = Limits(max_queries=probed)
    told = f"= {probed} reached before .* alone took {probed} queries"
    with serving(items) as server, pytest.raises(NotIdentifiedError, match=told):
        audit(items, settings(server), out=tmp_path / "b", limits=only)


def test_answers_are_safe_in_a_spreadsheet(items: Path, server: Server, tmp_path: Path) -> None:
    """No cell of answers.csv starts a formula or holds a control character."""
    audit(items, settings(server), out=tmp_path / "run")
    text = (tmp_path / "run" / "answers.csv").read_text()
    assert not set(text.replace("\n", "")) & {chr(code) for code in [*range(32), 127, 0x202E]}
    rows = list(csv.DictReader(text.splitlines()))
    assert all(cell[0] not in "=+@" for row in rows for cell in row.values() if cell)
    assert all(row["id"][0] != "-" and row["text"] in ("Yes", "No") for row in rows)


def test_without_prompts_no_file_holds_a_question(items: Path, server: Server, tmp_path: Path) -> None:
    """With ``keep_prompts=False`` no question can be read from the run's folder."""
    audit(items, settings(server, keep_prompts=False), out=tmp_path / "run")
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


def test_a_service_that_tells_no_ids(items: Path, tmp_path: Path) -> None:
    """Without token ids only a method that sends a bias is stopped."""
    with serving(items, tokenize="none") as server:
        with pytest.raises(UnfitError, match="does not tell its token ids"):
            audit(items, settings(server), out=tmp_path / "biased")
        found = audit(items, settings(server, method="temperature"), out=tmp_path / "run")
    assert found.complete


def test_an_oracle_of_other_prompts_or_models(
    items: Path, scores: Path, server: Server, tmp_path: Path
) -> None:
    """Scores of other prompts are refused before anything is asked; another model's name is a warning."""
    rows = list(csv.reader(scores.read_text().splitlines()))

    def scored(model: str, **reading: Any) -> None:
        loaded = load(items, RecordFormat(**reading))
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


class Evasive:
    """An endpoint that never says one of the words."""

    async def ask(self, request: Request) -> Reply:  # noqa: ARG002 - whatever is asked
        return Reply("Maybe")

    async def close(self) -> None:
        pass


def test_a_run_without_a_valid_answer_has_a_page(tmp_path: Path) -> None:
    """Where no answer is one of the words, asking ends early, and the page says so and claims nothing."""
    path = tmp_path / "items.jsonl"
    lines = [json.dumps({"id": f"q{k}", "prompt": f"Is {k}?", "label": k % 2}) for k in range(400)]
    path.write_text("\n".join(lines))
    how: dict[str, Any] = {"endpoint": Evasive(), "targets": Targets((Token(1, "Yes"),), (Token(2, "No"),))}
    found = audit(path, Settings(model="m"), out=tmp_path / "run", force=True, **how)
    assert found.ece.value is None
    assert not found.complete
    assert found.stopped is not None
    assert "none of" in found.stopped
    assert 50 <= found.counts.invalid < 400
    assert found.counts.positive + found.counts.negative == 0
    page = Markup(render(found)).striptags()
    assert "Nothing can be said about its calibration: not one of" in page
    assert (tmp_path / "run" / "answers.csv").read_text().count("Maybe") == found.counts.invalid


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


def test_the_direction_is_undecided_inside_the_interval(items: Path, server: Server, tmp_path: Path) -> None:
    """A sign is claimed only where the interval has one."""
    found = audit(items, settings(server), out=tmp_path / "run")
    over = [Estimate(0.1, 0.05, 0.2), Estimate(-0.1, -0.2, -0.05), Estimate(0.1, -0.1, 0.2), Estimate(None)]
    seen = [replace(found, overconfidence=one).direction for one in [*over, Estimate(0.1)]]
    assert seen == ["overconfident", "underconfident", "undecided", "undecided", "undecided"]


def test_the_default_folder_is_safe_and_stable() -> None:
    """Slashes and dots in names lead nowhere."""
    assert default_folder("a/b.jsonl.gz", "org/../model:1") == Path("runs/b-org-..-model-1")


def test_a_bar_shows_invalid_share_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    """The bar counts what is on disk and shows what it cost."""
    with ProgressBar() as bar:
        bar(
            Progress(
                done=10, total=20, usage=Usage(queries=10, attempts=10, invalid=1), cost=0.5, concurrency=32
            )
        )
    shown = capsys.readouterr().err
    assert "10/20" in shown
    assert "invalid=10.0%" in shown
    assert "cost=$0.5000" in shown


def test_a_bar_ends_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    """However soon after the one before, the last state is shown, closed or not: a notebook closes none."""
    bar = ProgressBar(mininterval=3600)
    bar(Progress(done=1, total=600, usage=Usage(queries=1, attempts=1), cost=None, concurrency=32))
    bar(Progress(done=489, total=600, usage=Usage(queries=489, attempts=489), cost=None, concurrency=32))
    bar(Progress(done=600, total=600, usage=Usage(queries=600, attempts=600), cost=None, concurrency=32))
    assert "600/600" in capsys.readouterr().err
    bar.close()


def test_the_summary_says_what_its_estimates_are_worth(
    items: Path, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Forced, few, without an interval, of one label: the headline says each."""
    found = audit(items, settings(server), out=tmp_path / "run")
    print_result(found, tmp_path)
    shown = capsys.readouterr().out
    assert "direction  no interval by this method: " in shown
    assert "AUROC      unknown" in shown
    assert "WARNING" not in shown
    assert "few items" not in shown
    little = replace(
        found,
        method="latent",
        estimator="latent",
        ece=Estimate(0.1, 0.05, 0.2),
        calibrated_pvalue=0.0001,
        counts=replace(found.counts, items=99, positive_labels=99),
        objection="ignored\x1b",
    )
    print_result(little, tmp_path)
    shown = capsys.readouterr().out
    assert shown.startswith("WARNING    forced: ignored\\x1b; these estimates may mean nothing\nECE ")
    assert "AUROC      needs items of both labels" in shown
    assert "p-value    0.0001 for perfect calibration" in shown
    assert "note       few items: read the interval, not the estimate" in shown


# The command line


def test_the_command_prints_the_headline(items: Path, scores: Path, server: Server, tmp_path: Path) -> None:
    """``blindcal audit`` ends with ECE, direction, queries and where the files are; then status knows it."""
    out = tmp_path / "run"
    done = blindcal(
        "audit", items, "--model", "replay", "--base-url", server.base_url, "--out", out, "--oracle", scores,
        "--prices", "1,1", "--set", "resamples=50",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    for word in (
        "ECE ",
        "direction ",
        "AUROC ",
        "accuracy ",
        "queries ",
        "$",
        "oracle ",
        "files ",
        "report ",
    ):
        assert word in done.output
    status = blindcal("status", out)
    assert status.exit_code == 0
    assert "state      finished" in status.output
    assert json.loads(blindcal("status", out / RUN_FILE, "--json").output)["items"] == N


def test_json_and_quiet(items: Path, server: Server, tmp_path: Path) -> None:
    """``--json --quiet`` prints the result and nothing else; ``--quiet`` nothing at all."""
    arguments = (
        "audit",
        items,
        "--model",
        "replay",
        "--base-url",
        server.base_url,
        "--out",
        tmp_path / "run",
    )
    shown = blindcal(*arguments, "--method", "blind", "--json", "--quiet")
    assert json.loads(shown.output)["schema_version"] == 1
    assert blindcal(*arguments, "--method", "blind", "--quiet").output == ""


def test_exit_codes(items: Path, server: Server, tmp_path: Path) -> None:
    """Each way to end has its own exit code, and a message of one line."""
    base = ("audit", items, "--method", "blind", "--quiet", "--base-url", server.base_url, "--out")
    assert blindcal(*base, tmp_path / "a", "--model", "replay", "--max-queries", 200).exit_code == 3
    wrong = blindcal(*base, tmp_path / "b", "--model", "other")
    assert isinstance(wrong.exception, BlindcalError)
    assert "no model 'other'" in str(wrong.exception)
    assert isinstance(blindcal(*base, tmp_path / "c").exception, InputError)
    assert blindcal(*base, tmp_path / "c", "--model", "replay", "--max-cost", 1).exit_code == 2
    with serving(items, bias="ignored") as deaf:
        unfit = blindcal(*base[:-2], deaf.base_url, "--out", tmp_path / "d", "--model", "replay")
    assert unfit.exit_code == 4
    assert "--force" in unfit.output
    assert isinstance(blindcal("status", tmp_path / "none").exception, BlindcalError)


def test_a_key_that_is_named_but_not_set_is_warned_of(items: Path, server: Server, tmp_path: Path) -> None:
    """A variable given by name is missed when it is not there; the default one is not."""
    arguments = ("audit", items, "--model", "replay", "--base-url", server.base_url, "--method", "blind")
    named = blindcal(*arguments, "--out", tmp_path / "a", "--quiet", "--api-key-env", "BLINDCAL_NO_SUCH_KEY")
    assert named.output.startswith("warning: BLINDCAL_NO_SUCH_KEY, named by --api-key-env, is not set")
    assert blindcal(*arguments, "--out", tmp_path / "a", "--quiet").output == ""


@pytest.mark.parametrize("command", ["audit", "probe", "simulate"])
def test_negative_seeds_are_a_wrong_command_line(command: str, items: Path) -> None:
    """A seed below 0 is refused by the command line itself."""
    refused = blindcal(command, items, *(() if command == "simulate" else ("--model", "m")), "--seed", -1)
    assert refused.exit_code == 2
    assert "--seed" in refused.output


def test_a_dry_run_asks_nothing(items: Path, server: Server, tmp_path: Path) -> None:
    """``--dry-run`` prints queries, tokens and cost, and makes no folder."""
    shown = blindcal(
        "audit", items, "--model", "replay", "--base-url", server.base_url, "--out", tmp_path / "run",
        "--dry-run", "--prices", "1,1",
    )  # fmt: skip
    assert f"queries    {N} by latent" in shown.output
    assert "cost       about $" in shown.output
    assert not (tmp_path / "run").exists()
    assert server.requests == 0


def test_templates_may_hold_line_breaks(items: Path) -> None:
    """A backslash and an n, as a shell passes them on, are a line break in a template."""
    broken = blindcal("audit", items, "--model", "gpt-4o", "--template", "{prompt}\\n{x}", "--dry-run")
    assert "field 'x'" in str(broken.exception)
    shown = blindcal("audit", items, "--model", "gpt-4o", "--template", "{prompt}\\n", "--dry-run", "--json")
    plain = blindcal("audit", items, "--model", "gpt-4o", "--dry-run", "--json")
    more = json.loads(shown.stdout)["prompt_tokens"] - json.loads(plain.stdout)["prompt_tokens"]
    assert 0 <= more <= N  # at most one token each, where two characters would be two


def test_hostile_settings_do_not_reach_the_terminal(tmp_path: Path) -> None:
    """What a run file says is shown with its escapes written out."""
    with Store.open(tmp_path / "run" / RUN_FILE) as store:
        store.begin({"model": "\x1b[2Jm", "base_url": "u\x07", "method": "x", "queries": 1, "seed": 0}, [])
    shown = blindcal("status", tmp_path / "run").output
    assert "\x1b" not in shown
    assert "\\x1b[2Jm" in shown


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")
def test_ctrl_c_drains_and_the_next_run_finishes(items: Path, tmp_path: Path) -> None:
    """An interrupted command exits with 130 having kept every answer, and the same command finishes."""
    with serving(items) as server:
        given = ["audit", str(items), "--model", "replay", "--method", "blind", "--concurrency", "4"]
        given += ["--out", str(tmp_path / "run"), "--base-url", server.base_url]
        assert blindcal(*given, "--max-queries", "300").exit_code == 3
        server.behaviour = Behaviour(
            latency=0.5
        )  # what is left takes half a minute; what is under way, half a second
        command = [sys.executable, "-c", "from blindcal.cli import main; main()", *given]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("asking"):
                break
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130, said
        assert "the same command goes on" in said
        paid = server.answered
        with Store.read(tmp_path / "run" / RUN_FILE) as store:
            kept, controls = store.usage("design").queries, len(stored_controls(store))
        assert kept < N * 2 // 3
        server.behaviour = Behaviour()
        done = blindcal(*given)
        assert done.exit_code == 0, done.output
        controls = open_result(tmp_path / "run").spend.control_queries - controls
        assert server.answered - paid == N * 2 // 3 - kept + controls


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")
def test_ctrl_c_ends_a_slow_probe_at_once(items: Path, tmp_path: Path) -> None:
    """Interrupted while it probes, the command does not finish the probe first."""
    command = [sys.executable, "-c", "from blindcal.cli import main; main()", "audit", str(items)]
    command += ["--model", "replay", "--out", str(tmp_path / "run")]
    with serving(items, latency=600.0) as server:  # a first answer would come in ten minutes
        command += ["--base-url", server.base_url]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("choosing"):
                break
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130, said
        assert server.answered < 20  # the whole probe takes some eighty
