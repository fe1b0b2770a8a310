"""A copy of a GGUF model whose metadata make llama.cpp serve it as a decision API.

llama.cpp answers ``/v1/systemone`` for files that name a type of decision model, and a template for its
questions. The type ``lfm2-d1`` reads Yes and No for a noul, letters for a choice and digits for a score, and
shows their shares of the probability of the first token. So a noul has the probability that the logprobs of
the same prompt have: to seven digits in batches of `BATCH` tokens. With the usual batches of 512, some
questions had another one, by up to 0.05, once others had been asked before; why is not known.
"""

from __future__ import annotations

import hashlib
import shutil
import struct
from pathlib import Path

from blindcal.atomic_write import atomic_write
from blindcal.endpoints.local_model import cached_model

TEMPLATE = """\
<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
<|im_start|>user
{{ state if state is string else state | tojson }}
{{ instructions }}
{%- set letters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz' %}
{%- for option in options %}
{%- if type != 'noul' %}
{{ letters[loop.index0] if type == 'choice' else loop.index0 }}. {{ option.description or option.key }}
{%- elif option.description %}
{{ 'Yes' if option.key == 'true' else 'No' }}: {{ option.description }}
{%- endif %}
{%- endfor %}<|im_end|>
<|im_start|>assistant{{ '\\n' }}
"""
"""A question in ChatML, as the default model's own template writes it."""

BATCH = 32
_HEADER = struct.Struct("<4sIQQ")  # magic, version, number of tensors, number of keys
_STRING, _ARRAY = 8, 9  # types of values
_BLOCK = 4096  # a multiple of every alignment: what follows stays aligned


def decision_model(model: Path) -> Path:
    """Copy ``model``, a Llama with ChatML, into the cache as a decision model, unless that was done before.

    The new keys follow the header, and all else is copied as it is. The copy keeps the model's name, in a
    folder named after the checksum of what was added.
    """
    added = _keys("")
    added = _keys("{#" + " " * (-(len(added) + 4) % _BLOCK) + "#}")
    copy = cached_model().parent / f"decisions-{hashlib.sha256(added).hexdigest()[:12]}" / model.name
    if not copy.is_file():
        with atomic_write(copy) as draft, model.open("rb") as source, draft.open("wb") as target:
            magic, version, tensors, keys = _HEADER.unpack(source.read(_HEADER.size))
            target.write(_HEADER.pack(magic, version, tensors, keys + 3) + added)
            shutil.copyfileobj(source, target)
    return copy


def _keys(padding: str) -> bytes:
    name, of_type = "systemone", struct.Struct("<I").pack
    return b"".join(
        (
            _text("llama.decision.type") + of_type(_STRING) + _text("lfm2-d1"),
            _text("tokenizer.chat_templates") + of_type(_ARRAY),
            struct.pack("<IQ", _STRING, 1) + _text(name),
            _text(f"tokenizer.chat_template.{name}") + of_type(_STRING) + _text(padding + TEMPLATE),
        )
    )


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded
