"""The built-in questions, as they ship with the package."""

from __future__ import annotations

import datetime as dt
import hashlib
import importlib.resources
import json
import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from blindcal.errors import InputError
from blindcal.items import files
from blindcal.items.catalogue import BUILTIN_SIZE, FAMILIES, builtin, open_items
from blindcal.items.record_files import as_line
from commanding import blindcal

QUESTIONS = list(builtin())


def groups(pattern: str, text: str) -> tuple[str, ...]:
    match = re.search(pattern, text)
    assert match is not None, text
    return match.groups()


def numbers(text: str) -> bool:
    if " than " in text:
        a, relation, b = groups(r"([\d.]+) (\w+) than (?:the number )?([\d.]+)\?", text)
        return Fraction(a) > Fraction(b) if relation in ("greater", "larger") else Fraction(a) < Fraction(b)
    text = text.replace("plus", "+").replace("minus", "-").replace("times", "*")
    if "result of" in text:
        result, a, sign, b = groups(r"Is (\d+) the result of (\d+) (.) (\d+)\?", text)
    else:
        a, sign, b, result = groups(r"(\d+) (.) (\d+) (?:=|equal to|equal) (\d+)\?", text)
    x, y = int(a), int(b)
    return int(result) == {"+": x + y, "-": x - y, "*": x * y}[sign]


def letters(text: str) -> bool:
    quoted: list[str] = re.findall(r'"([a-z]+)"', text)
    if "exactly" in text:
        return len(quoted[0]) == int(groups(r"exactly (\d+) letters", text)[0])
    first, second = quoted
    checks = {
        "same": first == second,
        "start with": first[0] == second,
        "first letter": second[0] == first,
        "contain": second in first,
        "Is there a letter": first in second,
        "before": first < second,
        "backwards": first[::-1] == second,
    }
    (answer,) = (answer for words, answer in checks.items() if words in text)
    return answer


def number_facts(text: str) -> bool:
    number, *others = map(int, re.findall(r"\d+", text))
    if "leap" in text or "366 days" in text:
        return (dt.date(number, 3, 1) - dt.date(number, 2, 1)).days == 29
    if "divisible" in text or "multiple" in text:
        return number % others[0] == 0
    if "prime" in text:
        return sum(number % divisor == 0 for divisor in range(1, number + 1)) == 2
    (parity,) = groups(r"\b(even|odd)\b", text)
    return number % 2 == (parity == "odd")


def test_size() -> None:
    """There are 1,000 questions, all with different prompts and ids."""
    assert len(QUESTIONS) == BUILTIN_SIZE == 1000
    assert len({question["id"] for question in QUESTIONS}) == 1000
    assert len({question["prompt"] for question in QUESTIONS}) == 1000
    assert {tuple(question) for question in QUESTIONS} == {("id", "prompt", "label", "family")}


def test_questions_stay_the_same() -> None:
    """The questions are those on which the published numbers were measured."""
    digest = hashlib.sha256(b"".join(map(as_line, QUESTIONS))).hexdigest()
    assert digest == "e6f35bddbd6f205bdde778eedccc5d6f6838dca66d84b9d9534e120b58ef9bd3"


def test_balance() -> None:
    """Half the labels are positive, in each family to within one, and families are equally large."""
    assert sum(question["label"] for question in QUESTIONS) == 500
    counts = Counter((question["family"], question["label"]) for question in QUESTIONS)
    assert set(counts) == {(family, label) for family in FAMILIES for label in (0, 1)}
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize(
    ("family", "pattern", "answer"),
    [("numbers", "", numbers), ("letters", "", letters), ("facts", r"\d", number_facts)],
)
def test_labels(family: str, pattern: str, answer: Callable[[str], bool]) -> None:
    """Labels agree with what is computed from the text of the question."""
    asked = [one for one in QUESTIONS if one["family"] == family and re.search(pattern, one["prompt"])]
    assert len(asked) >= 20
    assert [one["prompt"] for one in asked if answer(one["prompt"]) != bool(one["label"])] == []


@pytest.mark.parametrize("n", [1, 20, 999])
def test_fewer_questions(n: int) -> None:
    """Fewer questions are the beginning of more."""
    assert list(builtin(n)) == QUESTIONS[:n]


@pytest.mark.parametrize("n", [0, 1001])
def test_number_out_of_range(n: int) -> None:
    """A number of questions that cannot be had is refused with the number there is."""
    with pytest.raises(InputError, match=f"between 1 and 1,000, .* not {n:,}"):
        builtin(n)


def test_package_data() -> None:
    """The file of questions is part of the package."""
    assert importlib.resources.files("blindcal.items").joinpath("builtin.jsonl.gz").is_file()


def test_items_command(tmp_path: Path) -> None:
    """The command writes a file that an audit reads, and the same lines to standard output."""
    path = tmp_path / "questions.jsonl"
    assert blindcal("items", "builtin", "--n", 30, "--out", path).exit_code == 0
    written = files.load(path)
    named = open_items("builtin")
    assert list(written) == list(named)[:30]
    printed = blindcal("items", "builtin", "--n", 30).stdout
    assert printed == path.read_text()
    assert [json.loads(line) for line in printed.splitlines()] == QUESTIONS[:30]
    assert "1,000" in str(blindcal("items", "builtin", "--n", 1001).exception)
    assert isinstance(blindcal("items", "boolq", "--n", 30).exception, InputError)
