"""The probe, over real HTTP, against every way an endpoint is known to mislead."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

from blindcal.auditing.prepare import objection
from blindcal.cli.probe import command
from blindcal.endpoints import Endpoint
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.query_format import ConfidenceQuestion, LogprobQuestion, TokenQuestion
from blindcal.methods import METHODS
from blindcal.planning.plan import PROBE_AT_ONCE
from blindcal.probing.findings import SCALE, Probe
from blindcal.probing.probe import ProbeQuestions, probe_endpoint
from blindcal.records import Item, Message, Reply, Request, Targets, Token, Way
from blindcal.simulation.http_server import HttpRequest, HttpResponse
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from engine import governed
from misbehaving import Behaviour, Server
from serving import PAIR, items, recording, replayed

ODDS = [float(s) for s in np.random.default_rng(7).normal(0.7, 3, 24)]
ITEMS = items(len(ODDS))
WITHOUT_BIAS = ("temperature", "repeated answers")


def probed_at(server: Server, asked: Sequence[Item] = ITEMS, targets: Targets = PAIR, **how: Any) -> Probe:
    """The probe of a server."""

    async def talk() -> Probe:
        async with HttpEndpoint(Address(server.base_url, "replay"), environ={}) as endpoint:
            result = await probe_endpoint(governed(endpoint), asked, targets, **how)
            assert result.queries <= server.requests
            return result

    with running(server):
        return asyncio.run(talk())


@dataclass
class Waves:
    """An endpoint that counts how often nothing is under way when a request is sent."""

    endpoint: Endpoint
    count: int = 0
    under_way: int = 0
    asked: list[Request] = field(default_factory=list)

    async def ask(self, request: Request) -> Reply:
        self.asked.append(request)
        self.count += not self.under_way
        self.under_way += 1
        try:
            return await self.endpoint.ask(request)
        finally:
            self.under_way -= 1

    async def close(self) -> None:
        await self.endpoint.close()


def probed(behaviour: Behaviour, **how: Any) -> Probe:
    """The probe of a yes/no model that behaves so."""
    return probed_at(Server(recording(ODDS), ITEMS, behaviour), **how)


def probed_choices(
    behaviour: Behaviour | None = None, count: int = 4, *, seed: int = 0, fewer: int = 0, **how: Any
) -> Probe:
    """The probe of a model with ``count`` answers; every other item has ``fewer``.

    Its margins are from near ties to the certainty of a good model.
    """
    rng, n = np.random.default_rng(seed), len(ITEMS)
    logits = rng.normal(0, 1, (n, count)) * rng.choice([0.5, 2, 5], (n, 1))
    asked = [
        Item(f"q{k}", 0, (Message("user", f"Which is {k}?"),), choices=count - fewer * (k % 2))
        for k in range(n)
    ]
    known = Recording.of_choices([item.id for item in asked], logits, [chr(65 + k) for k in range(count)])
    targets = Targets((), (), answers=tuple((token,) for token in known.tokens))
    questions = ProbeQuestions(
        (TokenQuestion(targets, biased=False),),
        lambda top: LogprobQuestion(targets.words, "sum", top),
        ConfidenceQuestion(targets.words),
    )
    how = {"targets": targets, "seed": seed, "questions": questions, **how}
    return probed_at(Server(known, asked, behaviour), asked, **how)


def answer(result: Probe, question: str) -> str:
    """The outcome of one question and its answer."""
    return next(f"{each.outcome}: {each.answer}" for each in result.findings if each.question == question)


def outcome(result: Probe, question: str) -> str:
    return answer(result, question).partition(":")[0]


def unfit(result: Probe, method: str) -> str:
    """Why a method refuses an endpoint; empty if it does not."""
    return objection(result, METHODS[method]) or ""


@pytest.mark.parametrize("seed", range(2))
def test_good_endpoint(seed: int) -> None:
    """An endpoint that does what it says is usable, over the whole range, and nothing is left open."""
    for result in (probed(Behaviour(), seed=seed), probed_choices(seed=seed)):
        assert (result.verdict, result.max_shift, result.clamp) == ("thresholds", 50, None)
        assert (result.jitter, result.crowd_jitter, result.outside) == (0, 0, 0)
        assert {finding.outcome for finding in result.findings} == {"good"}
        assert result.scale is not None
        assert 0.5 < result.scale[0] <= 1 <= result.scale[1] < 2
        assert result.prompt_tokens > result.completion_tokens > 0
        assert result.queries < 300


@pytest.mark.parametrize("probe", [probed, probed_choices])
def test_few_items_are_probed_without_the_dearest_checks(probe: Callable[..., Probe]) -> None:
    """What is left out is said, and faults that forced answers show are still found."""
    few, all_checks = probe(Behaviour(), few=True), probe(Behaviour())
    assert few.queries <= all_checks.queries - 60
    assert few.verdict == "thresholds"
    assert few.scale_unknown
    left_out = {each.question for each in few.findings if "not checked for fewer than" in each.answer}
    assert left_out == {"repeatable under concurrency", "temperature honoured", SCALE}
    assert probe(Behaviour(bias="ignored"), few=True).reason.startswith("logit_bias is accepted but ignored")


class Refusing(Server):
    """A replay that refuses some items: with ``message``, whatever is asked about them."""

    def __init__(self, refused: set[str], message: str) -> None:
        self.refused, self.message = refused, message
        super().__init__(recording(ODDS), ITEMS)

    def _handle(self, request: HttpRequest) -> HttpResponse:
        response = super()._handle(request)
        if any(text.encode() in request.body for text in self.refused):
            error = {"error": {"message": self.message}}
            return replace(response, status=400, body=msgspec.json.encode(error))
        return response


@pytest.mark.parametrize("message", ["blocked by the content filter", "we would rather not"])
@pytest.mark.parametrize("seed", range(2))
def test_refused_items_are_left_out(seed: int, message: str) -> None:
    """An item that is always refused is no item to probe with, and says nothing about the endpoint."""
    chosen = np.random.default_rng([seed, 1]).permutation(len(ITEMS))[: len(ITEMS) * 3 // 10]
    refused = {ITEMS[int(k)].messages[0].content for k in chosen}
    result = probed_at(Refusing(refused, message), seed=seed)
    assert (result.verdict, result.outside) == ("thresholds", 0)


def test_certain_probabilities_are_no_clamp() -> None:
    """A recording rounded to probabilities of exactly 0 and 1 is audited like any other."""
    sure = Recording.from_probabilities([item.id for item in ITEMS], np.tile([0.0, 1.0], 12))
    result = probed_at(Server(sure, ITEMS))
    assert (result.verdict, result.clamp) == ("thresholds", None)


# What misleads


RIGHT, HEAT, INSIDE = "acts by the right amount", "temperature honoured", "answers inside the targets"


@pytest.mark.parametrize(
    ("how", "verdict", "reason", "question", "finding"),
    [
        ({"logprobs": True}, "thresholds", "acts", RIGHT, "good"),
        ({"bias": "rejected"}, "temperature", "not accepted", "logit_bias accepted", "bad.*: 'logit_bias'"),
        ({"bias": "ignored"}, "temperature", "ignored", HEAT, "good"),
        ({"bias_scale": -1}, "temperature", "sign inverted", "logit_bias acts", "bad"),
        ({"integer_bias": True}, "temperature", "rounded", "fractions honoured", "bad"),
        ({"temperature": "ignored"}, "thresholds", "", HEAT, "caution"),
        ({"temperature": "rejected"}, "not auditable", "refused", "temperature accepted", "caution.*'temp"),
        ({"temperature": "fixed"}, "not auditable", "at T = 0", "one flip", "bad"),
        ({"temperature": "fixed", "bias": "ignored"}, "not auditable", "temperature", HEAT, "bad|unknown"),
        ({"temperature": "ignored", "bias_scale": 0.5}, "thresholds", "", RIGHT, "unknown"),
        ({"draws": "by prompt"}, "thresholds", "", HEAT, "caution: no: draws are not independent"),
        ({"draws": "by prompt", "bias": "rejected"}, "not auditable", "independent", HEAT, "bad"),
        ({"outside": 0.05}, "thresholds", "", INSIDE, "caution"),
        ({"outside": 0.4}, "not auditable", "prompt", INSIDE, "bad"),
        ({"fault": "html"}, "not auditable", "web page", "answers at all", "bad"),
    ],
    ids=str,
)
def test_each_fault_is_named(
    how: dict[str, Any], verdict: str, reason: str, question: str, finding: str
) -> None:
    """What an endpoint does wrong decides the verdict; the reason names it and quotes the service."""
    result = probed(Behaviour(**how))
    assert result.verdict == verdict
    assert reason in result.reason
    assert "clamped" not in result.reason
    assert re.match(finding, answer(result, question))
    assert result.tempered == (how.get("temperature") != "rejected")


@pytest.mark.parametrize("bias_scale", [1.0, 0.5])
def test_independent_checks_share_their_wait(bias_scale: float) -> None:
    """As many queries are under way at a time as `plan` assumes, and no item is forced for two ways."""
    questions = ProbeQuestions(
        (TokenQuestion(PAIR, biased=False),), lambda top: LogprobQuestion(("Yes", "No"), "sum", top)
    )

    async def talk() -> tuple[Probe, Waves]:
        how = Behaviour(latency=0.01, logprobs=bias_scale != 1, bias_scale=bias_scale)
        async with replayed(ODDS, how) as (_, endpoint):
            waves = Waves(endpoint)
            ways: tuple[Way, ...] = ("logprobs", "thresholds")
            return await probe_endpoint(waves, ITEMS, PAIR, ways=ways, questions=questions), waves

    result, waves = asyncio.run(talk())
    forced = Counter(
        msgspec.json.encode(request) for request in waves.asked if 100 in request.logit_bias.values()
    )
    assert max(forced.values()) == 2  # the first one also shows whether a bias is accepted
    if bias_scale == 1:
        assert result.verdict == "thresholds"
        assert waves.count <= result.queries / PROBE_AT_ONCE


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("jitter", [1.0, 30.0])
def test_an_ignored_bias_is_caught_although_answers_vary(seed: int, jitter: float) -> None:
    """A bias that is ignored is caught whatever the model answers at random."""
    assert probed(Behaviour(bias="ignored", jitter=jitter, seed=seed), seed=seed).verdict != "thresholds"


@pytest.mark.parametrize("clamp", [5.0, 30.0, 50.0])
def test_low_clamp(clamp: float) -> None:
    """A clamp too low for the common bias is located and refused, and the message says what would fit."""
    result = probed(Behaviour(clamp=clamp))
    assert result.verdict == "temperature"
    assert result.clamp == pytest.approx(clamp, abs=0.3)
    assert "clamped at about" in result.reason
    assert result.clamp is not None
    assert result.within_clamp == {"offset": round(result.clamp / 2, 1), "limit": round(result.clamp, 1)}


def test_usable_clamps() -> None:
    """A clamp that leaves enough range, or is known, is usable; the range is reported on the safe side."""
    known = probed(Behaviour(clamp=10), offset=5, limit=10)
    assert (known.verdict, known.max_shift) == ("thresholds", 5)
    high = probed(Behaviour(clamp=65))
    assert high.verdict == "thresholds"
    assert high.clamp == pytest.approx(65, abs=0.3)
    assert 14 < high.max_shift <= 15
    assert outcome(high, "range") == "caution"


@pytest.mark.parametrize("seed", range(3))
def test_jitter_is_measured(seed: int) -> None:
    """Jitter is seen, its size is told to within a factor, and it passes for nothing worse."""
    result = probed(Behaviour(jitter=0.3, seed=seed), seed=seed)
    assert result.verdict == "thresholds"
    assert 0.1 < result.noise < 4 * math.hypot(0.3, 0.3)
    assert outcome(result, "repeatable alone") in ("good", "caution")
    assert probed(Behaviour(jitter=4.0, seed=seed), seed=seed).verdict != "thresholds"


def test_jitter_under_concurrency_alone() -> None:
    """Answers that vary only in a crowd are told from those that always do, with the cure."""
    result = probed(Behaviour(crowd_jitter=0.5, latency=0.002))
    assert (result.jitter, result.noise > 0) == (0, True)
    assert "less concurrency" in answer(result, "repeatable under concurrency")


@pytest.mark.parametrize("jitter", [0.0, 0.05, 0.1])
@pytest.mark.parametrize("bias", ["honoured", "ignored"])
def test_jitter_is_no_temperature(jitter: float, bias: Literal["honoured", "ignored"]) -> None:
    """An endpoint that ignores temperature is not audited by it, also if its answers vary near the flip."""
    reason = unfit(probed(Behaviour(bias=bias, temperature="ignored", jitter=jitter)), "temperature")
    assert re.search("high temperature than at T = 0|changes no answer|honoured could not be shown", reason)


@pytest.mark.parametrize("cut", ["before", "after"])
@pytest.mark.parametrize("sampler", [{"min_p": 0.05}, {"top_p": 0.9}])
def test_truncated_samples(cut: Literal["before", "after"], sampler: dict[str, Any]) -> None:
    """Samples without their rare answers are found out; thresholds do not need them."""
    result = probed(Behaviour(cut=cut, sampler_fields="ignored", **sampler))
    assert "rare answers never come" in unfit(result, "temperature")
    assert not unfit(result, "latent")


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_scaled_bias(scale: float) -> None:
    """A bias multiplied by a constant shows in how answers off the flip vary; its interval is one of 95%."""
    results = [probed(Behaviour(bias_scale=scale, seed=seed), seed=seed) for seed in range(3)]
    assert {result.verdict for result in results} == {"not auditable"}
    assert {outcome(result, "acts by the right amount") for result in results} == {"bad"}
    scales = [result.scale for result in results if result.scale is not None]
    assert sum(low <= scale <= high for low, high in scales) >= 2  # fewer has a chance of 0.007 at 95%


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.03, 0.1])
def test_stray_answers(seed: int, share: float) -> None:
    """Answers that are wrong at random are never taken for a clamp, and many of them are refused."""
    result = probed(Behaviour(flipped=share, seed=seed), seed=seed)
    assert result.clamp is None
    assert "clamped" not in result.reason
    assert share < 0.1 or result.verdict == "not auditable"


# More than two answers


@pytest.mark.parametrize(("count", "fewer"), [(3, 0), (5, 2), (12, 0)])
def test_any_number_of_answers(count: int, fewer: int) -> None:
    """All of them are forced; what an item does not have is neither asked for nor expected."""
    result = probed_choices(count=count, fewer=fewer)
    assert result.verdict == "thresholds"
    assert f"good: yes: each of {count} answers" in answer(result, "a bias on every answer")


@pytest.mark.parametrize(
    ("further", "question", "trouble"),
    [
        ("ignored", "a bias on every answer", "not all of 4 entries of logit_bias act"),
        ("rejected", "a bias on every answer", "logit_bias does not take an entry for every answer"),
        ("lowest", "Gumbel queries", "biases on several answers do not add up as they should"),
    ],
)
def test_a_bias_of_few_entries(further: Any, question: str, trouble: str) -> None:
    """A service that takes or heeds only some entries is refused; Gumbel queries show if the largest act."""
    result = probed_choices(Behaviour(most_biases=2, further_biases=further))
    assert answer(result, question).startswith("bad: no: ")
    assert result.ways["thresholds"] == trouble


def test_a_wrong_token_is_named() -> None:
    """An answer that no bias can force has the wrong token."""
    tokens = [Token(1, "A"), Token(2, "B"), Token(3, "C"), Token(99, "D")]
    result = probed_choices(targets=Targets((), (), answers=tuple((token,) for token in tokens)), seed=2)
    assert answer(result, "a bias on every answer") == "bad: no: 'D' cannot be forced, not even alone"
    assert "(99) does not act: it may be the wrong token" in result.ways["thresholds"]


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (Behaviour(bias="ignored"), "logit_bias is accepted but ignored"),
        (Behaviour(clamp=20), "logit_bias is clamped at about 19.9"),
        (Behaviour(jitter=2.0), "change from query to query"),
        (Behaviour(flipped=0.1), "unreliabl"),
    ],
    ids=repr,
)
def test_what_misleads_two_answers_misleads_several(behaviour: Behaviour, reason: str) -> None:
    """Two answers of each item are compared, as in a yes/no audit, and show the same."""
    result = probed_choices(behaviour, seed=1)
    assert "thresholds" not in result.usable
    assert reason in result.ways["thresholds"]


@pytest.mark.parametrize("behaviour", [Behaviour(jitter=0.2), Behaviour(outside=0.08)], ids=repr)
def test_what_is_no_contradiction(behaviour: Behaviour) -> None:
    """A little jitter near ties, and a few other words, contradict no prediction."""
    result = probed_choices(behaviour)
    assert result.verdict == "thresholds"
    assert outcome(result, "Gumbel queries") == "good"
    assert (result.outside or 0.0) < 0.2


def test_logprobs_come_first_and_are_compared_with_the_bias() -> None:
    """The flips of the two likeliest answers are where the logprobs say."""
    ways = ("logprobs", "thresholds")
    result = probed_choices(Behaviour(logprobs=True), ways=ways)
    assert (result.verdict, outcome(result, "acts by the right amount")) == ("logprobs", "good")
    scaled = probed_choices(Behaviour(logprobs=True, bias_scale=1.5), ways=ways, seed=2)
    assert "logprobs" not in scaled.usable
    questions = [finding.question for finding in scaled.findings]
    assert len(questions) == len(set(questions))  # also of those that both ways ask


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (Behaviour(bias="rejected"), ""),
        (Behaviour(temperature="ignored"), "temperature changes no answer"),
        (Behaviour(temperature="fixed"), "that temperature is honoured could not be shown"),
        (Behaviour(temperature="rejected"), "temperature is not accepted"),
    ],
    ids=["honoured", "ignored", "fixed", "rejected"],
)
def test_temperature_without_a_bias(behaviour: Behaviour, reason: str) -> None:
    """Draws of two answers of each item show whether temperature acts."""
    result = probed_choices(behaviour, ways=WITHOUT_BIAS, seed=0 if reason else 1)
    assert reason in result.ways["temperature"]
    assert (result.verdict == "temperature") == (not reason)


@pytest.mark.parametrize("n", ["honoured", "ignored", "identical"])
def test_repeated_answers(n: Any) -> None:
    """Answers in several ways are noticed, and whether one request gives several independent ones."""
    result = probed_choices(Behaviour(n=n, temperature="rejected"), ways=("repeated answers",))
    assert result.verdict == "repeated answers"
    assert "items were answered in several ways" in answer(result, "repeated answers differ")
    assert result.at_once == (4 if n == "honoured" else 1)


# Endpoints that break


def test_reasoning_model() -> None:
    """A reasoning model that returns no content is not auditable, and the reason says what to change."""
    result = probed(Behaviour(fault="reasoning"))
    assert result.verdict == "not auditable"
    assert "turn reasoning off" in result.remedy
    assert result.remedy_options == {"reasoning_effort": "none"}
    assert result.queries == 6


# The command


@pytest.fixture
def asked(tmp_path: Path) -> str:
    """A file of the questions."""
    rows = ({"id": q.id, "label": q.label, "prompt": q.messages[0].content} for q in ITEMS)
    path = tmp_path / "items.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def ran(asked: str, *options: str, **how: Any) -> Result:
    """What the command did at a server that behaves so."""
    with running(Server(recording(ODDS), ITEMS, Behaviour(**how))) as server:
        line = [asked, "--model", "replay", "--base-url", server.base_url, *options]
        return CliRunner().invoke(command, line)


@pytest.mark.parametrize(
    ("how", "code", "verdict"),
    [
        ({}, 0, "thresholds"),
        ({"bias": "ignored"}, 3, "temperature"),
        ({"bias": "ignored", "temperature": "ignored"}, 4, "not auditable"),
    ],
)
def test_command(asked: str, how: dict[str, Any], code: int, verdict: str) -> None:
    """The command prints a table and the verdict, or JSON, and its exit status is the verdict's."""
    table, printed = ran(asked, **how), ran(asked, "--json", **how)
    assert (table.exit_code, printed.exit_code) == (code, code)
    assert f"verdict   {verdict}: " in table.output
    assert "'Yes' (1) / 'No' (2)" in table.output
    assert json.loads(printed.stdout)["verdict"] == verdict


