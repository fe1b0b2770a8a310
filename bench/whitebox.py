"""Scoring with transformers against a bare batched loop: differences in the numbers, and speed.

    python bench/whitebox.py [--model MODEL] [--items ITEMS] [--n 200] [--dtype float32]

Both sides tokenize, sort by length and run the same batches; the bare loop does nothing else. They take
turns, and the best of the repeats counts. The defaults are the embedded model and the built-in questions.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np

from blindcal.endpoints import model_file, tokens
from blindcal.items import catalogue
from blindcal.items.record_format import RecordFormat
from blindcal.records import FloatArray, Item, Targets
from blindcal.scoring.hf import HfModel, HfSettings
from blindcal.scoring.logprobs import in_order
from record import Cell, parser, record, table

torch: Any = importlib.import_module("torch")


def bare_loop(model: HfModel, items: list[Item], targets: Targets) -> FloatArray:
    """A minimal loop: pad, run, take the last logits."""
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
    """blindcal's scores, in the order of the items."""
    found = {score.id: score.logprobs for batch in model.scores(items, targets) for score in batch}
    return np.array([found[item.id] for item in items])


def compare(name: str, model: HfModel, items: list[Item], repeats: int) -> list[Cell]:
    """One row: the speed of both, and how much their log-odds differ."""
    targets = asyncio.run(find(model))
    ways = {"bare": bare_loop, "ours": scored}
    found = {key: way(model, items[:64], targets) for key, way in ways.items()}  # warm up
    times: dict[str, list[float]] = {key: [] for key in ways}
    for _ in range(repeats):
        for key, way in ways.items():
            started = time.perf_counter()
            found[key] = way(model, items, targets)
            times[key].append(time.perf_counter() - started)
    single = np.vstack([scored(model, [item], targets) for item in items[:64]])
    ours, bare = (len(items) / min(times[key]) for key in ("ours", "bare"))
    odds = {key: rows[:, 0] - rows[:, 1] for key, rows in {**found, "single": single}.items()}
    gap = float(np.abs(odds["ours"] - odds["bare"]).max())
    alone = float(np.abs(odds["ours"][:64] - odds["single"]).max())
    return [name, len(items), model.device.type, ours, bare, ours / bare, gap, alone]


async def find(model: HfModel) -> Targets:
    """All spellings of yes and no."""
    return Targets(
        await tokens.candidates("Yes", model.encode), await tokens.candidates("No", model.encode), "max"
    )


def main() -> None:
    """Compare for each dtype, and record the table."""
    options = parser(__doc__)
    options.add_argument("--model", default=None)
    options.add_argument("--items", default="builtin")
    options.add_argument("--template")
    options.add_argument("--n", type=int, default=200, help="number of items")
    options.add_argument("--dtype", nargs="+", default=["float32"])
    options.add_argument("--repeats", type=int, default=3)
    arguments = options.parse_args()
    name = arguments.model or str(model_file.default_model())
    loaded = catalogue.open_items(arguments.items, RecordFormat(template=arguments.template))
    items = list(itertools.islice(loaded, arguments.n))
    rows = [
        compare(
            f"{Path(name).stem} {dtype}", HfModel(name, HfSettings(dtype=dtype)), items, arguments.repeats
        )
        for dtype in arguments.dtype
    ]
    columns = {
        "model": "{}",
        "items": "{:,}",
        "device": "{}",
        "items per second": "{:.1f}",
        "bare loop": "{:.1f}",
        "ratio": "{:.2f}",
        "log-odds differ by": "{:.1e}",
        "from single prompts by": "{:.1e}",
    }
    record("whitebox", {"speed": table(columns, rows)}, folder=arguments.results, repeats=arguments.repeats)


if __name__ == "__main__":
    main()
