"""The probe, over real HTTP, against every way an endpoint is known to mislead."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable
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
from blindcal.errors import EndpointError, FatalError, InputError
from blindcal.methods import METHODS
from blindcal.probing.findings import Probe
from blindcal.probing.probe import probe
from blindcal.probing.response_curve import Observation, Query, bisect, fit
from blindcal.records import NEGATIVE, POSITIVE, Reply, Request
from blindcal.simulation.http_server import HttpRequest, HttpResponse
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from governed import governed
from misbehaving import Behaviour, Server
from serving import PAIR, items, recording, replayed

ODDS = [float(s) for s in np.random.default_rng(7).normal(0.7, 3, 24)]
ITEMS = items(len(ODDS))


def probed(behaviour: Behaviour, *, offset: float = 50.0, limit: float = 100.0, seed: int = 0) -> Probe:
    """What the probe finds at a model that behaves so."""

    async def talk() -> Probe:
        # a short patience only where something hangs: on a busy machine others may take their time
        patience = {"timeout": 0.5} if behaviour.fault == "hang" else {}
        async with replayed(ODDS, behaviour, **patience) as (server, endpoint):
            found = await probe(governed(endpoint), ITEMS, PAIR, offset=offset, limit=limit, seed=seed)
            assert found.queries <= server.requests
            return found

    return asyncio.run(talk())


def probed_at(server: Server, seed: int = 0) -> Probe:
    """What the probe finds at a server of the test's own."""

    async def talk() -> Probe:
        async with server, HttpEndpoint(Address(server.base_url, "replay"), environ={}) as endpoint:
            return await probe(governed(endpoint), ITEMS, PAIR, seed=seed)

    return asyncio.run(talk())


def outcome(found: Probe, question: str) -> str:
    """How one question came out."""
    return next(finding.outcome for finding in found.findings if finding.question == question)


def unfit(found: Probe, method: str) -> str:
    """Why a method refuses an endpoint; empty if it does not."""
    return objection(found, METHODS[method]) or ""


def test_good_endpoint() -> None:
    """An endpoint that does what it says is usable, over the whole range, and nothing is left open."""
    found = probed(Behaviour())
    assert (found.verdict, found.max_shift, found.clamp) == ("thresholds", 50, None)
    assert (found.jitter, found.crowd_jitter, found.outside) == (0, 0, 0)
    assert {finding.outcome for finding in found.findings} == {"good"}
    assert found.scale is not None
    assert 0.5 < found.scale[0] <= 1 <= found.scale[1] < 2
    assert found.prompt_tokens > found.completion_tokens > 0


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
    found = probed_at(Refusing(refused, message), seed)
    assert (found.verdict, found.outside) == ("thresholds", 0)


def test_certain_probabilities_are_no_clamp() -> None:
    """A recording rounded to probabilities of exactly 0 and 1 is audited like any other."""
    sure = Recording.from_probabilities([item.id for item in ITEMS], np.tile([0.0, 1.0], 12))
    found = probed_at(Server(sure, ITEMS))
    assert (found.verdict, found.clamp) == ("thresholds", None)


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
    found = probed(behaviour)
    assert found.verdict == verdict
    assert reason in found.reason
    assert finding in {f"{one.question}: {one.outcome}" for one in found.findings}


def test_a_refusal_is_quoted() -> None:
    """The service's own words are shown."""
    assert "Unsupported parameter: 'logit_bias'" in probed(Behaviour(bias="rejected")).findings[0].answer
    found = probed(Behaviour(temperature="rejected"))
    (said,) = [one.answer for one in found.findings if one.question == "temperature accepted"]
    assert "'temperature' does not support 0" in said
    assert not found.tempered


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("jitter", [1.0, 30.0])
def test_an_ignored_bias_is_caught_although_answers_vary(seed: int, jitter: float) -> None:
    """A bias that is ignored is caught whatever the model answers at random."""
    assert probed(Behaviour(bias="ignored", jitter=jitter, seed=seed), seed=seed).verdict != "thresholds"


