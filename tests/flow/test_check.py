"""`blindcal check`: an exit code that CI can rely on, and reports that its machines read."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner, Result

import results
from blindcal.cli import app
from blindcal.cli.check import junit, summary, workflow_commands
from blindcal.errors import InputError, StoreError
from blindcal.estimate.uncertainty import beyond
from blindcal.records import Estimate
from blindcal.results.certificate import Certificate
from blindcal.results.check import check
from blindcal.results.result import AuditResult
from blindcal.results.run import open_run
from blindcal.store.run_file import ServedModel
from blindcal.store.run_store import RUN_FILE
from certified_runs import REJECT, certificate, certificate_of
from commanding import blindcal, printed_error
from finished_runs import FinishedRuns

REFITS = 60
HOSTILE = "<b>|`x`|\x1b[31m\u202e\uffff [a](http://b) @team ::error::"


@pytest.fixture(scope="module")
def run(finished_runs: FinishedRuns) -> Path:
    return finished_runs.original("plain").folder


def bounds(run: Path, confidence: float) -> tuple[float, float, float]:
    """The accuracy, and the ends of its interval, each passed with probability 1 - confidence."""
    accuracy = open_run(run).fit(level=2 * confidence - 1, resamples=REFITS).accuracy
    assert accuracy.low is not None
    assert accuracy.high is not None
    return float(accuracy), accuracy.low, accuracy.high


def checked(run: Path, *limits: object) -> Result:
    return blindcal("check", run, *limits, "--resamples", REFITS)


def test_the_interval_decides(run: Path) -> None:
    """A limit that all of the interval meets holds, one that none of it meets fails, others are undecided."""
    value, low, high = bounds(run, 0.95)
    assert low < value < high
    for limit, options, status, words in (
        (high + 0.001, (), 3, f"bound {high:.4f}: beyond the limit, 95% sure"),
        ((value + high) / 2, (), 4, "beyond the limit, but that may be chance: audit more items"),
        ((value + high) / 2, ("--strict",), 3, "the estimate is beyond the limit"),
        ((low + value) / 2, (), 4, "within the limit, but not with 95% confidence: audit more items"),
        ((low + value) / 2, ("--strict",), 4, "within the limit, but not with 95% confidence"),
        (low - 0.001, ("--strict",), 0, "95% sure"),
    ):
        done = checked(run, "--min-accuracy", limit, *options)
        assert (done.exit_code, words in done.output) == (status, True), done.output
    record = json.loads(checked(run, "--min-accuracy", 0.5, "--json").stdout)
    (limit,) = record["limits"]
    assert (record["outcome"], limit["outcome"], limit["estimate"]) == ("passed", "passed", value)
    assert limit["bound"] == pytest.approx(low)
    alone = checked(run, "--min-accuracy", value - 1e-6, "--estimate")
    assert (alone.exit_code, "by the estimate alone" in alone.output) == (0, True)
    between = (bounds(run, 0.8)[1] + bounds(run, 0.99)[1]) / 2
    for confidence, status in ((0.8, 0), (0.99, 4)):
        assert checked(run, "--min-accuracy", between, "--confidence", confidence).exit_code == status


def test_few_items_break_no_limit_by_chance(tmp_path: Path) -> None:
    """An ECE that may be anything is beyond no limit, whatever its estimate, unless the check is strict."""
    path = stored(tmp_path, ece=Estimate(0.4, 0.0, 0.86, 0.95))
    assert blindcal("check", path, "--max-ece", 0.1).exit_code == 4
    assert blindcal("check", path, "--max-ece", 0.1, "--strict").exit_code == 3
    assert check(path, max_ece=0.1, confidence=None).outcome == "failed"


def test_all_limits_must_hold(run: Path) -> None:
    """Limits from below are held from below, and one that fails decides."""
    generous = ("--max-ece", 0.9, "--min-accuracy", 0.5, "--min-auroc", 0.5, "--max-brier", 0.5)
    more = ("--max-smece", 0.9, "--max-aurc", 0.9, "--min-coverage", 0)
    assert checked(run, *generous, *more, "--max-invalid", 0).exit_code == 0
    assert checked(run, "--max-ece", 0.9, "--min-accuracy", 0.995).exit_code == 3


def test_a_result_alone_is_bounded_by_its_own_interval(run: Path, tmp_path: Path) -> None:
    """result.json without its run: its 95% interval serves 95% confidence, but not 99%."""
    alone = tmp_path / "result.json"
    alone.write_bytes((run / "result.json").read_bytes())
    high = AuditResult.load(alone).ece.high
    assert high is not None
    assert checked(alone, "--max-ece", high + 0.001).exit_code == 0
    assert checked(alone, "--max-ece", high + 0.2, "--confidence", 0.99).exit_code == 4


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE items SET label = 1 - label",
        "UPDATE rounds SET items = x'00'",
        "UPDATE notes SET value = '[1]'",
    ],
)
def test_an_edited_run_passes_nothing(edit: str, finished_runs: FinishedRuns, tmp_path: Path) -> None:
    """The interval of the result serves where there are no answers, not where these were changed."""
    copied = finished_runs.copy("plain", tmp_path)
    with sqlite3.connect(copied.folder / RUN_FILE) as db:
        db.execute(edit)
    db.close()
    with pytest.raises(StoreError):
        check(copied.folder, max_ece=0.9, resamples=20)


def test_bounds_need_a_fit(finished_runs: FinishedRuns) -> None:
    """blind has no interval and says what helps; what counts is who read the answers, not who asked."""
    folder = finished_runs.original("blind").folder
    done = checked(folder, "--max-ece", 0.9)
    assert done.exit_code == 4
    assert "blind gives no intervals; --estimate checks the estimates themselves" in done.output
    assert checked(folder, "--max-ece", 0.9, "--estimate").exit_code == 0
    verdict = check(finished_runs.original("logprobs").folder, max_ece=0.9, resamples=REFITS).verdicts[0]
    assert (verdict.outcome, verdict.bound is None) == ("passed", False)


def test_without_a_limit_or_a_run_it_fails(run: Path, tmp_path: Path) -> None:
    """No limit is a wrong command line, no run an error: neither passes."""
    assert checked(run).exit_code == 2
    with pytest.raises(InputError, match="no limit to check"):
        check(run)
    assert checked(tmp_path / "nothing", "--max-ece", 0.1).exit_code == 1
    assert checked(run, "--max-ece", 0.1, "--by", "--estimate").exit_code == 2
    assert "run its audit again with --by" in printed_error(checked(run, "--max-ece", 0.5, "--by"))


# Parts


def test_a_part_fails_only_if_it_is_shown_to_be_beyond(finished_runs: FinishedRuns) -> None:
    """A part that is wrong wherever it is sure fails; the others may be beyond the limit by chance."""
    run = finished_runs.original("parts").opened()
    law = np.array(run.parts) == "law"
    swapped = replace(run, labels=np.where(law, 1 - run.labels, run.labels))
    result = check(swapped, max_ece=0.03, by_part=True, resamples=REFITS)
    parts = {verdict.part: verdict for verdict in result.parts}
    assert {name: verdict.outcome for name, verdict in parts.items()} == {
        **dict.fromkeys(("cooking", "physics"), "undecided"),
        "law": "failed",
    }
    assert parts["law"].items == law.sum()
    fit = swapped.fit(part="law", level=0.9, resamples=REFITS)
    shared = beyond(fit.ece, fit.at(level=1 - 2 * 0.05 / 3).ece)  # 5% for the three parts together
    assert parts["law"].bound == pytest.approx(shared.low)
    assert 0.03 < (shared.low or 0.0) < (fit.ece.low or 0.0)
    wide = check(swapped, max_ece=0.9, min_accuracy=0.05, by_part=True, resamples=REFITS)
    assert (len(wide.verdicts), len(wide.parts), wide.outcome) == (2, 6, "passed")


def test_a_failed_part_is_in_every_report(finished_runs: FinishedRuns, tmp_path: Path) -> None:
    """The exit status, the console, the JSON, JUnit and the summary name it."""
    run = finished_runs.original("parts").folder
    report, text = tmp_path / "junit.xml", tmp_path / "summary.md"
    limits = ("--min-accuracy", 0.995, "--by")
    failed = checked(run, *limits, "--junit", report, "--summary", text)
    assert failed.exit_code == 3, failed.output
    assert "by topic: 3 shown to be beyond a limit" in failed.output
    assert "failed     law, 200 items: accuracy at least 0.995" in failed.output
    names = [case.get("name") for case in ElementTree.parse(report).getroot().iter("testcase")]
    assert names[:2] == ["accuracy at least 0.995", "cooking: accuracy at least 0.995"]
    assert "law: accuracy at least 0.995" in text.read_text()
    record = json.loads(checked(run, *limits, "--json").stdout)
    assert (record["by"], [part["outcome"] for part in record["parts"]]) == ("topic", ["failed"] * 3)


def test_the_fit_of_a_part_is_that_of_its_own_answers(finished_runs: FinishedRuns) -> None:
    """It has the part's items, and the estimates that the result shows for it."""
    run = finished_runs.original("parts").opened()
    for part in run.result.parts:
        fit = run.fit(part=part.name, resamples=REFITS)
        assert fit.items == part.items
        assert fit.ece.value == pytest.approx(part.ece.value)
    with pytest.raises(InputError, match="has no part 'x'"):
        run.fit(part="x")


