"""Audits with no method named: each endpoint gets the best method that it allows, or the reason why not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from blindcal.auditing.audit import audit
from blindcal.auditing.method_choice import best_option, method_options
from blindcal.auditing.prepare import EndpointProbe
from blindcal.auditing.prepare import probe as probe_endpoint
from blindcal.errors import InputError, UnfitError
from blindcal.results.result import AuditResult
from blindcal.settings import Settings
from blindcal.simulation.recording import RecordedTexts
from misbehaving import Behaviour, Server
from serving import replaying, settings_of, write_records

pytestmark = pytest.mark.usefixtures("no_page")

N = 120
NEITHER = Behaviour(bias="rejected", temperature="rejected", sampler_fields="all rejected")
CUT = Behaviour(min_p=0.05)
SENTENCES = replace(NEITHER, wording="sentence", reasoning_tokens=64, limit_name="max_completion_tokens")
CHOSEN: dict[str, tuple[Behaviour, str]] = {
    "everything": (Behaviour(logprobs=True), "logprobs"),
    "everything but logprobs": (Behaviour(), "latent"),
    "bias refused": (Behaviour(bias="rejected"), "temperature"),
    "bias ignored": (Behaviour(bias="ignored"), "temperature"),
    "temperature refused": (Behaviour(temperature="rejected"), "repeated"),
    "temperature ignored": (Behaviour(temperature="ignored"), "latent"),
    "temperature fixed": (Behaviour(temperature="fixed"), "repeated"),
    "both refused, sentences": (SENTENCES, "repeated"),
    "both refused, logprobs shown": (replace(NEITHER, logprobs=True), "logprobs"),
    "both refused": (NEITHER, "repeated"),
    "cut unless told otherwise": (replace(CUT, bias="rejected"), "temperature"),
    "always cut": (replace(CUT, sampler_fields="ignored"), "latent"),
    "n ignored": (replace(NEITHER, n="ignored"), "repeated"),
    "n identical": (replace(NEITHER, n="identical"), "repeated"),
    "penalty unless told otherwise": (Behaviour(repetition_penalty=1.1), "latent"),
    "always a penalty": (Behaviour(repetition_penalty=1.1, penalty_fields="ignored"), "temperature"),
    "one seed unless told otherwise": (Behaviour(bias="rejected", draws="one seed"), "temperature"),
    "same requests cached": (replace(NEITHER, cached_requests=1.0), "repeated"),
    "token ids unknown": (Behaviour(tokenize="none"), "temperature"),
}
REFUSED: dict[str, Behaviour] = {
    "replies cached by prompt": Behaviour(cached=1.0),
    "a seed by prompt": Behaviour(bias="rejected", draws="by prompt"),
    "bias and temperature ignored": Behaviour(bias="ignored", temperature="ignored"),
}


@contextmanager
def served(
    folder: Path, behaviour: Behaviour, spoken: str = "", **options: Any
) -> Iterator[tuple[Path, Settings, Server]]:
    """A file of questions, and a server of their model; one answer stands in the prompts.

    With ``spoken``, this is what it says if it is asked for text.
    """
    p = expit(np.random.default_rng(5).normal(0.3, 2, N))
    rows = ({"id": f"q{k}", "label": k % 2, "prompt": f"Say Yes if {k} is so."} for k in range(N))
    file = write_records(folder / "items.jsonl", rows)
    texts = RecordedTexts({f"q{k}": spoken for k in range(N)}, ("Yes", "No")) if spoken else None
    with replaying(file, p, behaviour, spoken=texts) as server:
        yield file, settings_of(server, **options), server


def audited(folder: Path, behaviour: Behaviour, spoken: str = "", **options: Any) -> AuditResult:
    """The result of an audit with no method named."""
    with served(folder, behaviour, spoken, **options) as (file, settings, _):
        return audit(file, settings, out=folder / "run")


def chosen(found: EndpointProbe) -> str:
    """The method that an audit would use."""
    best = best_option(found.options)
    return "none" if best is None else best.method


@pytest.mark.parametrize("kind", CHOSEN)
def test_the_best_method_is_chosen(kind: str, tmp_path: Path) -> None:
    """The best method that the endpoint allows is used."""
    behaviour, method = CHOSEN[kind]
    with served(tmp_path, behaviour) as (file, settings, _):
        assert chosen(probe_endpoint(file, settings)) == method


@pytest.mark.parametrize("kind", REFUSED)
def test_an_endpoint_whose_answers_never_vary_is_refused(kind: str, tmp_path: Path) -> None:
    """Where nothing tells a probability, the reason names each way that was tried."""
    with pytest.raises(UnfitError, match=r"logprobs are hidden, .*its answers do not vary"):
        audited(tmp_path, REFUSED[kind])


def test_an_audit_says_in_one_line_what_it_chose_and_goes_on_with_it(tmp_path: Path) -> None:
    """A finished run is read again for nothing, by the method that was chosen and by that method's name."""
    told: list[str] = []
    with served(tmp_path, Behaviour(bias="rejected", constraints="honoured")) as (file, settings, server):
        first = audit(file, settings, out=tmp_path / "run", stage=told.append)
        asked = server.requests
        assert first.complete
        assert first.ece.has_interval
        (line,) = [one for one in told if one.startswith("chose ")]
        assert line.startswith("chose temperature, ")
        assert "not available: " in line
        for options in ({}, {"method": "temperature"}):
            result = audit(file, settings.replace(**options), out=tmp_path / "run")
            assert (result.method, result.ece) == ("temperature", first.ece)
        assert server.requests == asked
        with pytest.raises(InputError, match="method"):
            audit(file, settings.replace(method="latent"), out=tmp_path / "run")
    # where only the two answers can be allowed, no answer drawn at a high temperature is lost
    assert first.counts.invalid == 0
    assert "allowed_token_ids" in first.measures


