"""Convert records to items: what each field means, and how the prompt is made."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec

from blindcal.errors import InputError, errors_at
from blindcal.field_rules import FromZero, check_fields
from blindcal.items.answers import (
    CHOICES_FIELD,
    LETTERS,
    MOST_ANSWERS,
    QUESTION_TEMPLATE,
    Choices,
    json_list,
    parse_answers,
    read_label,
    read_label_of_two,
    written_label,
)
from blindcal.items.confidences import (
    BOOLEANS,
    Survey,
    answer_values,
    are_booleans,
    confidence_fields,
    fraction,
    given_message,
    is_positive,
    of_all_answers,
)
from blindcal.items.record_files import Record, as_line
from blindcal.records import INSTRUCTIONS, UNLABELLED, Item, Message
from blindcal.text import encodable, printable

WORDS_FIELD = "answer_words"
"""Field with the two answer words, the positive one first: ``True/False``."""
ANSWERS_FIELD = "answers"
"""Field with all answer words, as a list or as ``joy,anger,fear``."""

SCORE_FIELD = "score"
"""Field with the score of an answer, if a self-check finds no field ``label``."""
SELF_CHECK_TEMPLATE = (
    "Question: {question}\nProposed answer: {answer}\n"
    "Is the proposed answer correct? Reply only with Yes or No."
)

_LABELS = {**BOOLEANS, "y": 1, "n": 0}
_VERDICTS = {"incorrect": 0, "correct": 1, "fail": 0, "pass": 1}
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFormat:
    """How to convert records to items.

    ``template`` is plain text with ``{field}`` for a field of the record and ``{{`` for a brace; braces in a
    record's own text are left alone. Items whose prompt shows choices are answered with letters. ``role`` is
    ``user`` for chat and ``prompt`` for plain completions.
    """

    template: Annotated[
        str | None, 'Prompt with the fields of a record in braces: "{passage}\\n{question}?"'
    ] = None
    instructions: Annotated[
        str | None,
        "Question about the text of the prompt, with fields in braces; a decision API gets it apart, and a "
        "chat after the text.",
    ] = None
    system: Annotated[str | None, "System message before every question."] = None
    answers: Annotated[
        tuple[str, ...],
        "All answer words; the first of two is the positive one. By default the items' own, else Yes and No.",
    ] = ()
    label_map: Annotated[
        Mapping[str, int] | None, 'Words that stand for labels, such as \'{"sure": 1, "never": 0}\'.'
    ] = None
    label_field: Annotated[str, "Field that holds the label."] = "label"
    id_field: Annotated[str, "Field that holds the id of an item."] = "id"
    group_field: Annotated[
        str,
        "Field that names the group of an item; items of a group, such as questions about one text, are "
        "resampled together.",
    ] = "group"
    by_field: Annotated[
        str | None, "Field to break the result down by; may be changed for a finished run."
    ] = None
    self_check: Annotated[
        bool,
        "Ask whether each scored answer in ITEMS is correct; ITEMS is the log of an evaluation, or a file "
        "with the fields question, answer and score.",
    ] = False
    pass_score: Annotated[
        float | None,
        "Lowest score with which an answer counts as correct in a self-check. By default scores are 0 or 1.",
    ] = None
    confidence_field: Annotated[
        str | None,
        "Field with the probability of the positive answer, or of each answer as a map; or one field per "
        "answer: p_A,p_B,p_C. Nothing is asked then.",
    ] = None
    answer_field: Annotated[str | None, "Field with the answer given, if the confidence is that in it."] = (
        None
    )
    percent: Annotated[bool | None, "Whether confidences are percentages. By default as the file shows."] = (
        None
    )
    verdict_field: Annotated[
        str | None, "Field with the verdict of a judge, pass or fail; items without a label count too."
    ] = None
    strata_field: Annotated[
        str | None, "Field that names the stratum of an item, if its label was chosen at random in it only."
    ] = None
    data_dir: Annotated[
        str | None, "Folder with the files of a named set, instead of the Hugging Face Hub."
    ] = None
    permute: Annotated[
        FromZero | None,
        "Random seed of the order in which the choices of each item are shown. By default they are kept.",
    ] = None
    role: str = "user"

    def __post_init__(self) -> None:
        if self.system is not None and self.role == "prompt":
            raise InputError("system: plain completions have no system message; put it in the template")
        if self.pass_score is not None and not self.self_check:
            raise InputError(
                "pass_score: is for the scores of a self-check",
                remedy="add {self_check}, or leave {pass_score} out",
                options={"self_check": True, "pass_score": ...},
            )
        if self.self_check and self.confidence_field is not None:
            raise InputError(
                "self_check: asks a model for its confidence, and {confidence_field} names a field with one",
                remedy="leave one of them out",
                options={"confidence_field": self.confidence_field},
            )
        if self.template is not None and not self.fields:
            raise InputError("template: names no field; write the record's fields as {field}")
        answers = () if self.answers in (None, (), []) else parse_answers(self.answers)
        object.__setattr__(self, "answers", answers)
        if isinstance(self.permute, bool):
            object.__setattr__(self, "permute", 0 if self.permute else None)
        check_fields(self)
        self._check_label_map()

    def _check_label_map(self) -> None:
        indices = range(max(2, len(self.answers)))
        for word, label in (self.label_map or {}).items():
            if label not in indices:
                rule = "0 or 1" if len(indices) == 2 else f"an index from 0 to {indices[-1]}"
                raise InputError(
                    f"label map: {printable(word)!r} must map to {rule}, not {label!r}",
                    remedy="correct it, or name all answers with {answers}",
                    options={"answers": ...},
                )

    @property
    def fields(self) -> frozenset[str]:
        """The fields that the template names."""
        templates = (self.template or "") + (self.instructions or "")
        return frozenset(match[1] for match in _PLACEHOLDER.finditer(templates) if match[1])

    def item(self, record: Record, number: int, *, labelled: bool = True) -> Item:
        """Convert a record to an item, with its label if ``labelled``; errors name the field."""
        for field, usual in ((self.id_field, "id"), (self.group_field, "group")):
            if field != usual and field not in record:  # only fields of the default names may be missing
                raise missing_field(record, field, f"{usual}_field")
        choices = self.choices(record, number)
        answers = self.named_answers(record)
        name = optional_text(record, self.id_field) or str(number)
        return Item(
            name,
            self._label(record, choices, answers) if labelled else UNLABELLED,
            self._messages(record, choices, answers)
            if self.confidence_field is None
            else (given_message(name, *self._confidence(record, answers)),),
            group=optional_text(record, self.group_field),
            part=self._part(record),
            choices=len(choices or answers) or 2,
        )

    def asks_nothing(self, record: Record) -> bool:
        """Whether every field that the template names is blank."""
        return bool(self.fields) and not any(str(record.get(name, "")).strip() for name in self.fields)

    def choices(self, record: Record, number: int) -> Choices | None:
        """The options in the order shown; ``None`` if the prompt shows none."""
        if not self.has_options(record):
            if self.permute is None:
                return None
            raise InputError(
                "permute: there are no options to permute, because the prompt shows no field 'choices'",
                remedy="add the field to all records, or leave {permute} out",
                options={"permute": True},
            )
        choices = Choices.read(record[CHOICES_FIELD])
        named = len(self.answers)
        if named and (self.answers != LETTERS[:named] or named < len(choices)):
            letters = ", ".join(LETTERS[: len(choices)])
            raise InputError(
                f"field 'choices': its options are answered with the letters {letters}, not with "
                f"{printable(', '.join(self.answers), 80)}",
                remedy="leave {answers} out, or make the prompt from other fields with {template}",
                options={"answers": ..., "template": ...},
            )
        return choices if self.permute is None else choices.permuted(self.permute, number)

    def has_options(self, record: Record) -> bool:
        """Whether the prompt shows options to answer with letters; never if the record names two words."""
        given = self.confidence_field is not None
        if given or record.get(CHOICES_FIELD) in (None, "") or record.get(WORDS_FIELD):
            return False
        return self.template is None or CHOICES_FIELD in self.fields

    def words(self, record: Record) -> tuple[str, ...] | None:
        """The answer words, the positive one of two first; ``None`` if none are named, ``()`` for letters."""
        return () if self.has_options(record) else self.named_answers(record) or _answer_words(record)

    def named_answers(self, record: Record) -> tuple[str, ...]:
        """The answers that the settings or the record name; empty if the record has options."""
        if self.has_options(record):
            return ()
        given = record.get(ANSWERS_FIELD)
        if self.answers or record.get(WORDS_FIELD) or not isinstance(given, str | list) or given == "":
            return self.answers
        try:
            return parse_answers(given, f"field {ANSWERS_FIELD!r}")
        except InputError as error:
            hint = f"rename the field {ANSWERS_FIELD!r} if it does not name the answer words"
            raise InputError(error.message, remedy=f"{error.remedy}; {hint}".lstrip("; ")) from None

    def line(self, item: Item, record: Record, number: int) -> bytes:
        """An item as a line of a file that needs no template; fields not used in the prompt are kept."""
        gone = {self.id_field, self.label_field, "prompt", "id", "label", *self.fields}
        rest = {name: value for name, value in record.items() if name not in gone}
        if (choices := self.choices(record, number)) is not None:
            rest[CHOICES_FIELD] = list(choices.shown)
        label: int | str = item.label
        if answers := self.named_answers(record):
            rest[ANSWERS_FIELD] = list(answers)
            label = written_label(item.label if len(answers) > 2 else 1 - item.label, answers)
        asked = [message.content for message in item.messages if message.role != "system"]
        return as_line({"id": item.id, "prompt": "\n".join(asked), "label": label, **rest})

    def label(self, record: Record, number: int = 0) -> int:
        return self._label(record, self.choices(record, number), self.named_answers(record))

    def _label(
        self, record: Record, choices: Choices | None, answers: tuple[str, ...], name: str = "label_field"
    ) -> int:
        scored = self.self_check and self.label_field == "label" and "label" not in record
        field = SCORE_FIELD if scored else getattr(self, name)
        if field not in record:
            raise missing_field(record, field, name)
        value = record[field]
        mapped = self._mapped(value)
        if choices is not None:
            return choices.label(value, field) if mapped is None else choices.place(mapped)
        if mapped is not None:
            return mapped
        if self.self_check:
            return self._passed(value, field)
        if answers:
            return (read_label if len(answers) > 2 else read_label_of_two)(value, answers, field)
        label = None if isinstance(value, list | dict) else _LABELS.get(_short(value).lower())
        if label is None:
            shown = printable(str(value).strip(), 40)
            raise InputError(
                f"field {field!r} must be 0/1, true/false, yes/no or y/n, not {shown!r}",
                remedy="map other words to 0 and 1 with {label_map}, or name the answers with {answers}",
                options={"label_map": ..., "answers": ...},
            )
        return label

    def _passed(self, score: Any, field: str) -> int:
        try:
            number = float(({**BOOLEANS, **_VERDICTS}).get(_short(score).lower(), score))
        except (TypeError, ValueError):
            number = math.nan
        if number in (0, 1) and self.pass_score is None:
            return int(number)
        if self.pass_score is not None and not math.isnan(number):
            return int(number >= self.pass_score)
        raise InputError(
            f"field {printable(field, 40)!r} must be a score of 0 or 1, not {printable(str(score), 40)!r}",
            remedy="correct it, or remove the record"
            if math.isnan(number)
            else "name the lowest score that counts as correct with {pass_score}",
            options={"pass_score": ...},
        )

    def _confidence(
        self, record: Record, answers: tuple[str, ...]
    ) -> tuple[int, float] | tuple[int, float, list[float]]:
        """The answer given and its probability, as in `Item.given`."""
        named, percent = self.confidence_field or "", bool(self.percent)
        values = answer_values(record, named)
        if values is not None:
            numbers = {name: fraction(value, name, percent=percent) for name, value in values.items()}
            return of_all_answers(numbers, answers)
        p = fraction(record[named.strip()], named, percent=percent)
        if self.answer_field is not None:
            answer = self._label(record, None, answers, "answer_field")
            if len(answers) > 2:
                return answer, p
            p = p if answer else 1 - p
        elif len(answers) > 2:
            raise InputError(
                f"field {printable(named, 40)!r} is the confidence in one of {len(answers)} answers",
                remedy="name the field of the answer given with {answer_field}",
                options={"answer_field": ...},
            )
        return int(p >= 0.5), p

    def is_complete(self, record: Record) -> bool:
        """Whether a record has a label and a confidence."""
        fields = [self.label_field, *confidence_fields(self.confidence_field or "")]
        return all(has_value(record, field) for field in fields)

    def surveyed(self, records: Iterable[tuple[str, Record]]) -> RecordFormat:
        """This format with the unit and the answers that the confidences of a whole file show."""
        survey, said = Survey(self.confidence_field or ""), dict[str, None]()
        labels = dict[str, None]()
        for where, record in records:
            with errors_at(where):
                survey.add(where, record)
                if self.answer_field is not None and self.answer_field not in record:
                    raise missing_field(record, self.answer_field, "answer_field")
            if self.answer_field is not None and len(said) <= MOST_ANSWERS:
                said.setdefault(_short(record.get(self.answer_field)))
                labels.setdefault(_short(record.get(self.label_field)))
        percent = survey.percent if self.percent is None else self.percent
        if survey.answers:
            return replace(self, percent=percent, answers=self._answers_of(survey.answers))
        if self.answers or self.label_map or self.answer_field is None or are_booleans(said):
            return replace(self, percent=percent)
        if are_booleans(labels):  # they say whether the answer is right
            return replace(self, percent=percent, answer_field=None)
        known = tuple(sorted({*said, *labels}))
        about = f"field {printable(self.answer_field, 40)!r}"
        if len(known) > MOST_ANSWERS:
            raise InputError(
                f"{about} and the labels name more than {MOST_ANSWERS} answers",
                remedy="give labels of 0 and 1 that say whether the answer is right",
            )
        if len(known) < 3:
            raise InputError(
                f"{about} and the labels name the answers {printable(', '.join(known), 60)}",
                remedy="say which is positive, by naming it first with {answers}",
                options={"answers": known},
            )
        return replace(self, percent=percent, answers=known)

    def _answers_of(self, shown: Iterable[str]) -> tuple[str, ...]:
        """The answers in the order of their numbers; empty for words such as yes and no."""
        answers = tuple(shown)
        if self.answers and not {word.casefold() for word in self.answers} & {
            word.casefold() for word in answers
        }:
            raise InputError(
                f"the confidences are those of {printable(', '.join(answers), 80)}, not of "
                f"{printable(', '.join(self.answers), 80)}",
                remedy="name some of these with {answers}",
                options={"answers": ...},
            )
        if len(self.answers) == 2 and are_booleans(self.answers) and is_positive(self.answers[0]):
            return ()
        return self.answers or (() if len(answers) < 3 and are_booleans(answers) else parse_answers(answers))

    def _mapped(self, value: Any) -> int | None:
        own = self.label_map
        if not own or isinstance(value, list | dict):
            return None
        return own.get(str(value).strip(), own.get(_short(value)))

    def _part(self, record: Record) -> str | None:
        if self.by_field is None:
            return None
        if self.by_field not in record:
            raise missing_field(record, self.by_field, "by_field")
        return optional_text(record, self.by_field)

    def _messages(
        self, record: Record, choices: Choices | None, answers: tuple[str, ...]
    ) -> tuple[Message, ...]:
        template = self.template
        given = bool(record.get("messages")) or "prompt" in record
        if template is None and choices is not None and not given and "question" in record:
            template = QUESTION_TEMPLATE
        if template is not None:
            shown = {} if choices is None else {CHOICES_FIELD: str(choices)}
            named = {ANSWERS_FIELD: ", ".join(answers)} if answers else {}
            messages: tuple[Message, ...] = (
                Message(self.role, _fill(template, {**record, **shown, **named})),
            )
        elif record.get("messages"):
            messages = self._given_messages(record["messages"])
        elif given:
            messages = (Message(self.role, _text(record["prompt"], "prompt")),)
        else:
            also = "" if choices is None else "'question', "
            raise InputError(
                f"needs a field {also}'prompt' or 'messages'{_among(record)}",
                remedy="add one, or make the prompt from other fields with {template}",
                options={"template": ...},
            )
        question = record["question"] if template is QUESTION_TEMPLATE else "?"
        if not str(question).strip() or not any(message.content.strip() for message in messages):
            raise InputError("the prompt is empty; remove the record, or fill in its fields")
        if choices is not None and template is None:
            messages = choices.shown_in(messages)
        if self.instructions is not None:
            messages = (*messages, Message(INSTRUCTIONS, _fill(self.instructions, record)))
        return messages if self.system is None else (Message("system", self.system), *messages)

    def _given_messages(self, given: Any) -> tuple[Message, ...]:
        if self.role == "prompt":
            raise InputError(
                "field 'messages' needs a chat endpoint; give 'prompt' or a template for completions"
            )
        if isinstance(given, str) and (given := json_list(given)) is None:  # a CSV cell
            raise InputError("field 'messages' is not JSON")
        try:
            messages = msgspec.convert(given, list[Message])
        except msgspec.ValidationError:
            raise InputError(
                "field 'messages' must be a list of objects with a text 'role' and a text 'content'"
            ) from None
        return tuple(Message(encodable(each.role), encodable(each.content)) for each in messages)


def _fill(template: str, record: Record) -> str:
    # One pass and plain look-ups: braces in a record stay text, and no attribute can be reached.
    def value(match: re.Match[str]) -> str:
        if match[0] in ("{{", "}}"):
            return match[0][0]
        if match[1] not in record:
            raise InputError(
                f"field {printable(match[1], 40)!r}, named in the template, is missing{_among(record)}"
            )
        return "" if record[match[1]] == "" else _scalar(record[match[1]], match[1])

    return _PLACEHOLDER.sub(value, template)


def _short(label: Any) -> str:
    return str(label).strip().removesuffix(".0")  # columns of floats have 1.0 for 1


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise InputError(
            f"field {printable(field, 40)!r} must be text, not {printable(repr(value), 40)}",
            remedy="put it into a question with {template}",
            options={"template": ...},
        )
    return encodable(value)


def _scalar(value: Any, field: str) -> str:
    if not isinstance(value, str | int | float) or value == "" or value != value:  # NaN differs from itself
        raise InputError(
            f"field {printable(field, 40)!r} must be text or a number, not {printable(repr(value), 40)}"
        )
    return encodable(str(value))


def has_value(record: Record, field: str) -> bool:
    """Whether a field is there and not empty; neither ``None`` nor NaN is a value."""
    value = record.get(field)
    return value is not None and value != "" and value == value  # NaN differs from itself


def optional_text(record: Record, field: str) -> str | None:
    """A field that is text or a number; ``None`` if it is missing or empty."""
    return _scalar(record[field], field) if has_value(record, field) else None


def _answer_words(record: Record) -> tuple[str, str] | None:
    given = record.get(WORDS_FIELD)
    if given in (None, ""):
        return None
    positive, _, negative = str(given).partition("/")
    if not positive or not negative or "/" in negative:
        raise InputError(
            f"field {WORDS_FIELD!r} must be two words such as Yes/No, not {printable(str(given), 40)!r}"
        )
    return positive, negative


def missing_field(record: Record, field: str, option: str) -> InputError:
    graded = record.keys() >= {"question", "answer", SCORE_FIELD}
    return InputError(
        f"field {printable(field, 40)!r} is missing{_among(record)}",
        remedy=f"name the right one with {{{option}}}"
        + (", or ask whether each answer is correct with {self_check}" if graded else ""),
        options={option: ..., "self_check": True},
    )


def _among(record: Record) -> str:
    return f" (the record has: {printable(', '.join(record), 120)})"
