"""The families of the built-in questions: each makes one of a given level, towards a given label."""

from __future__ import annotations

import calendar
import datetime as dt
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias, TypeVar

import numpy as np

from blindcal.items import vocabulary as voc

LEVELS = (1, 2, 3, 4)

Rng: TypeAlias = np.random.Generator
Family: TypeAlias = Callable[[Rng, int, bool], str]
T = TypeVar("T")


def _numbers(rng: Rng, level: int, label: bool) -> str:
    """Two numbers far apart; sums of small ones; close together, larger sums; decimals."""
    if level == 2 or (level > 2 and rng.random() < 0.5):
        return _arithmetic(rng, level, label)
    if level == 4:
        whole, digits = int(rng.integers(1, 50)), int(rng.integers(1, 9))
        # 3.7 against 3.65: the longer fraction is often the smaller number.
        a, b = f"{whole}.{digits + 1}", f"{whole}.{digits}{int(rng.integers(1, 10))}"
        large, small = (a, b) if float(a) > float(b) else (b, a)
    else:
        low, high, least, most = (1, 20, 30, 900) if level == 1 else (10, 10_000, 1, 9)
        smaller = int(rng.integers(low, high))
        large, small = str(smaller + int(rng.integers(least, most + 1))), str(smaller)
    relations = (("greater than", True), ("larger than", True), ("less than", False), ("smaller than", False))
    relation, first_is_large = _pick(rng, relations[:2] if level == 1 else relations)
    a, b = (large, small) if first_is_large == label else (small, large)
    return _pick(rng, (f"Is {a} {relation} {b}?", f"Is the number {a} {relation} the number {b}?"))


def _arithmetic(rng: Rng, level: int, label: bool) -> str:
    """A sum, difference or product; the wrong result is near the right one."""
    top = {2: 10, 3: 100, 4: 1000}[level]
    sign = _pick(rng, ("+", "-", "*") if level > 2 else ("+", "-"))
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
    word = _pick(rng, voc.WORDS)
    if level == 1:
        other = word if label else _other(rng, voc.WORDS, word)
        return _pick(
            rng,
            (f'Are the words "{word}" and "{other}" the same?', f'Is "{word}" the same word as "{other}"?'),
        )
    if level == 2 and rng.random() < 0.5:
        letter = word[0] if label else _other(rng, voc.ALPHABET, word[0])
        return _pick(
            rng,
            (
                f'Does the word "{word}" start with the letter "{letter}"?',
                f'Is "{letter}" the first letter of "{word}"?',
            ),
        )
    if level == 2:
        letter = _pick(rng, word) if label else _pick(rng, sorted(set(voc.ALPHABET) - set(word)))
        return _pick(
            rng,
            (
                f'Does the word "{word}" contain the letter "{letter}"?',
                f'Is there a letter "{letter}" in "{word}"?',
            ),
        )
    if level == 3:
        other = _other(rng, voc.WORDS, word)
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
    text = "".join(_pick(rng, voc.ALPHABET) for _ in range(int(rng.integers(4, 8))))
    backwards = text[::-1]
    if not label:
        i = int(rng.integers(len(text)))
        backwards = backwards[:i] + _other(rng, voc.ALPHABET, backwards[i]) + backwards[i + 1 :]
    return f'Is "{backwards}" the word "{text}" spelled backwards?'


def _dates(rng: Rng, level: int, label: bool) -> str:
    """The calendar: opening days, order of months and dates, weekdays that must be worked out."""
    if level <= 2:
        place, when, who = _pick(rng, voc.OPENED), _pick(rng, (*voc.DAYS, *voc.MONTHS)), _pick(rng, voc.NAMES)
        when = f"{'on' if when in voc.DAYS else 'in'} {when}"
        told = f"The {place} is {'open' if label else 'closed'} {when}."
        if level == 2:
            return f"{told} {who} goes there {when}. Can {who} visit the {place}?"
        return f"{told} {_pick(rng, (f'Is the {place} open {when}?', f'Can you visit the {place} {when}?'))}"
    if level == 3 and rng.random() < 0.5:
        i = int(rng.integers(12))
        word, following = _pick(rng, (("after", voc.MONTHS[(i + 1) % 12]), ("before", voc.MONTHS[i - 1])))
        said = following if label else _other(rng, voc.MONTHS, following)
        year = int(rng.integers(1900, 2100))
        return f"In {year}, was {said} the month {word} {voc.MONTHS[i]}?"
    if level == 3:
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
    if rng.random() < 0.5:
        step = int(rng.integers(2, 7))
        then = (day.weekday() + step) % 7
        said = voc.DAYS[then] if label else _other(rng, voc.DAYS, voc.DAYS[then])
        return f"If {_long(day)} was a {voc.DAYS[day.weekday()]}, was the date {step} days later a {said}?"
    step = int(rng.integers(8, 60))
    then_day = day + dt.timedelta(days=step)
    said_day = then_day if label else then_day + dt.timedelta(days=_pick(rng, (-7, -2, -1, 1, 2, 7)))
    return f"Is {_long(said_day)} exactly {step} days after {_long(day)}?"


