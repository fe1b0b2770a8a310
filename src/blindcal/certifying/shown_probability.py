"""Where a reply shows the probability to compare with a threshold: in words, and in Python."""

from __future__ import annotations

from dataclasses import dataclass

from blindcal.endpoints.query_format import DecisionQuestion, LogprobQuestion, QuestionFormat
from blindcal.text import printable, spoken

POSITIVE = "positive"


@dataclass(frozen=True, slots=True)
class ShownProbability:
    """The probability in a reply, in ``words``.

    ``python`` are statements that read ``probabilities`` by answer from a decoded ``reply``; of two answers,
    only that of the positive one.
    """

    words: str
    python: str


def shown_probability(question: QuestionFormat, api: str) -> ShownProbability:
    """Where the replies to a question show the probability."""
    if isinstance(question, DecisionQuestion):
        return _of_decision(api, question)
    assert isinstance(question, LogprobQuestion)
    return _of_logprobs(api, question)


def _of_decision(api: str, question: DecisionQuestion) -> ShownProbability:
    answer = "answers[0]" if api == "decisions" else "answers.answer"
    code = 'reply["answers"]' + ("[0]" if api == "decisions" else '["answer"]')
    if not question.options:
        field = "probability" if api == "decisions" else "noul"
        return ShownProbability(f"{answer}.{field}", f'probabilities = {{"{POSITIVE}": {code}["{field}"]}}')
    shown, key = f'{code}["probabilities"]', "label" if question.graded else "value"
    if api == "decisions":
        shown = f'{{row["{key}"]: row["probability"] for row in {shown}}}'
    elif question.graded:
        shown = f'{{{code}.get("legend", {{}}).get(key, key): p for key, p in {shown}.items()}}'
    return ShownProbability(f"the largest of {answer}.probabilities", f"probabilities = {shown}")


def _of_logprobs(api: str, question: LogprobQuestion) -> ShownProbability:
    """The share of an answer in the probability of all; spellings that are not shown have none."""
    words, two = question.words, len(question.words) == 2
    if question.semantics == "pair":
        token, meant = "token", {word: word for word in words}
    else:
        fold = two or not any(len(word.strip()) == 1 for word in words)
        token = "token.strip().casefold()" if fold else "token.strip()"
        meant = {word: spoken(word) if fold else word.strip() for word in words}
    if api == "completions":
        where, listed = "choices[0].logprobs.top_logprobs[0]", '["top_logprobs"][0].items()'
    else:
        where, listed = "choices[0].logprobs.content[0].top_logprobs", '["content"][0]["top_logprobs"]'
    rows = f'reply["choices"][0]["logprobs"]{listed}'
    pairs = rows if api == "completions" else f'((row["token"], row["logprob"]) for row in {rows})'
    together = "max" if question.semantics == "max" else "sum"
    names = {meant[word]: POSITIVE if two and word == words[0] else word.strip() for word in words}
    python = (
        f"words = {names!r}\n"
        "shown = dict.fromkeys(words.values(), 0.0)\n"
        f"for token, logprob in {pairs}:\n"
        f"    if word := words.get({token}):\n"
        f"        shown[word] = {together}([shown[word], math.exp(logprob)])\n"
        "probabilities = {word: p / (sum(shown.values()) or 1) for word, p in shown.items()}"
        + (f'\nprobabilities = {{"{POSITIVE}": probabilities["{POSITIVE}"]}}' if two else "")
    )
    about = f"of {printable(words[0].strip(), 40)!r} in {where}" if two else f"of an answer in {where}"
    return ShownProbability(f"the probability {about}, divided by that of all answers", python)


def given_probability(field: str, *, several: bool) -> ShownProbability:
    """Where a record of a file holds the probability."""
    what = "confidence in the answer" if several else "probability"
    return ShownProbability(f"the {what} in the field {printable(field, 60)!r}", "")
