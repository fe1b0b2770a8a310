"""The built-in questions, with every label derived again by code that shares nothing with the generator."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from blindcal.cli.items import command
from blindcal.errors import InputError
from blindcal.items import files
from blindcal.items.families import FAMILIES, INSTRUCTIONS
from blindcal.items.generated import generate
from blindcal.items.vocabulary import BY_SIZE, KINDS, NAMES
from blindcal.records import Item

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = (
    "January February March April May June July August September October November December".split()  # noqa: SIM905
)
DATE = r"([A-Z][a-z]+ \d+, \d{4})"


def question(item: Item) -> str:
    before, after = INSTRUCTIONS[str(item.group)].split("{}")
    text = item.messages[0].content
    assert text.startswith(before)
    assert text.endswith(after)
    return text.removeprefix(before).removesuffix(after)


def found(pattern: str, text: str) -> tuple[str, ...]:
    match = re.search(pattern, text)
    assert match is not None, text
    return tuple(str(group or "") for group in match.groups())


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(", ")]


def date(text: str) -> dt.date:
    return dt.datetime.strptime(text, "%B %d, %Y").replace(tzinfo=dt.UTC).date()


def numbers_asked(text: str) -> bool:
    return comparison(text) if " than " in text else arithmetic(text)


def comparison(text: str) -> bool:
    a, relation, b = found(r"([\d.]+) (\w+) than (?:the number )?([\d.]+)\?", text)
    return Fraction(a) > Fraction(b) if relation in ("greater", "larger") else Fraction(a) < Fraction(b)


def arithmetic(text: str) -> bool:
    text = text.replace("plus", "+").replace("minus", "-").replace("times", "*")
    if "result of" in text:
        said, a, sign, b = found(r"Is (\d+) the result of (\d+) (.) (\d+)\?", text)
    else:
        a, sign, b, said = found(r"(\d+) (.) (\d+) (?:=|equal to|equal) (\d+)\?", text)
    x, y = int(a), int(b)
    results = {"+": x + y, "-": x - y, "*": x * y}
    return results[sign] == int(said)


def letters(text: str) -> bool:
    quoted: list[str] = re.findall(r'"([a-z]+)"', text)
    first, rest = quoted[0], quoted[1:]
    if "same" in text:
        return first == rest[0]
    if "start with" in text:
        return first.startswith(rest[0])
    if "first letter" in text:
        return rest[0].startswith(first)
    if "contain" in text:
        return rest[0] in first
    if "Is there a letter" in text:
        return first in rest[0]
    if "before" in text:
        return min(first, rest[0]) == first
    if "exactly" in text:
        return len(first) == int(found(r"exactly (\d+) letters", text)[0])
    assert "backwards" in text
    return "".join(reversed(rest[0])) == first


def dates(text: str) -> bool:
    if text.startswith("The "):
        place, state, when = found(r"The (\w+) is (open|closed) ([io]n \w+)\.", text)
        assert text.count(place) == text.count(when) == 2
        return state == "open"
    if "the month" in text:
        said, relation, given = found(r"(\w+) the month (\w+) (\w+)\?", text)
        return (MONTHS.index(said) - MONTHS.index(given)) % 12 == (1 if relation == "after" else 11)
    if "days later" in text:
        day, given, step, said = found(DATE + r" was a (\w+), was the date (\d) days later a (\w+)\?", text)
        assert DAYS[date(day).weekday()] == given
        return DAYS[(DAYS.index(given) + int(step)) % 7] == said
    if "exactly" in text:
        later, step, earlier = found(DATE + r" exactly (\d+) days after " + DATE, text)
        return date(later).toordinal() - date(earlier).toordinal() == int(step)
    a, relation, b = found(DATE + r" (before|come after) " + DATE, text)
    return date(a) < date(b) if relation == "before" else date(a) > date(b)


def lists(text: str) -> bool:
    if text.startswith(("There is", "We have")) or " has " in text:
        told, asked = text.split(". ")
        what, where = found(r"(\w+) ((?:in|on|at) .+)\?", asked)
        assert told.endswith(f"{what} {where}") or told.endswith(f"{what} left {where}")
        assert told.split()[0] in ("There", "We") or told.split()[0] == asked.split()[1]
        return not re.search(r"\bno\b|run out", told)
    if match := re.fullmatch(r"Is (\w+) in this list: (.+)\?|Does the list (.+) contain (\w+)\?", text):
        word, listed = (match[1], match[2]) if match[1] else (match[4], match[3])
        return word in listed.split(", ")
    values = numbers(found(r"((?:\d+, )+\d+)", text)[0])
    if "st number" in text:
        named = int(found(r"[Ii]s (\d+) the", text)[0])
        return named == (max(values) if "largest" in text else min(values))
    steps = [b - a for a, b in pairwise(values)]
    rising = "ascending" in text or "from smallest" in text
    return all(step > 0 for step in steps) if rising else all(step < 0 for step in steps)


YES = ("agreed", "accepted", "passed", "remembered", "on time", "won", "truth", "Everyone", "works", "awake")
NO = ("refused", "declined", "failed", "forgot", "too late", "lost", "a lie", "Nobody", "broken", "asleep")


def logic(text: str) -> bool:
    *facts, asked = re.split(r"(?<=\.) ", text)
    if " than " not in text:
        (told,) = facts
        (who,) = set(re.findall(r"\w+", told)) & set(NAMES)
        assert who in re.findall(r"\w+", asked)
        outcome = [sign for signs, sign in ((YES, True), (NO, False)) for word in signs if word in told]
        if outcome and not re.search(r"\b(not|never|often|always)\b", told):
            (result,) = outcome
            return result
        return not re.search(r"\b(not|never)\b", told)
    smaller = {"shorter", "younger", "slower", "poorer"}
    above: dict[str, set[str]] = {}
    for fact in facts:
        a, word, b = found(r"(\w+) is (\w+) than (\w+)\.", fact)
        a, b = (b, a) if word in smaller else (a, b)
        above.setdefault(a, set()).add(b)

    def reaches(a: str, b: str) -> bool:
        return any(c == b or reaches(c, b) for c in above.get(a, ()))

    a, word, b = found(r"Is (\w+) (\w+) than (\w+)\?", asked)
    a, b = (b, a) if word in smaller else (a, b)
    assert reaches(a, b) != reaches(b, a)
    return reaches(a, b)


def kinds_and_sizes(text: str) -> bool:
    return sizes(text) if re.search(r" than |^Of |smallest", text) else kinds(text)


def kinds(text: str) -> bool:
    kind = next(kind for kind in KINDS if re.search(rf"\ban? {kind}\b", text))
    listed = re.split(r"In the list |, do exactly|of these .+: |the words (?!name)| name |\?", text)
    words = (
        next(part for part in listed if ", " in part)
        if ", " in text
        else found(r"(?:Is|that) an? (\w+)", text)
    )
    if isinstance(words, tuple):
        return next(word for word in words if word) in KINDS[kind]
    inside = [word in KINDS[kind] for word in words.split(", ")]
    if "exactly" in text:
        return sum(inside) == int(found(r"exactly (\d)", text)[0])
    return all(inside)


def sizes(text: str) -> bool:
    said = [(text.index(thing), rank) for rank, thing in enumerate(BY_SIZE) if thing in text]
    if " than " in text:
        (_, first), (_, second) = sorted(said)
        return first < second if "smaller" in text else first > second
    if text.startswith("Of "):
        listed, asked = text.split(", is ")
        ranks = [rank for rank, thing in enumerate(BY_SIZE) if thing in listed]
        named = next(rank for rank, thing in enumerate(BY_SIZE) if thing in asked)
        return named == (max(ranks) if "biggest" in asked else min(ranks))
    ranks = [BY_SIZE.index(thing) for thing in text.split(": ")[1].rstrip("?").split(", ")]
    return ranks == sorted(ranks, reverse="biggest to smallest" in text)


FLIES = "eagle butterfly bee moth sparrow owl pigeon seagull mosquito parrot swan crow dragonfly"
EATEN = "bread cheese rice soup apples bananas carrots pasta cake chocolate potatoes cookies oranges"
WISE = "vegetables well every water wash fruit exercise brush fresh stop early"


def facts(text: str) -> bool:
    words = text.rstrip("?").split()
    if not re.search(r"\d", text):
        if re.match("(Can|Do) (people|you) eat", text):
            return words[-1] in EATEN.split()
        if "fly" in words or "wings" in words:
            return any(word in FLIES.split() for word in words)
        assert re.search("good idea|healthy|Should", text)
        return any(word in WISE.split() for word in words)
    number, *other = (int(part) for part in re.findall(r"\d+", text))
    if "even" in text or "odd" in text:
        return str(number)[-1] in ("02468" if "even" in text else "13579")
    if "divisible" in text or "multiple" in text:
        return number % other[0] == 0
    if "leap" in text or "366 days" in text:
        return (dt.date(number, 3, 1) - dt.date(number, 2, 1)).days == 29
    assert "prime" in text
    return sum(number % divisor == 0 for divisor in range(1, number + 1)) == 2


def events(text: str) -> bool:
    *told, asked = re.split(r"(?<=\.) ", text)
    if "table" in asked:
        return found(r"There is (.+)\.", told[0]) == found(r"Is there (.+)\?", asked)
    who, what = found(r"Did (\w+) \w+ (.+)\?", asked)
    what = re.sub(r" on \w+day$", "", what)
    (mine,) = (fact for fact in told if re.search(rf"\b{who}\b", fact))
    return re.search(rf" {what}( in the garden| on \w+day)?\.$", mine) is not None


GOOD = "wonderful excellent great amazing fantastic perfect lovely superb sunny bright mild beautiful"
BAD = "terrible awful horrible dreadful bad poor disappointing unpleasant cold stormy foggy grey"


def verdict(told: str) -> bool:
    (said,) = {
        word in GOOD.split() for word in re.findall(r"\w+", told) if word in (GOOD + " " + BAD).split()
    }
    return said


def reviews(text: str) -> bool:
    told = re.sub(r"I (loved|hated|enjoyed|was very|will).*", "", text)
    if "complain" in text:
        who, what = found(r"Does (\w+) complain about the (\w+)\?", text)
        mine = next(part for part in told.split(", and ") if part.startswith(who) or f" {who} says" in part)
        assert what in text.split(",")[0]
        return not verdict(mine.split(".")[0])
    if " but " in text:
        what = found(r"like the (\w+)\?", text)[0]
        return verdict(next(part for part in told.split(". ")[0].split(" but ") if what in part))
    return verdict(told.split("? ")[0])


SOLVERS = {
    "numbers": numbers_asked,
    "letters": letters,
    "dates": dates,
    "lists": lists,
    "logic": logic,
    "kinds": kinds_and_sizes,
    "facts": facts,
    "events": events,
    "reviews": reviews,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_labels(family: str) -> None:
    """Every label is what an independent solver makes of the question's text."""
    items = [item for seed in (0, 7) for item in generate(1800, seed=seed) if item.group == family]
    assert len(items) == 400
    wrong = [question(item) for item in items if SOLVERS[family](question(item)) != bool(item.label)]
    assert wrong == []


