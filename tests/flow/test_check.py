"""`blindcal check`: an exit code that CI can rely on, and reports that its machines read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

import results
from blindcal.cli import app
from blindcal.errors import InputError
from blindcal.records import Estimate
from blindcal.report.check_summary import junit, summary, workflow_commands
from blindcal.results.check import CheckResult, check
from blindcal.results.result import AuditResult
from blindcal.results.run import open_run
from blindcal.simulation.replay import Server
from commanding import blindcal
from deciding import audited, model, serving, write_items

LABELS, P = model(500, 7)
REFITS = 100


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_items(tmp_path_factory.mktemp("check") / "items.jsonl", LABELS)


@pytest.fixture(scope="module")
def server(items: Path) -> Iterator[Server]:
    with serving(items, P) as one:
        yield one


@pytest.fixture(scope="module")
def run(items: Path, server: Server) -> Path:
    return audited(items, server, items.parent / "run")


def bound(run: Path, quantity: str, confidence: float) -> tuple[float, float]:
    """The estimate, and the upper end of its interval that is passed with probability 1 - confidence."""
    read = open_run(run)
    between = getattr(read.fit(level=2 * confidence - 1, resamples=REFITS), quantity)
    value = getattr(read.result, quantity).value
    return value, between.high


def held(run: Path, *limits: object) -> Result:
    return blindcal("check", run, *limits, "--resamples", REFITS)


def test_the_bound_decides(run: Path) -> None:
    """Below the estimate a limit fails, up to the bound it is undecided, beyond the bound it holds."""
    value, high = bound(run, "ece", 0.95)
    assert value < high
    for limit, status, word in (
        (value - 0.001, 3, "failed"),
        ((value + high) / 2, 4, "undecided"),
        (high + 0.001, 0, "passed"),
    ):
        found = held(run, "--max-ece", limit)
        assert (found.exit_code, word in found.output) == (status, True), found.output


def test_more_confidence_asks_for_more(run: Path) -> None:
    """A limit that holds 80% surely need not hold 99% surely."""
    low, high = bound(run, "ece", 0.8)[1], bound(run, "ece", 0.99)[1]
    limit = (low + high) / 2
    assert held(run, "--max-ece", limit, "--confidence", 0.8).exit_code == 0
    assert held(run, "--max-ece", limit, "--confidence", 0.99).exit_code == 4


def test_the_estimate_may_decide_alone(run: Path) -> None:
    """--estimate holds a limit just beside the estimate, and says that it did."""
    value, _ = bound(run, "ece", 0.95)
    found = held(run, "--max-ece", value + 1e-6, "--estimate")
    assert found.exit_code == 0
    assert "by the estimate alone" in found.output


def test_all_limits_must_hold(run: Path) -> None:
    """Limits from below are held from below, and one that fails decides."""
    accuracy = AuditResult.load(run / "result.json").accuracy.value
    assert accuracy is not None
    generous = ("--max-ece", 0.9, "--min-accuracy", 0.5, "--min-auroc", 0.5, "--max-brier", 0.5)
    assert held(run, *generous, "--max-invalid", 0).exit_code == 0
    assert held(run, "--max-ece", 0.9, "--min-accuracy", accuracy + 0.01).exit_code == 3


def test_json_says_what_was_compared(run: Path) -> None:
    """One object per run, with the estimate and its bound as the fit has them."""
    found = held(run, "--max-ece", 0.5, "--json")
    record = json.loads(found.stdout)
    value, high = bound(run, "ece", 0.95)
    (limit,) = record["limits"]
    assert record["outcome"] == limit["outcome"] == "passed"
    assert limit["estimate"] == value
    assert limit["bound"] == pytest.approx(high)


def test_a_result_alone_is_bounded_by_its_own_interval(run: Path, tmp_path: Path) -> None:
    """result.json without its run: its 95% interval serves 95% confidence, but not 99%."""
    alone = tmp_path / "result.json"
    alone.write_bytes((run / "result.json").read_bytes())
    high = AuditResult.load(alone).ece.high
    assert high is not None
    assert held(alone, "--max-ece", high + 0.001).exit_code == 0
    assert held(alone, "--max-ece", high + 0.2, "--confidence", 0.99).exit_code == 4


def test_a_method_without_intervals_needs_the_estimate(items: Path, server: Server, tmp_path: Path) -> None:
    """blind has no interval: nothing is sure, and the way out is named."""
    folder = audited(items, server, tmp_path / "blind", method="blind")
    found = held(folder, "--max-ece", 0.9)
    assert found.exit_code == 4
    assert "blind gives no intervals; --estimate checks the estimates themselves" in found.output
    assert held(folder, "--max-ece", 0.9, "--estimate").exit_code == 0


def test_answers_of_another_method_read_by_latent_have_bounds(
    items: Path, server: Server, tmp_path: Path
) -> None:
    """What counts is who read the answers, not who asked for them."""
    out = audited(items, server, tmp_path / "run", method="extraction", queries=2, estimator="latent")
    found = check(out, max_ece=0.9, resamples=REFITS)
    assert found.outcome == "passed"
    assert found.verdicts[0].bound is not None


def test_without_a_limit_or_a_run_it_says_so(run: Path, tmp_path: Path) -> None:
    """No limit is a wrong command line, no run an error: neither passes."""
    assert held(run).exit_code == 2
    with pytest.raises(InputError, match="no limit to check"):
        check(run)
    assert held(tmp_path / "nothing", "--max-ece", 0.1).exit_code == 1


def stored(tmp_path: Path, name: str = "result.json", **changes: object) -> Path:
    path = tmp_path / name
    results.result(**changes).save(path)
    return path


def test_a_forced_audit_passes_nothing(tmp_path: Path) -> None:
    """Estimates of an endpoint that the probe found unfit may mean nothing, however good they look."""
    found = check(stored(tmp_path, objection="no"), max_ece=0.5)
    assert found.outcome == "undecided"


def test_an_unfinished_audit_passes_only_if_allowed(tmp_path: Path) -> None:
    """Part of an audit holds no limit, unless part of it is to count; what it breaks is broken."""
    path = stored(tmp_path, complete=False, stopped="max-queries reached")
    found = check(path, max_ece=0.9, max_invalid=0.5)
    assert {one.outcome for one in found.verdicts} == {"undecided"}
    assert all("stopped early" in one.why for one in found.verdicts)
    assert check(path, max_ece=0.9, max_invalid=0.5, partial=True).outcome == "passed"
    assert check(path, max_ece=0.0).outcome == "failed"
    stopped = blindcal("check", path, "--max-ece", 0.9)
    assert stopped.exit_code == 4
    assert "--partial lets it pass" in stopped.output
    assert blindcal("check", path, "--max-ece", 0.9, "--partial").exit_code == 0


def test_what_could_not_be_told_is_undecided(tmp_path: Path) -> None:
    """An estimate that is unknown holds no limit."""
    assert check(stored(tmp_path, ece=Estimate(None)), max_ece=0.5).outcome == "undecided"


def test_invalid_answers_are_counted(tmp_path: Path) -> None:
    """Their share is held to a limit of its own, and what they could do to the ECE is noted."""
    counts = replace(results.result().counts, invalid=100)
    path = stored(tmp_path, counts=counts)
    found = blindcal("check", path, "--max-invalid", 0.05)
    assert found.exit_code == 3
    assert "whatever the invalid answers would have been" in found.output


HOSTILE = "<b>|`x`|\x1b[31m\u202e\uffff [a](http://b) @team ::error::"


def several(tmp_path: Path) -> list[CheckResult]:
    paths = [stored(tmp_path, "a.json"), stored(tmp_path, "b.json", model=HOSTILE)]
    return [check(path, max_ece=0.2, min_accuracy=0.74, min_auroc=0.9) for path in paths]


def test_junit_reads_the_report(tmp_path: Path) -> None:
    """A suite per run, a case per limit; what failed and what is undecided are failures with a reason."""
    root = ElementTree.fromstring(junit(several(tmp_path)))
    assert (root.tag, root.get("tests"), root.get("failures")) == ("testsuites", "6", "4")
    suite = root[0]
    assert (suite.get("name"), suite.get("tests")) == ("gpt-4o-mini on questions.csv", "3")
    kinds = [[one.get("type") for one in case.iter("failure")] for case in suite]
    assert kinds == [[], ["undecided"], ["failed"]]
    assert "\x1b" not in str(root[1].get("name"))


def test_github_shows_the_summary(tmp_path: Path) -> None:
    """A Markdown table goes where GitHub Actions wants it, after what is there; names are text in it."""
    target = tmp_path / "summary.md"
    target.write_text("before\n")
    path = stored(tmp_path, model=HOSTILE)
    runner = CliRunner(env={"GITHUB_STEP_SUMMARY": str(target)})
    assert runner.invoke(app, ["check", str(path), "--max-ece", "0.2"]).exit_code == 0
    text = target.read_text()
    assert text.startswith("before\n### Calibration\n")
    (row,) = [line for line in text.splitlines() if "0.1250" in line]
    assert row.count("|") == 7
    assert "passed" in row
    for written in ("<b>", "`", "@team", "](", "\u202e"):
        assert written not in row


def test_the_summary_names_every_run(tmp_path: Path) -> None:
    """Two runs of three limits are six rows, and the confidence is said once."""
    text = summary(several(tmp_path))
    assert text.count("\n| ") == 1 + 6
    assert "95% confidence" in text


def test_github_annotates_the_pull_request(tmp_path: Path) -> None:
    """What fails is an error, what is undecided a warning, the worst first, each on a line of its own."""
    found = blindcal(
        "check", stored(tmp_path), "--max-ece", 0.2, "--min-accuracy", 0.74, "--min-auroc", 0.9, "--annotate"
    )
    assert found.exit_code == 3
    first, second = [line for line in found.output.splitlines() if line.startswith("::")]
    assert first.startswith("::error title=Calibration%3A gpt-4o-mini on questions.csv::AUROC at least 0.9: ")
    assert second.startswith(
        "::warning title=Calibration%3A gpt-4o-mini on questions.csv::accuracy at least 0.74"
    )
    passed = blindcal("check", stored(tmp_path), "--max-ece", 0.2, "--max-invalid", 0.5, "--annotate")
    (notice,) = [line for line in passed.output.splitlines() if line.startswith("::")]
    assert notice.startswith("::notice title=")
    assert "ECE at most 0.2" in notice
    assert "95%25 sure" in notice
    assert blindcal("check", stored(tmp_path), "--max-ece", 0.2, "--annotate", "--json").exit_code == 2


def test_no_name_escapes_its_annotation(tmp_path: Path) -> None:
    """A hostile name neither begins a command of its own nor ends the property that it is in."""
    path = stored(tmp_path, model=f"a,file=b::\n::add-mask::c%0A{HOSTILE}")
    (line,) = workflow_commands([check(path, max_ece=0.2)])
    assert "\n" not in line
    command, properties, text = line.split("::", 2)
    assert (command, properties.count("="), properties.count(",")) == ("", 2, 0)
    assert properties.startswith("notice title=Calibration%3A a%2Cfile=b%3A%3A\\n%3A%3Aadd-mask%3A%3Ac%250A")
    assert text.startswith("ECE at most 0.2")
