"""Answers in free text: what models write, which answer it is, and how confident they say they are."""

from __future__ import annotations

import csv
import gzip
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindcal.endpoints.free_text import parse_free_text, parse_verbalized
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


@pytest.mark.parametrize(
    ("text", "answers", "answer"), [*((text, ["Yes", "No"], answer) for text, answer in YES_OR_NO), *OTHERS]
)
def test_the_answer_is_found(text: str, answers: list[str], answer: str) -> None:
    """Wherever it stands, in letters and other languages, and whatever other words stand around it."""
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
    for text in ("Yes, that is what one might think, but", ""):
        assert parse_free_text(text, words, finished=False).reason == "cut short"
    assert parse_free_text("Answer: No. The reason is that", words, finished=False).answer == 1


# Stated confidence


STATED = [
    ("Yes, 85%", 0.85),
    ("No, 85%", 0.15),
    ("yes 100%", 1.0),
    ("NO 50%", 0.5),
    ("Yes (confidence: 90%)", 0.9),
    ("Answer: No\nConfidence: 70 %", 0.3),
    ("**Yes**\n\n**Confidence:** 95%", 0.95),
    ("No. Confidence: 0.9", 0.1),
    ("Yes, .75", 0.75),
    ("Yes, 0,75", 0.75),
    ("Yes; I am 92.5% sure.", 0.925),
    ("Yes, 92,5 %", 0.925),
    ("Yes - 80 percent", 0.8),
    ("Yes, 80 per cent certain", 0.8),
    ("No, 9/10", 0.1),
    ("Yes, 95 out of 100", 0.95),
    ("Yes, 85", 0.85),
    ("Yes. Confidence: 1.0", 1.0),
    ("Yes. Confidence: 85", 0.85),
    ('{"answer": "Yes", "confidence": 0.66}', 0.66),
    ("I am very confident that the answer is no", 0.1),
    ("Yes, almost certain", 0.95),
    ("Yes, it is very likely", 0.9),
    ("Yes, likely", 0.7),
    ("No, but I am not sure", 0.5),
    ("Yes or No: No, 60%", 0.4),
]

UNSTATED = [
    ("", "empty"),
    (" \n\t", "empty"),
    ("I cannot answer that question.", "refusal"),
    ("I'm sorry, but as an AI language model I do not have opinions.", "refusal"),
    ("It depends, 80%", "no answer"),
    ("Yesterday was 80% nicer", "no answer"),
    ("Yes/No 80%", "both answers"),
    ("Yes", "no confidence"),
    ("No, I would say.", "no confidence"),
    ("Yes, I-94 is a toll road in Michigan.", "no confidence"),
    ("No, the proposed answer is incorrect. A standard piano has 88 keys, not 20.", "no confidence"),
    ("Yes, the proposed answer is correct. The developer will most likely have to pay $51", "no confidence"),
    ("No, the proposed answer is wrong. The energy of the system is not 0.75 mJ", "no confidence"),
    ("No, the answer is not 100%.", "no confidence"),
    ("Yes, 30%", "confidence out of range"),
    ("No, 250%", "confidence out of range"),
]


@pytest.mark.parametrize(("text", "p"), STATED)
def test_stated_confidences_are_read(text: str, p: float) -> None:
    """The confidence is that of the answer: p is one minus it when the answer is negative."""
    stated = parse_verbalized(text)
    assert stated.p == pytest.approx(p)
    assert stated.reason == ""


@pytest.mark.parametrize(("text", "reason"), UNSTATED)
def test_what_states_no_confidence_has_a_reason(text: str, reason: str) -> None:
    """There is no probability, and a word for why."""
    stated = parse_verbalized(text)
    assert (stated.p, stated.reason) == (None, reason)


@given(st.booleans(), st.integers(50, 100))
def test_every_percentage_is_read_either_way(positive: bool, percent: int) -> None:
    """A whole percentage from 50 to 100 survives in every common spelling."""
    word = "True" if positive else "False"
    p = percent / 100 if positive else 1 - percent / 100
    for text in (f"{word}, {percent}%", f"{word}\n{percent} percent", f"{word} {percent}/100"):
        assert parse_verbalized(text, ["True"], ["False"]).p == pytest.approx(p), text


@given(st.text(max_size=80))
def test_no_text_breaks_it(text: str) -> None:
    """Whatever comes is an answer (and a probability) or a reason, never both and never an error."""
    answer = parse_free_text(text, ["Yes", "No"])
    assert (answer.answer is None) == (answer.reason != "")
    stated = parse_verbalized(text)
    assert (stated.p is None) == (stated.reason != "")
    assert stated.p is None or 0 <= stated.p <= 1


# Recorded texts of a real model


RECORDED = [
    # two in three state a percentage; of MMLU's only a handful, and the questions' own numbers are none
    ("qwen__boolq", ("True", "False"), 1277, (0.6, 0.7)),
    ("qwen__mmlu", ("Yes", "No"), 5, (0.002, 0.01)),
]


def recorded(cell: str) -> list[str]:
    path = SHARED / "logits" / f"{cell}__verbalized.csv.gz"
    if not path.exists():
        pytest.skip(f"recorded answers are not here: {path.name}")
    with gzip.open(path, "rt", newline="") as file:
        return [row["text"] for row in csv.DictReader(file)][:2000]


@pytest.mark.parametrize(("cell", "words"), [case[:2] for case in RECORDED])
def test_recorded_answers_are_read(cell: str, words: tuple[str, str]) -> None:
    """Where a real model begins with an answer word and a comma, that is what is read."""
    opened = [
        (text, k) for text in recorded(cell) for k, word in enumerate(words) if text.startswith(f"{word},")
    ]
    assert len(opened) > 500
    agree = sum(parse_free_text(text, words).answer == k for text, k in opened)
    assert agree >= len(opened) - 2  # these texts are cut, some in the middle of "no longer"


@pytest.mark.parametrize(("cell", "words", "plainly", "share"), RECORDED)
def test_recorded_confidences_are_read(
    cell: str, words: tuple[str, str], plainly: int, share: tuple[float, float]
) -> None:
    """Where a real model wrote an answer and a percentage from 50 to 100, that is what is read."""
    plain = re.compile(rf"\s*({words[0]}|{words[1]})\b[^\d/]*?(\d+)%[^\d%]*", re.IGNORECASE)
    texts = recorded(cell)
    stated = {text: parse_verbalized(text, words[:1], words[1:]).p for text in texts}
    simply = 0
    for text in texts:
        simple = plain.fullmatch(text)
        if simple and 50 <= int(simple[2]) <= 100:
            simply += 1
            p = int(simple[2]) / 100
            assert stated[text] == pytest.approx(p if simple[1].lower() == words[0].lower() else 1 - p)
    assert simply == plainly
    assert share[0] <= sum(stated[text] is not None for text in texts) / len(texts) <= share[1]
