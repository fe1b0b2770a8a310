"""`blindcal threshold`: what it promises, and a request that takes the very decision, over real HTTP."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import answering
from answering import greedy, write_choices
from blindcal.asking.run_context import Limits
from blindcal.certifying.decision_request import decision_request
from blindcal.choice_design import GivenAnswerDesign
from blindcal.cli import threshold
from blindcal.design import answer_design
from blindcal.estimate.latent.estimator import fit_problem
from blindcal.estimate.latent.fit import LatentFit
from blindcal.estimate.problem import Problem
from blindcal.records import Estimate, FloatArray, IntArray
from blindcal.results.run import open_run
from blindcal.simulation.replay import Server
from commanding import blindcal, printed_error, refusal
from deciding import TEMPLATE, audited, decided, model, serving, write_items
from reporting import logits_of

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


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_snippets_run_as_they_are_and_hostile_words_stay_text(items: Path, tmp_path: Path) -> None:
    """A template that ends a here-document, closes quotes and moves the cursor is only ever text."""
    hostile = '{n}\nJSON\n$(touch owned) `touch owned` \'; touch owned; \x1b[2J\u202e"""\\'
    with serving(items, P, {"template": hostile}) as server:
        out = audited(items, server, tmp_path / "run", limits=Limits(max_queries=300), template=hostile)
        wish = ("threshold", out, "--recall", 0.5, "--estimate", "--resamples", 50)
        found = blindcal(*wish)
        assert "warning: the audit is not finished" in found.stderr
        assert not {"\x1b", "\u202e"} & set(found.stdout)
        for kind, shell, answers in (
            ("curl", "bash", ('"Yes"', '"No"')),
            ("python", sys.executable, ("positive\n", "negative\n")),
        ):
            snippet, script = blindcal(*wish, "--snippet", kind).stdout, tmp_path / f"snippet-{kind}"
            for item, answer in zip((np.argmax(P), np.argmin(P)), answers, strict=True):
                script.write_text(snippet.replace("{n}", str(item)))
                done = subprocess.run(
                    [shell, script], cwd=tmp_path, capture_output=True, text=True, check=True
                )
                assert answer in done.stdout
                assert not (tmp_path / "owned").exists()
    assert decision_request(open_run(out), 0.5).body["messages"][0]["content"] == hostile


# Answer or abstain: a margin from an audit with several answers, and the requests that apply it

SEVERAL = 300


def fitted(labels: IntArray, logits: FloatArray, seed: int) -> LatentFit:
    """The fit to an audit of a model with these logits, two queries per item."""
    choices = np.full(labels.size, logits.shape[1])
    answers = answer_design(GivenAnswerDesign(labels, choices, 2.0, seed), greedy(logits))
    return fit_problem(Problem.of_answers(labels, answers, choices=choices), bins=10, resamples=100)


def margins_of(logits: FloatArray) -> FloatArray:
    """By how much the likeliest answer leads over the second."""
    ordered = np.sort(logits, axis=1)
    return np.asarray(ordered[:, -1] - ordered[:, -2])


def test_the_precision_of_a_margin_is_that_of_the_deployed_decision() -> None:
    """On 200,000 other questions: the precision is inside its intervals, and promises are kept.

    The twelve intervals of an audit are alike, so one audit in twenty may miss most of them, as it may break
    its promise; two or more of four do so with probability 0.014.
    """
    labels, logits = logits_of(4, 200_000, 99)
    lead, right = margins_of(logits), logits.argmax(axis=1) == labels
    misses, broken = 0, 0
    for seed in range(4):
        found = fitted(*logits_of(4, 1500, seed), seed).deployable
        for point in found.operating_at(1 / (1 + np.exp(-np.array([0.2, 0.5, 1.0, 1.5, 2.0, 3.0])))):
            counts = lead >= -point.shift
            misses += float(right[counts].mean()) not in point.precision
            misses += float(counts.mean()) not in point.positive_rate
        assert found.choose_threshold(precision=0.3).point.shift == 0.0  # every answer counts
        chosen = found.choose_threshold(precision=0.7)
        broken += right[lead >= -chosen.point.shift].mean() < 0.7
    assert misses <= 12  # those of one audit
    assert broken <= 1


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FloatArray, Path]:
    """A finished run, the logits of its model, and its items."""
    folder = tmp_path_factory.mktemp("served")
    labels, logits = logits_of(4, SEVERAL)
    path = write_choices(folder / "items.jsonl", labels, [4] * SEVERAL)
    with answering.serving(path, logits) as server:
        answering.audited(path, server, folder / "run")
    return folder / "run", logits, path


