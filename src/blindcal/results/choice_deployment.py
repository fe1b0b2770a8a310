"""The two requests that answer or abstain, with more than two answers.

The first asks the plain question, as in the audit. The second asks it again with the logit of the answer
given lowered: if the same answer comes again, its margin over the strongest other answer is large enough. No
request can decide by the probability itself, of which the margin alone is not the whole.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any

import numpy as np

from blindcal.endpoints.query_format import TokenQuestion
from blindcal.errors import NotIdentifiedError
from blindcal.records import FloatArray
from blindcal.results.deployment import DIGITS, FILL_IN, body_of, endpoint_of, key_header, need_bias, template
from blindcal.results.run import Run
from blindcal.text import spoken

FEWER_OPTIONS = "If a question has fewer options, leave the tokens of the others out of logit_bias."


@dataclass(frozen=True, slots=True)
class ChoiceDeployment:
    """The request with the plain question, and the one that confirms each answer, by its word.

    ``tokens`` are the texts that mean each answer.
    """

    url: str
    ask: dict[str, Any]
    confirm: dict[str, dict[str, Any]]
    tokens: dict[str, tuple[str, ...]]
    key_header: str
    varies: bool = False

    @property
    def body(self) -> dict[str, Any]:
        """Both requests: the question, and what confirms each answer."""
        return {"ask": self.ask, "confirm": self.confirm}

    def curl(self) -> str:
        """The requests as shell commands."""
        parts = [self._comment, "# Ask:", self._command(self.ask)]
        for word, body in self.confirm.items():
            shown = "".join(letter if letter.isprintable() else "?" for letter in word)
            parts += [
                f"# If it says {shown}, ask again; abstain unless it says the same:",
                self._command(body),
            ]
        return "\n".join(parts) + "\n"

    def _command(self, body: dict[str, Any]) -> str:
        return (
            f"curl {shlex.quote(self.url)} \\\n"
            f'  -H "Content-Type: application/json" -H "{self.key_header}$OPENAI_API_KEY" \\\n'
            f"  -d @- <<'JSON'\n{json.dumps(body, indent=2)}\nJSON"
        )

    @property
    def _comment(self) -> str:
        return f"# {FILL_IN}" + (f"\n# {FEWER_OPTIONS}" if self.varies else "")

    def python(self) -> str:
        """The requests as a Python program without dependencies; it prints the answer or ``abstain``."""
        name, _, scheme = self.key_header.partition(": ")
        answer = '["message"]["content"]' if "messages" in self.ask else '["text"]'
        words = {spoken(text): word for word, texts in self.tokens.items() for text in texts}
        return f"""\
{self._comment}
import json
import os
import urllib.request

ask = json.loads({json.dumps(self.ask)!r})
confirm = json.loads({json.dumps(self.confirm)!r})
words = {words!r}


def answer_to(body):
    request = urllib.request.Request(
        {self.url!r},
        json.dumps(body).encode(),
        {{"Content-Type": "application/json", {name!r}: {scheme!r} + os.environ.get("OPENAI_API_KEY", "")}},
    )
    with urllib.request.urlopen(request) as reply:
        said = json.load(reply)["choices"][0]{answer}
    return words.get(said.strip().casefold())


given = answer_to(ask)
print(given if given is not None and answer_to(confirm[given]) == given else "abstain")
"""


def choice_deployment(run: Run, shift: float) -> ChoiceDeployment:
    """The requests to a run's endpoint; ``shift`` is added to the answer given in the second.

    Raises
    ------
    NotIdentifiedError
        If the run used no ``logit_bias``, or tested no margin: its thresholds are then not about margins.
    """
    need_bias(run)
    if not run.problem.hard.any():
        raise NotIdentifiedError(
            f"a run of method {run.result.method} tests no margins: its threshold is known, but no request "
            "can decide by it",
            remedy="audit with {method}",
            options={"method": "latent"},
        )
    settings, targets, answers = run.settings, run.result.targets, run.result.answers
    question, endpoint = TokenQuestion(targets, settings["offset"]), endpoint_of(settings)

    def body(added: float, biases: FloatArray) -> dict[str, Any]:
        return body_of(endpoint, question.request(template(settings), added, 0.0, 0, biases))

    none, lowered = np.zeros(len(answers)), np.diag(np.full(len(answers), round(shift, DIGITS)))
    return ChoiceDeployment(
        url=endpoint.url,
        ask=body(0.0, none),
        confirm={word: body(shift, row) for word, row in zip(answers, lowered, strict=True)},
        tokens={
            word: tuple(token.text for token in tokens)
            for word, tokens in zip(answers, targets.by_answer, strict=True)
        },
        key_header=key_header(settings),
        varies=run.choices is not None and bool((run.choices < len(answers)).any()),
    )