# From results alone


def stored(tmp_path: Path, name: str = "result.json", **changes: object) -> Path:
    path = tmp_path / name
    results.result(**changes).save(path)
    return path


def test_a_doubtful_audit_passes_nothing(tmp_path: Path) -> None:
    """A forced audit, or one that could not estimate, holds no limit, however good it looks."""
    for changes in ({"objection": "unfit"}, {"ece": Estimate(None)}):
        assert check(stored(tmp_path, **changes), max_ece=0.5).outcome == "undecided"


def test_an_unfinished_audit_passes_only_if_allowed(tmp_path: Path) -> None:
    """Part of an audit holds no limit, unless part of it is to count; what it breaks is broken."""
    path = stored(tmp_path, complete=False, stopped="max-queries reached")
    assert check(path, max_ece=0.0).outcome == "failed"
    limits = ("check", path, "--max-ece", 0.9, "--max-invalid", 0.5)
    done = blindcal(*limits)
    assert (done.exit_code, "--partial lets it pass" in done.output) == (4, True)
    assert done.output.count("stopped early") == 2
    assert blindcal(*limits, "--partial").exit_code == 0


def test_invalid_answers_are_counted(tmp_path: Path) -> None:
    """Their share has a limit of its own, and what they could do to the ECE is noted."""
    path = stored(tmp_path, counts=replace(results.result().counts, invalid=100))
    done = blindcal("check", path, "--max-invalid", 0.05)
    assert (done.exit_code, "whatever the invalid answers would have been" in done.output) == (3, True)


