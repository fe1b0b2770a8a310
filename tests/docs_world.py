"""The world that the documentation speaks of: files of questions, an API key, and a service that answers.

Any model name and any prompt is answered over real HTTP: how likely "Yes" is follows from the prompt's text,
so that the same question always gets the same answer. Questions of the quiz are answered with a letter.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import blindcal as bc
from blindcal.endpoints.tokens import IDS
from blindcal.records import Token
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from misbehaving import Behaviour, Server, refusal

N = 600
ROWS = 997  # hidden probabilities that a prompt's text chooses from
TEMPLATE = "Passage: {passage}\nQuestion: {question}?\nAnswer Yes or No."
MODELS = ("my-model", "new-model")
TOPICS = ("law", "physics", "history")
LETTERS = "ABCD"
QUIZ = "Which number is on list"  # so begins every question with four options


class _AnyText(dict[str, int]):
    """Which hidden probability a prompt has: it follows from its text, and now and then from the model.

    The rows of the quiz come after those of yes/no questions, and follow from the first line.
    """

    model = MODELS[0]

    def get(self, text: str, default: Any = None) -> Any:  # noqa: ARG002 - every text has one
        if text.startswith(QUIZ):
            return ROWS + _hashed(text.partition("\n")[0])
        row = _hashed(text)
        other = self.model != MODELS[0] and _hashed(text + self.model) % 3 == 0
        return (row + 100) % ROWS if other else row


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % ROWS


class AnyPromptServer(Server):
    """Answers any prompt under any model name, as an endpoint that honours ``logit_bias``.

    `MODELS` hide logprobs, whatever the behaviour.
    """

    def __init__(self, behaviour: Behaviour | None = None) -> None:
        known = IDS["o200k_base"]
        p = hidden_probabilities()
        tokens = tuple(Token(number, text) for text, number in known.items())
        odds = np.log(p / (1 - p))
        sides = np.array([0.5 if text.strip().lower() in ("yes", "true") else -0.5 for text in known])
        spelled = np.array([0.0 if text in ("Yes", "No", "True", "False") else -4.0 for text in known])
        spelled[[len(text.strip()) == 1 for text in known]] = -20.0  # a letter answers no such question
        quiz = np.full((ROWS, len(tokens)), -9.0)
        quiz[:, [list(known).index(letter) for letter in LETTERS]] = hidden_logits()
        logits = np.concatenate([odds[:, None] * sides + spelled, quiz])
        recording = Recording(
            "any model",
            tuple(str(row) for row in range(2 * ROWS)),
            tokens,
            logits,
            logits.max(axis=1) - 12,
            np.zeros(2 * ROWS, np.int64),
        )
        super().__init__(recording, (), behaviour)
        self._rows: _AnyText = _AnyText()

    def _refusal(self, asked: Any, body: bytes) -> Any:
        named = asked.model
        self._rows.model, asked.model = named, self.recording.name  # one name is as good as another
        if asked.logprobs and named in MODELS:
            return refusal(replace(self.behaviour, logprobs=False), asked, body, asked.model)
        return super()._refusal(asked, body)


def hidden_probabilities() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """What the service's model thinks."""
    return np.clip(np.random.default_rng(0).beta(0.5, 0.5, ROWS), 1e-4, 1 - 1e-4)


def hidden_logits() -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """What the service's model thinks of the four options of a question."""
    return np.random.default_rng(2).normal(0, 3, (ROWS, len(LETTERS)))


def write_new_questions(path: Path, n: int = 200) -> None:
    """Questions like those of `write_questions`, without labels."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "question", "passage"])
        table.writerows([f"n{k}", f"is number {N + k} on the list", f"List {k % 7}."] for k in range(n))


def write_questions(path: Path, n: int = N) -> None:
    """Labelled questions with a passage and a topic, of which an overconfident model knows something."""
    rng, p, rows = np.random.default_rng(1), hidden_probabilities(), _AnyText()
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "label", "question", "passage", "topic"])
        for k in range(n):
            record = {"question": f"is number {k} on the list", "passage": f"List {k % 7}."}
            label = int(rng.random() < 0.1 + 0.8 * p[rows.get(TEMPLATE.format(**record))])
            table.writerow([f"q{k}", label, *record.values(), TOPICS[k % 3]])


def write_scores(path: Path, n: int = N) -> None:
    """Probabilities of a model on as many items, as `blindcal score` writes them."""
    rng = np.random.default_rng(5)
    p = rng.beta(0.5, 0.5, n)
    path.parent.mkdir()
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "label", "p"])
        table.writerows([f"q{k}", int(rng.random() < 0.1 + 0.8 * f), f] for k, f in enumerate(p.tolist()))


def write_traffic(folder: Path) -> None:
    """Questions as they arrive: ``traffic.jsonl`` with its labels apart, ``changed.jsonl`` with labels.

    From the middle of the latter on, positive labels are rarer than the model thinks.
    """
    rng, p, rows = np.random.default_rng(4), hidden_probabilities(), _AnyText()

    def records(first: int, n: int, changed: int) -> list[dict[str, Any]]:
        found = []
        for k in range(n):
            fields = {"question": f"is number {first + k} on the list", "passage": f"List {k % 7}."}
            f = p[rows.get(TEMPLATE.format(**fields))]
            label = int(rng.random() < (0.1 + 0.8 * f if k < changed else 0.1 + 0.2 * f))
            found.append({"id": f"t{first + k}", **fields, "topic": TOPICS[k % 3], "label": label})
        return found

    traffic, changed = records(2000, 400, 400), records(4000, 900, 450)
    unlabelled = [{name: one[name] for name in one if name != "label"} for one in traffic]
    for name, lines in (("traffic", unlabelled), ("changed", changed)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    with (folder / "labels.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("id", "label"))
        table.writerows((one["id"], one["label"]) for one in traffic)


def write_quiz(path: Path, n: int = N) -> None:
    """Labelled questions with four options, of which an overconfident model knows something."""
    rng, z, rows = np.random.default_rng(3), hidden_logits(), _AnyText()
    lines = []
    for k in range(n):
        question = f"{QUIZ} {k}?"
        belief = np.exp(z[rows.get(question) - ROWS] / 1.5)
        label = LETTERS[rng.choice(len(LETTERS), p=belief / belief.sum())]
        choices = [str(number) for number in range(k, k + len(LETTERS))]
        lines.append(json.dumps({"id": f"quiz{k}", "question": question, "choices": choices, "label": label}))
    path.write_text("\n".join(lines) + "\n")


@dataclass(frozen=True)
class World:
    """Where the files are, and where the service answers."""

    folder: Path
    base_url: str


@contextmanager
def docs_world(folder: Path) -> Iterator[World]:
    """Lay out the files that the documentation names, with audits by two models, and serve."""
    write_questions(folder / "questions.csv")
    write_new_questions(folder / "new.csv")
    write_traffic(folder)
    write_quiz(folder / "quiz.jsonl")
    write_scores(folder / "scores" / "my-model__questions.csv")
    with running(AnyPromptServer(Behaviour(logprobs=True))) as server:
        for model in MODELS:
            settings = bc.Settings(
                model=model, base_url=server.base_url, template=TEMPLATE, by_field="topic", resamples=40
            )
            out = folder / "runs" / f"questions-{model}"
            bc.audit(folder / "questions.csv", settings, out=out)
        quiz = bc.Settings(model=MODELS[0], base_url=server.base_url, resamples=40)
        bc.audit(folder / "quiz.jsonl", quiz, out=folder / "runs" / f"quiz-{MODELS[0]}")
        yield World(folder, server.base_url)
