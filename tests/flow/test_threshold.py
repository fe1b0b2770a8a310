"""`blindcal threshold`: what it promises, and a request that takes the very decision, over real HTTP."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blindcal.asking.run_context import Limits
from blindcal.certifying.decision_request import decision_request
from blindcal.records import Estimate
from blindcal.results.run import open_run
from blindcal.simulation.replay import Server
from commanding import blindcal, printed_error
from deciding import TEMPLATE, audited, decided, model, serving, write_items

N, SYSTEM = 600, "Be brief."
LABELS, P = model(N, 5)


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_items(tmp_path_factory.mktemp("threshold") / "items.jsonl", LABELS)


@pytest.fixture(scope="module")
def server(items: Path) -> Iterator[Server]:
    with serving(items, P, {"system": SYSTEM}) as one:
        yield one


@pytest.fixture(scope="module")
def run(items: Path, server: Server) -> Path:
    """The audit of the first half's worth of answers: all items, one query each."""
    return audited(items, server, items.parent / "run", system=SYSTEM)


def chosen(run: Path, *wish: object) -> dict[str, Any]:
    found = blindcal("threshold", run, *wish, "--resamples", 100, "--json")
    assert found.exit_code == 0, found.output
    decoded: dict[str, Any] = json.loads(found.stdout)
    return decoded


@pytest.mark.parametrize("wish", [("--precision", 0.9), ("--recall", 0.8), ("--cost-fp", 1, "--cost-fn", 3)])
def test_the_printed_request_takes_the_decision(run: Path, wish: tuple[object, ...]) -> None:
    """Sent as printed, the request is answered positive exactly where the probability is high enough."""
    found = chosen(run, *wish)
    body, threshold = found["request"], found["threshold"]["value"]
    assert body["messages"] == [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": TEMPLATE},
    ]
    assert body["logit_bias"] == found["logit_bias"]
    # the ones nearest to the threshold on both sides, where a wrong shift would show first
    near = np.argsort(np.abs(P - threshold))[:40]
    assert {bool(P[k] >= threshold) for k in near} == {True, False}
    for k in near:
        if abs(P[k] - threshold) > 1e-4:  # the bias has four digits
            assert decided(body, found["url"], int(k)) == (P[k] >= threshold)


WITH_CURL = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


