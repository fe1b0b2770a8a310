"""What a record of a stream brings: a question, a label, or both."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import msgspec

from blindcal.errors import InputError
from blindcal.items.answers import CHOICES_FIELD
from blindcal.items.record_files import Record, decode
from blindcal.items.record_format import RecordFormat
from blindcal.records import UNLABELLED, Arrival
from blindcal.text import encodable, printable, spoken


class ArrivalReader:
    """Reads the records of a stream, and of its labels, as the reference audit would.

    ``words`` are the answer words, the positive one first, which labels may name. ``by_field`` is the field
    of the slices; an item may be without it.
    """

    def __init__(self, reading: RecordFormat, words: tuple[str, ...], by_field: str | None = None) -> None:
        self._reading = replace(reading, by_field=None, group_field="group")
        self._words = [spoken(word) for word in words]
        self._by_field = by_field

    def record(self, line: bytes) -> Arrival:
        """Read a record of the stream; without an id, the prompt stands for one."""
        record, reading = decode(line), self._reading
        given = _given_id(record, reading.id_field)
        if given is not None and self._only_a_label(record):
            return self._label_alone(record, given)
        # The number decides in which order options are shown, and must not depend on the place in the stream.
        rest = {name: value for name, value in record.items() if name != reading.label_field}
        known = given if given is not None else json.dumps(rest, sort_keys=True)
        number = int.from_bytes(_digest(known.encode(errors="surrogatepass"))[:4])
        if given is None:  # a field of another name than usual may be missing too
            record = {**record, reading.id_field: ""}
        item = reading.item(record, number, labelled=False)
        if item.choices != 2:
            raise InputError(f"has {item.choices} answers, and only questions with two can be watched")
        digest = _digest(msgspec.json.encode(item.messages))
        name = digest.hex() if given is None else given
        part = None if self._by_field is None else _given_id(record, self._by_field)
        label, problem = UNLABELLED, ""
        if _has(record, reading.label_field):
            try:
                label = self._label(record, number)
            except InputError as error:
                problem = error.message
        return Arrival(name, replace(item, id=name, group=None, part=part), digest, label, problem)

    def label(self, line: bytes) -> Arrival:
        """Read a record that brings the label of an item."""
        record, field = decode(line), self._reading.id_field
        given = _given_id(record, field)
        if given is None:
            raise InputError(f"field {printable(field, 40)!r} is missing, so the label belongs to no item")
        return self._label_alone(record, given)

    def _label_alone(self, record: Record, given: str) -> Arrival:
        return Arrival(given, None, b"", self._label(record, 0))

    def _label(self, record: Record, number: int) -> int:
        field = self._reading.label_field
        try:
            return self._reading.label(record, number)
        except InputError:
            said = spoken(str(record.get(field)))
            if self._reading.has_options(record) or said not in self._words:
                raise
            return 1 - self._words.index(said)

    def _only_a_label(self, record: Record) -> bool:
        """Whether a record has a label and nothing that a prompt could be made of."""
        reading = self._reading
        usual = ("prompt", "messages", "question", CHOICES_FIELD)
        asked = usual if reading.template is None else reading.fields - {reading.id_field}
        return _has(record, reading.label_field) and not any(name in record for name in asked)


def _has(record: Record, field: str) -> bool:
    value = record.get(field)
    return value is not None and value != "" and value == value  # NaN differs from itself


def _given_id(record: Record, field: str) -> str | None:
    """The text of a field that names something; ``None`` if it is empty or not there."""
    if not _has(record, field):
        return None
    value = record[field]
    if not isinstance(value, str | int | float):
        raise InputError(
            f"field {printable(field, 40)!r} must be text or a number, not {printable(repr(value), 40)}"
        )
    return encodable(str(value))


def _digest(words: bytes) -> bytes:
    return hashlib.blake2b(words, digest_size=16).digest()
