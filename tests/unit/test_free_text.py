"""Answers in free text: what models write, and which answer it is."""

from __future__ import annotations

import csv
import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindcal.endpoints.free_text import parse_free_text
from paths import SHARED

YES_OR_NO = [
    ("Yes", "Yes"),
    ("no.", "No"),
    ("YES!!!", "Yes"),
    ("**Yes**", "Yes"),
    ("\u2018Yes\u2019", "Yes"),
    ("« Yes »", "Yes"),
    ("- No", "No"),
    ("Yes, because", "Yes"),
    ("Answer: Yes", "Yes"),
    ("Answer Yes or No: No", "No"),
    ("Yes/No: Yes", "Yes"),
    ("The answer is **No**.", "No"),
    ('The correct answer to the question is "No".', "No"),
    ("Final Answer:\n\nYes", "Yes"),
    ("\\boxed{No}", "No"),
    ("The final answer is: $\\boxed{\\text{Yes}}$", "Yes"),
    ("The total is 12, above 10.\n#### Yes", "Yes"),
    ('{"answer": "Yes"}', "Yes"),
    ('```json\n{"answer": "no", "reason": "there is yes in it"}\n```', "No"),
    ("No visa is needed according to the passage, so the answer is yes.", "Yes"),
    ("Yes, no visa is needed.", "Yes"),
    ("Yes. However, there is no proof.", "Yes"),
    ("Should I say yes or no? I say no.", "No"),
    ("No, wait. Actually yes, it does. So yes.", "Yes"),
    ("So, in conclusion: No \u2014 the passage contradicts it.", "No"),
    ("I would say that it is yes", "Yes"),
    ("Based on the passage, yes.", "Yes"),
    ("Nothing supports it; no", "No"),
    ("The claim is supported: Yes, line 3 says it. I hope this helps!", "Yes"),
    ("1. The passage says X.\n2. Hence Yes.\n\nConfidence: high", "Yes"),
    ("<think>No... the passage says no.</think>\nYes", "Yes"),
    ("It says no, I think.</think>\n\nYes", "Yes"),
]
OTHERS = [
    ("The answer is (C).", "ABCD", "C"),
    ("C", "ABCD", "C"),
    ("C) Paris", "ABCD", "C"),
    ("**B. Rome**", "ABCD", "B"),
    ("A good choice is B.", "ABCD", "B"),
    ("A is wrong, B is wrong, so C", "ABCD", "C"),
    ("I pick option B because a cat is no dog", "ABCD", "B"),
    ("The correct option is D: a cat", "ABCD", "D"),
    ("Das ist falsch. Antwort: \u201eNein\u201c", ["Ja", "Nein"], "Nein"),
    ("Die Antwort lautet Ja.", ["Ja", "Nein"], "Ja"),
    ("Réponse : « Oui »", ["Oui", "Non"], "Oui"),
    ("Ответ: Да.", ["Да", "Нет"], "Да"),
    ("答案是\uff1a是", ["是", "否"], "是"),
    ("答案:否。", ["是", "否"], "否"),
    ("This is False.", ["True", "False"], "False"),
    ("The claim is Not Supported.", ["Supported", "Not Supported"], "Not Supported"),
]
UNREADABLE = [
    ("", "empty"),
    (" \n** **", "empty"),
    ("<think>The passage", "cut short"),
    ("I'm sorry, I can't help with that.", "refusal"),
    ("The answer is not yes.", "negated"),
    ("There is no evidence for this.", "no answer"),
    ("Yes or No?", "no answer"),
    ("Yesterday", "no answer"),
    ("This is a yes-no question", "no answer"),
]


@pytest.mark.parametrize(("text", "answer"), YES_OR_NO)
def test_the_answer_is_found(text: str, answer: str) -> None:
    """Wherever it stands, and whatever other words stand around it."""
    found = parse_free_text(text, ["Yes", "No"])
    assert (found.answer, found.reason) == (["Yes", "No"].index(answer), "")


@pytest.mark.parametrize(("text", "answers", "answer"), OTHERS)
def test_other_answers_and_languages(text: str, answers: list[str], answer: str) -> None:
    """Letters, other languages with their quotes, and an answer that contains another."""
    found = parse_free_text(text, answers)
    assert (found.answer, found.reason) == (list(answers).index(answer), "")


@pytest.mark.parametrize(("text", "reason"), UNREADABLE)
def test_what_cannot_be_read_has_a_reason(text: str, reason: str) -> None:
    """No guess: the text has no answer, and a word says why."""
    found = parse_free_text(text, ["Yes", "No"])
    assert (found.answer, found.reason) == (None, reason)


def test_a_text_cut_short_gives_only_a_marked_answer() -> None:
    """What a model says on the way to its answer is not the answer."""
    words = ["Yes", "No"]
    assert (
        parse_free_text("Yes, that is what one might think, but", words, finished=False).reason == "cut short"
    )
    assert parse_free_text("Answer: No. The reason is that", words, finished=False).answer == 1
    assert parse_free_text("", words, finished=False).reason == "cut short"


@given(st.text(max_size=80))
def test_no_text_breaks_it(text: str) -> None:
    """Whatever comes is an answer or a reason, never both."""
    found = parse_free_text(text, ["Yes", "No"])
    assert (found.answer is None) == (found.reason != "")


@pytest.mark.parametrize(
    ("cell", "words"), [("qwen__boolq", ("True", "False")), ("qwen__mmlu", ("Yes", "No"))]
)
def test_recorded_texts_of_a_real_model(cell: str, words: tuple[str, str]) -> None:
    """Where a real model begins with an answer word and a comma, that is what is read."""
    path = SHARED / "logits" / f"{cell}__verbalized.csv.gz"
    if not path.exists():
        pytest.skip(f"recorded answers are not here: {path.name}")
    with gzip.open(path, "rt", newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)][:2000]
    opened = [(text, k) for text in texts for k, word in enumerate(words) if text.startswith(f"{word},")]
    assert len(opened) > 500
    agree = sum(parse_free_text(text, words).answer == k for text, k in opened)
    assert agree >= len(opened) - 2  # these texts are cut, some in the middle of "no longer"
