"""The probe, over real HTTP, against every way an endpoint is known to mislead."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

from blindcal.auditing.prepare import objection
from blindcal.cli.probe import command
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.query_format import ConfidenceQuestion, LogprobQuestion, TokenQuestion
from blindcal.errors import EndpointError, FatalError, InputError
from blindcal.methods import METHODS
from blindcal.probing.findings import Probe
from blindcal.probing.probe import ProbeQuestions, probe
from blindcal.probing.response_curve import Observation, Query, bisect, fit
from blindcal.records import NEGATIVE, POSITIVE, Item, Message, Reply, Request, Targets, Token
from blindcal.simulation.http_server import HttpRequest, HttpResponse
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from governed import governed
from misbehaving import Behaviour, Server
from serving import PAIR, items, recording

ODDS = [float(s) for s in np.random.default_rng(7).normal(0.7, 3, 24)]
ITEMS = items(len(ODDS))
WITHOUT_BIAS = ("temperature", "repeated answers")


def probed_at(
    server: Server, asked: Sequence[Item] = ITEMS, targets: Targets = PAIR, *, timeout: float = 60, **how: Any
) -> Probe:
    """The probe of a server."""

    async def talk() -> Probe:
        address = Address(server.base_url, "replay", timeout=timeout)
        async with HttpEndpoint(address, environ={}) as endpoint:
            result = await probe(governed(endpoint), asked, targets, **how)
            assert result.queries <= server.requests
            return result

    with running(server):
        return asyncio.run(talk())


def probed(behaviour: Behaviour, **how: Any) -> Probe:
    """The probe of a yes/no model that behaves so."""
    # a short patience only where something hangs: on a busy machine others may take their time
    timeout = 0.5 if behaviour.fault == "hang" else 60
    return probed_at(Server(recording(ODDS), ITEMS, behaviour), timeout=timeout, **how)


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


FAULTS: dict[str, tuple[Behaviour, str, str, str]] = {
    "logprobs shown": (Behaviour(logprobs=True), "thresholds", "acts", "acts by the right amount: good"),
    "bias rejected": (
        Behaviour(bias="rejected"),
        "temperature",
        "is not accepted",
        "logit_bias accepted: bad",
    ),
    "bias ignored": (Behaviour(bias="ignored"), "temperature", "ignored", "temperature honoured: good"),
    "sign inverted": (Behaviour(bias_scale=-1), "temperature", "sign inverted", "logit_bias acts: bad"),
    "rounded": (Behaviour(integer_bias=True), "temperature", "rounded", "fractions honoured: bad"),
    "deaf": (Behaviour(temperature="ignored"), "thresholds", "", "temperature honoured: caution"),
    "no temperature": (
        Behaviour(temperature="rejected"),
        "not auditable",
        "temperature 0 is refused",
        "temperature accepted: caution",
    ),
    "few strays": (Behaviour(outside=0.05), "thresholds", "", "answers inside the targets: caution"),
    "other words": (Behaviour(outside=0.4), "not auditable", "prompt", "answers inside the targets: bad"),
    "unverified": (
        Behaviour(temperature="ignored", bias_scale=0.5),
        "thresholds",
        "",
        "acts by the right amount: unknown",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named(fault: str) -> None:
    """What an endpoint does wrong decides the verdict, and the reason names it."""
    behaviour, verdict, reason, finding = FAULTS[fault]
    result = probed(behaviour)
    assert result.verdict == verdict
    assert reason in result.reason
    question, _, expected = finding.partition(": ")
    assert outcome(result, question) == expected


def test_a_refusal_is_quoted() -> None:
    """The service's own words are shown."""
    result = probed(Behaviour(bias="rejected"))
    assert "Unsupported parameter: 'logit_bias'" in answer(result, "logit_bias accepted")
    result = probed(Behaviour(temperature="rejected"))
    assert "'temperature' does not support 0" in answer(result, "temperature accepted")
    assert not result.tempered


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


@pytest.mark.parametrize("bias", ["honoured", "ignored"])
def test_temperature_that_is_always_one(bias: Literal["honoured", "ignored"]) -> None:
    """A server that samples at T = 1 whatever it is asked is refused by every method."""
    result = probed(Behaviour(bias=bias, temperature="fixed"))
    assert result.verdict == "not auditable"
    assert "clamped" not in result.reason


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


# Endpoints that no server plays