@pytest.mark.parametrize("n", [1, 2, 17, 1000])
def test_balance(n: int) -> None:
    """Labels differ by at most one for any number of questions, and families hardly more."""
    items = generate(n, seed=3)
    labels = Counter(item.label for item in items)
    families = Counter((item.group, item.label) for item in items)
    assert abs(labels[0] - labels[1]) <= 1
    assert max(families.values()) - min(families.get((f, y), 0) for f in FAMILIES for y in (0, 1)) <= 1


def test_prefix_and_seed() -> None:
    """Fewer questions are the beginning of more, and another seed gives other questions."""
    assert generate(50, seed=1) == generate(200, seed=1)[:50]
    assert generate(50, seed=1) != generate(50, seed=2)


def test_no_question_twice() -> None:
    """Twenty thousand questions are all different, and so are their ids."""
    items = generate(20_000, seed=5)
    assert len({question(item) for item in items}) == len({item.id for item in items}) == 20_000


def test_every_family_has_phrasings() -> None:
    """No family always starts with the same three words, and every level occurs."""
    items = generate(1800, seed=0)
    for family in FAMILIES:
        texts = [question(item) for item in items if item.group == family]
        assert len({text.split()[0] for text in texts}) > 1 or len({tuple(t.split()[:3]) for t in texts}) > 20
        assert {item.id.split("-")[1] for item in items if item.group == family} == set("1234")


def test_no_kind_shares_a_word() -> None:
    """A word belongs to one kind, so that a No about another kind is sure."""
    words = [word for words in KINDS.values() for word in words]
    assert len(words) == len(set(words))


def test_zero_questions() -> None:
    """Asking for no questions names the rule."""
    with pytest.raises(InputError, match="at least 1"):
        generate(0)


def test_command_writes_items(tmp_path: Path) -> None:
    """The command writes a file that an audit reads, and the same lines to standard output."""
    path = tmp_path / "questions.jsonl"
    runner = CliRunner()
    assert runner.invoke(command, ["builtin", "--n", "30", "--out", str(path)]).exit_code == 0
    with files.load(path, files.RecordFormat(group_field="family")) as items:
        assert list(items) == generate(30)
    printed = runner.invoke(command, ["builtin", "--n", "30"]).stdout
    assert printed == path.read_text()
    assert set(json.loads(printed.splitlines()[0])) == {"id", "prompt", "label", "family"}
