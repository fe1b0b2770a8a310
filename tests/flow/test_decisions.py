"""Audits of decision APIs, in both forms, over real HTTP; OpenAI's SDK is the reference of its form."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blindcal.auditing.audit import audit
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.query_format import DecisionQuestion
from blindcal.errors import EndpointError, InputError, UnfitError
from blindcal.estimate.truth import binned_ece, top_label_ece
from blindcal.items.catalogue import open_items
from blindcal.records import INSTRUCTIONS, INVALID, Item, Message
from blindcal.results.run import open_run
from blindcal.settings import Settings
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from deciding import model, write_items
from decision_server import Deciding, DecisionServer
from serving import write_items as serving_items

FORMS = ("decisions", "systemone")
N = 200
LABELS, P = model(N, 5)
WORDING = {"template": "Number {n}", "instructions": 'Is "{n}" one of them?'}


def settings(server: DecisionServer, form: str, **more: Any) -> Settings:
    usual = {"model": "replay", "base_url": server.base_url, "api": form, "resamples": 40, **WORDING}
    return Settings(**{**usual, **more})


def serving(items: Path, **behaviour: Any) -> Any:
    reading = Settings(model="replay", **WORDING).prompt
    loaded = open_items(items, reading)
    ids = [item.id for item in loaded]
    return running(DecisionServer(Recording.from_probabilities(ids, P), loaded, Deciding(**behaviour)))


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_items(tmp_path_factory.mktemp("decisions") / "items.jsonl", LABELS)


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize("form", FORMS)
def test_both_forms_show_the_ece_of_the_probabilities(form: str, items: Path, tmp_path: Path) -> None:
    """One request per item, no bias and no temperature; the estimate is the ECE of what was shown."""
    scores = tmp_path / "scores.csv"
    rows = (f"q{k},{label},{p}" for k, (label, p) in enumerate(zip(LABELS, P, strict=True)))
    scores.write_text("\n".join(["id,label,p", *rows]))
    with serving(items) as server:
        result = audit(items, settings(server, form), out=tmp_path / "run", oracle=scores)
    assert result.method == "decisions"
    assert result.oracle is not None
    assert result.oracle.ece == pytest.approx(float(result.ece), abs=1e-6)
    assert float(result.ece) == pytest.approx(float(binned_ece(LABELS, P, 5).ece), abs=3e-4)
    assert float(binned_ece(LABELS, P, 5).ece) in result.ece
    assert result.counts.items == N
    assert result.spend.queries == N + 12 + 50  # to probe, and asked twice
    assert result.spend.completion_tokens == 0
    assert "probability that the endpoint shows" in result.measures
    assert open_run(tmp_path / "run").result.method == "decisions"


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize("form", FORMS)
def test_the_options_of_items_are_audited_in_any_order(form: str, tmp_path: Path) -> None:
    """Probabilities are those of their options; nobody has named a number of queries or a method."""
    rng = np.random.default_rng(3)
    logits, labels = rng.normal(0, 2, (60, 3)), rng.integers(0, 3, 60)
    file = serving_items(tmp_path / "items.jsonl", labels, choices=[["red", "blue", "green"]])
    asked = open_items(file, Settings(model="replay").prompt)
    recording = Recording.of_choices([item.id for item in asked], logits, ("A", "B", "C"))
    with running(DecisionServer(recording, asked, Deciding(reversed=True))) as server:
        given = Settings(model="replay", base_url=server.base_url, api=form, resamples=40)
        result = audit(file, given, out=tmp_path / "run")
    truth = top_label_ece(labels, logits, len(result.bins)).ece
    assert float(result.ece) == pytest.approx(float(truth), abs=1e-6)


# The wire


@pytest.mark.parametrize(
    ("words", "graded", "kind"),
    [
        (("Yes", "No"), False, "predicate"),
        (("a", "b", "c"), False, "choice"),
        (("1", "2", "3"), True, "score"),
    ],
)
def test_openai_reads_our_requests_and_the_replies_of_our_server(
    words: tuple[str, ...], graded: bool, kind: str
) -> None:
    """The SDK's own types accept the body of a request, and what the server of these tests replies."""
    types = pytest.importorskip("openai.types")
    params = pytest.importorskip("openai.types.decision_create_params")
    pydantic = pytest.importorskip("pydantic")
    address = Address("http://127.0.0.1:1/v1", "gpt-6-luna", "decisions")
    messages = (Message("user", "Some text"), Message(INSTRUCTIONS, "Which is it?"))
    request = DecisionQuestion(words, graded).request(messages, 0.0, 0.0)
    body = json.loads(HttpEndpoint(address).body(request))
    sent = pydantic.TypeAdapter(params.DecisionCreateParams).validate_python(body)
    assert next(iter(sent["questions"]))["type"] == kind
    assert body["input"] == "Some text"
    assert body["questions"][0]["instructions"] == "Which is it?"
    logits = np.log([[0.5, 0.3, 0.2][: len(words)]])
    recording = Recording.of_choices(["q"], logits, words)
    server = DecisionServer(recording, [Item("q", 0, messages)], Deciding())
    answer = server._typed("decisions", body["questions"][0], 0, b"")
    reply = {"model": "m", "answers": [answer], "usage": _usage()}
    assert types.Decision.model_validate(reply).answers[0].type == kind