class Curve:
    """A greedy model of log-odds 1.5, deaf to temperature, whose service distorts the bias.

    With ``lapse``, that biased query gets the wrong answer.
    """

    def __init__(
        self, applied: Callable[[float], float] = float, *, completion_tokens: int = 1, lapse: int = 0
    ) -> None:
        self._applied = applied
        self._completion_tokens = completion_tokens
        self._left = lapse

    async def ask(self, request: Request) -> Reply:
        self._left -= bool(request.logit_bias)
        difference = request.logit_bias.get(1, 0.0) - request.logit_bias.get(2, 0.0)
        positive = 1.5 + self._applied(difference) >= 0
        if self._left == 0 and request.logit_bias:
            positive = not positive
        exposed = {"Yes": -0.2, "No": -1.7} if request.top_logprobs else None
        text = "Yes" if positive else "No"
        return Reply(text, completion_tokens=self._completion_tokens, logprobs=exposed)

    async def close(self) -> None:
        pass


class Coin(Curve):
    """An endpoint that answers at random and heeds nothing."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    async def ask(self, request: Request) -> Reply:  # noqa: ARG002 - heeds nothing
        return Reply("Yes" if self._rng.random() < 0.5 else "No")


@pytest.mark.parametrize(
    ("applied", "verdict", "question", "expected"),
    [
        (lambda b: b, "thresholds", "acts by the right amount", "good"),
        (lambda b: b / 2, "not auditable", "acts by the right amount", "bad"),
        (lambda b: -b if 4 < b < 30 else b, "not auditable", "one flip", "bad"),
    ],
    ids=["as it should", "by half its size", "turns back"],
)
def test_the_bias_is_compared_with_logprobs_and_must_be_monotone(
    applied: Callable[[float], float], verdict: str, question: str, expected: str
) -> None:
    """A bias that acts by half its size, or turns back, shows where logprobs are exposed."""
    result = asyncio.run(probe(Curve(applied), items(8), PAIR))
    assert (result.verdict, outcome(result, question)) == (verdict, expected)


def test_random_answers_never_pass() -> None:
    """Answers drawn at random do not pass for a working bias."""
    for seed in range(6):
        assert asyncio.run(probe(Coin(seed), items(8), PAIR)).verdict != "thresholds"


def test_what_is_a_caution() -> None:
    """A single answer that contradicts the bias, wherever it was, and replies billed at several tokens."""
    for lapse in range(12, 60, 12):
        result = asyncio.run(probe(Curve(lapse=lapse), items(8), PAIR))
        outcomes = {finding.outcome for finding in result.findings}
        assert (result.verdict, "caution" in outcomes) == ("thresholds", True)
    result = asyncio.run(probe(Curve(completion_tokens=16), items(8), PAIR))
    assert outcome(result, "one token out") == "caution"


# Endpoints that break


@pytest.mark.parametrize("fault", ["reasoning", "html", "schema", "empty"])
def test_broken_service(fault: Any) -> None:
    """A service that does not speak the protocol, or reasons, is not auditable, and the reason says why."""
    result = probed(Behaviour(fault=fault))
    assert result.verdict == "not auditable"
    assert result.reason
    if fault == "reasoning":
        assert "turn reasoning off" in result.remedy
        assert result.remedy_options == {"extra_body": {"reasoning_effort": "none"}}
        assert result.queries == 6


@pytest.mark.parametrize("fault", ["401", "404"])
def test_wrong_key_or_model(fault: Any) -> None:
    """A wrong key or model stops the probe at its first query, as it would stop a run."""
    with pytest.raises(FatalError):
        probed(Behaviour(fault=fault))


@pytest.mark.parametrize("fault", ["429", "500", "reset", "truncated", "hang"])
def test_passing_trouble(fault: Any) -> None:
    """Throttling, failures, resets and hangs now and then change nothing in what is found."""
    share = 0.02 if fault == "hang" else 0.2
    assert probed(Behaviour(fault=fault, fault_share=share)).verdict == "thresholds"


def test_no_items() -> None:
    """A probe without items is refused."""
    with pytest.raises(InputError, match="at least one item"):
        asyncio.run(probe(Coin(0), [], PAIR))


# Flips


def test_bisect_finds_a_flip() -> None:
    """Bisection finds a flip anywhere in range to the width asked for."""
    for flip in (-49.0, -16.2, -0.01, 0.0, 3.3, 40.0):
        asked: list[float] = []

        async def answer(shift: float, flip: float = flip, asked: list[float] = asked) -> int:
            asked.append(shift)
            return POSITIVE if shift >= flip else NEGATIVE

        assert asyncio.run(bisect(answer, -50, 50, 0.05)) == pytest.approx(flip, abs=0.026)
        assert len(asked) <= 14


@pytest.mark.parametrize("width", [0.05, 0.3, 1.0])
def test_fit_recovers_jitter(width: float) -> None:
    """With many answers the fitted flip and jitter are the true ones."""
    rng = np.random.default_rng(3)
    shifts = rng.uniform(1 - 3 * width, 1 + 3 * width, 600)
    answers = rng.normal(1.0, width, 600) <= shifts
    fitted = fit(
        [Observation(Query("a", float(b)), int(answer)) for b, answer in zip(shifts, answers, strict=True)]
    )
    assert fitted.shifts["a"] == pytest.approx(1.0, abs=0.2 * width)
    assert fitted.jitter == pytest.approx(width, rel=0.2)
    assert fitted.most > width * 0.9


# The command


@pytest.fixture
def asked(tmp_path: Path) -> str:
    """A file of the questions."""
    rows = ({"id": q.id, "label": q.label, "prompt": q.messages[0].content} for q in ITEMS)
    path = tmp_path / "items.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def ran(asked: str, server: Server, *options: str) -> Result:
    """What the command did at a server."""
    line = [asked, "--model", "replay", "--base-url", server.base_url, *options]
    return CliRunner().invoke(command, line)


@pytest.mark.parametrize(
    ("behaviour", "code", "verdict"),
    [
        (Behaviour(), 0, "thresholds"),
        (Behaviour(bias="ignored"), 3, "temperature"),
        (Behaviour(bias="ignored", temperature="ignored"), 4, "not auditable"),
    ],
    ids=["good", "bias ignored", "both ignored"],
)
def test_command(asked: str, behaviour: Behaviour, code: int, verdict: str) -> None:
    """The command prints a table and the verdict, or JSON, and its exit status is the verdict's."""
    with running(Server(recording(ODDS), ITEMS, behaviour)) as server:
        table, printed = ran(asked, server), ran(asked, server, "--json")
    assert (table.exit_code, printed.exit_code) == (code, code)
    assert f"verdict   {verdict}: " in table.output
    assert "'Yes' (1) / 'No' (2)" in table.output
    assert json.loads(printed.output)["verdict"] == verdict


