"""A question set of our own: yes/no questions made by code, whose labels are sure.

Nine families, four levels of difficulty (the easier, the more often), several phrasings. Every question
is built towards a label drawn first, so that half of any number of them is Yes in every family, and no
question comes twice. The same seed gives the same questions, and fewer questions are the beginning of
more.
"""

from __future__ import annotations

import calendar
import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from typing import TypeAlias, TypeVar

import numpy as np

from blindcal.errors import InputError
from blindcal.records import Item, Message

LEVELS = (1, 2, 3, 4)
LEVEL_SHARES = (0.4, 0.3, 0.2, 0.1)

Rng: TypeAlias = np.random.Generator
Family: TypeAlias = Callable[[Rng, int, bool], str]
T = TypeVar("T")

INSTRUCTIONS = ("Answer Yes or No: {}", "{} Yes or No?")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


WORDS = _words(
    """
    anchor apple arrow autumn basket beach bird blanket book bottle branch bread bridge brother button
    candle carpet castle cat chair cheese cherry circle city cloud coffee copper corner cotton cousin
    daughter desert dinner doctor dog door dragon drum eagle earth elbow engine evening farmer feather
    fire fish flower forest fountain friend garden giraffe glass gold grape guitar hammer harbour hat
    hill honey horse hotel house iron island jacket jungle kettle king kitchen ladder lake lamp lemon
    letter lion maple market meadow mirror monkey moon morning mountain mouse music needle night
    notebook ocean office onion orange orchard oven owl paper parrot pencil pepper piano picture pillow
    planet plate pocket potato puzzle queen rabbit radio rain ribbon river road rocket roof rope saddle
    salt sand school shadow ship shirt silver sister snow spider spoon spring square star station stone
    street sugar summer table teacher thunder tiger tower train tree tunnel turtle umbrella uncle valley
    village violin wagon water whale wheel window winter wolf yellow zebra
    """
)

NAMES = _words(
    """
    Adam Alice Anna Ben Carla Clara David Diana Elias Emma Felix Fiona George Grace Hanna Hugo Ivan Iris
    Jack Julia Karl Kira Leo Lena Marco Maria Nina Noah Olga Oscar Paul Petra Rita Robert Sara Simon
    Tara Thomas Uma Victor Vera Walter Yara Zoe
    """
)

# No word belongs to two kinds, whoever is asked: no "orange", "tomato" or "chicken".
KINDS = {
    "animal": _words(
        "dog cat horse lion tiger rabbit monkey zebra giraffe wolf sheep goat pig bear fox camel"
    ),
    "fruit": _words("apple banana grape lemon cherry pear peach mango plum strawberry pineapple melon"),
    "vegetable": _words("carrot onion cabbage leek radish turnip parsnip potato beetroot"),
    "vehicle": _words("car bus train bicycle truck motorcycle tram van taxi ambulance tractor"),
    "tool": _words("hammer saw screwdriver shovel axe wrench rake chisel"),
    "musical instrument": _words("piano guitar violin flute trumpet cello harp clarinet saxophone"),
    "piece of clothing": _words("shirt jacket hat sock glove scarf skirt coat sweater"),
    "piece of furniture": _words("table chair sofa bed desk wardrobe bookshelf armchair"),
}
KIND_OF = {word: kind for kind, words in KINDS.items() for word in words}

# Each is several times as big as the one before it, whichever specimen one has in mind.
BY_SIZE = (
    *("atom", "bacterium", "grain of sand", "ladybird", "walnut", "tennis ball", "cat", "sheep", "horse"),
    *("elephant", "tennis court", "village", "big city", "continent", "planet", "galaxy"),
)

MONTHS = tuple(calendar.month_name)[1:]
DAYS = tuple(calendar.day_name)


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
                    messages=(Message("user", _pick(rng, INSTRUCTIONS).format(text)),),
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


def _comparison(rng: Rng, level: int, label: bool) -> str:
    """Two numbers: far apart, then asked the other way round, then close together, then with decimals."""
    if level == 4:
        whole, digits = int(rng.integers(1, 50)), int(rng.integers(1, 9))
        # 3.7 against 3.65: the longer fraction is often the smaller number.
        a, b = f"{whole}.{digits + 1}", f"{whole}.{digits}{int(rng.integers(1, 10))}"
        large, small = (a, b) if float(a) > float(b) else (b, a)
    else:
        low, high, least, most = {1: (1, 20, 30, 900), 2: (1, 100, 20, 200), 3: (1000, 100_000, 1, 9)}[level]
        smaller = int(rng.integers(low, high))
        large, small = str(smaller + int(rng.integers(least, most + 1))), str(smaller)
    relations = (("greater than", True), ("larger than", True), ("less than", False), ("smaller than", False))
    relation, first_is_large = _pick(rng, relations[:2] if level == 1 else relations)
    a, b = (large, small) if first_is_large == label else (small, large)
    return _pick(rng, (f"Is {a} {relation} {b}?", f"Is the number {a} {relation} the number {b}?"))


