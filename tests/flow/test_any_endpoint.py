"""Audits with no method named: each endpoint gets the best method that it allows, or the reason why not.

How often the intervals hold there is counted by bench/endpoints.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from blindcal.auditing.audit import audit_async
from blindcal.auditing.choice import METHOD_OF, MethodChoice
from blindcal.errors import InputError, UnfitError
from blindcal.probing.findings import Probe
from blindcal.records import Item, Message, Targets, Token, Way
from blindcal.results.result import AuditResult
from blindcal.settings import Settings
from blindcal.simulation.recording import RecordedTexts, Recording
from misbehaving import Behaviour, Server

N = 120
NEITHER = Behaviour(bias="rejected", temperature="rejected", sampler_fields="all rejected")
CUT = Behaviour(min_p=0.05)
SENTENCES = replace(NEITHER, wording="sentence", reasoning_tokens=64, limit_name="max_completion_tokens")
CHOSEN: dict[str, tuple[Behaviour, str]] = {
    "everything": (Behaviour(logprobs=True), "logprobs"),
    "everything but logprobs": (Behaviour(), "latent"),
    "bias refused": (Behaviour(bias="rejected"), "temperature"),
    "bias refused by a proxy": (Behaviour(bias="rejected", dialect="litellm"), "temperature"),
    "bias ignored": (Behaviour(bias="ignored"), "temperature"),
    "temperature refused": (Behaviour(temperature="rejected"), "repeated"),
    "temperature ignored": (Behaviour(temperature="ignored"), "latent"),
    "temperature fixed": (Behaviour(temperature="fixed"), "repeated"),
    "both refused, sentences": (SENTENCES, "repeated"),
    "both refused, logprobs shown": (replace(NEITHER, logprobs=True), "logprobs"),
    "both refused on Azure": (replace(NEITHER, dialect="azure"), "repeated"),
    "cut unless told otherwise": (replace(CUT, bias="rejected"), "temperature"),
    "always cut": (replace(CUT, sampler_fields="ignored"), "latent"),
    "n ignored": (replace(NEITHER, n="ignored"), "repeated"),
    "n identical": (replace(NEITHER, n="identical"), "repeated"),
    "penalty unless told otherwise": (Behaviour(repetition_penalty=1.1), "latent"),
    "always a penalty": (Behaviour(repetition_penalty=1.1, penalty_fields="ignored"), "temperature"),
    "token ids unknown": (Behaviour(tokenize="none"), "temperature"),
}
REFUSED: dict[str, Behaviour] = {
    "replies cached by prompt": Behaviour(cached=True),
    "replies cached": replace(NEITHER, cached_requests=True),
    "bias and temperature ignored": Behaviour(bias="ignored", temperature="ignored"),
}


def asked(folder: Path) -> tuple[Path, list[Item], Recording]:
    """A file of questions, the same as items, and a calibrated model; one answer stands in the prompts."""
    rng = np.random.default_rng(5)
    p = expit(rng.normal(0.3, 2, N))
    items = [
        Item(f"q{k}", int(rng.random() < p[k]), (Message("user", f"Say Yes if {k} is so."),))
        for k in range(N)
    ]
    file = folder / "items.jsonl"
    rows = ({"id": one.id, "label": one.label, "prompt": one.messages[0].content} for one in items)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file, items, Recording.from_probabilities([item.id for item in items], p)


def audited(folder: Path, behaviour: Behaviour, **options: Any) -> tuple[AuditResult, Sequence[str], Server]:
    """The result of an audit with no method named, and what was told on the way."""
    file, items, recording = asked(folder)
    told: list[str] = []

    async def talk() -> tuple[AuditResult, Sequence[str], Server]:
        async with Server(recording, items, behaviour) as server:
            settings = Settings(model="replay", base_url=server.base_url, resamples=50, **options)
            return await audit_async(file, settings, out=folder / "run", stage=told.append), told, server

    return asyncio.run(talk())


@pytest.mark.parametrize("kind", CHOSEN)
def test_the_best_method_is_chosen(kind: str, tmp_path: Path) -> None:
    """The audit finishes with an interval, and says which method it chose in one line."""
    behaviour, method = CHOSEN[kind]
    result, told, _ = audited(tmp_path, behaviour)
    assert result.method == method
    assert result.ece.has_interval
    assert result.complete
    (line,) = [one for one in told if one.startswith("chose ")]
    assert line.startswith(f"chose {method}, ")
    assert ("better would be" in line) == (method != "logprobs")


@pytest.mark.parametrize("kind", REFUSED)
def test_an_endpoint_whose_answers_never_vary_is_refused(kind: str, tmp_path: Path) -> None:
    """Where nothing tells a probability, the reason names each way that was tried."""
    with pytest.raises(UnfitError, match=r"logprobs are hidden, .*its answers do not vary"):
        audited(tmp_path, REFUSED[kind])


def test_several_answers_come_in_one_request(tmp_path: Path) -> None:
    """Where n acts, the prompt of repeated answers is paid for once."""
    one, _, alone = audited(tmp_path, replace(NEITHER, n="ignored"))
    (tmp_path / "n").mkdir()
    more, _, together = audited(tmp_path / "n", NEITHER)
    assert one.counts.answers == more.counts.answers == 2 * N
    assert together.requests < alone.requests - N / 2
    assert more.spend.prompt_tokens < one.spend.prompt_tokens


def test_free_text_is_read(tmp_path: Path) -> None:
    """A model that reasons and answers in sentences is audited by what its texts settle on."""
    result, _, _ = audited(tmp_path, SENTENCES)
    assert result.counts.invalid < 0.05 * result.counts.answers
    assert "free text" in result.measures
    assert "as it is configured" in result.measures


def test_constraints_make_hot_answers_valid(tmp_path: Path) -> None:
    """Where only the two answers can be allowed, no answer drawn at a high temperature is lost."""
    result, _, _ = audited(tmp_path, Behaviour(bias="rejected", constraints="honoured"))
    assert (result.method, result.counts.invalid) == ("temperature", 0)
    assert "allowed_token_ids" in result.measures


def test_repeated_answers_are_not_constrained(tmp_path: Path) -> None:
    """Where temperature is of no use, answers are repeated as the endpoint is configured."""
    fixed = Behaviour(bias="rejected", temperature="fixed", constraints="honoured")
    result, _, _ = audited(tmp_path, fixed)
    assert result.method == "repeated"
    assert "allowed_token_ids" not in result.measures


def test_a_confidence_in_words_needs_no_temperature(tmp_path: Path) -> None:
    """Where only a stated confidence is left and temperature is refused, none is sent."""
    file, items, recording = asked(tmp_path)
    spoken = RecordedTexts({item.id: "Yes, I am 80% sure." for item in items}, ("Yes", "No"))
    silent = replace(NEITHER, cached_requests=True)

    async def talk() -> AuditResult:
        async with Server(recording, items, silent, spoken=spoken) as server:
            settings = Settings(model="replay", base_url=server.base_url, resamples=50)
            return await audit_async(file, settings, out=tmp_path / "run")

    result = asyncio.run(talk())
    assert (result.method, result.counts.invalid) == ("verbalized", 0)


def test_the_same_again_goes_on_with_the_chosen_method(tmp_path: Path) -> None:
    """A finished run is read again for nothing, by the method that was chosen and by that method's name."""
    first, _, _ = audited(tmp_path, Behaviour(bias="rejected"))
    file, items, recording = asked(tmp_path)

    async def again(**options: Any) -> tuple[AuditResult, int]:
        async with Server(recording, items, Behaviour()) as server:
            settings = Settings(model="replay", base_url=first.settings["base_url"], resamples=50, **options)
            return await audit_async(file, settings, out=tmp_path / "run"), server.requests

    for options in ({}, {"method": "temperature"}):
        result, requests = asyncio.run(again(**options))
        assert (result.method, requests) == ("temperature", 0)
        assert result.ece == first.ece
    with pytest.raises(InputError, match="method"):
        asyncio.run(again(method="latent"))