def _lists(rng: Rng, level: int, label: bool) -> str:
    """Is a thing there, or someone's; is a word in a list; is a list in order, a number its largest."""
    if level <= 2:
        what, where, who = _pick(rng, voc.SUPPLIES), _pick(rng, voc.STORES), _pick(rng, voc.NAMES)
        if level == 2:
            amount = _pick(rng, ("some", "a lot of", "enough") if label else ("no", "no more"))
            asked = _pick(rng, ("", "any "))
            return f"{who} has {amount} {what} {where}. Does {who} have {asked}{what} {where}?"
        there = ("There is {} {}.", "There is a lot of {} {}.", "We have enough {} {}.")
        gone = ("There is no {} {}.", "There is no {} left {}.", "We have run out of {} {}.")
        told = _pick(rng, there if label else gone)
        asked = _pick(rng, ("Is there {} {}?", "Do we have {} {}?", "Is there any {} {}?"))
        return f"{told} {asked}".format(what, where, what, where)
    if level == 3:
        word, *words = (str(w) for w in rng.choice(voc.WORDS, int(rng.integers(4, 6)), replace=False))
        words[-1] = word if label else words[-1]
        listed = ", ".join(words[i] for i in rng.permutation(len(words)))
        return _pick(rng, (f"Is {word} in this list: {listed}?", f"Does the list {listed} contain {word}?"))
    size = int(rng.integers(4, 6))
    values = [int(v) + 1 for v in rng.choice(999, size, replace=False)]
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
    """A statement or its negation; always or never; then chains of comparisons, longer and in mixed order."""
    who = _pick(rng, voc.NAMES)
    habit, base = _pick(rng, voc.HABITS if level == 2 else (*voc.HABITS, *voc.TRAITS))
    if level == 1:
        mood = _pick(rng, voc.MOODS)
        told = f"{who} {habit}." if label else f"{who} does not {base}."
        truly = f"It is {'' if label else 'not '}true that {who} is {mood}."
        return _pick(
            rng,
            (
                f"{told} Does {who} {base}?",
                f"I know that {told} Does {who} {base}?",
                f"{'Yes' if label else 'No'}, {told} Does {who} {base}?",
                f"{truly} Is {who} {mood}?",
            ),
        )
    if level == 2:
        came, failed, asked = _pick(rng, voc.OUTCOMES)
        often = _pick(rng, ("always", "often")) if label else "never"
        return _pick(
            rng,
            (
                f"{came if label else failed} {asked}".format(who, who),
                f"{who} {often} {habit}. Does {who} {base}?",
                f"{who} says: I {often} {base}. Does {who} {base}?",
            ),
        )
    people = [str(name) for name in rng.choice(voc.NAMES, level - int(rng.integers(2)), replace=False)]
    more, less = _pick(
        rng, (("taller", "shorter"), ("older", "younger"), ("faster", "slower"), ("richer", "poorer"))
    )
    facts = [
        f"{a} is {more} than {b}." if level < 4 or rng.random() < 0.5 else f"{b} is {less} than {a}."
        for a, b in pairwise(people)
    ]
    if level == 4:
        facts = [facts[i] for i in rng.permutation(len(facts))]
    i, j = sorted(rng.choice(len(people), 2, replace=False))
    word = _pick(rng, (more, less))
    high, low = people[i], people[j]
    a, b = (high, low) if (word == more) == label else (low, high)
    return f"{' '.join(facts)} Is {a} {word} than {b}?"