def _usage() -> dict[str, Any]:
    details = {
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    return {"input_tokens": 3, "output_tokens": 0, "total_tokens": 3, **details}


def body(answers: Any) -> bytes:
    return json.dumps({"model": "m", "answers": answers, "usage": {"input_tokens": 7}}).encode()


def predicate(form: str, p: Any, **more: Any) -> Any:
    if form == "decisions":
        return [{"type": "predicate", "probability": p, **more}]
    return {"answer": {"type": "noul", "noul": p, **more}}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: [], "no answers of the form"),
        (lambda _: None, "no answers of the form"),
        (lambda form: predicate("systemone" if form == "decisions" else "decisions", 0.5), "try "),
        (lambda form: predicate(form, 1.5), "1.5 as a probability"),
        (lambda form: predicate(form, None), "None as a probability"),
        (lambda form: predicate(form, "high"), "not that of a decision API|as a probability"),
        (lambda form: predicate(form, 0.5) * 2 if form == "decisions" else {}, "answers of the form"),
        (
            lambda form: (
                predicate(form, 0.5, name="another")
                if form == "decisions"
                else {"another": {"type": "noul", "noul": 0.5}}
            ),
            "to another question: 'another'",
        ),
    ],
)
def test_a_reply_of_another_form_or_question_is_an_error(form: str, change: Any, message: str) -> None:
    """What cannot be the probability of the question is never read as one; its tokens are counted."""
    endpoint = HttpEndpoint(Address("http://127.0.0.1:1/v1", "m", form))  # type: ignore[arg-type]
    request = DecisionQuestion(("Yes", "No")).request((Message("user", "x"),), 0.0, 0.0)
    with pytest.raises(EndpointError, match=message) as raised:
        endpoint._form.read(200, body(change(form)), request)
    assert raised.value.billed == (7, 0, 0)


def test_options_may_come_in_any_order_and_a_refusal_is_an_outcome() -> None:
    """Probabilities are found by their option; a refused question is invalid, and says so."""
    question = DecisionQuestion(("cat", "dog", "cow"))
    request = question.request((Message("user", "x"),), 0.0, 0.0)
    endpoint = HttpEndpoint(Address("http://127.0.0.1:1/v1", "m", "decisions"))
    rows = [{"value": "cow", "probability": 0.2}, {"value": "dog", "probability": 0.7}]
    rows += [{"value": "cat", "probability": 0.1}]
    answer = {"type": "choice", "choice": "dog", "confidence": 0.55, "probabilities": rows}
    reply = endpoint._form.read(200, body([answer]), request)
    parsed = question.parse(reply)  # type: ignore[arg-type]
    assert (parsed.answer, parsed.reason) == (1, "")
    assert parsed.low == parsed.high == pytest.approx(np.log(0.7 / 0.3))
    refused = endpoint._form.read(200, body([{"type": "refusal"}]), request)
    assert (question.parse(refused).answer, question.parse(refused).reason) == (INVALID, "refusal")  # type: ignore[arg-type]


@pytest.mark.parametrize(("confidence", "odd"), [(0.55, False), (0.05, False), (0.99, True)])
def test_a_confidence_contradicts_the_probabilities_only_if_it_is_too_high(
    confidence: float, odd: bool
) -> None:
    """vLLM multiplies it by the share of the options among all tokens, which may be small."""
    shown = {"cat": 0.1, "dog": 0.7, "cow": 0.2}
    answer = {"type": "choice", "choice": "dog", "confidence": confidence, "probabilities": shown}
    question = DecisionQuestion(tuple(shown))
    request = question.request((Message("user", "x"),), 0.0, 0.0)
    endpoint = HttpEndpoint(Address("http://127.0.0.1:1/v1", "m", "systemone"))
    reply = endpoint._form.read(200, body({"answer": answer}), request)
    assert bool(question.parse(reply).reason) == odd  # type: ignore[arg-type]