@pytest.mark.parametrize("clamp", [5.0, 30.0, 50.0])
def test_low_clamp(clamp: float) -> None:
    """A clamp too low for the common bias is located and refused, and the message says what would fit."""
    found = probed(Behaviour(clamp=clamp))
    assert found.verdict == "temperature"
    assert found.clamp == pytest.approx(clamp, abs=0.3)
    assert "clamped at about" in found.reason
    assert found.clamp is not None
    assert found.within_clamp == {"offset": round(found.clamp / 2, 1), "limit": round(found.clamp, 1)}


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
    found = probed(Behaviour(jitter=0.3, seed=seed), seed=seed)
    assert found.verdict == "thresholds"
    assert 0.1 < found.noise < 4 * math.hypot(0.3, 0.3)
    assert outcome(found, "repeatable alone") in ("good", "caution")
    assert probed(Behaviour(jitter=4.0, seed=seed), seed=seed).verdict != "thresholds"


def test_jitter_under_concurrency_alone() -> None:
    """Answers that vary only in a crowd are told from those that always do, with the cure."""
    found = probed(Behaviour(crowd_jitter=0.5, latency=0.002))
    assert (found.jitter, found.noise > 0) == (0, True)
    (crowd,) = [f for f in found.findings if f.question == "repeatable under concurrency"]
    assert "less concurrency" in crowd.answer


@pytest.mark.parametrize("jitter", [0.0, 0.05, 0.1])
@pytest.mark.parametrize("bias", ["honoured", "ignored"])
def test_jitter_is_no_temperature(jitter: float, bias: Literal["honoured", "ignored"]) -> None:
    """An endpoint that ignores temperature is not audited by it, also if its answers vary near the flip."""
    reason = unfit(probed(Behaviour(bias=bias, temperature="ignored", jitter=jitter)), "temperature")
    assert re.search("high temperature than at T = 0|changes no answer|honoured could not be shown", reason)


@pytest.mark.parametrize("bias", ["honoured", "ignored"])
def test_temperature_that_is_always_one(bias: Literal["honoured", "ignored"]) -> None:
    """A server that samples at T = 1 whatever it is asked is refused by every method."""
    found = probed(Behaviour(bias=bias, temperature="fixed"))
    assert found.verdict == "not auditable"
    assert "clamped" not in found.reason


@pytest.mark.parametrize("cut", ["before", "after"])
@pytest.mark.parametrize("sampler", [{"min_p": 0.05}, {"top_p": 0.9}])
def test_truncated_samples(cut: Literal["before", "after"], sampler: dict[str, Any]) -> None:
    """Samples without their rare answers are found out; thresholds do not need them."""
    found = probed(Behaviour(cut=cut, sampler_fields="ignored", **sampler))
    assert "rare answers never come" in unfit(found, "temperature")
    assert not unfit(found, "latent")


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_scaled_bias(scale: float) -> None:
    """A bias multiplied by a constant shows in how answers off the flip vary; its interval is one of 95%."""
    found = [probed(Behaviour(bias_scale=scale, seed=seed), seed=seed) for seed in range(3)]
    assert {one.verdict for one in found} == {"not auditable"}
    assert {outcome(one, "acts by the right amount") for one in found} == {"bad"}
    held = [one for one in found if one.scale is not None and one.scale[0] <= scale <= one.scale[1]]
    assert len(held) >= 2  # fewer has a chance of 0.007 at 95%


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.03, 0.1])
def test_stray_answers(seed: int, share: float) -> None:
    """Answers that are wrong at random are never taken for a clamp, and many of them are refused."""
    found = probed(Behaviour(flipped=share, seed=seed), seed=seed)
    assert found.clamp is None
    assert "clamped" not in found.reason
    assert share < 0.1 or found.verdict == "not auditable"


# Endpoints that no server plays


