"""No limit is exceeded: on cost, on requests per minute, or on open files."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyreqwest.exceptions import ConnectError

import blindcal as bc
from blindcal.asking import run_context
from blindcal.asking.run_context import OTHER_FILES, Limits
from blindcal.auditing.audit import audit
from blindcal.endpoints.http_client import from_exception
from blindcal.errors import FatalError, InputError
from blindcal.planning.forecast import OVERCONFIDENT
from blindcal.prices import Prices
from blindcal.results.result import AuditResult
from blindcal.simulation.http_server import HttpResponse
from blindcal.simulation.replay import Server
from blindcal.store.run_store import RUN_FILE, Store
from commanding import blindcal
from serving import replaying, settings_of
from serving import write_items as asked_items

N = 200
PRICES = Prices(1000.0, 0.0)  # a dollar for a thousand tokens


@pytest.fixture
def items(tmp_path: Path) -> Path:
    labels, _ = OVERCONFIDENT.sample(N, np.random.default_rng(5))
    path = tmp_path / "items.jsonl"
    rng = np.random.default_rng(6)
    with path.open("w") as file:
        for k, label in enumerate(labels):
            words = "word " * int(rng.integers(5, 60))  # questions differ in length, and so in price
            file.write(json.dumps({"id": f"q{k}", "prompt": f"{words}{k}?", "label": int(label)}) + "\n")
    return path


def serving(items: Path, **behaviour: Any) -> Any:
    _, p = OVERCONFIDENT.sample(N, np.random.default_rng(5))
    return replaying(items, p, **behaviour)


@pytest.fixture
def server(items: Path) -> Iterator[Server]:
    with serving(items) as one:
        yield one


def spend(items: Path, server: Server, out: Path, max_cost: float | None, **more: Any) -> AuditResult:
    return audit(
        items,
        settings_of(server, **more),
        out=out,
        limits=Limits(concurrency=8, max_cost=max_cost),
        prices=PRICES,
    )


@pytest.fixture
def unit(items: Path, tmp_path: Path) -> tuple[float, float]:
    """What the probe costs, and one query an item; a fresh server draws the same answers again."""
    with serving(items) as server:
        found = spend(items, server, tmp_path / "unit", None, queries=1)
    assert found.spend.cost is not None
    with Store.read(tmp_path / "unit" / RUN_FILE) as store:
        asked = PRICES.cost(store.usage("design", "control"))
    return found.spend.cost - asked, asked


@pytest.mark.parametrize(
    ("method", "share"), [("latent", 0.5), ("latent", 2.5), ("blind", 0.4), ("temperature", 1.0)]
)
def test_a_limit_stops_the_run_and_a_higher_one_goes_on(
    method: str, share: float, items: Path, server: Server, unit: tuple[float, float], tmp_path: Path
) -> None:
    """The run costs hardly less than the limit and never more; continued, it asks nothing twice."""
    probe, each = unit
    money = probe + share * each
    queries = 4 if method == "latent" else None
    found = spend(items, server, tmp_path / "run", money, method=method, queries=queries)
    assert not found.complete
    assert found.stopped == f"max_cost = {money:g} reached"
    assert found.spend.cost is not None
    assert 0.85 * money < found.spend.cost <= money
    asked = server.requests
    assert spend(items, server, tmp_path / "run", money, method=method, queries=queries).spend == found.spend
    assert server.requests == asked
    whole = spend(items, server, tmp_path / "run", None, method=method, queries=queries)
    assert whole.complete
    assert server.requests - asked == whole.spend.queries - found.spend.queries


def test_a_limit_that_cannot_be_kept_is_refused_before_anything_is_asked(
    items: Path, server: Server, tmp_path: Path
) -> None:
    """What cannot pay for the probe, or has no prices, is refused with the reason."""
    why = r"does not pay for the probe: .* cost about \$\d.*nothing was paid"
    with pytest.raises(InputError, match=why):
        spend(items, server, tmp_path / "run", 0.01)
    settings = settings_of(server)
    with pytest.raises(InputError, match=r"max_cost=0\.5 limits nothing .*: give prices=\.\.\. too"):
        audit(items, settings, out=tmp_path / "run", limits=Limits(max_cost=0.5))
    assert server.requests == 0


@pytest.mark.parametrize("money", [0.0, -1.0, float("nan"), float("inf")])
def test_limits_that_are_no_sum_are_refused(money: float) -> None:
    """A limit on the cost is a number of dollars above zero."""
    with pytest.raises(InputError, match="max_cost must be a number above 0"):
        Limits(max_cost=money)


def test_the_command_names_unknown_prices_and_what_the_limit_pays_for(
    items: Path, server: Server, unit: tuple[float, float], tmp_path: Path
) -> None:
    """Without prices a limit is refused, naming the model; with them a dry run says what it pays for."""
    given = ["audit", str(items), "--model", "replay", "--base-url", server.base_url, "--set", "resamples=50"]
    given += ["--out", str(tmp_path / "run"), "--max-cost", str(unit[0] + 0.8 * unit[1])]
    asked = server.requests
    for method, words in (
        ("blind", r"limit .* pays for all of it"),
        ("sampling", r"limit .* pays for about \d+% of the queries: the run stops there"),
        ("verbalized", r"limit .* pays for about \d+% of the queries: the run stops there"),
    ):
        priced = ["--prices", "1000,100", "--method", method, "--dry-run"]
        found = blindcal(*given, *priced)
        assert re.search(words, found.output), found.output
    refused = blindcal(*given)
    assert refused.exit_code == 2
    assert "none are known for 'replay'" in refused.output
    elsewhere = blindcal(*given, "--model", "gpt-4o-mini")
    assert elsewhere.exit_code == 2
    assert f"those known for 'gpt-4o-mini' are OpenAI's own, not those at {server.base_url}" in (
        " ".join(elsewhere.output.split())
    )
    assert server.requests == asked
    done = blindcal(*given, "--prices", "1000,0")
    assert done.exit_code == 3, done.output
    assert re.search(r"stopped +max_cost = \S+ reached", done.output)


# Open files


def allow(monkeypatch: pytest.MonkeyPatch, most: float) -> None:
    """Let the process have so many open files."""
    monkeypatch.setattr(run_context, "_most_open_files", lambda: most)


def test_the_concurrency_fits_the_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no more connections than files that may be open, and a warning says why."""
    allow(monkeypatch, OTHER_FILES + 8)
    with pytest.warns(
        UserWarning, match=r"the concurrency is 8 instead of 32, .* only 32 open files; ulimit"
    ):
        assert Limits().within_open_files() == Limits(concurrency=8)
    assert Limits(concurrency=8).within_open_files() == Limits(concurrency=8)
    allow(monkeypatch, math.inf)
    assert Limits(concurrency=5000).within_open_files() == Limits(concurrency=5000)


