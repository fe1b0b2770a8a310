"""Requests that decide by a threshold, ready to run: as a shell command or a Python program."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from blindcal.certifying.decision_request import DecisionRequest
from blindcal.text import spoken

FILL_IN = "Put your question into the message: replace the fields in braces, as the audit did."
FEWER_OPTIONS = "If a question has fewer options, leave the tokens of the others out of logit_bias."
_PROGRAM = """\
{comment}
import json
import os
import urllib.request

{constants}


def answer_to(body):
    request = urllib.request.Request(
        {url!r},
        json.dumps(body).encode(),
        {{"Content-Type": "application/json", {header!r}: {scheme!r} + os.environ.get("OPENAI_API_KEY", "")}},
    )
    with urllib.request.urlopen(request) as reply:
        answer = json.load(reply)["choices"][0]{answer}
    return words.get(answer.strip().casefold())


{decision}
"""


def curl(request: DecisionRequest, *, varies: bool = False) -> str:
    """The requests as shell commands; ``varies`` if some questions have fewer options."""
    if not request.confirm:
        return f"{_comment(varies)}\n{_command(request, request.ask)}\n"
    parts = [_comment(varies), "# Ask:", _command(request, request.ask)]
    for word, body in request.confirm.items():
        shown = "".join(letter if letter.isprintable() else "?" for letter in word)
        parts += [
            f"# If it says {shown}, ask again; abstain unless it says the same:",
            _command(request, body),
        ]
    return "\n".join(parts) + "\n"


def python(request: DecisionRequest, *, varies: bool = False) -> str:
    """A Python program that prints ``positive`` or ``negative``, or an answer or ``abstain``."""
    header, _, scheme = request.key_header.partition(": ")
    constants = [f"ask = json.loads({json.dumps(request.ask)!r})"]
    if request.confirm:
        constants.append(f"confirm = json.loads({json.dumps(request.confirm)!r})")
        words = _meanings(request.tokens, list(request.confirm))
        decision = (
            "given = answer_to(ask)\n"
            'print(given if given is not None and answer_to(confirm[given]) == given else "abstain")'
        )
    else:
        words = _meanings(request.tokens[:1], ["positive"])
        decision = 'print(answer_to(ask) or "negative")'
    constants.append(f"words = {words!r}")
    return _PROGRAM.format(
        comment=_comment(varies),
        constants="\n".join(constants),
        url=request.url,
        header=header,
        scheme=scheme,
        answer='["message"]["content"]' if "messages" in request.ask else '["text"]',
        decision=decision,
    )


def _comment(varies: bool) -> str:
    return f"# {FILL_IN}" + (f"\n# {FEWER_OPTIONS}" if varies else "")


def _command(request: DecisionRequest, body: dict[str, Any]) -> str:
    return (
        f"curl {shlex.quote(request.url)} \\\n"
        f'  -H "Content-Type: application/json" -H "{request.key_header}$OPENAI_API_KEY" \\\n'
        f"  -d @- <<'JSON'\n{json.dumps(body, indent=2)}\nJSON"
    )


def _meanings(tokens: Sequence[Sequence[str]], names: Sequence[str]) -> dict[str, str]:
    return {spoken(text): name for name, texts in zip(names, tokens, strict=True) for text in texts}
