"""Constraints on answers: the fields by which servers make only the answers possible.

An answer that is drawn may be neither answer word. Several servers can rule that out, each by a field of its
own, and most servers ignore fields that they do not know. So a constraint is used only after `effect` has
seen it act: it allows one answer alone, then another, and each must come.

What is measured changes with a constraint: ``measures`` says how.
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
    """One way to allow only some answers.

    ``form`` is the form of the answers that it forces, and ``max_tokens`` how many tokens they may need.
    ``by_id`` says that it names answers by token ids, not by words.
    """

    measures: str
    make: Callable[[Sequence[str], Sequence[int]], dict[str, Any]]
    form: AnswerFormat = "word"
    max_tokens: int = _WORD_TOKENS
    by_id: bool = False

    def fields(self, words: Sequence[str], ids: Sequence[int] = ()) -> dict[str, Any]:
        """The fields of a request that allow only these answers."""
        if self.by_id and not ids:
            raise InputError("this constraint needs the token ids of the answers")
        spelled = [word.strip() if self.form == "json" else word for word in words]
        return self.make(spelled, list(ids))


_CONTINUED = "each token is drawn among those that can begin or continue one of them"

#: All constraints by name, the one that changes least first.
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
    """A grammar of llama.cpp's own form; its strings are quoted as in JSON."""
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
    """Whether a constraint acts on an endpoint: two queries per item, fewer if it does not.

    Each item is asked twice, with one answer allowed and then another; if there are more than two answers,
    the items take turns with them. Where the constraint is ignored, one of the two does not come, unless
    answers are drawn: so ask several items. Items that the endpoint refuses are left out; if it refuses all,
    the effect is ``unknown``. ``max_tokens`` is for models that need more than the answer itself, for
    reasoning.
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
    """The answer that a reply is, alone or as JSON, and after any reasoning."""
    meanings = {spoken(token.text): meaning for meaning, tokens in sides.items() for token in tokens}
    if (answer := meanings.get(spoken(reply.text))) is not None:
        return answer
    place = parse_json_text(reply.text, list(meanings)).answer
    return None if place is None else list(meanings.values())[place]
