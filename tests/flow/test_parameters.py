"""Which fields are sent, what happens to refused ones, and services that take less than an audit wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from blindcal.asking.governor import GovernedEndpoint
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.refusals import SAMPLERS, Accepted, refused
from blindcal.errors import FatalError, RetryableError, UnsupportedError
from blindcal.records import Message, Request
from blindcal.simulation.http_server import HttpRequest, HttpResponse, json_response
from engine import hurried
from misbehaving import Behaviour, Server
from paths import DATA
from serving import CHAT_YES, Recorder, answering, ask, asking, items, replayed

REFUSALS: list[dict[str, Any]] = json.loads((DATA / "refusals.json").read_text())


def named(case: dict[str, Any]) -> str:
    return f"{case['service']}-{','.join(case['refused'])}"


OFF_WHEN_GREEDY = dict.fromkeys(("presence_penalty", "frequency_penalty"), 0) | dict.fromkeys(
    ("repetition_penalty", "repeat_penalty"), 1
)
OFF_WHEN_SAMPLED = {"top_p": 1, "min_p": 0, "top_k": -1, "typical_p": 1, **OFF_WHEN_GREEDY}
OF_OPENAI = {"top_p", "presence_penalty", "frequency_penalty"}


def talking(
    talk: Callable[[Server, HttpEndpoint], Awaitable[Any]],
    behaviour: Behaviour | None = None,
    **address: Any,
) -> Any:
    """What a conversation with a replayed model of one item returns."""

    async def start() -> Any:
        async with replayed([0.5], behaviour, **address) as (server, endpoint):
            return await talk(server, endpoint)

    return asyncio.run(start())


def question(**changes: Any) -> Request:
    """A request for the one item."""
    return Request(items(1)[0].messages, **changes)


def asked_of(handler: Callable[[HttpRequest], HttpResponse], request: Request, **address: Any) -> Accepted:
    """What a client has learnt after a request to a handler."""

    async def talk() -> Accepted:
        async with (
            answering(handler) as url,
            HttpEndpoint(Address(url, "m", **address), environ={}) as endpoint,
        ):
            await endpoint.ask(request)
            return endpoint.accepted

    return asyncio.run(talk())


# What error bodies say.


@pytest.mark.parametrize("case", REFUSALS, ids=named)
def test_refused_fields_are_found(case: dict[str, Any]) -> None:
    """Real error bodies name the fields that they refuse, and only those that were sent count."""
    raw = msgspec.json.encode(case["body"])
    assert set(refused(raw, case["sent"])) == set(case["refused"])
    assert refused(raw, case["sent"])[:1] == tuple(case["refused"][:1])
    assert refused(raw, ["echo"]) == ()
    learnt = Accepted().after(raw, dict.fromkeys(case["sent"], 1))
    assert learnt.least_tokens == case.get("least_tokens", 1)


@pytest.mark.parametrize("case", [case for case in REFUSALS if case["refused"]], ids=named)
def test_refused_field_that_matters(case: dict[str, Any]) -> None:
    """A field that the method relies on is named in the error, in every service's words and status."""
    fields = {name: "odd" for name in case["sent"] if not name.startswith("max_")}
    with pytest.raises(UnsupportedError) as caught:
        ask(Recorder(case["body"], case["status"]), asking(fields=fields))
    assert (caught.value.parameter, caught.value.status) == (case["refused"][0], case["status"])


def test_prompt_is_no_refusal() -> None:
    """A name in the echo of a request, or in words that refuse nothing, is not a refused field."""
    echo = "[{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'invalid', 'input': {'temperature': 0}}]"
    for message in (echo, "We like your temperature. The question is invalid.", "invalid n, or in general"):
        raw = msgspec.json.encode({"error": {"message": message}})
        assert refused(raw, ["temperature", "n", "messages"]) == ()


def test_gateway_words_are_shown() -> None:
    """What the provider behind a gateway says is part of the message."""
    body = next(one["body"] for one in REFUSALS if one["service"] == "OpenRouter")
    with pytest.raises(UnsupportedError, match="Unsupported parameter: 'temperature'"):
        asked_of(Recorder(body, 400), asking())


