"""Reading the two answers from a list of logprobs, against the whole distribution that it is the top of."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax, logit, softmax

from blindcal.endpoints.query_format import LogprobQuestion
from blindcal.endpoints.replies import FARTHEST, fault_in, shown_answers
from blindcal.estimate.contradiction import DrawnAnswers
from blindcal.records import INVALID, NEGATIVE, POSITIVE, Message, Reply, Semantics

WORDS = ("Yes", "No")
YES = ("Yes", " Yes", "yes", " yes", "YES", " YES")
NO = ("No", " No", "no", " no", "NO", " NO")
OTHERS = tuple(f"word{k}" for k in range(30))
VOCABULARY = (*YES, *NO, *OTHERS)


def logs(**chances: float) -> dict[str, float]:
    return {text.replace("_", " "): math.log(p) for text, p in chances.items()}


def truth(logprobs: dict[str, float], semantics: Semantics) -> float:
    """The log-odds from the logprobs of the whole vocabulary."""
    yes, no = ([logprobs[text] for text in side] for side in (YES, NO))
    if semantics == "pair":
        return yes[0] - no[0]
    if semantics == "max":
        return max(yes) - max(no)
    return float(np.logaddexp.reduce(yes) - np.logaddexp.reduce(no))


@pytest.mark.parametrize("semantics", ["pair", "max", "sum"])
@given(seed=st.integers(0, 2**32 - 1), top=st.integers(1, len(VOCABULARY)), scale=st.floats(0.1, 6))
def test_the_bounds_hold_what_the_whole_distribution_says(
    semantics: Semantics, seed: int, top: int, scale: float
) -> None:
    """However many of the likeliest tokens are shown, the true log-odds are between the bounds."""
    rng = np.random.default_rng(seed)
    values = log_softmax(scale * rng.standard_normal(len(VOCABULARY)))
    whole = dict(zip(VOCABULARY, values.tolist(), strict=True))
    shown = dict(sorted(whole.items(), key=lambda one: -one[1])[:top])
    assert fault_in(shown) is None
    found, true = shown_answers(shown, WORDS, semantics), truth(whole, semantics)
    if any(found.shown):
        assert found.low() - 1e-9 <= true <= found.high() + 1e-9
    if top == len(VOCABULARY):
        assert found.low() == pytest.approx(found.high())
    spelled = sum(math.exp(value) for text, value in whole.items() if text in YES + NO)
    assert found.mass <= spelled + 1e-9


def test_a_complete_list_is_an_exact_reading() -> None:
    """Spellings are summed whatever their case and spaces; what is neither word is left out."""
    found = shown_answers(logs(Yes=0.5, _yes=0.1, No=0.2, NO=0.1, The=0.1), WORDS)
    assert (*found.shown, found.mass) == pytest.approx((0.6, 0.3, 0.9))
    assert found.low() == pytest.approx(math.log(2), abs=1e-5)
    assert found.high() == pytest.approx(math.log(2), abs=1e-5)


def test_what_is_not_shown_is_bounded_by_the_rest_and_by_the_least() -> None:
    """Unseen spellings have at most what is left of 1, and each at most what the last shown token has."""
    few = shown_answers(logs(Yes=0.9, No=0.06), WORDS)
    assert few.low() == pytest.approx(math.log(0.9 / 0.1))  # 0.04 is left
    assert few.high() == pytest.approx(math.log(0.94 / 0.06))
    more = shown_answers(logs(Yes=0.9, No=0.06, The=0.001), WORDS)
    assert more.low() == pytest.approx(math.log(0.9 / 0.065))  # five other spellings, 0.001 at most each
    assert more.high() == pytest.approx(math.log(0.905 / 0.06))
    likeliest = shown_answers(logs(Yes=0.9, No=0.06, The=0.001), WORDS, "max")
    assert (likeliest.low(), likeliest.high()) == pytest.approx((math.log(15), math.log(15)))


def test_an_answer_that_is_not_shown_has_one_open_end() -> None:
    """The log-odds are then bounded on one side only; the other end is beyond all that can be told."""
    found = shown_answers(logs(_No=0.7, The=0.2), WORDS)
    assert found.low() == -FARTHEST
    assert found.high() == pytest.approx(math.log(0.1 / 0.7))
    assert shown_answers(logs(_No=0.7, The=0.2), WORDS, "pair").mass == pytest.approx(0.7)
    assert shown_answers({"Yes": -9999.0, "No": -0.01, "The": -5.0}, WORDS).low() == -FARTHEST


@pytest.mark.parametrize(
    ("logprobs", "fault"),
    [
        (None, "shows no logprobs"),
        ({}, "shows no logprobs"),
        ({"token_id:9642": -0.1, "token_id:2822": -2.5}, "by token id and not by text"),
        ({"Yes": 21.5, "No": 19.25}, "logits"),
        ({"Yes": 1000.0, "No": -3.0}, "logits"),
        ({"Yes": -0.2, "No": -0.3, "The": -0.5}, "logits"),
    ],
)
def test_lists_that_are_no_probabilities_are_named(logprobs: dict[str, float] | None, fault: str) -> None:
    """No list, ids instead of texts, and logits that are no logarithms of probabilities are told apart."""
    assert fault in (fault_in(logprobs) or "")
    read = LogprobQuestion(WORDS).parse(Reply("Yes", logprobs=logprobs))
    assert (read.answer, read.low, read.mass) == (INVALID, None, None)
    assert fault in read.reason
    assert fault in read.text


def test_rounded_probabilities_are_read() -> None:
    """Two decimals may add up to a little more than 1, or be 0 for what is almost certain."""
    assert fault_in({"Yes": 0.0, "No": -5.0}) is None
    assert fault_in({"Yes": -0.69, "No": -0.69, "The": -4.6}) is None


@pytest.mark.parametrize("seed", range(5))
def test_what_a_short_list_leaves_open_is_bounded(seed: int) -> None:
    """The true one-against-the-rest log-odds are between the bounds, however few logprobs are shown."""
    rng = np.random.default_rng(seed)
    texts = [space + letter for letter in "ABCD" for space in ("", " ")] + ["The", "It", "x", "y"]
    chances = dict(zip(texts, rng.dirichlet(np.full(len(texts), 0.4)), strict=True))
    listed = sorted(chances, key=lambda text: -chances[text])[: int(rng.integers(2, 9))]
    parsed = LogprobQuestion(tuple("ABCD")).parse(
        Reply("", logprobs={text: math.log(chances[text] + 1e-300) for text in listed})
    )
    if parsed.answer == INVALID:
        return
    own = sum(chances[space + "ABCD"[parsed.answer]] for space in ("", " "))
    rest = sum(chances[text] for text in texts[:8]) - own
    assert parsed.low is not None
    assert parsed.high is not None
    assert parsed.low - 1e-4 <= math.log(own / rest) <= parsed.high + 1e-4


def test_logprobs_give_the_likeliest_answer_against_the_rest() -> None:
    """Spellings with a space count; the article " a" is no letter; the bounds are about the given answer."""
    question = LogprobQuestion(tuple("ABCD"))
    shown = logs(A=0.1, B=0.2, _B=0.1, C=0.25, D=0.05, _a=0.3)
    parsed = question.parse(Reply("C", logprobs=shown))
    assert parsed.answer == 1
    assert parsed.mass == pytest.approx(0.7)
    assert parsed.low == pytest.approx(math.log(0.3 / 0.4), abs=1e-4)
    assert parsed.high == pytest.approx(math.log(0.3 / 0.4), abs=1e-4)
    assert question.parse(Reply("The", logprobs=logs(The=0.9))).answer == INVALID


def test_a_question_asks_for_logprobs_and_for_nothing_else() -> None:
    """The request has no bias, one token, temperature 1 and as many logprobs as the endpoint shows."""
    request = LogprobQuestion(WORDS, top=8).request((Message("user", "Is it?"),), 0.0, 0.0, 7)
    assert (request.top_logprobs, request.max_tokens, request.temperature) == (8, 1, 1.0)
    assert not request.logit_bias
    assert request.seed is None


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("Yes", WORDS, POSITIVE),
        (" no\n", WORDS, NEGATIVE),
        ("The", WORDS, None),
        ("b", ("A", "b", "B"), 1),
        ("a", ("A", "b", "B"), None),
    ],
)
def test_the_answer_in_the_text_is_compared_whatever_its_spelling(
    text: str, words: tuple[str, ...], said: int | None
) -> None:
    """All spellings of a word are one answer, whose probability is known if they are summed."""
    reply = Reply(text, logprobs=logs(Yes=0.5, _yes=0.1, No=0.2, A=0.1))
    assert LogprobQuestion(words).parse(reply).said == said
    assert LogprobQuestion(words, "pair").parse(reply).said is None


def objections(
    scale: float, lie: float, n: int, *, choices: int = 2, repeats: int = 1000
) -> tuple[float, float]:
    """How often each test objects if logits times ``lie`` are shown, and answers are drawn at T = 1."""
    rng = np.random.default_rng(5)
    found = []
    for _ in range(repeats):
        logits = scale * rng.standard_normal((n, choices))
        said = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        shown = softmax(lie * logits, axis=1)
        likeliest = shown.argmax(axis=1)
        s = logit(shown[:, POSITIVE] if choices == 2 else shown.max(axis=1))
        drawn = DrawnAnswers.of(np.column_stack([said, likeliest, s, s]), several=choices > 2)
        found.append((drawn.surprising, drawn.too_sure))
    surprising, too_sure = np.mean(found, axis=0)
    return float(surprising), float(too_sure)


@pytest.mark.parametrize("choices", [2, 4])
@pytest.mark.parametrize("scale", [0.5, 2.0, 5.0])
@pytest.mark.parametrize("n", [12, 1000])
def test_answers_hardly_ever_contradict_the_logprobs_that_they_were_drawn_from(
    scale: float, n: int, choices: int
) -> None:
    """Each test objects to one honest endpoint in 1,000 at most; more than 5 would be too many by chance."""
    assert max(objections(scale, 1.0, n, choices=choices)) <= 0.005


@pytest.mark.parametrize("choices", [2, 4])
def test_logprobs_that_are_not_those_of_the_answers_are_told(choices: int) -> None:
    """Inverted, sharpened and flattened logprobs contradict the answers."""
    assert objections(2.0, -1.0, 40, choices=choices, repeats=100)[0] == 1
    assert objections(2.0, 2.0, 500, choices=choices, repeats=100)[0] > 0.95
    assert objections(2.0, 0.4, 500, choices=choices, repeats=100)[1] > 0.95


def test_the_likelier_answer_is_the_answer() -> None:
    """Not what was said counts but the sum of the spellings; the text keeps both."""
    question = LogprobQuestion(WORDS)
    parsed = question.parse(Reply("No", logprobs=logs(No=0.4, Yes=0.35, _Yes=0.15)))
    assert (parsed.answer, parsed.text) == (POSITIVE, "No (Yes 0.5, No 0.4)")
    assert parsed.mass == pytest.approx(0.9)
    pair = LogprobQuestion(WORDS, "pair").parse(Reply("No", logprobs=logs(No=0.4, Yes=0.35, _Yes=0.15)))
    assert pair.answer == NEGATIVE
    neither = question.parse(Reply("The\x1b", logprobs=logs(The=0.9, A=0.05)))
    assert (neither.answer, neither.low, neither.mass) == (INVALID, None, 0.0)
    assert neither.text == "The\\x1b (Yes 0, No 0)"
