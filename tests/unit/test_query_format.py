"""Questions of every format, for two and for more answers: what is sent, and how replies are read."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import expit, logsumexp
from scipy.stats import binom

from blindcal.endpoints.free_text import ask_confidence, ask_json
from blindcal.endpoints.query_format import (
    STATED_TOKENS,
    ConfidenceQuestion,
    FreeTextQuestion,
    QuestionFormat,
    TokenQuestion,
)
from blindcal.errors import InputError
from blindcal.query_seeds import query_seeds, uniform_draws
from blindcal.records import INVALID, NEGATIVE, POSITIVE, Message, Reply, Request, Targets, Token
from serving import PAIR, items

WORDS = ("Yes", "No")
LETTERS = ("A", "B", "C", "D")
FOUR = Targets((), (), answers=tuple((Token(10 + k, letter),) for k, letter in enumerate(LETTERS)))
TEXT, JSON, STATED = FreeTextQuestion(WORDS), FreeTextQuestion(WORDS, "json", 64), ConfidenceQuestion(WORDS)


# One token


def test_every_answer_has_its_own_bias() -> None:
    """The offset and what the query adds; an answer that the item does not have is not raised at all."""
    biases = np.array([0.0, -1.5, 2.25, -np.inf])
    request = TokenQuestion(FOUR, offset=40.0).request((), 2.25, 0.0, biases=biases)
    assert request.logit_bias == {10: 40.0, 11: 38.5, 12: 42.25}
    assert request.temperature == 0
    assert TokenQuestion(FOUR).request((), 0.0, 0.0).logit_bias == dict.fromkeys(range(10, 14), 50.0)
    assert not TokenQuestion(FOUR, biased=False).request((), 0.0, 1.0, biases=biases).logit_bias
    both = Targets((Token(1, "Yes"), Token(3, " yes")), (Token(2, "No"),), "max")
    assert TokenQuestion(both, offset=40).request((), -1.5, 0.0).logit_bias == {1: 38.5, 3: 38.5, 2: 40}


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


def test_free_text_is_asked_for_as_it_is() -> None:
    """The question stays as it is; nothing is biased, and there is room for a text."""
    question = FreeTextQuestion(WORDS, seed=3)
    request = question.request((Message("user", "Is it? Answer Yes or No."),), 2.0, 0.6, 5)
    assert request.messages[0].content == "Is it? Answer Yes or No."
    assert (request.logit_bias, request.temperature, request.max_tokens) == ({}, 0.6, 512)
    assert request.seed == TokenQuestion(PAIR, seed=3).request((), 0.0, 0.6, 5).seed


@pytest.mark.parametrize(
    ("prompt", "words", "asked"),
    [
        (
            "Is it? Answer Yes or No.",
            WORDS,
            'Is it?\nReply only with JSON: {"answer": "Yes"} or {"answer": "No"}',
        ),
        (
            "Is it odd?",
            ('"A"', "é"),
            'Is it odd?\nReply only with JSON: {"answer": "\\"A\\""} or {"answer": "é"}',
        ),
        (
            "Which?\nA. x\nB. y\nAnswer:",
            ("A", "B", "C"),
            'Which?\nA. x\nB. y\nReply only with JSON: {"answer": "A"}, {"answer": "B"} or {"answer": "C"}',
        ),
    ],
)
def test_json_is_asked_for_in_place_of_the_word(prompt: str, words: tuple[str, ...], asked: str) -> None:
    """A sentence that asks for the word alone, or a last line that waits for it, would contradict it."""
    assert ask_json((Message("user", prompt),), words) == (Message("user", asked),)


@pytest.mark.parametrize(
    ("question", "reply", "answer", "reason"),
    [
        (TEXT, Reply("It is so. The answer is **Yes**.", "stop"), POSITIVE, ""),
        (TEXT, Reply("I would say no", "length"), INVALID, "cut short"),
        (TEXT, Reply("", "stop"), INVALID, "empty"),
        (TEXT, Reply("No, I won't say.", "refusal"), INVALID, "refusal"),
        (TEXT, Reply("Yes", "content_filter"), INVALID, "refusal"),
        (TEXT, Reply("I'm sorry, I can't help with that.", "stop"), INVALID, "refusal"),
        (JSON, Reply('{"answer": "No", "why": "the answer is Yes to all"}', "stop"), NEGATIVE, ""),
        (JSON, Reply('```json\n{"answer": "yes"}\n```\n\n', "length"), POSITIVE, ""),
        (JSON, Reply('{"answer": "Yes"} or rather {"answer": "No"}', "stop"), NEGATIVE, ""),
        (JSON, Reply('<think>{"answer": "Yes"}</think>{"answer": "No"}', "stop"), NEGATIVE, ""),
        (JSON, Reply('{"answer": "Ye', "length"), INVALID, "cut short"),
        (JSON, Reply('{"answer": "maybe"}', "stop"), INVALID, "no answer"),
        (JSON, Reply("The answer is Yes.", "stop"), POSITIVE, ""),
        (JSON, Reply('{"answer": [' + "[" * 5000 + "]}", "stop"), INVALID, "no answer"),
        (FreeTextQuestion(("True", "False"), "json"), Reply('{"answer": false}', "stop"), NEGATIVE, ""),
        (FreeTextQuestion(("joy", "fear", "anger")), Reply("It is anger", "stop"), 2, ""),
        (FreeTextQuestion(LETTERS), Reply("A is wrong, B is wrong, so C", "stop"), 2, ""),
    ],
)
def test_a_text_is_an_answer_or_has_a_reason(
    question: FreeTextQuestion, reply: Reply, answer: int, reason: str
) -> None:
    """Cut, empty, refused and undecided texts are told apart, and none of them is guessed."""
    parsed = question.parse(reply)
    assert (parsed.answer, parsed.reason) == (answer, reason)


def test_of_a_long_text_the_end_is_kept() -> None:
    """The answer is at the end, and what is kept is safe to print."""
    text = "Let me think.\x1b[2J" + "\nthis and that" * 2000 + "\nSo the answer is No."
    parsed = TEXT.parse(Reply(text, "stop"))
    assert parsed.answer == NEGATIVE
    assert len(parsed.text) < 2100
    assert parsed.text.startswith("Let me think.\\x1b[2J\nthis")
    assert "\n[...]\n" in parsed.text
    assert parsed.text.endswith("that\nSo the answer is No.")


def test_what_would_help_is_named() -> None:
    """Answers without an end want more tokens or less reasoning; a text without an answer is quoted."""
    questions: list[tuple[QuestionFormat, str]] = [(TEXT, "cut short"), (TEXT, "empty"), (STATED, "empty")]
    for question, reason in questions:
        complaint = str(question.complaint(50, "", reason))
        assert "none of 50 answers has come to an end" in complaint
        assert "max_tokens=4000" in complaint
        assert "reasoning_effort=..." in complaint
    complaint = str(TEXT.complaint(50, "It really depends.", "no answer"))
    assert "settles on 'Yes' or 'No' (no answer)" in complaint
    assert "ends in 'It really depends.'" in complaint
    assert "'joy', 'fear' or 'anger'" in str(FreeTextQuestion(("joy", "fear", "anger")).complaint(9, "Hm"))


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
    question = ConfidenceQuestion(LETTERS)
    parsed = question.parse(Reply(text))
    assert parsed.answer == answer
    stated = question.stated([parsed.text])
    assert stated.p.tolist() == pytest.approx([math.nan if p is None else p], nan_ok=True)
    assert stated.reasons == ({reason: 1} if reason else {})


@pytest.mark.parametrize(
    ("words", "prompt", "kept"),
    [
        (LETTERS, "Which?\nA. x\nD. y\nAnswer:", "Which?\nA. x\nD. y"),
        (LETTERS, "Which? A. x\nAnswer with the letter of the right option only.", "Which? A. x"),
        (LETTERS, "Which?\nD. answer by letter", "Which?\nD. answer by letter"),
        (LETTERS, "Which is it? Please reply with A, B, C or D.", "Which is it?"),
        (WORDS, "Passage: it is.\nQuestion: is it?\nAnswer Yes or No.", "Passage: it is.\nQuestion: is it?"),
        (WORDS, "Is the answer correct? Reply only with Yes or No.", "Is the answer correct?"),
        (WORDS, "Is it? Please respond with 'yes' or 'no'", "Is it?"),
        (WORDS, "Is it odd?\n\nAnswer with Yes or No only!\n", "Is it odd?"),
        (WORDS, "Is it odd? Yes or No?", "Is it odd? Yes or No?"),  # a question
        (WORDS, "Answer Yes or No: is it odd?", "Answer Yes or No: is it odd?"),  # not at the end
        (WORDS, "Is it odd? Answer Yes or Nothing.", "Is it odd? Answer Yes or Nothing."),
        (WORDS, "Answer Yes or No.", ""),
    ],
)
def test_the_instruction_takes_the_place_of_a_request_for_the_word(
    words: tuple[str, ...], prompt: str, kept: str
) -> None:
    """A last sentence that wants the word alone is replaced; any other prompt is only added to."""
    system = Message("system", "Answer Yes or No.")
    unchanged, asked = ask_confidence((system, Message("user", prompt)), words)
    assert unchanged == system
    names = "A, B, C or D" if words == LETTERS else "Yes or No"
    assert asked.content.startswith(f"{kept}\nAnswer {names}, and say how confident you are")


def test_a_stated_confidence_is_asked_for_in_free_text() -> None:
    """No bias, no draw and room for an answer, with an instruction of the user's own."""
    question = ConfidenceQuestion(LETTERS, "One of {answers}, and a percentage.")
    request = question.request((Message("user", "Which?"),), 3.0, 0.0, 7)
    assert request.messages[0].content == "Which?\nOne of A, B, C or D, and a percentage."
    assert (request.logit_bias, request.temperature, request.max_tokens) == ({}, 0.0, STATED_TOKENS)
    assert question.parse(Reply("a\x1b[2J\nb")).text == "a\\x1b[2J\nb"