def test_no_provider_takes_every_field() -> None:
    """A gateway whose providers do not take every field is told from one without the model."""
    body = next(one["body"] for one in REFUSALS if one["status"] == 404)

    def gateway(request: HttpRequest) -> HttpResponse:
        listed = json_response({"data": [{"id": "m"}]})
        return listed if request.method == "GET" else json_response(body, 404)

    with pytest.raises(FatalError, match="no provider of 'm' takes every field"):
        asked_of(gateway, asking())


def test_wrong_model_is_no_matter_of_fields() -> None:
    """A refusal of the model's name is not taken for one of fields, and is not tried again without them."""
    recorder = Recorder({"error": {"message": "The model `m` does not exist."}}, 400)
    with pytest.raises(FatalError, match=r"does not exist|no model"):
        asked_of(recorder, asking(temperature=1.0))
    assert sum(request.method == "POST" for request in recorder.requests) == 1


# What is sent.


def test_samplers_are_sent_as_off() -> None:
    """A sampled request asks for the whole distribution, a greedy one for no penalties, no other for any."""
    for temperature, expected in ((1.0, OFF_WHEN_SAMPLED), (0.0, OFF_WHEN_GREEDY), (None, {})):
        recorder = Recorder(CHAT_YES)
        asked_of(recorder, asking(temperature=temperature))
        assert {key: recorder.sent[key] for key in recorder.sent.keys() & SAMPLERS.keys()} == expected
        assert ("temperature" in recorder.sent) == (temperature is not None)


def test_own_fields_win() -> None:
    """A field that the user sets is sent as it is, and its refusal is an error."""
    recorder = Recorder(CHAT_YES)
    asked_of(recorder, asking(temperature=1.0), extra_body={"min_p": 0.1, "top_k": None})
    assert recorder.sent["min_p"] == 0.1
    assert "top_k" not in recorder.sent
    body = {"error": {"message": "Unrecognized request argument supplied: min_p"}}
    with pytest.raises(UnsupportedError) as caught:
        asked_of(Recorder(body, 400), asking(temperature=1.0), extra_body={"min_p": 0})
    assert caught.value.parameter == "min_p"


def test_unexplained_refusal() -> None:
    """If a service does not say what it refuses, it is asked once more with OpenAI's fields only."""
    bodies: list[dict[str, object]] = []

    def strict(request: HttpRequest) -> HttpResponse:
        bodies.append(msgspec.json.decode(request.body))
        known = not (SAMPLERS.keys() - OF_OPENAI) & bodies[-1].keys()
        return json_response(CHAT_YES if known else {"error": "bad request"}, 200 if known else 400)

    assert set(asked_of(strict, asking(temperature=2.0)).left_out) == SAMPLERS.keys() - OF_OPENAI
    assert len(bodies) == 2
    assert bodies[-1]["top_p"] == 1


def test_bad_item_takes_no_field_away() -> None:
    """An unexplained refusal that has another cause changes nothing, before and after the first answer."""

    async def talk(server: Server, endpoint: HttpEndpoint) -> tuple[Accepted, int]:
        unknown = Request((Message("user", "something else"),), temperature=1.0)
        with pytest.raises(FatalError, match="not recorded"):
            await endpoint.ask(unknown)
        await endpoint.ask(question(temperature=1.0))
        before = server.requests
        with pytest.raises(FatalError, match="not recorded"):
            await endpoint.ask(unknown)
        return endpoint.accepted, server.requests - before

    assert talking(talk) == (Accepted(), 1)


def test_trial_that_fails_for_another_reason() -> None:
    """A failure that comes in the way of a trial is the one that is raised, to be tried again."""

    def busy(request: HttpRequest) -> HttpResponse:
        return json_response({"error": "bad"}, 400 if b"min_p" in request.body else 503)

    with pytest.raises(RetryableError):
        asked_of(busy, asking(temperature=1.0))


def test_seed_and_temperature_one_can_be_left_out() -> None:
    """A seed and a temperature of 1 are left out if refused; another temperature is an error."""

    def strict(request: HttpRequest) -> HttpResponse:
        sent = msgspec.json.decode(request.body)
        for name in ("seed", "temperature"):
            if name in sent:
                text = f"Unsupported parameter: '{name}' is not supported with this model."
                return json_response({"error": {"message": text, "param": name}}, 400)
        return json_response(CHAT_YES)

    assert set(asked_of(strict, asking(temperature=1.0, seed=7)).left_out) == {"seed", "temperature"}
    with pytest.raises(UnsupportedError) as caught:
        asked_of(strict, asking(temperature=2.0, seed=7))
    assert caught.value.parameter == "temperature"


