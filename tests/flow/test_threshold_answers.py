"""Answer or abstain: a margin chosen from an audit with several answers, and the requests that apply it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from answering import audited, greedy, serving, write_choices
from blindcal.certifying.decision_request import decision_request
from blindcal.choice_design import GivenAnswerDesign
from blindcal.cli import threshold
from blindcal.design import answer_design
from blindcal.estimate.latent.fit import LatentFit
from blindcal.estimate.latent.fitting import fit_problem
from blindcal.estimate.problem import Problem
from blindcal.records import FloatArray, IntArray
from blindcal.results.run import open_run
from commanding import blindcal, refusal
from reporting import logits_of

N = 300


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
    labels, logits = logits_of(4, N)
    path = write_choices(folder / "items.jsonl", labels, [4] * N)
    with serving(path, logits) as server:
        audited(path, server, folder / "run")
    return folder / "run", logits, path


def test_the_printed_program_answers_or_abstains(served: tuple[Path, FloatArray, Path]) -> None:
    """Over real HTTP it says the answer whose margin is large enough, and abstains otherwise."""
    folder, logits, path = served
    run = open_run(folder)
    lead = margins_of(logits)
    with serving(path, logits) as server:
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
    with serving(path, logits) as server:
        audited(path, server, tmp_path / "run", method="sampling", estimator="latent")
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
    mixed = replace(run, choices=np.where(np.arange(N) == 0, 3, run.choices))
    words = ("threshold", served[0], "--cost-fp", 1, "--cost-fn", 1, "--resamples", 40)
    for opened, mentioned in ((run, False), (mixed, True)):
        monkeypatch.setattr(threshold, "open_run", lambda _, opened=opened: opened)
        for kind in ("curl", "python"):
            shown = blindcal(*words, "--snippet", kind).output
            assert (threshold.FEWER_OPTIONS in shown) == mentioned


def test_plans_and_gates_know_several_answers(served: tuple[Path, FloatArray, Path]) -> None:
    """Queries, cost and time are planned, the interval is not; limits hold or not, with confidence."""
    path = served[2]
    found = blindcal("plan", path, "--prices", "1,1")
    assert found.exit_code == 0, found.output
    assert f"{N}, with the answers A, B, C, D" in found.output
    assert f"{2 * N} by latent" in found.output
    assert "cannot be forecast for more than two answers" in found.output
    assert "are for two answers" in refusal(blindcal("plan", path, "--half-width", 0.02))
    gate = ("check", served[0], "--resamples", 20)
    assert blindcal(*gate, "--max-ece", 0.6, "--min-accuracy", 0.3).exit_code == 0
    assert blindcal(*gate, "--min-accuracy", 0.99).exit_code == 3
