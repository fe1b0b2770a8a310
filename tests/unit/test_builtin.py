"""The built-in questions, as they ship with the package."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

from blindcal.errors import InputError
from blindcal.items.catalogue import BUILTIN_SIZE, FAMILIES, builtin, open_items
from blindcal.items.record_files import as_line
from commanding import blindcal

QUESTIONS = list(builtin())


def test_questions_stay_the_same() -> None:
    """The 1,000 questions are those of the published numbers: all different, each family half positive."""
    assert len(QUESTIONS) == BUILTIN_SIZE == 1000
    for field in ("id", "prompt"):
        assert len({question[field] for question in QUESTIONS}) == 1000
    assert {tuple(question) for question in QUESTIONS} == {("id", "prompt", "label", "family")}
    counts = Counter((question["family"], question["label"]) for question in QUESTIONS)
    assert set(counts) == {(family, label) for family in FAMILIES for label in (0, 1)}
    assert max(counts.values()) - min(counts.values()) <= 1
    digest = hashlib.sha256(b"".join(map(as_line, QUESTIONS))).hexdigest()
    assert digest == "e6f35bddbd6f205bdde778eedccc5d6f6838dca66d84b9d9534e120b58ef9bd3"


def test_items_command(tmp_path: Path) -> None:
    """The command writes a file that an audit reads, and the same lines to standard output."""
    path = tmp_path / "questions.jsonl"
    assert blindcal("items", "builtin", "--n", 30, "--out", path).exit_code == 0
    assert list(open_items(path)) == list(open_items("builtin"))[:30]
    printed = blindcal("items", "builtin", "--n", 30).stdout
    assert printed == path.read_text()
    assert [json.loads(line) for line in printed.splitlines()] == QUESTIONS[:30]
    assert isinstance(blindcal("items", "boolq", "--n", 30).exception, InputError)