# Seeds


def test_a_query_has_the_same_seed_wherever_counting_begins() -> None:
    """The seed of query q depends on the run's seed and on q alone, and any server takes it."""
    whole = query_seeds(7, 0, 1000)
    assert np.array_equal(query_seeds(7, 990, 10), whole[990:])
    assert whole.min() >= 0
    assert whole.max() < 2**31
    assert np.unique(whole).size == whole.size
    assert not np.isin(query_seeds(8, 0, 1000), whole).any()


def test_draws_are_uniform_and_unrelated() -> None:
    """10^6 draws of two runs: ten equal bins and no correlation, within five standard errors."""
    n = 10**6
    one, other = uniform_draws(query_seeds(0, 0, n)), uniform_draws(query_seeds(1, 0, n))
    counts = np.histogram(one, bins=10, range=(0, 1))[0]
    assert np.abs(counts - n / 10).max() < 5 * np.sqrt(n * 0.1 * 0.9)
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(n)
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 5 / np.sqrt(n)


def test_only_sampled_queries_of_a_run_with_a_seed_carry_one() -> None:
    """A greedy query needs no luck; without a seed nothing is sent that a server might refuse."""
    messages = items(1)[0].messages
    assert TokenQuestion(PAIR, seed=3).request(messages, 0.0, 1.0, 5).seed == query_seeds(3, 5, 1)[0]
    assert (
        TokenQuestion(PAIR, biased=False, seed=3).request(messages, 0.0, 2.0, 6).seed
        == query_seeds(3, 6, 1)[0]
    )
    assert TokenQuestion(PAIR, seed=3).request(messages, 0.0, 0.0, 5).seed is None
    assert TokenQuestion(PAIR).request(messages, 0.0, 1.0, 5) == Request(messages, {1: 50.0, 2: 50.0}, 1.0)