# Services that take less than an audit wants.


@pytest.mark.parametrize("kind", ["rejected", "all rejected"])
def test_refused_sampler_fields_are_left_out(kind: Any) -> None:
    """A strict service is asked again without what it refuses, and never sees that after this."""

    async def talk(server: Server, endpoint: HttpEndpoint) -> tuple[int, tuple[str, ...]]:
        await asyncio.gather(*(endpoint.ask(question(temperature=1.0)) for _ in range(20)))
        before = server.requests
        await endpoint.ask(question(temperature=1.0))
        return server.requests - before, endpoint.accepted.left_out

    left = OFF_WHEN_SAMPLED.keys() - (OF_OPENAI if kind == "rejected" else set())
    behaviour = Behaviour(sampler_fields=kind, latency=0.001)
    assert talking(talk, behaviour) == (1, tuple(sorted(left)))


@pytest.mark.parametrize(
    ("behaviour", "requests"),
    [
        (Behaviour(limit_name="max_completion_tokens"), 4),
        (Behaviour(least_tokens=16), 4),
        (Behaviour(least_tokens=16, limit_name="max_completion_tokens"), 5),
    ],
    ids=["name", "least", "both"],
)
def test_the_limit_on_tokens_is_learnt(behaviour: Behaviour, requests: int) -> None:
    """Another name of the limit, and the least number of tokens that a model demands, are kept."""

    async def talk(server: Server, endpoint: HttpEndpoint) -> tuple[int, str, int]:
        for _ in range(3):
            assert (await endpoint.ask(question())).text == "Yes"
        return server.requests, endpoint.accepted.limit_name, endpoint.accepted.least_tokens

    name = "max_completion_tokens" if behaviour.limit_name != "any" else "max_tokens"
    assert talking(talk, behaviour) == (requests, name, behaviour.least_tokens)


def test_a_draw_that_breaks_a_character_off_costs_no_logprobs() -> None:
    """llama.cpp shows none of it; the greedy answer has the same, and both are paid for."""

    def broken(request: HttpRequest) -> HttpResponse:
        shown = {"content": [{"logprob": -0.1, "top_logprobs": [{"token": "Yes", "logprob": -0.1}]}]}
        drawn = msgspec.json.decode(request.body)["temperature"] > 0
        choice = (
            {"message": {"content": "\ufffd"}}
            if drawn
            else {"message": {"content": "Yes"}, "logprobs": shown}
        )
        return json_response({"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 1}})

    reply = ask(broken, asking(temperature=1.0, top_logprobs=5))
    assert (reply.text, reply.logprobs) == ("\ufffd", {"Yes": -0.1})
    assert (reply.prompt_tokens, reply.completion_tokens) == (18, 2)


@pytest.mark.parametrize(("heeds", "requests", "token"), [(True, 3, "Yes"), (False, 3, "token_id:7")])
def test_logprobs_by_id_are_asked_for_by_text(heeds: bool, requests: int, token: str) -> None:
    """vLLM can be started to name tokens by id; it is asked once more for texts, and then always."""
    bodies: list[dict[str, object]] = []

    def by_id(request: HttpRequest) -> HttpResponse:
        bodies.append(msgspec.json.decode(request.body))
        text = "Yes" if heeds and bodies[-1].get("return_tokens_as_token_ids") is False else "token_id:7"
        shown = {"content": [{"logprob": -0.1, "top_logprobs": [{"token": text, "logprob": -0.1}]}]}
        return json_response({"choices": [{"message": {"content": "Yes"}, "logprobs": shown}]})

    async def talk() -> list[str]:
        async with answering(by_id) as url, HttpEndpoint(Address(url, "m"), environ={}) as endpoint:
            governor = hurried(endpoint)
            asked = GovernedEndpoint(governor)
            replies = [await asked.ask(asking(top_logprobs=1)) for _ in range(2)]
            assert len(bodies) == governor.paid.served == requests
            return [name for reply in replies for name in reply.logprobs or ()]

    assert asyncio.run(talk()) == [token, token]