def test_command_says_what_it_waits_for(asked: str) -> None:
    """A throttled probe says how long it waits, and one that would wait for years is an error at once."""
    forever = Behaviour(fault="429", retry_after="1e9")
    with running(Server(recording(ODDS), ITEMS, forever)) as server:
        result = ran(asked, server)
        assert server.requests <= 2
    assert isinstance(result.exception, EndpointError)
    assert "asks to wait 1,000,000,000 s" in str(result.exception)
    short = Behaviour(fault="429", fault_first=1, retry_after="3")
    with running(Server(recording(ODDS), ITEMS, short)) as server:
        assert "waiting 3 s, as the endpoint asks: too many requests" in ran(asked, server).stderr


def test_command_by_hand_and_by_name(asked: str) -> None:
    """Ids by hand need no vocabulary; without one, thresholds are out, and other ways are not."""
    with running(Server(recording(ODDS), ITEMS, Behaviour(tokenize="none"))) as server:
        by_hand = ran(asked, server, "--set", "positive_ids=1", "--set", "negative_ids=2")
        by_name = ran(asked, server)
        garbled = ran(asked, server, "--set", "positive_ids=one")
    assert (by_hand.exit_code, by_name.exit_code, garbled.exit_code) == (0, 3, 2)
    assert "not known: this endpoint does not tell its token ids" in by_name.output


def test_command_names_the_cure(asked: str) -> None:
    """What would help a model that is cut short is printed as options, and is part of the JSON."""
    long = Behaviour(bias="rejected", temperature="rejected", wording="sentence", reasoning_tokens=600)
    with running(Server(recording(ODDS), ITEMS, long)) as server:
        shown = ran(asked, server, "--set", "answer_format=sentence")
        printed = ran(asked, server, "--set", "answer_format=sentence", "--json")
    assert (shown.exit_code, printed.exit_code) == (4, 4), printed.output
    assert "a model that reasons or explains needs --max-tokens 4000 or more" in shown.output
    assert json.loads(printed.output)["options"] == {
        "max_tokens": 4000,
        "reasoning_effort": None,
        "out": None,
    }


def test_command_shows_nothing_raw(asked: str) -> None:
    """Escape sequences from a service never reach the terminal."""
    with running(Server(recording(ODDS), ITEMS, Behaviour(bias="rejected"))) as server:
        assert "\x1b" not in ran(asked, server, "--positive", "\x1b[31mYes", "--set", "positive_ids=1").output