def _arithmetic(rng: Rng, level: int, label: bool) -> str:
    """A sum, difference or product; the wrong result is near the right one."""
    top = {1: 10, 2: 30, 3: 100, 4: 1000}[level]
    sign = _pick(rng, ("+", "-", "*") if level > 1 else ("+", "-"))
    a, b = int(rng.integers(1, top)), int(rng.integers(1, min(top, 100) if sign == "*" else top))
    a, b = (max(a, b), min(a, b)) if sign == "-" else (a, b)
    result = {"+": a + b, "-": a - b, "*": a * b}[sign]
    if not label:
        wrong = [result + d for d in (-10, -2, -1, 1, 2, 10) if result + d >= 0]
        result = _pick(rng, wrong)
    spoken = {"+": "plus", "-": "minus", "*": "times"}[sign]
    return _pick(
        rng,
        (
            f"Is {a} {sign} {b} = {result}?",
            f"Is {a} {spoken} {b} equal to {result}?",
            f"Does {a} {sign} {b} equal {result}?",
            f"Is {result} the result of {a} {spoken} {b}?",
        ),
    )


def _letters(rng: Rng, level: int, label: bool) -> str:
    """Words and spelling: the same word, its letters, alphabetical order, length, reversal."""
    word = _pick(rng, WORDS)
    if level == 1:
        other = word if label else _other(rng, WORDS, word)
        return _pick(
            rng,
            (f'Are the words "{word}" and "{other}" the same?', f'Is "{word}" the same word as "{other}"?'),
        )
    if level == 2 and rng.random() < 0.5:
        letter = word[0] if label else _other(rng, ALPHABET, word[0])
        return _pick(
            rng,
            (
                f'Does the word "{word}" start with the letter "{letter}"?',
                f'Is "{letter}" the first letter of "{word}"?',
            ),
        )
    if level == 2:
        letter = _pick(rng, word) if label else _pick(rng, sorted(set(ALPHABET) - set(word)))
        return _pick(
            rng,
            (
                f'Does the word "{word}" contain the letter "{letter}"?',
                f'Is there a letter "{letter}" in "{word}"?',
            ),
        )
    if level == 3:
        other = _other(rng, WORDS, word)
        first, second = sorted((word, other)) if label else sorted((word, other), reverse=True)
        return _pick(
            rng,
            (
                f'Does "{first}" come before "{second}" in the dictionary?',
                f'Is "{first}" before "{second}" in alphabetical order?',
            ),
        )
    if rng.random() < 0.5:
        letters = len(word) if label else len(word) + _pick(rng, (-1, 1))
        return f'Does the word "{word}" have exactly {letters} letters?'
    # Pseudo-words keep this level from ever running out.
    text = "".join(_pick(rng, ALPHABET) for _ in range(int(rng.integers(4, 8))))
    backwards = text[::-1]
    if not label:
        i = int(rng.integers(len(text)))
        backwards = backwards[:i] + _other(rng, ALPHABET, backwards[i]) + backwards[i + 1 :]
    return f'Is "{backwards}" the word "{text}" spelled backwards?'


def _dates(rng: Rng, level: int, label: bool) -> str:
    """The calendar: order of days, months and dates, then weekdays that must be worked out."""
    if level == 1:
        i = int(rng.integers(12))
        word, following = _pick(rng, (("after", MONTHS[(i + 1) % 12]), ("before", MONTHS[i - 1])))
        said = following if label else _other(rng, MONTHS, following)
        year = int(rng.integers(1900, 2100))
        return _pick(
            rng,
            (
                f"Is {said} the month {word} {MONTHS[i]}?",
                f"In {year}, was {said} the month {word} {MONTHS[i]}?",
            ),
        )
    if level == 2:
        a, b = sorted(_day(rng) for _ in range(2))
        if a == b:
            b += dt.timedelta(days=1)
        first, second = (a, b) if label else (b, a)
        return _pick(
            rng,
            (
                f"Is {_long(first)} before {_long(second)}?",
                f"Does {_long(second)} come after {_long(first)}?",
            ),
        )
    day = _day(rng)
    if level == 3:
        step = int(rng.integers(2, 7))
        then = (day.weekday() + step) % 7
        said = DAYS[then] if label else _other(rng, DAYS, DAYS[then])
        return f"If {_long(day)} was a {DAYS[day.weekday()]}, was the date {step} days later a {said}?"
    step = int(rng.integers(8, 60))
    then_day = day + dt.timedelta(days=step)
    said_day = then_day if label else then_day + dt.timedelta(days=_pick(rng, (-7, -2, -1, 1, 2, 7)))
    return f"Is {_long(said_day)} exactly {step} days after {_long(day)}?"