class Coin:
    """An endpoint that answers at random and heeds nothing."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    async def ask(self, request: Request) -> Reply:  # noqa: ARG002 - heeds nothing
        return Reply("Yes" if self._rng.random() < 0.5 else "No")

    async def close(self) -> None:
        pass


class Curve:
    """A greedy model of log-odds 1.5, deaf to temperature, whose service distorts the bias."""

    def __init__(self, applied: Callable[[float], float], *, completion_tokens: int = 1) -> None:
        self._applied = applied
        self._completion_tokens = completion_tokens

    async def ask(self, request: Request) -> Reply:
        difference = request.logit_bias.get(1, 0.0) - request.logit_bias.get(2, 0.0)
        said = "Yes" if 1.5 + self._applied(difference) >= 0 else "No"
        exposed = {"Yes": -0.2, "No": -1.7} if request.top_logprobs else None
        return Reply(said, completion_tokens=self._completion_tokens, logprobs=exposed)

    async def close(self) -> None:
        pass


class Lapse(Curve):
    """The same model, which gives the wrong answer once, to one of its biased queries."""

    def __init__(self, which: int) -> None:
        super().__init__(lambda b: b)
        self._left = which

    async def ask(self, request: Request) -> Reply:
        reply = await super().ask(request)
        self._left -= bool(request.logit_bias)
        wrong = "No" if reply.text == "Yes" else "Yes"
        return replace(reply, text=wrong) if self._left == 0 and request.logit_bias else reply


@pytest.mark.parametrize(
    ("applied", "verdict", "question", "said"),
    [
        (lambda b: b, "thresholds", "acts by the right amount", "good"),
        (lambda b: b / 2, "not auditable", "acts by the right amount", "bad"),
        (lambda b: -b if 4 < b < 30 else b, "not auditable", "one flip", "bad"),
    ],
    ids=["as it should", "by half its size", "turns back"],
)
def test_the_bias_is_compared_with_logprobs_and_must_be_monotone(
    applied: Callable[[float], float], verdict: str, question: str, said: str
) -> None:
    """A bias that acts by half its size, or turns back, is found out where logprobs are exposed."""
    found = asyncio.run(probe(Curve(applied), items(8), PAIR))
    assert (found.verdict, outcome(found, question)) == (verdict, said)


def test_more_than_one_token() -> None:
    """Replies billed at more than one token are mentioned."""
    found = asyncio.run(probe(Curve(lambda b: b, completion_tokens=16), items(8), PAIR))
    assert outcome(found, "one token out") == "caution"


def test_random_answers_never_pass() -> None:
    """Answers drawn at random do not pass for a working bias."""
    for seed in range(6):
        assert asyncio.run(probe(Coin(seed), items(8), PAIR)).verdict != "thresholds"


def test_one_stray_answer() -> None:
    """A single answer that contradicts the bias is told, and where it was does not matter."""
    for which in range(12, 60, 12):
        found = asyncio.run(probe(Lapse(which), items(8), PAIR))
        told = {finding.outcome for finding in found.findings}
        assert (found.verdict, "caution" in told) == ("thresholds", True)


# Endpoints that break


def test_reasoning_model() -> None:
    """A reasoning model that returns no content is not auditable, and the reason says what to change."""
    found = probed(Behaviour(fault="reasoning"))
    assert found.verdict == "not auditable"
    assert "turn reasoning off" in found.remedy
    assert found.remedy_options == {"extra_body": {"reasoning_effort": "none"}}
    assert found.queries == 6


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


@pytest.mark.parametrize("fault", ["html", "schema", "empty"])
def test_broken_service(fault: Any) -> None:
    """A service that does not speak the protocol is not auditable, for the reason it shows."""
    found = probed(Behaviour(fault=fault))
    assert found.verdict == "not auditable"
    assert found.reason


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
    found = fit(
        [Observation(Query("a", float(b)), int(answer)) for b, answer in zip(shifts, answers, strict=True)]
    )
    assert found.shifts["a"] == pytest.approx(1.0, abs=0.2 * width)
    assert found.jitter == pytest.approx(width, rel=0.2)
    assert found.most > width * 0.9


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
        found = ran(asked, server)
        assert server.requests <= 2
    assert isinstance(found.exception, EndpointError)
    assert "asks to wait 1,000,000,000 s" in str(found.exception)
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
    found = json.loads(printed.output)
    assert found["options"] == {"max_tokens": 4000, "reasoning_effort": None, "out": None}


def test_command_shows_nothing_raw(asked: str) -> None:
    """Escape sequences from a service never reach the terminal."""
    with running(Server(recording(ODDS), ITEMS, Behaviour(bias="rejected"))) as server:
        assert "\x1b" not in ran(asked, server, "--positive", "\x1b[31mYes", "--set", "positive_ids=1").output
