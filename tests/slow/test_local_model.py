"""The probe of the embedded model, for real, and decisions that are the ones its hidden log-odds give."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from blindcal.asking.run_context import Limits
from blindcal.auditing.prepared import Prepared
from blindcal.certifying.decide import decide
from blindcal.endpoints import tokens
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.local_model import Served, serve
from blindcal.errors import UnfitError
from blindcal.items.catalogue import builtin, open_items
from blindcal.items.question_files import load
from blindcal.probing.client import ProbeClient
from blindcal.probing.findings import Probe
from blindcal.probing.probe import probe
from blindcal.records import NEGATIVE, POSITIVE, FloatArray, Item, Request, Targets, Token
from blindcal.results.certificate import AskedAs, Certificate
from blindcal.scoring.score_items import log_odds
from blindcal.settings import Settings
from blindcal.store.run_file import ServedModel
from certified_runs import certificate, near, ruled, side
from engine import governed
from hidden import shown
from serving import model_or_skip


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve(model_or_skip()) as served:
        yield served


def test_real_server_under_a_name_of_openai(served: Served) -> None:
    """Its own ids are taken whatever its model is called, and those of the name are found to be wrong."""
    pilot = next(iter(open_items("builtin")))

    async def chosen(tokenizer: str | None) -> tokens.Choice:
        async with HttpEndpoint(Address(served.base_url + "/", "gpt-4o-mini"), environ={}) as endpoint:
            found = await tokens.find_vocabulary(endpoint, endpoint, pilot, tokenizer)
            answers = await tokens.candidates_of(("Yes", "No"), found.encode)
            return await tokens.choose(endpoint, [pilot], answers, unsure=found.unsure)

    assert asyncio.run(chosen(None)).targets == Targets((Token(10539, "Yes"),), (Token(5230, "No"),))
    with pytest.raises(UnfitError, match="are not those of this model"):
        asyncio.run(chosen("gpt-4o-mini"))


def test_real_server(served: Served) -> None:
    """A real llama.cpp server with a real model: its verdict, and the flip at the logprob gap."""
    question = min(open_items("builtin"), key=lambda one: len(one.messages[0].content))
    targets = Targets((Token(10539, "Yes"),), (Token(5230, "No"),))

    async def talk() -> tuple[Probe, list[int]]:
        async with HttpEndpoint(Address(served.base_url, served.model), environ={}) as endpoint:
            found = await probe(governed(endpoint), [question], targets)
            reply = await endpoint.ask(Request(question.messages, top_logprobs=100))
            assert reply.logprobs is not None
            gap = reply.logprobs["Yes"] - reply.logprobs["No"]
            client = ProbeClient(endpoint, targets)
            return found, [await client.at(question, b - gap, 50.0) for b in (-1e-4, 1e-4)]

    found, around_the_gap = asyncio.run(talk())
    assert found.verdict == "thresholds"
    assert found.top_logprobs
    assert ("acts by the right amount", "good") in [(one.question, one.outcome) for one in found.findings]
    assert around_the_gap == [NEGATIVE, POSITIVE]


# Decisions

N = 24


def write_questions(path: Path, n: int) -> Path:
    """Write the first built-in questions without their labels."""
    records = ({"id": one["id"], "prompt": one["prompt"]} for one in builtin(n))
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


async def hidden(served: Served, items: list[Item]) -> tuple[Targets, FloatArray, ServedModel]:
    """The tokens of Yes and No, the log-odds that the server computes for each item, and its own name."""
    async with HttpEndpoint(Address(served.base_url, served.model, "completions")) as endpoint:
        encode = tokens.served_vocabulary(endpoint, served.model)
        yes, no = await tokens.candidates("Yes", encode), await tokens.candidates("No", encode)
        targets = Targets(yes[:1], no[:1])
        odds = [log_odds(targets, (await shown(endpoint, item, targets)).logprobs)[0] for item in items]
        reply = await endpoint.ask(Request(items[0].messages))
        return targets, np.array(odds), ServedModel(reply.model or "", reply.fingerprint or "")


def ruling(served: Served, path: Path) -> tuple[Certificate, FloatArray]:
    """A certificate with two thresholds that split the items in thirds, and their hidden probabilities."""
    settings = Settings(model=served.model, base_url=served.base_url, api="completions", method="latent")
    loaded = load(path, settings.prompt, labelled=False)
    config = settings.resolved(len(loaded)).fixed(loaded)
    targets, odds, name = asyncio.run(hidden(served, list(loaded)))
    third, sorted_odds = odds.size // 3, np.sort(odds)
    between = [sorted_odds[[k, k + 1]].mean() for k in (third, 2 * third)]
    lower, upper = (1 / (1 + np.exp(-np.array(between)))).tolist()
    ready = msgspec.to_builtins(Prepared(targets=targets, max_shift=50.0))
    rule = certificate(
        accept=side(upper),
        reject=side(lower),
        model=served.model,
        served=(name,),
        settings=AskedAs(config, ready),
    )
    return replace(rule, expires=rule.expires.replace(year=2999)), 1 / (1 + np.exp(-odds))


def test_each_decision_follows_the_hidden_log_odds(served: Served, tmp_path: Path) -> None:
    """Accepted, rejected and abstained from as the certified rule says; no item is at a threshold."""
    path = write_questions(tmp_path / "questions.jsonl", N)
    rule, p = ruling(served, path)
    found = decide(rule, path, out=tmp_path / "out", limits=Limits(concurrency=2), timeout=600)
    assert near(p, rule, within=1e-4) == 0
    assert [one.decision for one in found] == ruled(p, rule)
    assert min(found.accepted, found.rejected, found.abstained) >= N // 4
    assert not found.forced