def _lists(rng: Rng, level: int, label: bool) -> str:
    """Is a word in a list; is a list in order; is a number its largest or smallest. Long lists are harder."""
    if level == 1:
        word, *words = (str(w) for w in rng.choice(WORDS, int(rng.integers(4, 6)), replace=False))
        words[-1] = word if label else words[-1]
        listed = ", ".join(words[i] for i in rng.permutation(len(words)))
        return _pick(rng, (f"Is {word} in this list: {listed}?", f"Does the list {listed} contain {word}?"))
    size = level + 2
    numbers = rng.choice({1: 20, 2: 60, 3: 200, 4: 999}[level], size, replace=False) + 1
    values = [int(v) for v in numbers]
    if rng.random() < 0.5:
        ascending = bool(rng.random() < 0.5)
        values.sort(reverse=not ascending)
        if not label:
            i = int(rng.integers(size - 1))
            values[i], values[i + 1] = values[i + 1], values[i]
        order = "ascending order" if ascending else "descending order"
        plain = "from smallest to largest" if ascending else "from largest to smallest"
        said = ", ".join(map(str, values))
        return _pick(rng, (f"Are the numbers {said} in {order}?", f"Is the list {said} sorted {plain}?"))
    word, extreme = _pick(rng, (("largest", max(values)), ("smallest", min(values))))
    named = extreme if label else _other(rng, values, extreme)
    said = ", ".join(map(str, values))
    return _pick(
        rng,
        (
            f"Is {named} the {word} number in the list {said}?",
            f"In the list {said}, is {named} the {word} number?",
        ),
    )


def _logic(rng: Rng, level: int, label: bool) -> str:
    """Who has what, then a chain of comparisons with more links and in mixed order as the level rises."""
    if level == 1:
        a, b = (str(name) for name in rng.choice(NAMES, 2, replace=False))
        mine, yours = (
            _article(str(word)) for word in rng.choice(KINDS["tool"] + KINDS["fruit"], 2, replace=False)
        )
        owner = _pick(rng, (a, b))
        asked = mine if (owner == a) == label else yours
        return f"{a} has {mine}. {b} has {yours}. Does {owner} have {asked}?"
    people = [str(name) for name in rng.choice(NAMES, level, replace=False)]
    more, less = _pick(
        rng, (("taller", "shorter"), ("older", "younger"), ("faster", "slower"), ("richer", "poorer"))
    )
    facts = [
        f"{a} is {more} than {b}." if level < 3 or rng.random() < 0.5 else f"{b} is {less} than {a}."
        for a, b in pairwise(people)
    ]
    if level > 2:
        facts = [facts[i] for i in rng.permutation(len(facts))]
    i, j = sorted(rng.choice(len(people), 2, replace=False))
    word = _pick(rng, (more, less))
    high, low = people[i], people[j]
    a, b = (high, low) if (word == more) == label else (low, high)
    return f"{' '.join(facts)} Is {a} {word} than {b}?"


def _kinds(rng: Rng, level: int, label: bool) -> str:
    """What sort of thing a word names: of one word, of two, of all in a list, of how many in a list."""
    kind = _pick(rng, tuple(KINDS))
    inside, outside = KINDS[kind], [word for word in KIND_OF if KIND_OF[word] != kind]
    if level == 1:
        word = _pick(rng, inside if label else outside)
        return _pick(
            rng, (f"Is {_article(word)} {_article(kind)}?", f'Does the word "{word}" name {_article(kind)}?')
        )
    if level == 4:
        size, count = int(rng.integers(5, 8)), int(rng.integers(1, 5))
        words = [*rng.choice(inside, count, replace=False), *rng.choice(outside, size - count, replace=False)]
        listed = ", ".join(words[i] for i in rng.permutation(size))
        said = count if label else _other(rng, range(1, 5), count)
        return f"In the list {listed}, do exactly {said} of the words name {_article(kind)}?"
    words = [str(word) for word in rng.choice(inside, level, replace=False)]
    if not label:
        words[int(rng.integers(level))] = _pick(rng, outside)
    listed = ", ".join(words)
    return _pick(
        rng,
        (
            f"Is every one of these {_article(kind)}: {listed}?",
            f"Does each of the words {listed} name {_article(kind)}?",
        ),
    )