def test_command_by_hand_and_by_name(asked: str) -> None:
    """Ids by hand need no vocabulary; without one, thresholds are out, and other ways are not."""
    by_hand = ran(asked, "--set", "positive_ids=1", "--set", "negative_ids=2", tokenize="none")
    by_name = ran(asked, tokenize="none")
    assert (by_hand.exit_code, by_name.exit_code) == (0, 3)
    assert "not known: this endpoint does not tell its token ids" in by_name.output
    assert ran(asked, "--set", "positive_ids=one").exit_code == 2


def test_command_names_the_cure(asked: str) -> None:
    """What would help a model that is cut short is printed as options, and is part of the JSON."""
    how = {"bias": "rejected", "temperature": "rejected", "wording": "sentence", "reasoning_tokens": 600}
    shown, printed = (
        ran(asked, "--set", "answer_format=sentence", *form, **how) for form in ((), ("--json",))
    )
    assert (shown.exit_code, printed.exit_code) == (4, 4), printed.output
    assert "a model that reasons or explains needs --set max_tokens=4000 or more" in shown.output
    options = json.loads(printed.stdout)["options"]
    assert options == {"max_tokens": 4000, "reasoning_effort": None, "out": None}


def test_command_shows_nothing_raw(asked: str) -> None:
    """Escape sequences never reach the terminal."""
    result = ran(asked, "--positive", "\x1b[31mYes", "--set", "positive_ids=1", bias="rejected")
    assert "\x1b" not in result.output