def test_several_queries_are_one_where_more_tell_nothing(tmp_path: Path) -> None:
    """Logprobs are read once, whatever number of queries was asked for."""
    result, _, _ = audited(tmp_path, Behaviour(logprobs=True), queries=3.0)
    assert (result.method, result.counts.answers) == ("logprobs", N)


TARGETS = Targets((Token(1, "Yes"),), (Token(2, "No"),))


def probed(ways: dict[Way, str]) -> Probe:
    """A probe that found these ways usable, or not."""
    usable = next(way for way, trouble in ways.items() if not trouble)
    return Probe(verdict=usable, reason="", findings=(), targets=TARGETS, ways=ways)


def test_the_order_of_the_ways_is_that_of_their_widths() -> None:
    """At the same number of queries per item, logprobs are expected to be best, and then thresholds."""
    for queries in (2.0, 3.0):
        choice = MethodChoice(Settings(model="x", queries=queries), 1000)
        *widths, stated = [choice.options[way].half_width for way in METHOD_OF]
        assert stated is None
        logprobs, thresholds, *drawn = [width for width in widths if width is not None]
        assert logprobs < thresholds < min(drawn)
        assert all(choice.enough(way) for way in METHOD_OF if way != "temperature")


def test_the_line_names_what_would_be_better() -> None:
    """What was chosen is told with its queries, and so is what the endpoint does not allow."""
    choice = MethodChoice(Settings(model="x"), 1000)
    found = probed({"logprobs": "they are hidden", "thresholds": "", "temperature": ""})
    best = choice.best(found)
    assert best is not None
    line = choice.line(best, found)
    assert line == "latent, 1 query per item; better would be logprobs (they are hidden)"
    four = MethodChoice(Settings(model="x", answers=("A", "B", "C", "D")), 1000)
    usual = four.best(found)
    assert usual is not None
    assert four.line(usual, found).startswith("latent, 2 queries per item;")


def test_forecasts_decide_between_kinds_of_draws() -> None:
    """With a number of queries, repeated answers are chosen where their interval is clearly narrower."""
    both: dict[Way, str] = {"temperature": "", "repeated answers": ""}
    for queries in (2.0, 3.0, 4.0):
        choice = MethodChoice(Settings(model="x", queries=queries), 1000)
        heated, repeated = (choice.options[way].half_width for way in both)
        assert heated is not None
        assert repeated is not None
        best = choice.best(probed(both))
        assert best is not None
        assert (best.method == "repeated") == (repeated < 0.95 * heated)
        assert choice.enough("temperature") == (best.method == "temperature")
    usual = MethodChoice(Settings(model="x"), 1000).best(probed(both))
    assert usual is not None
    assert usual.method == "temperature"
