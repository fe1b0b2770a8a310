"""Rules on probabilities that an endpoint shows: thresholds, certificates and decisions, over real HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blindcal.auditing.audit import audit
from blindcal.certifying.shown_probability import shown_probability
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.query_format import DecisionQuestion
from blindcal.items.catalogue import open_items
from blindcal.records import Item, Message
from blindcal.settings import Settings
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from commanding import blindcal
from deciding import model, write_items
from decision_server import Deciding, DecisionServer
from finished_runs import without_page

N = 900
LABELS, P = model(N, 5)
WAYS = ("decisions", "systemone", "logprobs")
FIELDS = {
    "decisions": "answers[0].probability",
    "systemone": "answers.answer.noul",
    "logprobs": "choices[0].logprobs.content[0].top_logprobs",
}


def wording(way: str) -> dict[str, Any]:
    if way == "logprobs":
        return {"template": 'Is "{n}" one of them? Yes or No.', "method": "logprobs"}
    return {"template": "Number {n}", "instructions": 'Is "{n}" one of them?', "api": way}


def serving(items: Path, way: str, p: Any = P, **behaviour: Any) -> Any:
    loaded = open_items(items, Settings(model="replay", **wording(way)).prompt)
    recording = Recording.from_probabilities([item.id for item in loaded], p)
    return running(DecisionServer(recording, loaded, Deciding(logprobs=True, **behaviour)))


def audited(items: Path, server: DecisionServer, way: str, out: Path, **more: Any) -> Path:
    with without_page():
        asked = Settings(model="replay", base_url=server.base_url, resamples=40, **wording(way), **more)
        audit(items, asked, out=out)
    return out


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_items(tmp_path_factory.mktemp("rules") / "items.jsonl", LABELS)


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(items: Path, way: str) -> Iterator[DecisionServer]:
    with serving(items, way) as server:
        yield server


@pytest.fixture(scope="module")
def run(items: Path, server: DecisionServer, way: str) -> Path:
    return audited(items, server, way, items.parent / way)


def test_the_printed_request_shows_what_to_compare(run: Path, way: str, tmp_path: Path) -> None:
    """No bias: the audit's own request, the field of its reply, and a program that compares it."""
    wish = ("threshold", run, "--precision", 0.9, "--resamples", 50)
    printed = blindcal(*wish)
    assert "queries tested thresholds" not in printed.stderr
    assert FIELDS[way] in printed.stdout
    found = json.loads(blindcal(*wish, "--json").stdout)
    assert found["logit_bias"] is None
    assert FIELDS[way] in found["probability"]
    threshold = found["threshold"]["value"]
    assert f"at least {threshold:.6g}"[:14] in blindcal(*wish, "--snippet", "curl").stdout
    program, script = blindcal(*wish, "--snippet", "python").stdout, tmp_path / "rule.py"
    near = np.argsort(np.abs(P - threshold))[:60:12]
    for item in [*near[np.abs(P[near] - threshold) > 1e-5], np.argmax(P), np.argmin(P)]:
        script.write_text(program.replace("{n}", str(item)))
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == ("positive" if P[item] >= threshold else "negative")


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("form", ["decisions", "systemone"])
def test_of_several_answers_the_likeliest_counts(form: str, graded: bool) -> None:
    """The printed program reads what every server of the form replies."""
    words, p = ("a", "b", "c"), np.array([0.2, 0.7, 0.1])
    question = DecisionQuestion(words, graded)
    request = question.request((Message("user", "x"),), 0.0, 0.0)
    endpoint = HttpEndpoint(Address("http://127.0.0.1:1/v1", "m", form))  # type: ignore[arg-type]
    asked = json.loads(endpoint.body(request))["questions"]
    (asked,) = asked if form == "decisions" else asked.values()
    server = DecisionServer(Recording.of_choices(["q"], np.log([p]), words), [Item("q", 0, ())], Deciding())
    answer = server._typed(form, asked, 0, b"")
    found: dict[str, Any] = {"reply": {"answers": [answer] if form == "decisions" else {"answer": answer}}}
    exec(shown_probability(question, form).python, found)
    assert found["probabilities"] == pytest.approx(dict(zip(words, p, strict=True)))