LIMITS = ("--max-ece", 0.2, "--min-accuracy", 0.74, "--min-auroc", 0.9)
TITLE = "title=Calibration%3A gpt-4o-mini on questions.csv"


def test_every_report_has_every_limit(tmp_path: Path) -> None:
    """JUnit has a case per limit, GitHub's summary a row after what is there, annotations the worst first."""
    paths = [stored(tmp_path, "a.json"), stored(tmp_path, "b.json", model=HOSTILE)]
    report, target = tmp_path / "junit.xml", tmp_path / "summary.md"
    target.write_text("before\n")
    arguments = ["check", *map(str, (*paths, *LIMITS)), "--junit", str(report), "--annotate"]
    done = CliRunner(env={"GITHUB_STEP_SUMMARY": str(target)}).invoke(app, arguments)
    assert done.exit_code == 3
    root = ElementTree.parse(report).getroot()
    assert (root.tag, root.get("tests"), root.get("failures")) == ("testsuites", "6", "4")
    suite = root[0]
    assert (suite.get("name"), suite.get("tests")) == ("gpt-4o-mini on questions.csv", "3")
    kinds = [[failure.get("type") for failure in case.iter("failure")] for case in suite]
    assert kinds == [[], ["undecided"], ["failed"]]
    assert "\x1b" not in str(root[1].get("name"))
    text = target.read_text()
    assert text.startswith("before\n### Calibration\n")
    rows = [line for line in text.splitlines() if "0.1250" in line]
    assert [row.count("|") for row in rows] == [7, 7]
    assert not [word for word in ("<b>", "`", "@team", "](", "\u202e") if word in rows[1]]
    assert text.count("\n| ") == 1 + 6
    lines = [line for line in done.output.splitlines() if line.startswith("::")]
    assert [line.split(" ", 1)[0] for line in lines] == ["::error"] * 2 + ["::warning"] * 2
    assert lines[0].startswith(f"::error {TITLE}::AUROC at least 0.9: ")
    assert lines[2].startswith(f"::warning {TITLE}::accuracy at least 0.74")
    assert blindcal("check", paths[0], "--max-ece", 0.2, "--annotate", "--json").exit_code == 2