# What a decision API may get wrong


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize(
    ("behaviour", "finding"),
    [
        ({"decimals": 2}, "rounded to two decimals"),
        ({"moves": 0.02}, "the same question's probability moves by up to 0.0"),
        ({"named": "another-model"}, "replies name another-model"),
        ({"refusable": tuple(range(N)), "refused": 0.3}, "questions were refused"),
    ],
)
def test_what_is_odd_is_found_by_the_probe(
    behaviour: dict[str, Any], finding: str, items: Path, tmp_path: Path
) -> None:
    with serving(items, **behaviour) as server:
        result = audit(items, settings(server, "decisions"), out=tmp_path / "run")
    assert result.probe is not None
    assert any(finding in each.answer for each in result.probe.findings), result.probe.findings


@pytest.mark.usefixtures("no_page")
def test_questions_asked_twice_show_how_far_a_probability_moves(items: Path, tmp_path: Path) -> None:
    """The movement is kept and said; it is part of what is measured, and no warning."""
    with serving(items, moves=0.02) as server:
        steady = audit(items, settings(server, "systemone"), out=tmp_path / "run").steadiness
    assert steady is not None
    assert steady.spread is not None
    assert 0.01 < steady.spread.deviation < 0.03
    assert not steady.warnings
    assert any("moves by ±0.0" in note for note in steady.notes)


@pytest.mark.usefixtures("no_page")
def test_a_model_swapped_halfway_is_noticed(items: Path, tmp_path: Path) -> None:
    with serving(items, swapped_from=130) as server:
        steady = audit(items, settings(server, "systemone"), out=tmp_path / "run").steadiness
    assert steady is not None
    assert any("answers changed during the run" in warning for warning in steady.warnings)


@pytest.mark.parametrize(("p", "why"), [(np.full(N, 0.7), "same probability"), (LABELS * 1.0, "0 or 1")])
def test_probabilities_that_tell_nothing_are_refused(p: Any, why: str, items: Path, tmp_path: Path) -> None:
    with serving(items, decimals=6) as server:
        server.recording = Recording.from_probabilities(list(server.recording.ids), p)
        with pytest.raises(UnfitError, match=why):
            audit(items, settings(server, "systemone"), out=tmp_path / "run")


def test_a_method_that_asks_for_tokens_is_refused_at_a_decision_api() -> None:
    with pytest.raises(InputError, match=r"decision API shows probabilities.*method"):
        Settings(model="m", api="decisions", method="latent", template="{q}")
    with pytest.raises(InputError, match=r"name its form with api="):
        Settings(model="m", api="chat", method="decisions", template="{q}")


# Which form an address speaks


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize(
    ("speaks", "path", "asked"),
    [
        ("either", "", {"api": "decisions"}),
        ("systemone", "", {"api": "systemone", "base_url": "/decisions"}),
        ("systemone", "/decisions", {"api": "systemone", "base_url": "/decisions"}),
        ("decisions", "/systemone", {"api": "decisions", "base_url": "/systemone"}),
    ],
)
def test_the_form_is_found_out_and_not_guessed_from_the_path(
    speaks: str, path: str, asked: dict[str, str], items: Path, tmp_path: Path
) -> None:
    """The run keeps what was found, and asks nothing when it is continued."""
    with serving(items, speaks=speaks) as server:
        base = f"{server.base_url}{path}"
        result = audit(items, settings(server, "auto", base_url=base, queries=2), out=tmp_path / "run")
        requests = server.requests
        again = audit(items, settings(server, "auto", base_url=base, queries=2), out=tmp_path / "run")
        kept = open_run(tmp_path / "run").settings
    assert result.method == again.method == "decisions"
    assert server.requests == requests <= N + 12 + 50 + 2
    assert kept["api"] == asked["api"]
    assert kept["base_url"] == server.base_url + asked.get("base_url", "")


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize(
    ("speaks", "why"),
    [
        ("neither", "404"),
        ("not this model", r".* \(501\): The model does not support .*"),
    ],
)
def test_a_chat_is_what_refuses_both_forms(speaks: str, why: str, items: Path, tmp_path: Path) -> None:
    """Why is said in one line; nothing of decisions is tried if a chat is named."""
    told: list[str] = []
    with serving(items, speaks=speaks, logprobs=True) as server:
        result = audit(items, settings(server, "auto"), out=tmp_path / "run", stage=told.append)
        tried = server.asked.copy()
        audit(items, settings(server, "chat"), out=tmp_path / "named")
    assert result.method == "logprobs"
    reasons = rf"\(decisions at /decisions: 404; systemone at /systemone: {why}\)"
    assert [line for line in told if re.search(reasons, line)]
    assert open_run(tmp_path / "run").settings["api"] == "chat"
    for form in FORMS:
        assert server.asked[form] == tried[form] == 1


def test_decisions_of_a_chat_are_refused_with_the_reasons(items: Path, tmp_path: Path) -> None:
    with (
        serving(items, speaks="neither") as server,
        pytest.raises(UnfitError, match=r"does not show .*404.*audits a chat"),
    ):
        audit(items, settings(server, "auto", method="decisions"), out=tmp_path / "run")
