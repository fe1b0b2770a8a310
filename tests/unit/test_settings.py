"""Settings are composed of four parts, and every option can be given by its own name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

import blindcal as bc
from blindcal.endpoints.address import OPENAI, Address
from blindcal.settings import SETTINGS, DesignSettings, EstimationSettings, PromptSettings


def test_options_go_into_their_parts() -> None:
    """Options are given flat and end up in the part that knows them; each has a sentence for the docs."""
    parts = (Address, PromptSettings, DesignSettings, EstimationSettings)
    names = [field.name for kind in parts for field in fields(kind)]
    assert sorted({*names, "reasoning_effort"} - {"role"}) == sorted(SETTINGS)
    assert len(names) == len(set(names))
    assert all(rule.about.endswith((".", '"')) for rule in SETTINGS.values())
    settings = bc.Settings(model="m", template="{q}?", seed=3, level=0.9)
    assert settings.endpoint == Address(OPENAI, "m")
    assert settings.prompt.template == "{q}?"
    assert settings.design.seed == 3
    assert settings.estimation.level == 0.9


@pytest.mark.parametrize("given", ["https://models.example.org/v1", " https://models.example.org/v1/ "])
def test_the_base_url_comes_from_the_environment(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions for a private server go there from Python too; an address that is named wins, and shows."""
    monkeypatch.setenv("OPENAI_BASE_URL", given)
    settings = bc.Settings(model="m")
    assert settings.endpoint.base_url.rstrip("/") == "https://models.example.org/v1"
    assert "base_url='https://models.example.org/v1" in repr(settings)
    assert settings.list_prices is None
    assert bc.Settings(model="m", base_url=OPENAI).endpoint.base_url == OPENAI
    monkeypatch.setenv("OPENAI_BASE_URL", " ")
    assert bc.Settings(model="m").endpoint.base_url == OPENAI


def test_a_part_can_be_given_whole() -> None:
    """A part made beforehand is taken as it is, and options beside it change it."""
    design = DesignSettings(method="temperature", seed=5)
    settings = bc.Settings(model="m", design=design, seed=6)
    assert settings.design == DesignSettings(method="temperature", seed=6)


def test_replacing_leaves_the_rest_alone() -> None:
    """`replace` changes what is named, and nothing else."""
    settings = bc.Settings(model="m", template="{q}?", method="temperature", queries=4)
    other = settings.replace(model="n", seed=1)
    assert (other.endpoint.model, other.design.seed) == ("n", 1)
    assert other.replace(model="m", seed=0) == settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tempalte": "x"}, "'tempalte' is not a setting; did you mean 'template'"),
        ({"method": "guess"}, "method must be one of auto, decisions, logprobs"),
        ({"level": 0.9999999999999999}, "level must be a number from 0.01 to 0.999999"),
        ({"bins": 10**30}, "bins must be a whole number from 1 to 1000"),
        ({"resamples": 10**14}, "resamples must be a whole number from 2 to 100000"),
        ({"offset": 1e308}, "offset must be a number from 0 to 1000"),
        ({"offset": 50.0, "limit": 20.0}, "offset must be below limit = 20, not 50"),
        ({"level": 1.5}, "level must be a number from 0.01 to 0.999999"),
        ({"resamples": 1}, "resamples must be a whole number from 2 to 100000"),
        ({"queries": 1000}, "queries must be a number from 0.001 to 100"),
        ({"method": "blind", "queries": 3}, "blind always asks 1 - 1/bins per item"),
        ({"method": "logprobs", "queries": 2}, "logprobs reads each item once"),
        ({"method": "repeated", "queries": 1}, "repeated asks each item at least 2 times"),
        ({"method": "verbalized", "queries": 2}, "verbalized asks each item once"),
        ({"sample": 0}, "sample must be a whole number from 1 to 1e15"),
        ({"seed": -1}, "seed must be a whole number from 0 to 1e15"),
        ({"method": "latent", "confidence_wording": "x"}, "only verbalized asks in words of its own"),
        ({"method": "verbalized", "estimator": "latent"}, "latent reads answers of one word"),
        ({"estimator": "mle"}, "estimator: must be one of own, latent"),
        ({"answer_format": "poem"}, "answer_format must be one of word, sentence, json"),
        ({"max_tokens": 0}, "max_tokens must be a whole number from 1 to 1e15"),
        ({"answer_format": "sentence", "method": "latent"}, "latent reads answers of one token"),
        ({"answer_format": "json", "method": "sampling"}, "sampling reads answers of one token"),
        ({"answer_format": "json", "method": "verbalized"}, "verbalized asks for a confidence too"),
        ({"max_tokens": 5, "method": "latent"}, "latent reads answers of one token, not of 5"),
        ({"reasoning_effort": "low", "api": "completions"}, "a field of the chat API"),
        ({"method": "blind", "semantics": "sum"}, "semantics: blind reads exact thresholds"),
        ({"method": "extraction", "semantics": "sum"}, "semantics: extraction reads exact thresholds"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    """A wrong option is refused where it is given, with what would be right."""
    with pytest.raises(bc.BlindcalError, match=message):
        bc.Settings(model="m", **options)
    with pytest.raises(bc.BlindcalError, match="a model is required"):
        bc.Settings(template="{q}")


def test_plain_completions_have_prompts_of_their_own_role() -> None:
    """The kind of API decides the role of a message."""
    assert bc.Settings(model="m").prompt.role == "user"
    assert bc.Settings(model="m", api="completions").prompt.role == "prompt"


def test_a_repr_shows_what_was_chosen() -> None:
    """Defaults stay out of it, and it fits on one line however long a template is."""
    assert repr(bc.Settings(model="m", seed=7)) == "Settings(model='m', seed=7)"
    long = repr(bc.Settings(model="m", template="{q}" * 200))
    assert len(long) <= 200
    assert "\n" not in long
