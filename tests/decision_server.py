"""A server of both decision APIs, which shows recorded probabilities and can mislead in the usual ways."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from blindcal.records import FloatArray
from blindcal.simulation.http_server import HttpRequest, HttpResponse, json_response
from misbehaving import Behaviour, Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciding(Behaviour):
    """How a decision API differs from an ideal one.

    Probabilities are rounded to ``decimals``, move by ``moves`` (standard deviation) from request to request,
    and are multiplied by ``sums`` without adding up to one. Options come ``reversed``. From request
    ``swapped_from`` on, another model answers. The share ``refused`` of the questions in ``refusable`` rows
    is refused. The server ``speaks`` one form at any path, each at its own, or neither, for which a path may
    be there, as vLLM has one for every model.
    """

    decimals: int | None = None
    moves: float = 0.0
    sums: float = 1.0
    reversed: bool = False
    swapped_from: int | None = None
    refusable: tuple[int, ...] = ()
    refused: float = 0.0
    confidence: float | None = None
    named: str | None = None
    speaks: Literal["either", "decisions", "systemone", "neither", "not this model"] = "either"


class DecisionServer(Server):
    """The replay with `/decisions` and `/systemone`."""

    behaviour: Deciding

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.asked = Counter[str]()  # requests by the end of their path

    def _handle(self, request: HttpRequest) -> HttpResponse:
        form = request.path.split("?")[0].rstrip("/").rpartition("/")[2]
        self.asked[form] += 1
        if form == "systemone" and self.behaviour.speaks == "not this model":
            unfit = "The model does not support the structured decision API"
            return json_response({"error": {"message": unfit, "type": "NotImplementedError"}}, 501)
        speaks = self.behaviour.speaks in ("either", "decisions", "systemone")
        decides = form in ("decisions", "systemone") and speaks
        if request.method != "POST" or not decides:
            return super()._handle(request)
        self._turn()
        self.requests += 1
        form = form if self.behaviour.speaks == "either" else self.behaviour.speaks
        body = json.loads(request.body)
        response = self._decide(form, body, request.body)
        return replace(response, delay=response.delay + self.behaviour.latency)

    def _decide(self, form: str, body: Mapping[str, Any], raw: bytes) -> HttpResponse:
        own, other = ("input", "state") if form == "decisions" else ("state", "input")
        questions = body.get("questions")
        if own not in body or other in body or not isinstance(questions, list if own == "input" else dict):
            return json_response({"error": {"message": f"{own!r} is required", "type": "invalid"}}, 400)
        text = body[own] if isinstance(body[own], str) else "\n".join(part["content"] for part in body[own])
        asked = dict(enumerate(questions)) if isinstance(questions, list) else questions
        answers = {}
        for name, question in asked.items():
            row = self._rows.get(f"{text}\n{question['instructions']}", self._rows.get(text))
            if row is None:
                return json_response({"error": {"message": "not recorded", "type": "unknown"}}, 400)
            answers[name] = self._typed(form, question, row, raw)
            self.answered += 1
            self.paid[self.recording.ids[row]] += 1
        usage = {
            "input_tokens": len(text) // 4 + 1,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": len(text) // 4 + 1,
        }
        shown = list(answers.values()) if form == "decisions" else answers
        return json_response(
            {"model": self.behaviour.named or body["model"], "answers": shown, "usage": usage}
        )

    def _typed(self, form: str, question: Mapping[str, Any], row: int, raw: bytes) -> dict[str, Any]:
        how, kind = self.behaviour, question["type"]
        named = {"name": question.get("name")} if form == "decisions" else {}
        chance = self._chance(raw)
        if row in how.refusable and chance.random() < how.refused:
            return {"type": "refusal", **named}
        p = self._probabilities(row, chance)
        if kind in ("predicate", "noul"):
            return {"type": kind, "probability" if kind == "predicate" else "noul": float(p[0]), **named}
        rows = question.get("choices") or question.get("levels") or list(question["criteria"])
        options = [row.get("value", row.get("label")) if isinstance(row, dict) else row for row in rows]
        confidence = (len(p) * p.max() - 1) / (len(p) - 1) if how.confidence is None else how.confidence
        answer = {"type": kind, "confidence": float(confidence), **named}
        order = range(len(options))[:: -1 if how.reversed else 1]
        if kind == "choice":
            answer["choice"] = options[int(p.argmax())]
        else:
            answer["score"] = float(p @ np.arange(len(p)))
        if form == "decisions":
            key = "value" if kind == "choice" else "label"
            shown: Any = [{key: options[k], "probability": float(p[k])} for k in order]
            if kind == "score":
                shown = [{**each, "value": k} for each, k in zip(shown, order, strict=True)]
        elif kind == "score":
            answer["legend"] = {str(k): option for k, option in enumerate(options)}
            shown = {str(k): float(p[k]) for k in order}
        else:
            shown = {options[k]: float(p[k]) for k in order}
        return {**answer, "probabilities": shown}

    def _logprobs(self, row: int) -> dict[str, float]:
        if not self.behaviour.moves and self.behaviour.swapped_from is None:
            return super()._logprobs(row)
        p = self._probabilities(row, np.random.default_rng([row, self.requests]))
        shown = np.log(np.clip(p, 1e-9, 1)).tolist()
        return dict(zip((token.text for token in self.recording.tokens), shown, strict=True))

    def _probabilities(self, row: int, chance: np.random.Generator) -> FloatArray:
        how, logits = self.behaviour, self.recording.logits[row]
        if how.swapped_from is not None and self.requests >= how.swapped_from:
            logits = 0.2 * logits[::-1]
        p = np.exp(logits - logits.max())
        p /= p.sum()
        if how.moves:
            p = np.clip(p + chance.normal(0, how.moves, p.size), 1e-6, 1)
            p = p / p.sum() if p.size > 2 else np.array([p[0], 1 - p[0]])
        p = p * how.sums
        return np.asarray(p if how.decimals is None else np.round(p, how.decimals))
