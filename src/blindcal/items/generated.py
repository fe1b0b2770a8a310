"""A question set of our own: yes/no questions made by code, whose labels are sure.

Nine families, four levels of difficulty (the easier, the more often), several phrasings. Every question
is built towards a label drawn first, so that half of any number of them is Yes in every family, and no
question comes twice. The same seed gives the same questions, and fewer questions are the beginning of
more.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from blindcal.errors import InputError
from blindcal.items.families import FAMILIES, INSTRUCTIONS, LEVELS, Family, Rng
from blindcal.records import Item, Message

LEVEL_SHARES = (0.5, 0.25, 0.15, 0.1)


def generate(n: int, *, seed: int = 0) -> list[Item]:
    """Return `n` questions; labels and families are balanced to within one of each."""
    if n < 1:
        raise InputError(f"n must be at least 1, got {n}")
    return list(islice(questions(seed), n))


def questions(seed: int = 0) -> Iterator[Item]:
    """Yield questions without end, each Yes paired with a No from some other or the same family."""
    rng = np.random.default_rng([seed, 0xB11D])
    seen: set[str] = set()
    while True:
        # One block: every family once with either label, in random pairs and order.
        for pair in zip(rng.permutation(len(FAMILIES)), rng.permutation(len(FAMILIES)), strict=True):
            sides = list(zip(pair, (True, False), strict=True))
            for index, label in sides if rng.random() < 0.5 else reversed(sides):
                name = tuple(FAMILIES)[index]
                level, text = _unseen(FAMILIES[name], rng, label, seen)
                yield Item(
                    id=f"{name}-{level}-{len(seen):06d}",
                    label=int(label),
                    messages=(Message("user", INSTRUCTIONS[name].format(text)),),
                    group=name,
                )


def _unseen(family: Family, rng: Rng, label: bool, seen: set[str]) -> tuple[int, str]:
    """A question not asked yet; easy levels run out first, so the level rises until one is found."""
    level = int(rng.choice(LEVELS, p=LEVEL_SHARES))
    for attempt in range(10_000):
        level = min(level + (attempt % 20 == 19), LEVELS[-1])
        text = family(rng, level, label)
        if text not in seen:
            seen.add(text)
            return level, text
    raise InputError("the question set is exhausted: ask for fewer questions")
