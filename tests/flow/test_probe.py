"""The probe, over real HTTP, against every way an endpoint is known to mislead."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from blindcal.auditing.prepare import objection
from blindcal.cli.probe import command
from blindcal.endpoints import local_server as local
from blindcal.endpoints import tokens, vocabulary
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.model_file import ModelError
from blindcal.errors import EndpointError, FatalError, InputError, MissingExtraError, UnfitError
from blindcal.items.catalogue import open_items
from blindcal.methods import METHODS
from blindcal.probing.client import ProbeClient
from blindcal.probing.findings import Probe
from blindcal.probing.probe import probe
from blindcal.probing.response_curve import Observation, Query, bisect, fit
from blindcal.records import NEGATIVE, POSITIVE, Item, Reply, Request, Targets, Token
from blindcal.simulation.http_server import HttpRequest, HttpResponse
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from governed import governed
from misbehaving import Behaviour, Server
from serving import PAIR, items, recording, replayed

ODDS = [float(s) for s in np.random.default_rng(7).normal(0.7, 3, 24)]


def probed(behaviour: Behaviour, *, offset: float = 50.0, limit: float = 100.0, seed: int = 0) -> Probe:
    """What the probe finds at a model that behaves so."""

    async def talk() -> Probe:
        # a short patience only where something hangs: on a busy machine others may take their time
        patience = {"timeout": 0.5} if behaviour.fault == "hang" else {}
        async with replayed(ODDS, behaviour, **patience) as (server, endpoint):
            patient = governed(endpoint)
            found = await probe(patient, items(len(ODDS)), PAIR, offset=offset, limit=limit, seed=seed)
            assert found.queries <= server.requests
            return found

    return asyncio.run(talk())


def outcome(found: Probe, question: str) -> str:
    """How one question came out."""
    return next(finding.outcome for finding in found.findings if finding.question == question)


def test_good_endpoint() -> None:
    """An endpoint that does what it says is usable, over the whole range, and nothing is left open."""
    found = probed(Behaviour())
    assert (found.verdict, found.max_shift, found.clamp) == ("thresholds", 50, None)
    assert (found.jitter, found.crowd_jitter, found.outside) == (0, 0, 0)
    assert {finding.outcome for finding in found.findings} == {"good"}
    assert found.scale is not None
    assert 0.5 < found.scale[0] <= 1 <= found.scale[1] < 2
    assert found.prompt_tokens > found.completion_tokens > 0


@pytest.mark.parametrize("seed", range(12))
def test_good_endpoint_for_every_seed(seed: int) -> None:
    """Which items are asked does not matter."""
    assert probed(Behaviour(), seed=seed).verdict == "thresholds"


class Refusing(Server):
    """A replay that refuses some items: with ``said``, whatever is asked about them."""

    def __init__(self, refused: set[str], said: str) -> None:
        self.refused, self.said = refused, said
        super().__init__(recording(ODDS), items(len(ODDS)))

    def _handle(self, request: HttpRequest) -> HttpResponse:
        response = super()._handle(request)
        if any(text.encode() in request.body for text in self.refused):
            return replace(response, status=400, body=msgspec.json.encode({"error": {"message": self.said}}))
        return response


@pytest.mark.parametrize("said", ["blocked by the content filter", "we would rather not"])
@pytest.mark.parametrize("seed", range(10))
def test_refused_items_are_left_out(seed: int, said: str) -> None:
    """An item that is always refused is no item to probe with, and says nothing about the endpoint."""
    questions = items(len(ODDS))
    chosen = np.random.default_rng([seed, 1]).permutation(len(questions))[: len(questions) * 3 // 10]
    refused = {questions[int(k)].messages[0].content for k in chosen}

    async def talk() -> Probe:
        async with Refusing(refused, said) as server:
            address = Address(server.base_url, "replay")
            async with HttpEndpoint(address, environ={}) as endpoint:
                return await probe(governed(endpoint), questions, PAIR, seed=seed)

    found = asyncio.run(talk())
    assert (found.verdict, found.outside) == ("thresholds", 0)


def test_certain_probabilities_are_no_clamp() -> None:
    """A recording rounded to probabilities of exactly 0 and 1 is audited like any other."""
    sure = Recording.from_probabilities([item.id for item in items(12)], np.tile([0.0, 1.0], 6))

    async def talk() -> Probe:
        async with (
            Server(sure, items(12)) as server,
            HttpEndpoint(Address(server.base_url, "replay"), environ={}) as endpoint,
        ):
            return await probe(governed(endpoint), items(12), PAIR)

    found = asyncio.run(talk())
    assert (found.verdict, found.clamp) == ("thresholds", None)


def test_exposed_logprobs() -> None:
    """Logprobs that are exposed are told, and the flip is checked against them."""
    found = probed(Behaviour(logprobs=True))
    assert found.top_logprobs
    assert outcome(found, "acts by the right amount") == "good"


def test_rejected_bias() -> None:
    """A bias that is not accepted leaves temperature, and the service's own words are shown."""
    found = probed(Behaviour(bias="rejected"))
    assert (found.verdict, found.reason) == ("temperature", "logit_bias is not accepted")
    assert "Unsupported parameter: 'logit_bias'" in found.findings[0].answer


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("jitter", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("temperature", ["honoured", "ignored"])
def test_ignored_bias_is_always_caught(seed: int, jitter: float, temperature: str) -> None:
    """A bias that is ignored is caught whatever the model answers, steadily or at random."""
    honest = Behaviour(bias="ignored", jitter=jitter, seed=seed)
    behaviour = honest if temperature == "honoured" else replace(honest, temperature="ignored")
    found = probed(behaviour, seed=seed)
    assert found.verdict != "thresholds"
    if not jitter:
        assert "ignored" in found.reason
        assert found.verdict == ("temperature" if temperature == "honoured" else "not auditable")


class Coin:
    """An endpoint that answers at random and heeds nothing."""

    def __init__(self, seed: int, p: float) -> None:
        self._rng = np.random.default_rng(seed)
        self._p = p

    async def ask(self, request: Request) -> Reply:  # noqa: ARG002 - heeds nothing
        return Reply("Yes" if self._rng.random() < self._p else "No")

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


def test_wrong_amount() -> None:
    """A bias that acts by half its size is found out where logprobs are exposed."""
    found = asyncio.run(probe(Curve(lambda b: b / 2), items(8), PAIR))
    assert "wrong amount" in found.reason
    assert (found.verdict, outcome(found, "acts by the right amount")) == ("not auditable", "bad")
    good = asyncio.run(probe(Curve(lambda b: b), items(1), PAIR))
    assert (good.verdict, outcome(good, "acts by the right amount")) == ("thresholds", "good")


def test_answer_that_turns_back() -> None:
    """An answer that is not monotone in the shift is refused."""
    found = asyncio.run(probe(Curve(lambda b: -b if 4 < b < 30 else b), items(8), PAIR))
    assert (found.verdict, outcome(found, "one flip")) == ("not auditable", "bad")


def test_more_than_one_token() -> None:
    """Replies billed at more than one token are mentioned."""
    found = asyncio.run(probe(Curve(lambda b: b, completion_tokens=16), items(8), PAIR))
    assert outcome(found, "one token out") == "caution"


def test_random_answers_never_pass() -> None:
    """Answers drawn at random pass for a working bias in none of forty tries."""
    for seed in range(40):
        found = asyncio.run(probe(Coin(seed, 0.5), items(8), PAIR))
        assert found.verdict != "thresholds"


@pytest.mark.parametrize("clamp", [5.0, 10.0, 30.0, 50.0])
def test_low_clamp(clamp: float) -> None:
    """A clamp too low for the common bias is located and refused, and the message says what would fit."""
    found = probed(Behaviour(clamp=clamp))
    assert found.verdict == "temperature"
    assert found.clamp == pytest.approx(clamp, abs=0.3)
    assert "clamped at about" in found.reason
    assert found.clamp is not None
    assert found.within_clamp == {"offset": round(found.clamp / 2, 1), "limit": round(found.clamp, 1)}


def test_low_clamp_with_its_own_offset() -> None:
    """Within a known clamp and a smaller common bias thresholds are usable, over a smaller range."""
    found = probed(Behaviour(clamp=10), offset=5, limit=10)
    assert (found.verdict, found.max_shift) == ("thresholds", 5)


def test_high_clamp() -> None:
    """A clamp that leaves enough range is usable, and the range is reported on the safe side."""
    found = probed(Behaviour(clamp=65))
    assert found.verdict == "thresholds"
    assert found.clamp == pytest.approx(65, abs=0.3)
    assert 14 < found.max_shift <= 15
    assert outcome(found, "range") == "caution"


@pytest.mark.parametrize("seed", range(6))
def test_rounded_bias(seed: int) -> None:
    """A bias rounded to whole numbers is found out."""
    found = probed(Behaviour(integer_bias=True), seed=seed)
    assert found.integer_bias
    assert (found.verdict, outcome(found, "fractions honoured")) == ("temperature", "bad")
    assert "rounded" in found.reason


def test_inverted_sign() -> None:
    """A bias with the wrong sign is named as such."""
    found = probed(Behaviour(bias_scale=-1))
    assert found.verdict == "temperature"
    assert "sign inverted" in found.reason


@pytest.mark.parametrize("seed", range(10))
def test_jitter_is_measured(seed: int) -> None:
    """Jitter is seen, its size is told to within a factor, and it passes for nothing worse."""
    found = probed(Behaviour(jitter=0.3, seed=seed), seed=seed)
    assert found.verdict == "thresholds"
    assert 0.1 < found.noise < 4 * math.hypot(0.3, 0.3)
    assert outcome(found, "repeatable alone") in ("good", "caution")


def test_jitter_under_concurrency_alone() -> None:
    """Answers that vary only in a crowd are told from those that always do, with the cure."""
    found = probed(Behaviour(crowd_jitter=0.5, latency=0.002))
    assert found.jitter == 0
    assert found.noise > 0
    (crowd,) = [f for f in found.findings if f.question == "repeatable under concurrency"]
    assert "less concurrency" in crowd.answer


def test_large_jitter_is_refused() -> None:
    """Where answers are mostly noise thresholds are not used."""
    found = probed(Behaviour(jitter=4.0))
    assert found.verdict != "thresholds"


def test_answers_outside_the_targets() -> None:
    """A few stray answers are counted and tolerated; many make the endpoint unusable."""
    few, many = probed(Behaviour(outside=0.05)), probed(Behaviour(outside=0.4))
    assert few.verdict == "thresholds"
    assert 0 < (few.outside or 0) < 0.2
    assert outcome(few, "answers inside the targets") == "caution"
    assert many.verdict == "not auditable"


def test_temperature_ignored() -> None:
    """A temperature without effect is noted; thresholds do not need it."""
    found = probed(Behaviour(temperature="ignored"))
    assert (found.verdict, outcome(found, "temperature honoured")) == ("thresholds", "caution")


def test_temperature_rejected() -> None:
    """A model that takes no temperature but its own is asked without one, and its own words are shown."""
    found = probed(Behaviour(temperature="rejected"))
    assert found.verdict == "not auditable"
    assert found.reason == "temperature 0 is refused, which thresholds need, and temperature is not accepted"
    (said,) = [one.answer for one in found.findings if one.question == "temperature accepted"]
    assert "'temperature' does not support 0" in said
    assert not found.tempered


def unfit(found: Probe, method: str) -> str:
    """Why a method refuses an endpoint; empty if it does not."""
    return objection(found, METHODS[method]) or ""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("jitter", [0.0, 0.05, 0.1])
@pytest.mark.parametrize("bias", ["honoured", "ignored"])
def test_jitter_is_no_temperature(seed: int, jitter: float, bias: Literal["honoured", "ignored"]) -> None:
    """An endpoint that ignores temperature is not audited by it, also if its answers vary near the flip."""
    deaf = Behaviour(bias=bias, temperature="ignored", jitter=jitter, seed=seed)
    reason = unfit(probed(deaf, seed=seed), "temperature")
    assert re.search("high temperature than at T = 0|changes no answer|honoured could not be shown", reason)


@pytest.mark.parametrize("seed", range(3))
def test_temperature_without_bias(seed: int) -> None:
    """Where the bias is ignored, a temperature that acts as it should is enough for its method."""
    found = probed(Behaviour(bias="ignored", seed=seed), seed=seed)
    assert (found.verdict, outcome(found, "temperature honoured")) == ("temperature", "good")
    assert not unfit(found, "temperature")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bias", ["honoured", "ignored"])
def test_temperature_that_is_always_one(seed: int, bias: Literal["honoured", "ignored"]) -> None:
    """A server that samples at T = 1 whatever it is asked is refused by every method."""
    found = probed(Behaviour(bias=bias, temperature="fixed", seed=seed), seed=seed)
    assert found.verdict == "not auditable"
    assert "clamped" not in found.reason


@pytest.mark.parametrize("cut", ["before", "after"])
@pytest.mark.parametrize("sampler", [{"min_p": 0.05}, {"top_p": 0.9}])
def test_truncated_samples(cut: Literal["before", "after"], sampler: dict[str, float]) -> None:
    """Samples without their rare answers are found out; thresholds do not need them."""
    found = probed(Behaviour(cut=cut, sampler_fields="ignored", **sampler))  # type: ignore[arg-type]
    assert "rare answers never come" in unfit(found, "temperature")
    assert not unfit(found, "latent")


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_scaled_bias(scale: float) -> None:
    """A bias multiplied by a constant shows in how answers off the flip vary; its interval is one of 95%."""
    found = [probed(Behaviour(bias_scale=scale, seed=seed), seed=seed) for seed in range(20)]
    caught = [one for one in found if outcome(one, "acts by the right amount") == "bad"]
    assert {one.verdict for one in caught} == {"not auditable"}
    assert len(caught) >= 17  # the docs say 19: fewer than 17 of 20 has a chance of 0.016 at 95%
    held = [one for one in found if one.scale is not None and one.scale[0] <= scale <= one.scale[1]]
    assert len(held) >= 16  # fewer has a chance of 0.003 at 95%


def test_scale_without_temperature() -> None:
    """Where neither temperature nor logprobs show the scale of the bias, it is called unverified."""
    found = probed(Behaviour(temperature="ignored", bias_scale=0.5))
    assert (found.verdict, outcome(found, "acts by the right amount")) == ("thresholds", "unknown")
    assert found.scale is None


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("share", [0.03, 0.1])
def test_stray_answers(seed: int, share: float) -> None:
    """Answers that are wrong at random are never taken for a clamp, and many of them are refused."""
    found = probed(Behaviour(flipped=share, seed=seed), seed=seed)
    assert found.clamp is None
    assert "clamped" not in found.reason
    assert share < 0.1 or found.verdict == "not auditable"


def test_one_stray_answer() -> None:
    """A single answer that contradicts the bias is told, and where it was does not matter."""
    for which in range(12, 60, 6):
        found = asyncio.run(probe(Lapse(which), items(8), PAIR))
        told = {finding.outcome for finding in found.findings}
        assert (found.verdict, "caution" in told) == ("thresholds", True)


def test_reasoning_model() -> None:
    """A reasoning model that returns no content is not auditable, and the reason says what to change."""
    found = probed(Behaviour(fault="reasoning"))
    assert found.verdict == "not auditable"
    assert "turn reasoning off" in found.remedy
    assert found.options == {"extra_body": {"reasoning_effort": "none"}}
    assert found.queries == 6


@pytest.mark.parametrize("fault", ["401", "404"])
def test_wrong_key_or_model(fault: str) -> None:
    """A wrong key or model stops the probe at its first query, as it would stop a run."""
    with pytest.raises(FatalError):
        probed(Behaviour(fault="401" if fault == "401" else "404"))


@pytest.mark.parametrize("fault", ["429", "500", "reset", "truncated", "hang"])
def test_passing_trouble(fault: str) -> None:
    """Throttling, failures, resets and hangs now and then change nothing in what is found."""
    struck: dict[str, Behaviour] = {
        "429": Behaviour(fault="429", fault_share=0.2),
        "500": Behaviour(fault="500", fault_share=0.2),
        "reset": Behaviour(fault="reset", fault_share=0.2),
        "truncated": Behaviour(fault="truncated", fault_share=0.2),
        "hang": Behaviour(fault="hang", fault_share=0.02),
    }
    assert probed(struck[fault]).verdict == "thresholds"


@pytest.mark.parametrize("fault", ["html", "schema", "empty"])
def test_broken_service(fault: str) -> None:
    """A service that does not speak the protocol is not auditable, for the reason it shows."""
    broken: dict[str, Behaviour] = {
        "html": Behaviour(fault="html"),
        "schema": Behaviour(fault="schema"),
        "empty": Behaviour(fault="empty"),
    }
    found = probed(broken[fault])
    assert found.verdict == "not auditable"
    assert found.reason


def test_no_items() -> None:
    """A probe without items is refused."""
    with pytest.raises(InputError, match="at least one item"):
        asyncio.run(probe(Coin(0, 0.5), [], PAIR))


def test_bisect_finds_a_flip() -> None:
    """Bisection finds a flip anywhere in range to the width asked for."""
    for flip in (-49.0, -16.2, -0.01, 0.0, 3.3, 40.0):
        asked: list[float] = []

        async def answer(shift: float, flip: float = flip, asked: list[float] = asked) -> int:
            asked.append(shift)
            return POSITIVE if shift >= flip else NEGATIVE

        found = asyncio.run(bisect(answer, -50, 50, 0.05))
        assert found == pytest.approx(flip, abs=0.026)
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


def items_file(tmp_path: Path, questions: list[Item]) -> str:
    """A file of these questions."""
    path = tmp_path / "items.jsonl"
    rows = ({"id": q.id, "label": q.label, "prompt": q.messages[0].content} for q in questions)
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


@pytest.mark.parametrize(
    ("behaviour", "code", "verdict"),
    [
        (Behaviour(), 0, "thresholds"),
        (Behaviour(bias="ignored"), 3, "temperature"),
        (Behaviour(bias="ignored", temperature="ignored"), 4, "not auditable"),
    ],
)
def test_command(tmp_path: Path, behaviour: Behaviour, code: int, verdict: str) -> None:
    """The command prints a table and the verdict, or JSON, and its exit status is the verdict's."""
    with running(Server(recording(ODDS), items(len(ODDS)), behaviour)) as server:
        line = [items_file(tmp_path, items(len(ODDS))), "--model", "replay", "--base-url", server.base_url]
        table = CliRunner().invoke(command, line)
        printed = CliRunner().invoke(command, [*line, "--json"])
    assert (table.exit_code, printed.exit_code) == (code, code)
    assert f"verdict   {verdict}: " in table.output
    assert "'Yes' (1) / 'No' (2)" in table.output
    assert json.loads(printed.output)["verdict"] == verdict


def test_command_says_what_it_waits_for(tmp_path: Path) -> None:
    """A throttled probe says how long it waits, and one that would wait for years is an error at once."""
    line = [items_file(tmp_path, items(len(ODDS))), "--model", "replay", "--base-url"]
    forever = Behaviour(fault="429", retry_after="1e9")
    with running(Server(recording(ODDS), items(len(ODDS)), forever)) as server:
        found = CliRunner().invoke(command, [*line, server.base_url])
        assert server.requests <= 2
    assert isinstance(found.exception, EndpointError)
    assert "asks to wait 1,000,000,000 s" in str(found.exception)
    short = Behaviour(fault="429", fault_first=1, retry_after="3")
    with running(Server(recording(ODDS), items(len(ODDS)), short)) as server:
        found = CliRunner().invoke(command, [*line, server.base_url])
    assert "waiting 3 s, as the endpoint asks: too many requests" in found.stderr


def test_command_by_hand_and_by_name(tmp_path: Path) -> None:
    """Ids by hand need no vocabulary; without one, thresholds are out, and other ways are not."""
    with running(Server(recording(ODDS), items(len(ODDS)), Behaviour(tokenize="none"))) as server:
        line = [items_file(tmp_path, items(len(ODDS))), "--model", "replay", "--base-url", server.base_url]
        by_hand = CliRunner().invoke(command, [*line, "--set", "positive_ids=1", "--set", "negative_ids=2"])
        by_name = CliRunner().invoke(command, line)
        garbled = CliRunner().invoke(command, [*line, "--set", "positive_ids=one"])
    assert by_hand.exit_code == 0
    assert by_name.exit_code == 3
    assert "not known: this endpoint does not tell its token ids" in by_name.output
    assert garbled.exit_code == 2


def test_command_reads_other_fields(tmp_path: Path) -> None:
    """Records that call their label and id something else are read as an audit reads them."""
    path = tmp_path / "items.jsonl"
    rows = ({"name": q.id, "truth": q.label, "prompt": q.messages[0].content} for q in items(len(ODDS)))
    path.write_text("\n".join(json.dumps(row) for row in rows))
    with running(Server(recording(ODDS), items(len(ODDS)), Behaviour())) as server:
        line = [str(path), "--model", "replay", "--base-url", server.base_url]
        found = CliRunner().invoke(command, [*line, "--label-field", "truth", "--set", "id_field=name"])
    assert found.exit_code == 0, found.output


def test_command_shows_nothing_raw(tmp_path: Path) -> None:
    """Escape sequences from a service never reach the terminal."""
    hostile = recording(ODDS)
    with running(Server(hostile, items(len(ODDS)), Behaviour(bias="rejected"))) as server:
        line = [items_file(tmp_path, items(len(ODDS))), "--model", "replay", "--base-url", server.base_url]
        shown = CliRunner().invoke(
            command, [*line, "--set", "positive=\x1b[31mYes", "--set", "positive_ids=1"]
        )
    assert "\x1b" not in shown.output


@pytest.fixture(scope="module")
def served() -> Iterator[local.Served]:
    """A real llama.cpp server with the small built-in model."""
    try:
        with local.serve() as found:
            yield found
    except (MissingExtraError, ModelError) as error:
        pytest.skip(f"no embedded model: {error}")


@pytest.mark.parametrize("model", ["gpt-3.5-turbo", "gpt-4o-mini"])
def test_real_server_under_a_name_of_openai(served: local.Served, model: str) -> None:
    """Its own ids are taken whatever its model is called, and those of the name are found to be wrong."""
    questions = open_items("builtin")
    pilot = next(iter(questions))

    async def chosen(tokenizer: str | None) -> tokens.Choice:
        async with HttpEndpoint(Address(served.base_url + "/", model), environ={}) as endpoint:
            found = await vocabulary.find(endpoint, endpoint, pilot, tokenizer)
            up = await tokens.candidates("Yes", found.encode)
            down = await tokens.candidates("No", found.encode)
            return await tokens.choose(endpoint, [pilot], [up, down], unsure=found.unsure)

    assert asyncio.run(chosen(None)).targets == Targets((Token(10539, "Yes"),), (Token(5230, "No"),))
    with pytest.raises(UnfitError, match="are not those of this model"):
        asyncio.run(chosen(vocabulary.openai_encoding(model)))


def test_real_server(served: local.Served) -> None:
    """A real llama.cpp server with a real model: its tokens, its verdict, and the flip at the logprob gap."""
    questions = open_items("builtin")
    question = min(questions, key=lambda one: len(one.messages[0].content))

    async def talk() -> tuple[tokens.Choice, Probe, list[int]]:
        address = Address(served.base_url, served.model)
        async with HttpEndpoint(address, environ={}) as endpoint:
            source = vocabulary.served(endpoint, served.model)
            up, down = await tokens.candidates("Yes", source), await tokens.candidates("No", source)
            choice = await tokens.choose(endpoint, [question], [up, down])
            found = await probe(governed(endpoint), [question], choice.targets)
            reply = await endpoint.ask(Request(question.messages, top_logprobs=100))
            assert reply.logprobs is not None
            gap = reply.logprobs["Yes"] - reply.logprobs["No"]
            asker = ProbeClient(endpoint, choice.targets)
            return choice, found, [await asker.at(question, b - gap, 50.0) for b in (-1e-4, 1e-4)]

    choice, found, around_the_gap = asyncio.run(talk())
    assert [token.text for token in (*choice.targets.positive, *choice.targets.negative)] == ["Yes", "No"]
    assert [token.id for token in (*choice.targets.positive, *choice.targets.negative)] == [10539, 5230]
    assert found.verdict == "thresholds"
    assert found.top_logprobs
    assert outcome(found, "acts by the right amount") == "good"
    assert around_the_gap == [NEGATIVE, POSITIVE]
