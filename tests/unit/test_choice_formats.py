"""Questions with more than two answers: what is sent, and how replies are read."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import expit, logsumexp
from scipy.stats import binom

from blindcal.endpoints.free_text import ask_confidence, ask_json, parse_free_text, parse_stated_choice
from blindcal.endpoints.query_format import (
    ConfidenceQuestion,
    FreeTextQuestion,
    LogprobQuestion,
    TokenQuestion,
)
from blindcal.errors import InputError
from blindcal.records import INVALID, Message, Reply, Targets, Token

LETTERS = ("A", "B", "C", "D")
FOUR = Targets((), (), answers=tuple((Token(10 + k, letter),) for k, letter in enumerate(LETTERS)))


# One token


def test_every_answer_has_its_own_bias() -> None:
    """The offset and what the query adds; an answer that the item does not have is not raised at all."""
    biases = np.array([0.0, -1.5, 2.25, -np.inf])
    request = TokenQuestion(FOUR, offset=40.0).request((), 2.25, 0.0, biases=biases)
    assert request.logit_bias == {10: 40.0, 11: 38.5, 12: 42.25}
    assert request.temperature == 0
    assert TokenQuestion(FOUR).request((), 0.0, 0.0).logit_bias == dict.fromkeys(range(10, 14), 50.0)
    assert not TokenQuestion(FOUR, biased=False).request((), 0.0, 1.0, biases=biases).logit_bias


@pytest.mark.parametrize(("text", "answer"), [("A", 0), (" D\n", 3), ("c", 2), ("E", INVALID), ("", INVALID)])
def test_the_answer_is_the_number_of_its_word(text: str, answer: int) -> None:
    """Case and surrounding white space do not matter."""
    assert TokenQuestion(FOUR).parse(Reply(text)).answer == answer


def test_answers_that_read_alike_are_refused() -> None:
    """A reply must mean one answer."""
    clash = Targets((), (), answers=((Token(1, "A"),), (Token(2, "B"),), (Token(3, " a"),)))
    with pytest.raises(InputError, match="cannot mean two answers"):
        TokenQuestion(clash)


# Our own noise


SPELLED = Targets(
    (Token(1, "Yes"), Token(2, " yes")), (Token(3, "No"), Token(4, " no"), Token(5, "NO")), "sum"
)


@pytest.mark.parametrize(("shift", "temperature"), [(-1.5, 1.0), (2.0, 2.0)])
def test_own_noise_draws_the_sum_of_the_spellings(shift: float, temperature: float) -> None:
    """The greedy answers to queries with Gumbel numbers follow the summed log-odds (METHOD 8)."""
    logits = np.array([1.0, 0.2, 0.5, 0.9, -1.0])
    question, count = TokenQuestion(SPELLED, own_noise=7), 2000
    positive = 0
    for number in range(count):
        request = question.request((), shift, temperature, number)
        assert request.temperature == 0
        biased = logits + [request.logit_bias[token] for token in range(1, 6)]
        positive += int(biased.argmax()) < 2
    tempered = (logits + np.array([shift, shift, 0, 0, 0])) / temperature
    p = float(expit(logsumexp(tempered[:2]) - logsumexp(tempered[2:])))
    assert binom.ppf(1e-6, count, p) <= positive <= binom.ppf(1 - 1e-6, count, p)


def test_own_noise_stays_inside_the_limit_and_can_be_made_again() -> None:
    """No bias exceeds that of a query without noise; the numbers follow from the seed and the query."""
    question = TokenQuestion(SPELLED, own_noise=7)
    for number in range(100):
        sent = question.request((), 50.0, 1.0, number).logit_bias
        assert max(sent.values()) <= 100
        assert sent == question.request((), 50.0, 1.0, number).logit_bias
    assert question.request((), 3.0, 1.0, 1).logit_bias != question.request((), 3.0, 1.0, 2).logit_bias
    greedy = question.request((), 3.0, 0.0, 1).logit_bias
    assert greedy == TokenQuestion(SPELLED).request((), 3.0, 0.0, 1).logit_bias


# Free text


@pytest.mark.parametrize(
    "text",
    [
        *("C", "(C)", "C.", "**C**", "C) Paris", "The answer is C", "The correct answer is (C).", "Option C"),
        "A good guess would be C.",
        "A is wrong, B is wrong, so C",
        "Answer: C\nExplanation: A is a distractor.",
        "Let's see. A) no. B) no. C) yes. D) no.\n\nFinal answer: C",
    ],
)
def test_letters_are_found_in_free_text(text: str) -> None:
    """A text that settles on a letter gives its number, whatever else it mentions."""
    assert parse_free_text(text, LETTERS).answer == 2
    assert FreeTextQuestion(LETTERS).parse(Reply(text)).answer == 2


def test_free_text_of_several_words() -> None:
    """Words are numbered in their order, and a text without one is named with all of them."""
    question = FreeTextQuestion(("joy", "fear", "anger"))
    assert [question.parse(Reply(text)).answer for text in ("Joy.", "It is anger", "Hm")] == [0, 2, INVALID]
    assert "'joy', 'fear' or 'anger'" in str(question.complaint(9, "Hm"))


def test_json_lists_every_answer() -> None:
    """The instruction names each form of the object, in place of a last line that waits for the answer."""
    (asked,) = ask_json((Message("user", "Which?\nA. x\nB. y\nAnswer:"),), ("A", "B", "C"))
    said = 'Reply only with JSON: {"answer": "A"}, {"answer": "B"} or {"answer": "C"}'
    assert asked.content == f"Which?\nA. x\nB. y\n{said}"


# Logprobs


def logs(**chances: float) -> dict[str, float]:
    return {text.replace("_", " "): math.log(p) for text, p in chances.items()}


def test_logprobs_give_the_likeliest_answer_against_the_rest() -> None:
    """Spellings with a space count; the article " a" is no letter; the bounds are about the given answer."""
    question = LogprobQuestion(LETTERS)
    shown = logs(A=0.1, B=0.2, _B=0.1, C=0.25, D=0.05, _a=0.3)
    found = question.parse(Reply("C", logprobs=shown))
    assert found.answer == 1
    assert found.mass == pytest.approx(0.7)
    assert found.low == pytest.approx(math.log(0.3 / 0.4), abs=1e-4)
    assert found.high == pytest.approx(math.log(0.3 / 0.4), abs=1e-4)
    assert question.parse(Reply("The", logprobs=logs(The=0.9))).answer == INVALID


@pytest.mark.parametrize("seed", range(5))
def test_what_a_short_list_leaves_open_is_bounded(seed: int) -> None:
    """The true one-against-the-rest log-odds are between the bounds, however few logprobs are shown."""
    rng = np.random.default_rng(seed)
    texts = [space + letter for letter in LETTERS for space in ("", " ")] + ["The", "It", "x", "y"]
    chances = dict(zip(texts, rng.dirichlet(np.full(len(texts), 0.4)), strict=True))
    listed = sorted(chances, key=lambda text: -chances[text])[: int(rng.integers(2, 9))]
    found = LogprobQuestion(LETTERS).parse(
        Reply("", logprobs={text: math.log(chances[text] + 1e-300) for text in listed})
    )
    if found.answer == INVALID:
        return
    own = sum(chances[space + LETTERS[found.answer]] for space in ("", " "))
    rest = sum(chances[text] for text in texts[:8]) - own
    assert found.low is not None
    assert found.high is not None
    assert found.low - 1e-4 <= math.log(own / rest) <= found.high + 1e-4


# Stated confidence


@pytest.mark.parametrize(
    ("text", "answer", "p", "reason"),
    [
        ("C, 80%", 2, 0.8, ""),
        ("(A) 35%", 0, 0.35, ""),
        ("D\n0%", 3, 0.0, ""),
        ("Answer: B\nConfidence: 0.9", 1, 0.9, ""),
        ("I'm 70% sure it is C.", 2, 0.7, ""),
        ("C", INVALID, None, "no confidence"),
        ("Paris, 90%", INVALID, None, "no answer"),
        ("C, 120%", INVALID, None, "confidence out of range"),
        ("", INVALID, None, "empty"),
    ],
)
def test_a_confidence_is_about_the_answer_that_is_given(
    text: str, answer: int, p: float | None, reason: str
) -> None:
    """From 0 to 100 per cent: of several answers, the best may be unlikely."""
    found = parse_stated_choice(text, LETTERS)
    assert (found.p, found.reason) == (p, reason)
    question = ConfidenceQuestion(LETTERS)
    parsed = question.parse(Reply(text))
    assert parsed.answer == answer
    told = question.stated([parsed.text])
    assert told.p.tolist() == pytest.approx([math.nan if p is None else p], nan_ok=True)
    assert told.reasons == ({reason: 1} if reason else {})


@pytest.mark.parametrize(
    ("prompt", "kept"),
    [
        ("Which?\nA. x\nD. y\nAnswer:", "Which?\nA. x\nD. y"),
        ("Which? A. x\nAnswer with the letter of the right option only.", "Which? A. x"),
        ("Which?\nD. answer by letter", "Which?\nD. answer by letter"),
        ("Which is it? Please reply with A, B, C or D.", "Which is it?"),
    ],
)
def test_the_instruction_lists_the_answers(prompt: str, kept: str) -> None:
    """It takes the place of a request for the letter alone, and no option is taken for one."""
    (asked,) = ask_confidence((Message("user", prompt),), LETTERS)
    assert asked.content.startswith(f"{kept}\nAnswer A, B, C or D, and say how confident you are")
    (own,) = ask_confidence((Message("user", "Which?"),), LETTERS, "One of {answers}, and a percentage.")
    assert own.content == "Which?\nOne of A, B, C or D, and a percentage."