def test_the_printed_program_answers_or_abstains(served: tuple[Path, FloatArray, Path]) -> None:
    """Over real HTTP it says the answer whose margin is large enough, and abstains otherwise."""
    folder, logits, path = served
    run = open_run(folder)
    lead = margins_of(logits)
    with answering.serving(path, logits) as server:
        here = replace(run, settings=run.settings | {"base_url": server.base_url})
        for item in (int(lead.argmax()), int(lead.argmin())):
            deployed = _about(threshold.python_snippet(decision_request(here, -float(np.median(lead)))), item)
            said = subprocess.run(
                [sys.executable, "-c", deployed], capture_output=True, text=True, check=True, timeout=60
            ).stdout.strip()
            wanted = "ABCD"[int(logits[item].argmax())] if lead[item] > np.median(lead) else "abstain"
            assert said == wanted


def _about(program: str, item: int) -> str:
    """The program with the question of an item filled in."""
    question = f"Which is {item}?\nA. a{item}\nB. b{item}\nC. c{item}\nD. d{item}"
    text = f"{question}\nReply only with the letter of the right answer."
    assert "YOUR QUESTION" in program
    # inside a JSON text inside a Python text
    return program.replace(
        "YOUR QUESTION, WORDED AS IN THE AUDIT", json.dumps(text)[1:-1].replace("\\", "\\\\")
    )


def test_the_command_names_the_margin_and_both_requests(served: tuple[Path, FloatArray, Path]) -> None:
    """A table without a goal; with one the margin, the promise, and what to send first and then."""
    command = ("threshold", served[0], "--resamples", 40)
    table = blindcal(*command).output
    assert table.splitlines()[0].split() == ["at", "precision", "recall", "answered"]
    assert "by how much the logit of the answer given is lowered" in table
    found = blindcal(*command, "--precision", 0.6).output
    for words in ("margin ", "an answer counts if it is given again", "precision at least 0.6", "then "):
        assert words in found
    assert "positive" not in found
    record = json.loads(blindcal(*command, "--precision", 0.6, "--json").output)
    assert record["margin"]["value"] == pytest.approx(-record["shift"])
    ask, confirm = record["request"]["ask"], record["request"]["confirm"]
    (usual,) = set(ask["logit_bias"].values())
    lowered = {
        word: [token for token, bias in body["logit_bias"].items() if bias < usual]
        for word, body in confirm.items()
    }
    assert lowered == {"A": ["1"], "B": ["2"], "C": ["3"], "D": ["4"]}
    assert blindcal(*command, "--precision", 0.6, "--snippet", "curl").output.count("curl ") == 5
    assert "no threshold reaches 0.999" in refusal(blindcal(*command, "--precision", 0.999))


def test_drawn_answers_deploy_no_margin(served: tuple[Path, FloatArray, Path], tmp_path: Path) -> None:
    """Their threshold is a probability, which no shift of one answer can test, so no request is printed."""
    _, logits, path = served
    with answering.serving(path, logits) as server:
        answering.audited(path, server, tmp_path / "run", method="sampling", estimator="latent")
    command = ("threshold", tmp_path / "run", "--recall", 0.5, "--resamples", 40)
    found = blindcal(*command).output
    assert "an answer counts where its probability is at least this" in found
    assert "request    none: a run of method sampling tests no margins" in found
    assert "margin  " not in found
    assert "audit with --method latent" in refusal(blindcal(*command, "--snippet", "curl"))


def test_fewer_options_are_mentioned_where_they_occur(
    served: tuple[Path, FloatArray, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens of options that a question lacks must not be biased."""
    run = open_run(served[0])
    assert run.choices is not None
    mixed = replace(run, choices=np.where(np.arange(SEVERAL) == 0, 3, run.choices))
    words = ("threshold", served[0], "--cost-fp", 1, "--cost-fn", 1, "--resamples", 40)
    for opened, mentioned in ((run, False), (mixed, True)):
        monkeypatch.setattr(threshold, "open_run", lambda _, opened=opened: opened)
        for kind in ("curl", "python"):
            shown = blindcal(*words, "--snippet", kind).output
            assert (threshold.FEWER_OPTIONS in shown) == mentioned


def test_plans_and_gates_know_several_answers(served: tuple[Path, FloatArray, Path]) -> None:
    """Queries, cost and time are planned, the interval is not; limits hold or not, with confidence."""
    path = served[2]
    found = blindcal("plan", path, "--method", "latent", "--prices", "1,1")
    assert found.exit_code == 0, found.output
    assert f"{SEVERAL}, with the answers A, B, C, D" in found.output
    assert f"{2 * SEVERAL} by latent" in found.output
    assert "cannot be forecast for more than two answers" in found.output
    assert "more than two answers cannot be forecast" in refusal(blindcal("plan", path, "--half-width", 0.02))
    gate = ("check", served[0], "--resamples", 20)
    assert blindcal(*gate, "--max-ece", 0.6, "--min-accuracy", 0.3).exit_code == 0
    assert blindcal(*gate, "--min-accuracy", 0.99).exit_code == 3