def test_no_name_escapes_its_annotation(tmp_path: Path) -> None:
    """A hostile name neither begins a command of its own nor ends the property that it is in."""
    path = stored(tmp_path, model=f"a,file=b::\n::add-mask::c%0A{HOSTILE}")
    (line,) = workflow_commands([check(path, max_ece=0.2)])
    assert "\n" not in line
    command, properties, text = line.split("::", 2)
    assert (command, properties.count("="), properties.count(",")) == ("", 2, 0)
    assert properties.startswith("notice title=Calibration%3A a%2Cfile=b%3A%3A\\n%3A%3Aadd-mask%3A%3Ac%250A")
    assert text.startswith("ECE at most 0.2")
    assert "95%25 sure" in text


# Certificates, and runs that one should still hold for


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A certificate that holds, with two thresholds."""
    return written(tmp_path / "c.json", reject=REJECT)


def written(path: Path, **changes: Any) -> Path:
    certificate(**{"expires": date(2999, 1, 1), **changes}).save(path)
    return path


def outcomes(path: Path, **wanted: Any) -> dict[str, str]:
    return {verdict.quantity: verdict.outcome for verdict in check(path, **wanted).verdicts}


ACCEPTED = "precision of accepted items at least"


@pytest.mark.parametrize(
    ("changes", "options", "status", "line"),
    [
        ({}, (), 0, f"passed     {ACCEPTED} 0.95: 0.9900, bound 0.9530: 396 of 400"),
        ({}, (), 0, "passed     precision of rejected items at least 0.95"),
        ({}, (), 0, "passed     not expired: it is valid until 2999-01-01"),
        ({}, ("--min-precision", 0.953, "--model", "replay"), 0, f"passed     {ACCEPTED} 0.953"),
        ({}, ("--min-precision", 0.96), 4, f"undecided  {ACCEPTED} 0.96"),
        ({}, ("--min-precision", 0.995), 3, f"failed     {ACCEPTED} 0.995"),
        ({}, ("--min-precision", 0.98, "--estimate"), 0, f"passed     {ACCEPTED} 0.98"),
        ({}, ("--model", "gpt-4o"), 3, "failed     model gpt-4o: the certificate is about replay"),
        ({"expires": date(2026, 1, 31)}, (), 3, "failed     not expired: it expired on 2026-01-31: certify"),
        ({"level": 0.9}, (), 4, "undecided  certified with at least 95% confidence: it is 90% sure"),
        ({"level": 0.9}, ("--confidence", 0.9), 0, "passed     certified with at least 90% confidence"),
    ],
)
def test_a_certificate_is_held_to_its_promise(
    tmp_path: Path, changes: dict[str, Any], options: tuple[Any, ...], status: int, line: str
) -> None:
    """Without a limit it is held to its goal: up to the bound it passes, beyond the share seen it fails."""
    path = written(tmp_path / "c.json", **{"reject": REJECT, **changes})
    done = blindcal("check", path, *options)
    assert done.exit_code == status, done.output
    assert line in done.stdout


def test_reports_for_machines(saved: Path, tmp_path: Path) -> None:
    """JSON, JUnit and the summary say the same; runs and certificates may be checked together."""
    results.result().save(tmp_path / "result.json")
    done = blindcal("check", saved, tmp_path / "result.json", "--max-ece", 0.2, "--json")
    assert done.exit_code == 0, done.output
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["outcome"], first["items"], first["model"]) == ("passed", 1000, "replay")
    quantities = ["accept_precision", "reject_precision", "confidence", "expires"]
    assert [limit["quantity"] for limit in first["limits"]] == quantities
    assert first["limits"][0]["bound"] == 0.953
    assert [limit["quantity"] for limit in second["limits"]] == ["ece"]
    checked = [check(saved, min_precision=0.96)]
    root = ElementTree.fromstring(junit(checked))
    assert (root.get("tests"), root.get("failures")) == ("4", "1")
    assert root[0].get("name") == "certificate of replay"
    text = summary(checked)
    assert text.count("\n| ") == 1 + 4
    assert all(line.count("|") == 7 for line in text.splitlines() if line.startswith("| replay"))


def test_wrong_command_lines(saved: Path, tmp_path: Path) -> None:
    """A run needs a limit, and what is about certificates needs one."""
    results.result().save(tmp_path / "result.json")
    assert blindcal("check", saved, tmp_path / "result.json").exit_code == 2
    done = blindcal("check", tmp_path / "result.json", "--max-ece", 0.2, "--min-precision", 0.9)
    assert done.exit_code == 2
    assert "--min-precision is about certificates, and none is given" in done.output


def held(run: Path, rule: Certificate) -> dict[str, str]:
    return outcomes(run, certificate=rule, resamples=REFITS)


def test_a_run_fits_the_certificate_of_its_model(run: Path, tmp_path: Path) -> None:
    """Same model, prompt and endpoint, and a precision that may be what was promised."""
    rule = certificate_of(run, 0.1, 0.05)
    rule.save(tmp_path / "c.json")
    done = blindcal("check", run, "--certificate", tmp_path / "c.json", "--resamples", REFITS)
    assert done.exit_code == 3, done.output  # hardly anything is below 0.1, and 0.95 is promised
    for word in ("model replay", "prompt as certified", "endpoint as certified"):
        assert f"passed     {word}" in done.stdout
    assert "failed     precision of accepted items at least 0.953" in done.stdout
    assert "the run contradicts it with 95% confidence: certify again" in done.stdout


def test_a_run_that_does_not_fit(run: Path, tmp_path: Path) -> None:
    """Another model, prompt or system fails; what a result alone cannot tell is undecided."""
    rule = certificate_of(run, 0.9)
    modest = replace(rule, accept=replace(rule.accept, bound=0.5))
    assert set(held(run, modest).values()) == {"passed"}
    assert held(run, replace(modest, model="other"))["model"] == "failed"
    assert held(run, replace(modest, prompt_digest="00"))["prompt"] == "failed"
    assert held(run, replace(modest, served=(ServedModel("replay", "fp_0"),)))["endpoint"] == "failed"
    alone = tmp_path / "result.json"
    alone.write_bytes((run / "result.json").read_bytes())
    assert held(alone, rule)["accept_precision"] == "undecided"
