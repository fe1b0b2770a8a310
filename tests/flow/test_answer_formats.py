"""Audits whose answers are longer than a word: what fits them, how they are read, and what they cost."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blindcal.auditing.audit import audit
from blindcal.endpoints.query_format import (
    ANSWER_TOKENS,
)
from blindcal.items.catalogue import open_items
from blindcal.results.result import AuditResult
from blindcal.settings import Settings
from blindcal.simulation.http_server import HttpResponse
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import Server, running
from commanding import blindcal
from serving import write_items

N = 120


# Audits


class Talkative(Server):
    """A replay that wraps its answers into sentences or JSON, and now and then says none.

    Items whose number ends in 0 get an answer that is cut short, and those in 5 a refusal.
    """

    def _answer(self, body: bytes, *, chat: bool) -> HttpResponse:
        asked = json.loads(body)
        prompt = asked["messages"][-1]["content"]
        number = int(prompt.split()[1])
        asked["messages"][-1]["content"] = f"Is {number} so? Answer Yes or No."
        response = super()._answer(json.dumps(asked).encode(), chat=chat)
        if response.status != 200:
            return response
        reply = json.loads(response.body)
        for only in reply["choices"]:
            word = only["message"]["content"]
            said = f"Many say {number} is, no doubt.\n\nThe answer is **{word}**."
            if "JSON" in prompt:
                said = f'```json\n{{"answer": "{word}", "reason": "no, yes"}}\n```'
            texts = {0: ("Let us see, yes and", "length"), 5: ("I'm sorry, I can't help.", "stop")}
            text, finish = texts.get(number % 10, (said, "stop"))
            text, finish = ("", "length") if asked["max_tokens"] < 8 else (text, finish)
            only["message"]["content"], only["finish_reason"] = text, finish
        reply["usage"] = {"prompt_tokens": 9, "completion_tokens": 8, "total_tokens": 117}
        return HttpResponse(json.dumps(reply).encode())


@pytest.fixture
def items(tmp_path: Path) -> Path:
    return write_items(tmp_path / "items.jsonl", N)


@pytest.fixture
def server(items: Path) -> Iterator[Server]:
    asked = list(open_items(items))
    p = np.random.default_rng(3).beta(0.7, 0.7, N)
    with running(Talkative(Recording.from_probabilities([item.id for item in asked], p), asked)) as server:
        yield server


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize(("form", "effort"), [("sentence", "low"), ("json", None)])
def test_an_audit_of_free_text(form: Any, effort: str | None, items: Path, server: Server) -> None:
    """It reads what can be read, counts the rest by its reason, and pays for hidden tokens."""
    out = items.with_name("run")
    settings = Settings(
        model="replay",
        base_url=server.base_url,
        method="temperature",
        resamples=20,
        answer_format=form,
        reasoning_effort=effort,
    )
    found = audit(items, settings, out=out)
    asked = server.requests
    again = audit(items, settings, out=out)
    assert server.requests == asked == found.spend.queries == 3 * N + found.spend.probe_queries
    assert found.invalid_reasons == {"cut short": 3 * N // 10, "refusal": 3 * N // 10}
    assert found.counts.invalid == 2 * 3 * N // 10
    assert found.ece.has_interval
    assert "the answers are " + {"sentence": "free text", "json": "JSON"}[form] in found.measures
    assert found.spend.completion_tokens == 108 * asked
    assert found.settings["extra_body"] == ({"reasoning_effort": effort} if effort else {})
    assert AuditResult.load(out / "result.json") == again == replace(found, created=again.created)
    with (out / "answers.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["id"] == "q10"]
    assert {(row["answer"], row["text"]) for row in rows} == {("invalid", "Let us see, yes and")}


def test_a_model_that_never_comes_to_an_end_ends_the_run(items: Path, server: Server) -> None:
    """The command says that the answers are cut short, and which options help."""
    done = blindcal(
        "audit", items, "--model", "replay", "--base-url", server.base_url, "--out", items.with_name("run"),
        "--method", "temperature", "--set", "answer_format=sentence", "--set", "max_tokens=5",
    )  # fmt: skip
    assert done.exit_code == 4
    assert "the last one is cut short, within 5 tokens" in done.stderr
    assert "--set max_tokens=4000" in done.stderr
    assert "reasoning_effort" in done.stderr


def test_a_plan_counts_long_answers(items: Path) -> None:
    """A dry run expects as many tokens as an answer may have."""
    for form, options in (("json", []), ("sentence", ["--set", "max_tokens=2000"])):
        shown = blindcal(
            "audit", items, "--model", "m", "--method", "temperature", "--queries", "2",
            "--dry-run", "--json", "--set", f"answer_format={form}", *options,
        )  # fmt: skip
        most = int(options[1].partition("=")[2]) if options else ANSWER_TOKENS[form]  # type: ignore[index]
        plan = json.loads(shown.output)
        assert plan["completion_tokens"] == most * (2 * N + plan["probe_queries"])
