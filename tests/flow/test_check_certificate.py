"""`blindcal check` of a certificate, and of a run that a certificate should still hold for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import results
from blindcal.report.check_summary import junit, summary
from blindcal.results.certificate import Certificate
from blindcal.results.check import check
from blindcal.simulation.replay import Server
from blindcal.store.run_store import ServedModel
from certified_runs import certificate_of
from certifying import ACCEPT, REJECT, certificate
from commanding import blindcal, printed_error
from deciding import audited, model, serving, write_items

LABELS, P = model(300, 7)
REFITS = 40


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A certificate that holds, with two thresholds."""
    return written(tmp_path / "c.json", reject=REJECT)


def written(path: Path, **changes: Any) -> Path:
    certificate(**{"expires": date(2999, 1, 1), **changes}).save(path)
    return path


def outcomes(path: Path, **wanted: Any) -> dict[str, str]:
    return {one.quantity: one.outcome for one in check(path, **wanted).verdicts}


def test_a_certificate_holds_by_its_own_promise(saved: Path) -> None:
    """Without any limit it is held to what was asked for when it was made."""
    done = blindcal("check", saved)
    assert done.exit_code == 0, done.output
    assert (
        "passed     precision of accepted items at least 0.95: 0.9900, bound 0.9530: 396 of 400"
        in done.stdout
    )
    assert "passed     precision of rejected items at least 0.95" in done.stdout
    assert "passed     not expired: it is valid until 2999-01-01" in done.stdout


@pytest.mark.parametrize(
    ("asked", "status", "word"),
    [(0.95, 0, "passed"), (0.953, 0, "passed"), (0.96, 4, "undecided"), (0.995, 3, "failed")],
)
def test_the_bound_decides(saved: Path, asked: float, status: int, word: str) -> None:
    """Up to the bound it passes, up to the share of right decisions it is undecided, beyond it fails."""
    done = blindcal("check", saved, "--min-precision", asked, "--model", "replay")
    assert done.exit_code == status, done.output
    assert f"  {word:<10} precision of accepted items at least {asked:g}" in done.stdout


def test_the_estimate_may_decide(saved: Path) -> None:
    """--estimate compares the share of right decisions itself."""
    assert blindcal("check", saved, "--min-precision", 0.98, "--estimate").exit_code == 0


def test_what_makes_a_certificate_fail(tmp_path: Path) -> None:
    """It has expired, is about another model, or was certified with less confidence than required."""
    path = tmp_path / "c.json"
    old = written(path, expires=date(2026, 1, 31))
    done = blindcal("check", old)
    assert done.exit_code == 3
    assert "failed     not expired: it expired on 2026-01-31: certify again" in done.stdout
    other = blindcal("check", written(path), "--model", "gpt-4o")
    assert other.exit_code == 3
    assert "failed     model gpt-4o: the certificate is about replay" in other.stdout
    unsure = blindcal("check", written(path, level=0.9))
    assert unsure.exit_code == 4
    assert "undecided  certified with at least 95% confidence: it is 90% sure" in unsure.stdout
    assert blindcal("check", path, "--confidence", 0.9).exit_code == 0
    none = replace(ACCEPT, right=0, decided=0, bound=0.0)
    assert outcomes(written(path, accept=none))["accept_precision"] == "failed"


def test_a_changed_certificate_is_an_error(saved: Path) -> None:
    """A bound that was edited is not believed."""
    saved.write_text(saved.read_text().replace("0.953", "0.993"))
    assert "was changed after it was certified" in printed_error(blindcal("check", saved))


def test_reports_for_machines(saved: Path, tmp_path: Path) -> None:
    """JSON, JUnit and the summary say the same; runs and certificates may be checked together."""
    results.result().save(tmp_path / "result.json")
    done = blindcal("check", saved, tmp_path / "result.json", "--max-ece", 0.2, "--json")
    assert done.exit_code == 0, done.output
    one, two = map(json.loads, done.stdout.splitlines())
    assert (one["outcome"], one["items"], one["model"]) == ("passed", 1000, "replay")
    assert [limit["quantity"] for limit in one["limits"]] == [
        *("accept_precision", "reject_precision", "confidence", "expires")
    ]
    assert one["limits"][0]["bound"] == 0.953
    assert [limit["quantity"] for limit in two["limits"]] == ["ece"]
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
    modest = replace(rule, accept=replace(rule.accept, bound=0.5))
    assert set(held(run, modest).values()) == {"passed"}
    both = check(run, max_ece=0.9, certificate=modest, resamples=REFITS)
    assert both.outcome == "passed"
    assert both.verdicts[0].quantity == "ece"


def test_a_run_that_does_not_fit(run: Path) -> None:
    """Another model, prompt or system fails; what the run cannot tell is undecided."""
    rule = certificate_of(run, 0.9)
    modest = replace(rule, accept=replace(rule.accept, bound=0.5))
    assert set(held(run, modest).values()) == {"passed"}
    assert held(run, replace(modest, model="other"))["model"] == "failed"
    assert held(run, replace(modest, prompt_digest="00"))["prompt"] == "failed"
    assert held(run, replace(modest, served=(ServedModel("replay", "fp_0"),)))["endpoint"] == "failed"


def test_a_result_alone_has_no_interval_at_a_threshold(run: Path, tmp_path: Path) -> None:
    """The precision at a threshold needs the answers of the run."""
    alone = tmp_path / "result.json"
    alone.write_bytes((run / "result.json").read_bytes())
    assert held(alone, certificate_of(run, 0.9))["accept_precision"] == "undecided"
