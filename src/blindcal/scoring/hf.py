"""A model loaded with Hugging Face transformers, and the logprobs of its answers.

Prompts are sorted by length and padded on the left to batches of about equal cost. Positions count from the
first real token, so that a padded prompt is computed like an unpadded one, and logits are computed for the
last position only.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from blindcal.errors import InputError, MissingExtraError
from blindcal.field_rules import FromOne
from blindcal.records import Item, Message, Targets, Token

WINDOW = 32_768  # prompts held in memory and sorted together


@dataclass(frozen=True, slots=True)
class Score:
    """Logprobs of an item's targets, in the order of :func:`in_order`, and their mass."""

    item: Item
    logprobs: tuple[float, ...]
    mass: float


def in_order(targets: Targets) -> tuple[Token, ...]:
    """All target tokens: the first of each answer, the positive one leading, then the others."""
    return (*(side[0] for side in targets.sides), *(token for side in targets.sides for token in side[1:]))


@dataclass(frozen=True, slots=True)
class HfSettings:
    """How to run the model.

    Half precision changes log-odds by tenths between batches: use it only if the deployed model does.
    """

    device: Annotated[
        str | None, "Device of the model: cpu, cuda, cuda:1, mps. By default a GPU if there is one."
    ] = None
    dtype: Annotated[str, "Precision of the model: float32, bfloat16 or float16."] = "float32"
    batch_tokens: Annotated[FromOne | None, "Maximum number of tokens per batch, padding included."] = None


class HfModel:
    """A causal language model and its tokenizer, loaded from a folder, a hub name or a GGUF file."""

    def __init__(self, source: str, settings: HfSettings) -> None:
        try:
            torch: Any = importlib.import_module("torch")
            transformers: Any = importlib.import_module("transformers")
        except ImportError:
            raise MissingExtraError(
                "scoring with transformers needs torch", remedy="pip install 'blindcal[hf]'"
            ) from None
        self._torch = torch
        self.device = torch.device(settings.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._cuda = self.device.type == "cuda"
        where, packed = source, {}
        if source.endswith(".gguf"):
            where, packed = str(Path(source).parent), {"gguf_file": Path(source).name}
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(where, **packed)
            model = transformers.AutoModelForCausalLM.from_pretrained(where, **packed, dtype=settings.dtype)
        except (OSError, ValueError, ImportError) as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"cannot load the model {source}: {reason}") from None
        self._model: Any = model.to(self.device).eval()
        self.batch_tokens = settings.batch_tokens or (32_768 if self._cuda else 4096)

    async def encode(self, text: str) -> Sequence[int]:
        """Token ids of a text, without special tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def prompt_ids(self, prompts: Iterable[Sequence[Message]]) -> list[list[int]]:
        """Token ids of prompts in the chat template, or as plain text for role ``prompt``."""
        texts, plain = [], False
        for messages in prompts:
            plain = messages[0].role == "prompt"
            texts.append("\n".join(m.content for m in messages) if plain else self._template(messages))
        # A chat template adds its own special tokens.
        ids: list[list[int]] = self._tokenizer(texts, add_special_tokens=plain)["input_ids"]
        return ids

    def _template(self, messages: Sequence[Message]) -> str:
        if not self._tokenizer.chat_template:
            raise InputError(
                "this model has no chat template",
                remedy="ask it plain prompts with {api}",
                options={"api": "completions"},
            )
        chat = [{"role": message.role, "content": message.content} for message in messages]
        text: str = self._tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        return text

    def scores(self, items: Iterable[Item], targets: Targets) -> Iterator[list[Score]]:
        """Score items in batches, the longest prompts of each window first."""
        tokens = in_order(targets)
        rest = iter(items)
        while window := list(islice(rest, WINDOW)):
            prompts = self.prompt_ids(item.messages for item in window)
            order = sorted(range(len(window)), key=lambda k: -len(prompts[k]))
            pending = None
            for batch in self._batches(order, prompts):
                # The device works on this batch while the previous one's numbers are fetched and written.
                started = self._forward_within_memory([prompts[k] for k in batch], tokens)
                if pending is not None:
                    yield _collect(window, *pending)
                pending = (batch, started)
            if pending is not None:
                yield _collect(window, *pending)

    def _batches(self, order: Sequence[int], prompts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        batch: list[int] = []
        for k in order:
            if batch and (len(batch) + 1) * len(prompts[batch[0]]) > self.batch_tokens:
                yield batch
                batch = []
            batch.append(k)
        if batch:
            yield batch

    def _forward_within_memory(self, prompts: list[list[int]], tokens: Sequence[Token]) -> list[Any]:
        try:
            return [self._forward(prompts, tokens)]
        except self._torch.OutOfMemoryError:
            if len(prompts) == 1:
                raise InputError(
                    f"out of memory on one prompt of {len(prompts[0])} tokens",
                    remedy="use a smaller model or dtype",
                ) from None
        if self._cuda:
            self._torch.cuda.empty_cache()
        half = len(prompts) // 2
        self.batch_tokens = max(self.batch_tokens // 2, 1)
        return [
            *self._forward_within_memory(prompts[:half], tokens),
            *self._forward_within_memory(prompts[half:], tokens),
        ]

    def _forward(self, prompts: list[list[int]], tokens: Sequence[Token]) -> Any:
        torch = self._torch
        width = max(map(len, prompts))
        ids = np.zeros((len(prompts), width + 1), np.int64)  # the last column is the length
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) : width] = prompt
            ids[row, width] = len(prompt)
        with torch.inference_mode():
            sent = torch.from_numpy(ids)
            if self._cuda:  # only pinned memory is copied while the device is busy with the previous batch
                sent = sent.pin_memory()
            sent = sent.to(self.device, non_blocking=self._cuda)
            positions = torch.arange(width, device=self.device) - (width - sent[:, width:])
            answered = self._model(
                input_ids=sent[:, :width],
                attention_mask=(positions >= 0).long(),
                position_ids=positions.clamp(min=0),
                use_cache=False,
                logits_to_keep=1,
            )
            logits = answered.logits[:, -1].float()
            return logits[:, [token.id for token in tokens]] - logits.logsumexp(dim=-1, keepdim=True)


def _collect(window: Sequence[Item], batch: Sequence[int], parts: Sequence[Any]) -> list[Score]:
    rows = np.concatenate([part.cpu().numpy() for part in parts]).astype(float)
    masses = np.exp(rows).sum(axis=1).tolist()
    return [
        Score(window[k], tuple(row), mass) for k, row, mass in zip(batch, rows.tolist(), masses, strict=True)
    ]