def test_too_few_open_files_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for one connection nothing is begun."""
    allow(monkeypatch, 20)
    with pytest.raises(InputError, match=r"only 20 open files, .* needs 25: raise the limit \(ulimit -n"):
        Limits().within_open_files()


def test_running_out_of_files_is_not_the_address() -> None:
    """An endpoint is not to blame if this process cannot open another connection."""
    causes = ("client error (Connect)", "tcp open error", "Too many open files (os error 24)")
    error = ConnectError("connection error", {"causes": [{"message": cause} for cause in causes]})
    found = from_exception(error, "x:80", reached=False)
    assert isinstance(found, FatalError)
    assert "too many open files to connect to x:80: raise the limit (ulimit -n)" in str(found)


# Requests per minute


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize(("command", "tpm"), [(bc.probe, None), (bc.audit, 1e6)])
def test_the_limit_on_requests_counts_every_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., Any], tpm: float | None
) -> None:
    """Requests of the probe, the design and its controls leave at the rate that is allowed.

    A limit on tokens that replies do not use up changes nothing.
    """
    items, arrived = asked_items(tmp_path / "items.jsonl", 20), list[float]()
    with replaying(items, np.random.default_rng(1).random(20)) as server:
        complete = server._complete

        def timed(body: bytes, *, chat: bool) -> HttpResponse:
            arrived.append(time.monotonic())
            return complete(body, chat=chat)

        monkeypatch.setattr(server, "_complete", timed)
        settings = settings_of(server, method="latent")
        where = {"out": tmp_path / "run"} if command is bc.audit else {}
        command(items, settings, limits=Limits(rpm=2400.0, tpm=tpm), **where)
    assert len(arrived) > 60
    # a request may take a while to arrive, but is never sent early
    sent = arrived[0] - 0.2 + 60 / 2400.0 * np.arange(len(arrived))
    assert np.all(arrived > sent)