def _events(rng: Rng, level: int, label: bool) -> str:
    """What someone did, by a text: one deed, one on some day, then those of two or three people."""
    who, day = _pick(rng, voc.NAMES), _pick(rng, voc.DAYS)
    if level == 2:
        (moved, move), place = _pick(rng, voc.MOVES), _pick(rng, voc.PLACES)
        asked = place if label else _other(rng, voc.PLACES, place)
        return _pick(
            rng,
            (
                f"On {day} {who} {moved} to the {place}. Did {who} {move} to the {asked} on {day}?",
                f"{who} {moved} to the {place} on {day}. Did {who} {move} to the {asked}?",
            ),
        )
    did, do = _pick(rng, voc.DEEDS)
    if level == 1:
        thing = _pick(rng, voc.THINGS)
        told, asked = _article(thing), _article(thing if label else _other(rng, voc.THINGS, thing))
        return _pick(
            rng,
            (
                f"{who} {did} {told}. Did {who} {do} {asked}?",
                f"Last {day} {who} {did} {told}. Did {who} {do} {asked}?",
                f"{who} saw {told} in the garden. Did {who} see {asked}?",
                f"There is {told} on {who}'s table. Is there {asked} on {who}'s table?",
            ),
        )
    people = [str(name) for name in rng.choice(voc.NAMES, level - 1, replace=False)]
    things = [_article(str(thing)) for thing in rng.choice(voc.THINGS, level - 1, replace=False)]
    i = int(rng.integers(level - 1))
    asked = things[i] if label else _other(rng, things, things[i])
    told = " ".join(f"{a} {did} {b}." for a, b in zip(people, things, strict=True))
    return f"{told} Did {people[i]} {do} {asked}?"


def _reviews(rng: Rng, level: int, label: bool) -> str:
    """Praise or blame: of one thing, of the weather or through another's words, of one thing of two."""
    what, who = _pick(rng, voc.REVIEWED), _pick(rng, voc.NAMES)
    verdict = _pick(rng, voc.PRAISE if label else voc.BLAME)
    contrary = _pick(rng, voc.BLAME if label else voc.PRAISE)
    if level == 1:
        review = f"The {what} was {verdict}. {_pick(rng, voc.PLEASED if label else voc.DISPLEASED)}"
        return _pick(
            rng,
            (
                f'Review: "{review}" Is the review positive?',
                f"{review} Did I like the {what}?",
                f"{review} Was the {what} good?",
                f"The {what} was {verdict}. Is this a positive review?",
            ),
        )
    if level == 2:
        weather, day = _pick(rng, voc.FINE if label else voc.FOUL), _pick(rng, voc.DAYS)
        return _pick(
            rng,
            (
                f"{day} was {weather}. Was the weather good?",
                f"On {day} the weather was {weather}. Was the weather nice on {day}?",
                f"{who} says that the {what} was {verdict}. Would {who} recommend the {what}?",
                f"{who} says that the {what} was {verdict}. Is that praise?",
            ),
        )
    if level == 3:
        other = _other(rng, voc.REVIEWED, what)
        one, two = f"the {what} was {verdict}", f"the {other} was {contrary}"
        one, two = (one, two) if rng.random() < 0.5 else (two, one)
        return f"{who} says that {one} but {two}. Did {who} like the {what}?"
    other = _other(rng, voc.NAMES, who)
    said = f"{who} says that the {what} was {contrary}, and {other} says that it was {verdict}."
    # A complaint is blame: the label turns round.
    return f"{said} Does {who} complain about the {what}?"


def _kinds(rng: Rng, level: int, label: bool) -> str:
    """What sort of thing a word names and which thing is bigger; then of several, and how many of a list."""
    if level == 2 or (level > 2 and rng.random() < 0.5):
        return _sizes(rng, level, label)
    kind = _pick(rng, tuple(voc.KINDS))
    inside, outside = voc.KINDS[kind], [word for word in voc.KIND_OF if voc.KIND_OF[word] != kind]
    if level == 1:
        a, b = _article(_pick(rng, inside if label else outside)), _article(kind)
        return _pick(rng, (f"Is {a} {b}?", f"Is it true that {a} is {b}?"))
    if level == 4:
        size, count = int(rng.integers(5, 8)), int(rng.integers(1, 5))
        words = [*rng.choice(inside, count, replace=False), *rng.choice(outside, size - count, replace=False)]
        listed = ", ".join(words[i] for i in rng.permutation(size))
        said = count if label else _other(rng, range(1, 5), count)
        return f"In the list {listed}, do exactly {said} of the words name {_article(kind)}?"
    words = [str(word) for word in rng.choice(inside, int(rng.integers(2, 4)), replace=False)]
    if not label:
        words[int(rng.integers(len(words)))] = _pick(rng, outside)
    listed = ", ".join(words)
    return _pick(
        rng,
        (
            f"Is every one of these {_article(kind)}: {listed}?",
            f"Does each of the words {listed} name {_article(kind)}?",
        ),
    )


