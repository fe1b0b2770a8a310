"""`blindcal check` of a certificate, and of a run that a certificate should still hold for."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import results
from blindcal.cli.check import junit, summary
from blindcal.results.certificate import Certificate
from blindcal.results.check import check
from blindcal.store.run_file import ServedModel
from certified_runs import ACCEPT, REJECT, certificate, certificate_of
from commanding import blindcal
from finished_runs import FinishedRuns

REFITS = 20
NONE = replace(ACCEPT, right=0, decided=0, bound=0.0)


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
        ({"accept": NONE}, (), 3, f"failed     {ACCEPTED} 0.95"),
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


@pytest.fixture
def run(finished_runs: FinishedRuns) -> Path:
    return finished_runs.original("plain").folder


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
