"""Questions from the sample logs of lm-evaluation-harness, files named ``samples_TASK_DATE.jsonl``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from blindcal.errors import InputError
from blindcal.items.answers import LETTERS
from blindcal.items.logged_questions import LoggedAnswer, LoggedQuestion, prompt_digest, two_words
from blindcal.items.record_files import Record, decode, read_records
from blindcal.records import Message
from blindcal.text import encodable, printable

_APIS = {
    "local-completions": "completions",
    "openai-completions": "completions",
    "local-chat-completions": "chat",
    "openai-chat-completions": "chat",
}
_KEYS = {"doc_id", "doc", "arguments", "target"}
_CUES = ("Answer:", "A:")  # with which prompts end whose continuation is scored


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """What the file of results beside the samples says: which model was asked, and how."""

    model: str = ""
    api: str = ""
    templated: bool = False
    url: str = ""

    @classmethod
    def beside(cls, path: Path) -> _Evaluation:
        """Read ``results_DATE.json`` for ``samples_TASK_DATE.jsonl``; nothing is known if it is not there."""
        found = path.with_name(f"results_{path.name.removesuffix('.jsonl').rpartition('_')[2]}.json")
        try:
            told = json.loads(found.read_bytes())
            kind = told["config"]["model"]
            api, url = _APIS.get(kind, ""), _base_url(told["config"].get("model_args"))
            return cls(str(told["model_name"]), api, bool(told.get("chat_template")), url)
        except (OSError, ValueError, KeyError, TypeError):
            return cls()


def _base_url(arguments: Any) -> str:
    """The address among the arguments of a model, which are text or an object."""
    if isinstance(arguments, str):
        pairs = (pair.partition("=")[::2] for pair in arguments.split(","))
        arguments = {name.strip(): value for name, value in pairs}
    return str(arguments.get("base_url") or "") if isinstance(arguments, dict) else ""


def is_sample(line: bytes) -> bool:
    """Whether a line is that of a sample log."""
    try:
        return set(decode(line)) >= _KEYS
    except InputError:
        return False


def lm_eval_questions(path: Path, *, completions: bool) -> list[LoggedQuestion]:
    """The samples of a log, each once; of several filters, the first.

    ``completions`` says that they will be asked as plain prompts.
    """
    evaluation = _Evaluation.beside(path)
    if evaluation.templated and not completions:
        raise InputError(
            f"{path}: its prompts are filled in by a chat template already",
            remedy="audit them as plain prompts, with {api}",
            options={"api": "completions"},
        )
    found, scored = [], []
    for number, sample in enumerate(_once(read_records(path)), 1):
        try:
            question, options = _question(sample, evaluation)
        except InputError as error:
            raise error.prefixed(f"{path}, sample {number}: ") from None
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            raise InputError(f"{path}, sample {number}: is not one of lm-evaluation-harness") from None
        found.append(question)
        scored.append(options)
    return _with_answers(found, scored) if all(scored) else found


def _once(samples: Iterable[Record]) -> Iterator[Record]:
    seen = set()
    for sample in samples:
        if (doc := str(sample.get("doc_id"))) not in seen:
            seen.add(doc)
            yield sample


def _question(sample: Record, evaluation: _Evaluation) -> tuple[LoggedQuestion, tuple[str, ...]]:
    """A sample as a question, and the texts that were scored as its answers, if any were."""
    requests = [tuple(request.values()) for request in sample["arguments"].values()]
    first = requests[0]
    messages = _messages(first[0])
    fields = {name: value for name, value in sample["doc"].items() if isinstance(value, str | int | float)}
    blank = LoggedQuestion(
        sample["doc_id"], messages, str(sample["target"]).strip(), messages[-1].content, fields=fields
    )
    if len(first) == 2 and isinstance(first[1], dict):
        return replace(blank, answer=_generated(sample, first[1], messages, evaluation)), ()
    if len(first) != 2 or len(requests) < 2:
        raise InputError(
            "is the likelihood of a text, not a question with answers",
            remedy="log a task whose output_type is multiple_choice or generate_until",
        )
    if requests[1][0] != first[0] and requests[1][1] == first[1]:
        raise InputError(
            "its answers are in the prompts, which differ", remedy="log a task with one prompt per question"
        )
    own = [k for k, request in enumerate(requests) if request[0] == first[0]]  # not those without a prompt
    options = tuple(encodable(str(requests[k][1])) for k in own)
    right = _right(sample["target"], tuple(text.strip() for text in options))
    likelihoods = [float(sample["resps"][k][0][0]) for k in own]
    likeliest = options[likelihoods.index(max(likelihoods))]  # the answer at T = 0, if none but these can be
    told = evaluation.model, evaluation.api, True, True
    answer = LoggedAnswer(likeliest, *told, prompt_digest(messages), options, evaluation.url)
    return replace(blank, target=str(right), answer=answer), options


def _messages(given: Any) -> tuple[Message, ...]:
    """What was sent: a prompt, or a chat as text of JSON."""
    if isinstance(given, list):
        (given,) = given
        return tuple(Message(str(one["role"]), encodable(one["content"])) for one in json.loads(given))
    return (Message("prompt", encodable(given)),)


def _right(target: Any, options: tuple[str, ...]) -> int:
    """The number of the right option: targets are indices, or else the text of one."""
    text = str(target).strip()
    index = int(text) if text.isdigit() and int(text) < len(options) else None
    if index is not None and text in options and options[index] != text:  # the harness writes all as text
        raise InputError(
            f"the target {text!r} may be the text of an option or its index, and these differ",
            remedy="log the task with options that are not small numbers",
        )
    if index is not None:
        return index
    if options.count(text) == 1:
        return options.index(text)
    raise InputError(
        f"the target {printable(text, 40)!r} is not exactly one of its {len(options)} options",
        remedy="an audit needs exactly one right answer per question: leave the others out",
    )


def _generated(
    sample: Record, options: Record, messages: tuple[Message, ...], evaluation: _Evaluation
) -> LoggedAnswer:
    """The text that was generated; it may be cut short, which a log does not say."""
    greedy = options.get("do_sample") is False or options.get("temperature") == 0
    greedy = greedy and set(options) <= {"until", "do_sample", "temperature", "max_gen_toks", "max_tokens"}
    text = encodable(sample["resps"][0][0])
    told = evaluation.model, evaluation.api, greedy and not options.get("temperature"), False
    return LoggedAnswer(text, *told, prompt_digest(messages), url=evaluation.url)


def _with_answers(
    questions: Sequence[LoggedQuestion], scored: Sequence[tuple[str, ...]]
) -> list[LoggedQuestion]:
    """Questions with the answers that were scored: the same words for all, or else options of each."""
    shown = [tuple(text.strip() for text in options) for options in scored]
    most = max(shown, key=len)
    letters = all(options == LETTERS[: len(options)] for options in shown)
    if letters or (len(set(shown)) == 1 and all(len(text.split()) == 1 for text in most)):
        answers = two_words(most) if len(most) == 2 else most
        return [
            replace(one, target=options[int(one.target)], answers=answers)
            for one, options in zip(questions, shown, strict=True)
        ]
    return [
        replace(one, target=LETTERS[int(one.target)], choices=options, question=_without_cue(one.question))
        for one, options in zip(questions, shown, strict=True)
    ]


def _without_cue(prompt: str) -> str:
    """A prompt without the cue at its end, after which an option would follow."""
    text = prompt.rstrip()
    for cue in _CUES:
        if text.endswith(f"\n{cue}"):
            return text.removesuffix(cue).rstrip()
    return text