def _sizes(rng: Rng, level: int, label: bool) -> str:
    """Which of two familiar things is bigger: far apart, then neighbours; then lists of them."""
    span = len(voc.BY_SIZE)
    if level <= 3:
        gap = int(rng.integers(6, 11)) if level == 2 else int(rng.integers(1, 4))
        i = int(rng.integers(span - gap))
        small, big = _article(voc.BY_SIZE[i]), _article(voc.BY_SIZE[i + gap])
        words = (("bigger", big), ("larger", big), ("smaller", small))
        word, first = _pick(rng, words[:2] if level == 2 else words)
        a, b = (small, big) if (first == small) == label else (big, small)
        return _pick(rng, (f"Is {a} {word} than {b}?", f"Is {a} usually {word} than {b}?"))
    ranks = [int(rank) for rank in rng.choice(span, 5 + int(rng.integers(2)), replace=False)]
    if rng.random() < 0.5:
        word, extreme = _pick(rng, (("biggest", max(ranks)), ("smallest", min(ranks))))
        named = extreme if label else _other(rng, ranks, extreme)
        listed = ", ".join(_article(voc.BY_SIZE[rank]) for rank in ranks)
        return f"Of {listed}, is {_article(voc.BY_SIZE[named])} the {word}?"
    order, reverse = _pick(rng, (("smallest to biggest", False), ("biggest to smallest", True)))
    ranks.sort(reverse=reverse)
    if not label:
        i, j = rng.choice(len(ranks), 2, replace=False)
        ranks[i], ranks[j] = ranks[j], ranks[i]
    listed = ", ".join(voc.BY_SIZE[rank] for rank in ranks)
    return _pick(
        rng, (f"Is this list sorted from {order}: {listed}?", f"Do these go from {order}: {listed}?")
    )


def _facts(rng: Rng, level: int, label: bool) -> str:
    """What everyone knows, then facts about numbers and years: parity, divisors, leap years, primes."""
    if level == 1:
        animal, food = (
            _article(_pick(rng, voc.FLYING if label else voc.GROUNDED)),
            _pick(rng, voc.FOOD if label else voc.NO_FOOD),
        )
        return _pick(
            rng,
            (
                *(f"Can {animal} fly?", f"Does {animal} have wings?", f"Is {animal} able to fly?"),
                *(f"Can people eat {food}?", f"Can you eat {food}?", f"Do people eat {food}?"),
            ),
        )
    if level == 2:
        deed = _pick(rng, voc.WISE if label else voc.UNWISE)
        return _pick(
            rng, (f"Is it a good idea to {deed}?", f"Is it healthy to {deed}?", f"Should you {deed}?")
        )
    if level == 3 and rng.random() < 0.5:
        number = 2 * int(rng.integers(1, 5000))
        word, offset = _pick(rng, (("even", 0), ("odd", 1)))
        number += offset if label else 1 - offset
        return _pick(rng, (f"Is {number} an {word} number?", f"Is the number {number} {word}?"))
    if level == 3:
        divisor = _pick(rng, (3, 5, 10, 4, 9))
        number = divisor * int(rng.integers(2, 2000)) + (0 if label else int(rng.integers(1, divisor)))
        return _pick(rng, (f"Is {number} divisible by {divisor}?", f"Is {number} a multiple of {divisor}?"))
    if rng.random() < 0.3:
        year = _draw(rng, 1600, 2800, lambda y: calendar.isleap(y) == label)
        return _pick(rng, (f"Is {year} a leap year?", f"Does the year {year} have 366 days?"))
    number = _draw(rng, 2, 100_000, lambda n: _is_prime(n) == label and (n % 2 == 1 or n == 2))
    return _pick(rng, (f"Is {number} a prime number?", f"Is the number {number} prime?"))


FAMILIES: dict[str, Family] = {
    "numbers": _numbers,
    "letters": _letters,
    "dates": _dates,
    "lists": _lists,
    "logic": _logic,
    "kinds": _kinds,
    "facts": _facts,
    "events": _events,
    "reviews": _reviews,
}

# How each family asks for its answer: with one instruction for all, the small model hears little else.
INSTRUCTIONS = {
    "numbers": "{} (Yes or No)",
    "letters": "Answer Yes or No: {}",
    "dates": "{} Yes or No?",
    "lists": "Question: {}\nYes or No?",
    "logic": "Question: {}\nYes or No?",
    "kinds": "Question: {}\nYes or No?",
    "facts": "{} (Yes or No)",
    "events": "Question: {} (Yes/No)\nAnswer:",
    "reviews": "Question: {} (Yes/No)\nAnswer:",
}


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
    return f"{voc.MONTHS[day.month - 1]} {day.day}, {day.year}"


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))
