"""What models say when asked for an answer and a confidence."""

from __future__ import annotations

import csv
import gzip
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindcal.endpoints.free_text import parse_verbalized
from paths import SHARED

READ = [
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

REFUSED = [
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


@pytest.mark.parametrize(("text", "p"), READ)
def test_answers_are_read(text: str, p: float) -> None:
    """The confidence is that of the answer: p is one minus it when the answer is negative."""
    found = parse_verbalized(text)
    assert found.p == pytest.approx(p), found
    assert found.reason == ""


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_what_cannot_be_read_has_a_reason(text: str, reason: str) -> None:
    """There is no probability, and a word for why."""
    found = parse_verbalized(text)
    assert (found.p, found.reason) == (None, reason)


@given(st.booleans(), st.integers(50, 100))
def test_every_percentage_is_read_either_way(positive: bool, percent: int) -> None:
    """A whole percentage from 50 to 100 survives in every common spelling."""
    word = "True" if positive else "False"
    p = percent / 100 if positive else 1 - percent / 100
    for text in (f"{word}, {percent}%", f"{word}\n{percent} percent", f"{word} {percent}/100"):
        assert parse_verbalized(text, ["True"], ["False"]).p == pytest.approx(p), text


@given(st.text(max_size=60))
def test_no_text_breaks_it(text: str) -> None:
    """Whatever comes is either a probability in [0, 1] or a reason, never both and never an error."""
    found = parse_verbalized(text)
    assert (found.p is None) == (found.reason != "")
    assert found.p is None or 0 <= found.p <= 1


RECORDED = [
    # two in three state a percentage; of MMLU's only a handful, and the questions' own numbers are none
    ("qwen__boolq", ("True", "False"), 1277, (0.6, 0.7)),
    ("qwen__mmlu", ("Yes", "No"), 5, (0.002, 0.01)),
]


@pytest.mark.parametrize(("cell", "words", "plainly", "share"), RECORDED)
def test_recorded_answers_of_a_real_model_are_read(
    cell: str, words: tuple[str, str], plainly: int, share: tuple[float, float]
) -> None:
    """Where a real model wrote an answer and a percentage from 50 to 100, that is what is read."""
    path = SHARED / "logits" / f"{cell}__verbalized.csv.gz"
    if not path.exists():
        pytest.skip(f"recorded answers are not here: {path.name}")
    with gzip.open(path, "rt", newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)][:2000]
    plain = re.compile(rf"\s*({words[0]}|{words[1]})\b[^\d/]*?(\d+)%[^\d%]*", re.IGNORECASE)
    read, simply = 0, 0
    for text in texts:
        found = parse_verbalized(text, words[:1], words[1:])
        assert (found.p is None) == (found.reason != "")
        read += found.p is not None
        simple = plain.fullmatch(text)
        if simple and 50 <= int(simple[2]) <= 100:
            simply += 1
            stated = int(simple[2]) / 100
            assert found.p == pytest.approx(stated if simple[1].lower() == words[0].lower() else 1 - stated)
    assert simply == plainly
    assert share[0] <= read / len(texts) <= share[1]
