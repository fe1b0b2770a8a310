"""List prices come from a dated file that names its source."""

from __future__ import annotations

import re

import pytest

from blindcal.prices import Prices, list_prices
from blindcal.settings import Settings
from commanding import blindcal
from paths import ROOT

LIST = ROOT / "src" / "blindcal" / "prices.csv"


def test_every_price_has_a_date_and_the_file_a_source() -> None:
    """Nothing is from memory: the file says where it comes from, and each row when it was checked."""
    text = LIST.read_text()
    assert re.search(r"# From https://\S+,.* at commit \w+", text)
    models = [row.split(",")[0] for row in text.splitlines() if not row.startswith("#")][1:]
    for model in models:
        found = list_prices(model)
        assert found is not None
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", found.listed or "")
        assert 0 < found.input < found.output


@pytest.mark.parametrize(
    "model", ["gpt-4o-realtime-preview", "gpt-4o-2024-05-13", "gpt-4o-mini-tts", "replay"]
)
def test_models_that_only_begin_alike_have_no_price(model: str) -> None:
    """A price is of one model, not of all whose names begin with its name."""
    assert list_prices(model) is None


def test_prices_are_those_of_openai_only() -> None:
    """At another address a model of the same name has another price, or none."""
    assert Settings(model="gpt-4o-mini").list_prices == Prices(0.15, 0.6, listed="2025-07-04")
    assert Settings(model="gpt-4o-mini", base_url="https://api.openai.com/v1/").list_prices is not None
    assert Settings(model="gpt-4o-mini", base_url="https://openrouter.ai/api/v1").list_prices is None


def test_the_date_of_a_list_price_is_announced() -> None:
    """Whoever relies on a list price is told how old it is; prices that are given need no remark."""
    plan = ("plan", "--model", "gpt-4o-mini", "--tokens", 200)
    announced = "costs are at the list prices of 2025-07-04, $0.15 and $0.6 per million tokens"
    assert announced in blindcal(*plan).output
    assert "list prices" not in blindcal(*plan, "--prices", "1,2").output