REASONS = replace(SENTENCES, unreasoned=Behaviour(bias="rejected", logprobs=True))


def test_a_model_that_reasons_is_audited_as_it_is_and_what_would_be_better_is_said(tmp_path: Path) -> None:
    """One line says the choice, what it costs, and that logprobs are shown without reasoning, as they are."""
    told: list[str] = []
    with served(tmp_path, REASONS) as (file, settings, server):
        found = audit(file, settings, out=tmp_path / "run", stage=told.append)
        asked = server.requests
        audit(file, settings, out=tmp_path / "run")
        assert server.requests == asked
        other = audit(file, settings.replace(reasoning_effort="none"), out=tmp_path / "none")
    (line,) = [one for one in told if one.startswith("chose ")]
    assert line.startswith("chose repeated, 2 queries per item, about ")
    assert "with reasoning_effort='none' logprobs are shown: 1 query per item" in line
    tokens = float(line.partition("about ")[2].partition(" output")[0].replace(",", ""))
    assert found.spend.completion_tokens / 2 < tokens < 2 * found.spend.completion_tokens
    assert (found.method, other.method) == ("repeated", "logprobs")
    assert other.spend.completion_tokens < found.spend.completion_tokens / 20


@pytest.mark.parametrize("behaviour", [SENTENCES, NEITHER], ids=["reasons always", "does not reason"])
def test_nothing_is_promised_where_reasoning_hides_nothing(behaviour: Behaviour, tmp_path: Path) -> None:
    with served(tmp_path, behaviour) as (file, settings, _):
        found = probe_endpoint(file, settings)
    assert chosen(found) == "repeated"
    assert not found.unreasoned


def test_several_answers_come_in_one_request(tmp_path: Path) -> None:
    """Where n acts, the prompt of repeated answers is paid for once."""
    (tmp_path / "n").mkdir()
    alone, together = audited(tmp_path, replace(NEITHER, n="ignored")), audited(tmp_path / "n", NEITHER)
    assert alone.counts.answers == together.counts.answers == 2 * N
    assert together.spend.attempts < alone.spend.attempts - N / 2
    assert together.spend.prompt_tokens < alone.spend.prompt_tokens


def test_answers_are_repeated_as_the_endpoint_is_configured(tmp_path: Path) -> None:
    """Sentences are read, and where temperature is of no use, no constraint is sent."""
    result = audited(tmp_path, SENTENCES)
    assert result.counts.invalid < 0.05 * result.counts.answers
    assert "free text" in result.measures
    assert "as it is configured" in result.measures
    (tmp_path / "fixed").mkdir()
    fixed = Behaviour(bias="rejected", temperature="fixed", constraints="honoured")
    result = audited(tmp_path / "fixed", fixed)
    assert result.method == "repeated"
    assert "allowed_token_ids" not in result.measures


def test_a_confidence_in_words_needs_no_temperature(tmp_path: Path) -> None:
    """Where only a stated confidence is left and temperature is refused, none is sent."""
    result = audited(tmp_path, replace(NEITHER, cached=1.0), "Yes, I am 80% sure.")
    assert (result.method, result.counts.invalid) == ("verbalized", 0)


def test_logprobs_are_read_once(tmp_path: Path) -> None:
    """Whatever number of queries was asked for: more of them tell nothing."""
    result = audited(tmp_path, Behaviour(logprobs=True), queries=3.0)
    assert (result.method, result.counts.answers) == ("logprobs", N)


def test_the_order_of_the_ways_is_that_of_their_widths() -> None:
    """Logprobs come first, which assume nothing; at the same queries, thresholds are narrower than heat."""
    shown, *options, stated = method_options(Settings(model="x", api="chat", queries=2.0), 1000)
    assert (shown.way, shown.queries) == ("logprobs", 1.0)
    assert stated.expected == "no interval"
    widths = [option.forecast() or 0.0 for option in options]
    assert widths == sorted(widths)
