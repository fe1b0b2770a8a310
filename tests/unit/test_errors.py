"""Errors carry their remedy as data, and each reader is shown it as they would give it."""

from __future__ import annotations

import pytest

from blindcal.cli.console import command_line_option
from blindcal.errors import InputError, RetryableError, UnfitError


def test_a_remedy_speaks_the_readers_language() -> None:
    """Python is told arguments, the command line flags, by one error."""
    error = UnfitError(
        "no audit by latent: {x} stays",
        remedy="use {method}, or {force} goes on",
        options={"method": "temperature", "force": True},
    )
    assert str(error) == ("no audit by latent: {x} stays: use method='temperature', or force=True goes on")
    assert error.render(command_line_option) == (
        "no audit by latent: {x} stays: use --method temperature, or --force goes on"
    )
    assert error.options == {"method": "temperature", "force": True}


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("keep_prompts", False, "--set keep_prompts=false"),
        ("positive_ids", (9642, 10035), "--set positive_ids=9642,10035"),
        ("force", True, "--force"),
        ("max_cost", 5.0, "--max-cost 5"),
        ("out", ..., "--out"),
        ("by_field", "topic", "--by topic"),
        ("prices", ..., "--prices"),
        ("data_dir", "my data", "--set 'data_dir=my data'"),
        ("extra_body", {"a": 1}, """--extra-body '{"a": 1}'"""),
    ],
)
def test_options_as_flags(name: str, value: object, shown: str) -> None:
    """Names become flags, and values what a shell takes for them."""
    assert command_line_option(name, value) == shown


def test_an_error_keeps_its_remedy_where_it_came_up() -> None:
    """Naming the file and the line before a message loses nothing of the error."""
    error = InputError("bad label", remedy="use {label_map}", options={"label_map": ...})
    named = error.prefixed("a.csv, line 3: ")
    assert type(named) is InputError
    assert str(named) == "a.csv, line 3: bad label: use label_map=..."
    later = RetryableError("429", retry_after=7.0, throttled=True, status=429).prefixed("probe: ")
    assert (str(later), later.retry_after, later.throttled, later.status) == ("probe: 429", 7.0, True, 429)
