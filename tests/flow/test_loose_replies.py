"""JSON nested beyond sense, wherever it stands, and replies without a bill."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from blindcal.asking.run_context import Limits
from blindcal.auditing.audit import audit
from blindcal.errors import EndpointError, FatalError, RetryableError
from blindcal.items.catalogue import open_items
from blindcal.json_form import DEEPEST, JsonError, read_json
from blindcal.prices import Prices
from blindcal.results.result import RESULT_FILE, AuditResult
from blindcal.settings import Settings
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from blindcal.store.run_store import RUN_FILE, Store
from commanding import blindcal, printed_error
from serving import Altered, Recorder, ask, write_items

pytestmark = pytest.mark.usefixtures("no_page")

N = 60
DEPTHS = [DEEPEST + 1, 20_000]


def nested(depth: int, kind: str = "[]") -> bytes:
    """JSON of so many levels."""
    opening = b"[" if kind == "[]" else b'{"a":'
    return opening * depth + b"1" + (b"]" if kind == "[]" else b"}") * depth


@pytest.fixture
def items(tmp_path: Path) -> Path:
    return write_items(tmp_path / "items.jsonl", N)


def audited(items: Path, alter: Callable[[bytes, bytes], bytes], **how: Any) -> AuditResult:
    """An audit over HTTP of a model whose replies are altered, with the folder ``run`` beside the items."""
    loaded = open_items(items)
    known = Recording.from_probabilities([item.id for item in loaded], np.linspace(0.05, 0.95, N))
    server = Altered(known, list(loaded))
    server.alter = alter
    with running(server):
        settings = Settings(model="replay", base_url=server.base_url, resamples=20, method="blind", bins=3)
        return audit(items, settings, out=items.with_name("run"), **how)


@pytest.mark.parametrize("kind", ["[]", "{}"])
@pytest.mark.parametrize("depth", DEPTHS)
def test_nesting_is_one_error(depth: int, kind: str) -> None:
    """JSON that is nested too deeply is one error at any depth, also from deep inside the program."""

    def at(level: int) -> None:
        if level:
            at(level - 1)
        else:
            read_json(nested(depth, kind))

    for level in (0, 900):
        with pytest.raises(JsonError, match="nested") as caught:
            at(level)
        assert not caught.value.malformed
    # brackets in texts do not count, nor do many shallow ones
    value = {"text": "[" * 500 + '\\"{' * 500, "many": [[1]] * 500, "deep": msgspec.Raw(nested(DEEPEST - 1))}
    assert read_json(msgspec.json.encode(value))["text"] == value["text"]


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize(("status", "kind"), [(400, FatalError), (500, RetryableError)])
def test_nested_error_body(depth: int, status: int, kind: type[EndpointError]) -> None:
    """An error whose body is nested is still the error of its status."""
    with pytest.raises(kind, match=str(status)):
        ask(Recorder(b'{"error": {"message": %b}}' % nested(depth), status))


def test_nested_replies_do_not_end_a_run(items: Path) -> None:
    """A run in which one item's replies are nested beyond sense finishes, with that item as invalid."""

    def alter(asked: bytes, body: bytes) -> bytes:
        return b'{"x": %b}' % nested(5_000) if b"Is 34 so" in asked else body

    result = audited(items, alter, limits=Limits(backoff=0.001))
    assert result.complete
    assert result.counts.answers == N * 2 // 3
    assert result.counts.invalid == 1


@pytest.mark.parametrize("command", ["check {0} --max-ece 1", "report {0}", "compare {0} {0}", "status {0}"])
def test_nested_files_are_refused(command: str, tmp_path: Path) -> None:
    """Every command that reads a result refuses one that is nested beyond sense, in one line."""
    with Store.open(tmp_path / RUN_FILE) as store:
        store.set_note("seconds", 1)
    for content in (nested(20_000), b'{"schema_version": 1, "probe": %b}' % nested(DEEPEST + 1)):
        (tmp_path / RESULT_FILE).write_bytes(content)
        printed = printed_error(blindcal(*command.format(tmp_path).split()))
        assert "not a result of blindcal" in printed
        assert "\n" not in printed


def test_a_nested_option_is_refused() -> None:
    """It is a usage error; items and results that are nested too deeply have tests of their own."""
    body = '{"a": ' + nested(20_000).decode() + "}"
    done = blindcal("audit", "items.jsonl", "--model", "m", "--extra-body", body)
    assert (done.exit_code, "extra_body must be a JSON object" in done.output) == (2, True)


def test_unreported_tokens_are_estimated_and_limited(items: Path) -> None:
    """Without counts, tokens and cost are estimates: the result says so, and a limit on the cost holds."""

    def alter(_: bytes, body: bytes) -> bytes:
        return body[: body.index(b'"usage":')] + b'"usage":{"prompt_tokens":-1000000,"completion_tokens":-9}}'

    prices = Prices(1000.0, 1000.0)
    spend = audited(items, alter, prices=prices).spend
    assert spend.tokens_estimated
    assert spend.completion_tokens == spend.queries
    assert 6 * spend.queries <= spend.prompt_tokens <= 8 * spend.queries  # prompts of 26 or 27 characters
    assert spend.cost == pytest.approx((spend.prompt_tokens + spend.completion_tokens) / 1000)
    items.with_name("run").rename(items.with_name("free"))
    limit = 0.97 * (spend.cost or 0)
    limited = audited(items, alter, prices=prices, limits=Limits(max_cost=limit)).spend
    assert (limited.cost or 0) <= limit
    assert limited.queries < spend.queries
