"""Scores with transformers against a bare batched loop: the same numbers, and how fast.

    python bench/whitebox.py --model MODEL --items ITEMS [--random-qwen] [--dtype float32]

Both sides tokenize, sort by length and run the same batches; the bare loop does nothing else. They take
turns, and the best of the repeats counts.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from blindcal.endpoints import tokens
from blindcal.items import files
from blindcal.records import FloatArray, Item, Targets
from blindcal.scoring.hf import HfModel, HfSettings
from blindcal.scoring.logprobs import in_order

torch: Any = importlib.import_module("torch")
transformers: Any = importlib.import_module("transformers")


def bare_loop(model: HfModel, items: list[Item], targets: Targets) -> FloatArray:
    """What one would write by hand: pad, run, take the last logits."""
    network, tokenizer = model._model, model._tokenizer
    said = [[{"role": m.role, "content": m.content} for m in item.messages] for item in items]
    texts = [tokenizer.apply_chat_template(x, add_generation_prompt=True, tokenize=False) for x in said]
    encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
    order = sorted(range(len(items)), key=lambda k: -len(encoded[k]))
    ids = [token.id for token in in_order(targets)]
    out = np.empty((len(items), len(ids)))
    start = 0
    while start < len(order):
        width = len(encoded[order[start]])
        batch = order[start : start + max(1, model.batch_tokens // width)]
        start += len(batch)
        rows = [[0] * (width - len(encoded[k])) + encoded[k] for k in batch]
        mask = torch.tensor([[0] * (width - len(encoded[k])) + [1] * len(encoded[k]) for k in batch])
        mask = mask.to(model.device)
        with torch.inference_mode():
            logits = network(
                input_ids=torch.tensor(rows).to(model.device),
                attention_mask=mask,
                position_ids=(mask.cumsum(1) - 1).clamp(min=0),
                use_cache=False,
                logits_to_keep=1,
            ).logits[:, -1]
            out[batch] = torch.log_softmax(logits.float(), -1)[:, ids].cpu().numpy()
    return out


def scored(model: HfModel, items: list[Item], targets: Targets) -> FloatArray:
    """The product's own way, in the items' order."""
    found = {score.id: score.logprobs for batch in model.scores(items, targets) for score in batch}
    return np.array([found[item.id] for item in items])


def random_qwen(folder: str, model: HfModel) -> None:
    """A Qwen2 of 1.5 billion random weights, with the given model's tokenizer."""
    config = transformers.Qwen2Config(
        vocab_size=len(model._tokenizer),
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        dtype="bfloat16",
    )
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    model._tokenizer.save_pretrained(folder)


def compare(name: str, model: HfModel, items: list[Item], repeats: int) -> None:
    """Print one line of figures."""
    targets = asyncio.run(find(model))
    ours, bare = scored(model, items[:64], targets), bare_loop(model, items[:64], targets)  # warm up
    times: dict[str, list[float]] = {"ours": [], "bare": []}
    for _ in range(repeats):
        for key, run in (("bare", bare_loop), ("ours", scored)):
            started = time.perf_counter()
            result = run(model, items, targets)
            times[key].append(time.perf_counter() - started)
            if key == "bare":
                bare = result
            else:
                ours = result
    single = np.vstack([scored(model, [item], targets) for item in items[:64]])
    speed = {key: len(items) / min(values) for key, values in times.items()}
    gap = np.abs((ours[:, 0] - ours[:, 1]) - (bare[:, 0] - bare[:, 1])).max()
    alone = np.abs((ours[:64, 0] - ours[:64, 1]) - (single[:, 0] - single[:, 1])).max()
    print(
        f"{name}: {len(items)} items, {model.device.type}, {model.batch_tokens} tokens a batch: "
        f"blindcal {speed['ours']:.0f} items/s, bare loop {speed['bare']:.0f} "
        f"(x {speed['ours'] / speed['bare']:.2f}); "
        f"log-odds differ by {gap:.1e} from the loop's, {alone:.1e} from single prompts'",
        flush=True,
    )


async def find(model: HfModel) -> Targets:
    """All spellings of yes and no."""
    return Targets(
        await tokens.candidates("Yes", model.encode), await tokens.candidates("No", model.encode), "max"
    )


def main() -> None:
    """Run the comparison for each model and dtype that was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--items", required=True, type=Path)
    parser.add_argument("--first", type=int, default=10_000)
    parser.add_argument("--template")
    parser.add_argument("--dtype", nargs="+", default=["float32"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--random-qwen", action="store_true", help="also a Qwen2-1.5B of random weights")
    options = parser.parse_args()
    with files.load(options.items, files.RecordFormat(template=options.template)) as loaded:
        items = list(itertools.islice(loaded, options.first))
    for dtype in options.dtype:
        model = HfModel(options.model, HfSettings(dtype=dtype))
        compare(f"{Path(options.model).stem} {dtype}", model, items, options.repeats)
    if options.random_qwen:
        with tempfile.TemporaryDirectory() as folder:
            random_qwen(folder, model)
            for dtype in options.dtype:
                big = HfModel(folder, HfSettings(dtype=dtype))
                compare(f"Qwen2-1.5B random {dtype}", big, items, options.repeats)


if __name__ == "__main__":
    main()
