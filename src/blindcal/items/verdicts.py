"""Verdicts of a judge in the records of a file: pass or fail, in any of the usual spellings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from blindcal.errors import InputError, errors_at
from blindcal.items.question_files import resampling_units
from blindcal.items.record_files import Numbered, Record
from blindcal.items.record_format import RecordFormat, has_value, missing_field, optional_text
from blindcal.records import UNLABELLED, IntArray
from blindcal.text import printable

_PASSES = "1|pass|passed|true|yes|y|correct|right|good|ok|accept|accepted|✅|✔|✓|☑|👍|🟢"
_FAILS = "0|fail|failed|false|no|n|incorrect|wrong|bad|reject|rejected|❌|✗|✘|✖|👎|🔴"
_MEANINGS = dict.fromkeys(_PASSES.split("|"), 1) | dict.fromkeys(_FAILS.split("|"), 0)
_VARIANTS = re.compile("[\ufe0e\ufe0f\U0001f3fb-\U0001f3ff]")  # colours and shapes of one emoji
_WORD = re.compile(r"\w+|[^\w\s!-/:-@\[-`{-~]")
_OPENING = re.compile(r"\s*(pass|fail)(?:ed)?\s*[:;,.\u2013\u2014-]", re.IGNORECASE)  # before a reason
_QUESTIONS, _OUTPUTS = ("prompt", "messages", "question", "input"), ("output", "response", "answer")


@dataclass(frozen=True, eq=False)
class JudgedItems:
    """The items of a file that have a verdict, as columns; ``unjudged`` counts those without one."""

    verdicts: IntArray
    labels: IntArray
    groups: IntArray | None
    strata: tuple[str, ...] | None
    unjudged: int


def read_verdict(value: Any, field: str) -> int:
    """1 for a pass and 0 for a fail; errors name the field."""
    text = re.sub(r"^([01])\.0+$", r"\1", _VARIANTS.sub("", str(value)).strip().casefold())
    number = text not in ("0", "1") and re.fullmatch(r"[-+]?\d*\.?\d+%?", text)
    meanings = {None} if number else {_MEANINGS.get(word) for word in _WORD.findall(text)}
    if len(meanings) == 1 and None not in meanings and not isinstance(value, list | dict):
        return int(meanings == {1})
    if (opening := _OPENING.match(text)) is not None:
        return _MEANINGS[opening[1]]
    remedy, option = "say what other words mean with {label_map}, or leave the field empty", "label_map"
    if number:
        remedy = "audit a number from 0 to 1 with {confidence_field}, and turn a mark into pass or fail"
        option = "confidence_field"
    raise InputError(
        f"field {printable(field, 40)!r} must be pass or fail, not {printable(str(value), 40)!r}",
        remedy=remedy,
        options={option: ...},
    )


def read_judged(records: Numbered, reading: RecordFormat, source: str) -> JudgedItems:
    """Read the verdicts of all records, the labels of some, and what tells dependent items."""
    rows, ids, unjudged = list[tuple[int, int, str | None, int, str]](), dict[str, str](), 0
    verdict_field, record = reading.verdict_field or "", Record()
    for number, (where, record) in enumerate(records):
        with errors_at(f"{source}, {where}"):
            if reading.strata_field is not None and not has_value(record, reading.strata_field):
                raise missing_field(record, reading.strata_field, "strata_field")
            name = optional_text(record, reading.id_field) or str(number)
            if (first := ids.setdefault(name, where)) != where:
                raise InputError(f"has the {reading.id_field} of {first}, {printable(name, 60)!r}")
            if not has_value(record, verdict_field):
                unjudged += 1
                continue
            verdict = _read(record, verdict_field, reading)
            strata_field = reading.strata_field or verdict_field
            rows.append(
                (
                    verdict,
                    _read(record, reading.label_field, reading),
                    optional_text(record, reading.group_field),
                    _content(record, number),
                    str(verdict if strata_field == verdict_field else record[strata_field]),
                )
            )
    for option, column in (("verdict_field", 0), ("label_field", 1)):
        if not any(row[column] != UNLABELLED for row in rows):
            raise InputError(
                f"{source}: no record has a value in field {printable(getattr(reading, option), 40)!r} "
                f"(the last has: {printable(', '.join(record), 120)})",
                remedy=f"name the right one with {{{option}}}",
                options={option: ...},
            )
    verdicts, labels, groups, contents, strata = zip(*rows, strict=True)
    grouped = np.array([hash(("", k) if name is None else name) for k, name in enumerate(groups)])
    return JudgedItems(
        verdicts=np.array(verdicts),
        labels=np.array(labels),
        groups=resampling_units(grouped if any(groups) else None, np.array(contents)),
        strata=None if reading.strata_field is None else strata,
        unjudged=unjudged,
    )


def labelled_only(records: Numbered, reading: RecordFormat) -> Numbered:
    """The records that have a label and a verdict, both written as 0 or 1."""
    named = (reading.verdict_field or "", reading.label_field)
    for where, record in records:
        if all(has_value(record, field) for field in named):
            yield where, {**record, **{field: _read(record, field, reading) for field in named}}


def _read(record: Record, field: str, reading: RecordFormat) -> int:
    if not has_value(record, field):
        return UNLABELLED
    mapped = (reading.label_map or {}).get(str(record[field]).strip())
    return read_verdict(record[field], field) if mapped is None else mapped


def _content(record: Record, number: int) -> int:
    """A hash of what was judged; of the item's number if the record does not hold that."""
    asked = [record[field] for field in _QUESTIONS if has_value(record, field)]
    return hash(repr((asked, [record.get(field) for field in _OUTPUTS])) if asked else ("", number))