@pytest.mark.parametrize("kind", [pytest.param("curl", marks=WITH_CURL), "python"])
def test_snippets_run_as_they_are(run: Path, kind: str, tmp_path: Path) -> None:
    """A shell and a Python interpreter take the snippet as printed, quotes in the template and all."""
    snippet = blindcal("threshold", run, "--recall", 0.8, "--resamples", 50, "--snippet", kind)
    assert snippet.exit_code == 0
    surest = {True: int(np.argmax(P)), False: int(np.argmin(P))}
    for positive, k in surest.items():
        script = tmp_path / "snippet"
        script.write_text(snippet.stdout.replace("{n}", str(k)))
        command = ["bash", str(script)] if kind == "curl" else [sys.executable, str(script)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        if kind == "curl":
            assert json.loads(output)["choices"][0]["message"]["content"] == ("Yes" if positive else "No")
        else:
            assert output == ("positive\n" if positive else "negative\n")


def test_what_is_shown_is_what_json_says(run: Path) -> None:
    """The text names the promise, the rates and the bias; without confidence it promises less."""
    wish = ("--precision", 0.9)
    found = chosen(run, *wish)
    shown = blindcal("threshold", run, *wish, "--resamples", 100).stdout
    assert f"threshold  {found['threshold']['value']:.4f}: the answer is 'Yes' where" in shown
    assert "promise    precision at least 0.9, 95% sure" in shown
    assert f"logit_bias {json.dumps(found['logit_bias'])}" in shown
    for name in ("precision", "recall", "accuracy"):
        assert f"{name:<10} {Estimate(**found[name]):.4f}" in shown
    for estimate in (found["threshold"], found["precision"]):
        assert estimate["low"] <= estimate["value"] <= estimate["high"]
        assert estimate["level"] == 0.95
    alone = chosen(run, *wish, "--estimate")
    assert alone["threshold"]["value"] < found["threshold"]["value"]
    assert alone["confidence"] is None
    shown = blindcal("threshold", run, *wish, "--estimate", "--resamples", 50).stdout
    assert "by the estimate alone: it falls short about half of the time" in shown


def test_without_a_goal_all_thresholds_are_shown(run: Path) -> None:
    """A table of nineteen thresholds, recall falling with the threshold."""
    assert len(blindcal("threshold", run, "--resamples", 50).stdout.splitlines()) == 21
    rows = json.loads(blindcal("threshold", run, "--resamples", 50, "--json").stdout)
    recalls = [row["recall"]["value"] for row in rows]
    assert {row["recall"]["level"] for row in rows} == {0.95}
    assert recalls == sorted(recalls, reverse=True)
    assert [row["threshold"] for row in rows] == pytest.approx(np.arange(1, 20) / 20)


def test_what_cannot_be_reached_or_was_hardly_tested_is_named(run: Path) -> None:
    """One line says how far one can go; near 0 and 1 a promise rests on the fit's smoothness."""
    for precision, message in (
        (0.99999, "no threshold reaches 0.99999; the highest within reach is 0.99"),
        (
            0.99,
            "although the estimate does; among thresholds that at least 30 answers test, the highest is 0.9",
        ),
    ):
        found = blindcal("threshold", run, "--precision", precision, "--resamples", 50)
        assert message in printed_error(found)
    far = blindcal("threshold", run, "--recall", 0.9999, "--estimate", "--resamples", 50)
    near = blindcal("threshold", run, "--cost-fp", 1, "--cost-fn", 1, "--resamples", 50)
    assert "queries tested thresholds below this one" in far.stderr
    assert "queries tested" not in near.stderr


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (("--cost-fp", 1), "--cost-fp and --cost-fn go together"),
        (("--precision", 0.9, "--recall", 0.9), "give only one of"),
        (("--snippet", "curl"), "give a goal"),
        (("--precision", 1.5), "is not in the range"),
    ],
)
def test_wrong_goals_are_command_line_errors(run: Path, wish: tuple[object, ...], message: str) -> None:
    """Exit status 2, and what to write instead."""
    found = blindcal("threshold", run, *wish)
    assert found.exit_code == 2
    assert message in found.output


def test_sampled_audits_have_a_threshold_but_no_request(items: Path, server: Server, tmp_path: Path) -> None:
    """Without logit_bias one query cannot decide by a threshold, and the command says so."""
    out = audited(items, server, tmp_path / "run", method="temperature", queries=1, system=SYSTEM)
    command = ("threshold", out, "--recall", 0.8, "--resamples", 50)
    found = blindcal(*command).stdout
    assert "request    none: a run of method temperature sends no logit_bias" in found
    assert "audit with --method latent" in found
    assert "audit with --method latent" in printed_error(blindcal(*command, "--snippet", "curl"))


@WITH_CURL
def test_hostile_words_stay_text(items: Path, tmp_path: Path) -> None:
    """A template that ends a here-document, closes quotes and moves the cursor is only ever text."""
    hostile = '{n}\nJSON\n$(touch owned) `touch owned` \'; touch owned; \x1b[2J\u202e"""\\'
    best = int(np.argmax(P))
    with serving(items, P, {"template": hostile}) as server:
        out = audited(items, server, tmp_path / "run", limits=Limits(max_queries=300), template=hostile)
        wish = ("threshold", out, "--recall", 0.5, "--estimate", "--resamples", 50)
        found = blindcal(*wish)
        shown = found.stdout
        assert "warning: the audit is not finished" in found.stderr
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        for kind, shell, answer in (("curl", "bash", '"Yes"'), ("python", sys.executable, "positive")):
            script = tmp_path / f"snippet-{kind}"
            script.write_text(blindcal(*wish, "--snippet", kind).stdout.replace("{n}", str(best)))
            done = subprocess.run([shell, script], cwd=tmp_path, capture_output=True, text=True, check=True)
            assert answer in done.stdout
            assert not (tmp_path / "owned").exists()
    assert decision_request(open_run(out), 0.5).body["messages"][0]["content"] == hostile
