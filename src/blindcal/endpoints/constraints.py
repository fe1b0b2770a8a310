"""Request fields that restrict a model to the allowed answers.

Servers use different fields and mostly ignore those that they do not know, so a constraint is used only after
`effect` has seen it act. A constraint changes what is measured: ``measures`` says how.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from blindcal.endpoints.free_text import parse_json_text
from blindcal.errors import FatalError, InputError, ReplyError
from blindcal.records import AnswerFormat, Item, Reply, Request, Targets, Token
from blindcal.text import spoken

ConstraintName: TypeAlias = Literal[
    "allowed_token_ids", "structured_outputs", "guided_choice", "grammar", "response_format"
]
ConstraintEffect: TypeAlias = Literal["acts", "ignored", "rejected", "unknown"]

_WORD_TOKENS, _JSON_TOKENS = 16, 64


@dataclass(frozen=True, slots=True)
class Constraint:
    """One way to allow only some answers (with ``by_id``, some tokens) of at most ``max_tokens`` tokens."""

    measures: str
    make: Callable[[Sequence[str], Sequence[int]], dict[str, Any]]
    form: AnswerFormat = "word"
    max_tokens: int = _WORD_TOKENS
    by_id: bool = False

    def fields(self, words: Sequence[str], ids: Sequence[int] = ()) -> dict[str, Any]:
        if self.by_id and not ids:
            raise InputError("this constraint needs the token ids of the answers")
        spelled = [word.strip() if self.form == "json" else word for word in words]
        return self.make(spelled, list(ids))


_CONTINUED = "each token is drawn among those that can begin or continue one of them"

#: By name, the one that changes least first.
CONSTRAINTS: Mapping[ConstraintName, Constraint] = {
    "allowed_token_ids": Constraint(
        "only these tokens are allowed (allowed_token_ids), and compared with each other",
        lambda _, ids: {"allowed_token_ids": ids},
        max_tokens=1,
        by_id=True,
    ),
    "structured_outputs": Constraint(
        f"only the answers are possible (structured_outputs): {_CONTINUED}",
        lambda words, _: {"structured_outputs": {"choice": words}},
    ),
    "guided_choice": Constraint(
        f"only the answers are possible (guided_choice): {_CONTINUED}",
        lambda words, _: {"guided_choice": words},
    ),
    "grammar": Constraint(
        f"only the answers are possible (grammar): {_CONTINUED}",
        lambda words, _: {"grammar": _grammar(words)},
    ),
    "response_format": Constraint(
        "only JSON with one of the answers is possible (response_format), so the answer inside it is "
        "measured, not the bare word",
        lambda words, _: {"response_format": _response_format(words)},
        form="json",
        max_tokens=_JSON_TOKENS,
    ),
}


def _grammar(words: Sequence[str]) -> str:
    return f"root ::= {' | '.join(json.dumps(word, ensure_ascii=False) for word in words)}"


def _response_format(words: Sequence[str]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "string", "enum": list(words)}},
        "required": ["answer"],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


async def effect(
    name: ConstraintName,
    ask: Callable[[Request], Awaitable[Reply]],
    items: Sequence[Item],
    targets: Targets,
    *,
    temperature: float | None = 0.0,
    max_tokens: int | None = None,
) -> ConstraintEffect:
    """Test a constraint with at most two queries per item.

    Each item is asked with one answer allowed, then another; a constraint that is ignored fails to produce
    one of them. Sampled answers may agree by luck, so pass several items. Refused items are skipped; if all
    are, the effect is ``unknown``. ``max_tokens`` leaves room for reasoning.
    """
    constraint = CONSTRAINTS[name]
    sides = dict(enumerate(targets.by_answer))
    turns = itertools.cycle(reversed(sides))  # of two answers, the positive one first
    seen = set()
    for item in items:
        for meaning in itertools.islice(turns, 2):
            tokens = sides[meaning]
            request = Request(
                item.messages,
                temperature=temperature,
                max_tokens=max(constraint.max_tokens, max_tokens or 1),
                fields=constraint.fields([token.text for token in tokens], [token.id for token in tokens]),
            )
            try:
                reply = await ask(request)
            except FatalError:
                return "rejected"
            except ReplyError:
                continue
            if _answer(reply, sides) != meaning:
                return "ignored"
            seen.add(meaning)
    return "acts" if len(seen) > 1 else "unknown"


def _answer(reply: Reply, sides: Mapping[int, Sequence[Token]]) -> int | None:
    meanings = {spoken(token.text): meaning for meaning, tokens in sides.items() for token in tokens}
    if (answer := meanings.get(spoken(reply.text))) is not None:
        return answer
    place = parse_json_text(reply.text, list(meanings)).answer
    return None if place is None else list(meanings.values())[place]