def _sizes(rng: Rng, level: int, label: bool) -> str:
    """Which of two or more familiar things is bigger: far apart, neighbours, then longer lists."""
    span = len(BY_SIZE)
    if level <= 2:
        gap = int(rng.integers(6, 11)) if level == 1 else int(rng.integers(1, 4))
        i = int(rng.integers(span - gap))
        small, big = _article(BY_SIZE[i]), _article(BY_SIZE[i + gap])
        words = (("bigger", big), ("larger", big), ("smaller", small))
        word, first = _pick(rng, words[:2] if level == 1 else words)
        a, b = (small, big) if (first == small) == label else (big, small)
        return _pick(rng, (f"Is {a} {word} than {b}?", f"Is {a} usually {word} than {b}?"))
    ranks = [int(rank) for rank in rng.choice(span, level + 1 + int(rng.integers(2)), replace=False)]
    if level == 3:
        word, extreme = _pick(rng, (("biggest", max(ranks)), ("smallest", min(ranks))))
        named = extreme if label else _other(rng, ranks, extreme)
        listed = ", ".join(_article(BY_SIZE[rank]) for rank in ranks)
        return f"Of {listed}, is {_article(BY_SIZE[named])} the {word}?"
    order, reverse = _pick(rng, (("smallest to biggest", False), ("biggest to smallest", True)))
    ranks.sort(reverse=reverse)
    if not label:
        i, j = rng.choice(len(ranks), 2, replace=False)
        ranks[i], ranks[j] = ranks[j], ranks[i]
    listed = ", ".join(BY_SIZE[rank] for rank in ranks)
    return _pick(
        rng, (f"Is this list sorted from {order}: {listed}?", f"Do these go from {order}: {listed}?")
    )


def _facts(rng: Rng, level: int, label: bool) -> str:
    """Facts about numbers and years that code can derive: parity, divisors, leap years, primes, squares."""
    if level == 1:
        number = 2 * int(rng.integers(1, 5000))
        word, offset = _pick(rng, (("even", 0), ("odd", 1)))
        number += offset if label else 1 - offset
        return _pick(rng, (f"Is {number} an {word} number?", f"Is the number {number} {word}?"))
    if level == 2:
        divisor = _pick(rng, (3, 5, 10, 4, 9))
        number = divisor * int(rng.integers(2, 2000)) + (0 if label else int(rng.integers(1, divisor)))
        return _pick(rng, (f"Is {number} divisible by {divisor}?", f"Is {number} a multiple of {divisor}?"))
    if level == 3 and rng.random() < 0.5:
        year = _draw(rng, 1600, 2800, lambda y: calendar.isleap(y) == label)
        return _pick(rng, (f"Is {year} a leap year?", f"Does the year {year} have 366 days?"))
    if level == 3:
        root = int(rng.integers(2, 400))
        square = root * root if label else root * root + _pick(rng, (-1, 1))
        return _pick(rng, (f"Is {square} a perfect square?", f"Is {square} the square of a whole number?"))
    number = _draw(rng, 2, 100_000, lambda n: _is_prime(n) == label and (n % 2 == 1 or n == 2))
    return _pick(rng, (f"Is {number} a prime number?", f"Is the number {number} prime?"))


FAMILIES: dict[str, Family] = {
    "comparison": _comparison,
    "arithmetic": _arithmetic,
    "letters": _letters,
    "dates": _dates,
    "lists": _lists,
    "logic": _logic,
    "kinds": _kinds,
    "sizes": _sizes,
    "facts": _facts,
}

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def _pick(rng: Rng, choices: Sequence[T]) -> T:
    return choices[int(rng.integers(len(choices)))]


def _other(rng: Rng, choices: Sequence[T], excluded: T) -> T:
    return _pick(rng, [choice for choice in choices if choice != excluded])


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _draw(rng: Rng, low: int, high: int, wanted: Callable[[int], bool]) -> int:
    while True:
        if wanted(number := int(rng.integers(low, high))):
            return number


def _day(rng: Rng) -> dt.date:
    return dt.date(1900, 1, 1) + dt.timedelta(days=int(rng.integers(0, 55_000)))


def _long(day: dt.date) -> str:
    return f"{MONTHS[day.month - 1]} {day.day}, {day.year}"


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))
