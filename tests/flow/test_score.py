"""White-box scores: the semantics, reading them from endpoints of both kinds, and writing the file."""

from __future__ import annotations

import asyncio
import csv
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import pytest

from blindcal.errors import FatalError, InputError
from blindcal.records import FloatArray, Item, Message, Reply, Request, Targets, Token
from blindcal.scoring.logprobs import Reader, Score, in_order, log_odds, prefer, read_all
from blindcal.scoring.score_writer import ScoreWriter, prompt_digests

TEXTS = ("Yes", " Yes", "yes", "No", " No", "The", "A", "I")
YES, SPACE_YES, LOWER_YES, NO, SPACE_NO = (Token(k, text) for k, text in enumerate(TEXTS[:5]))
TARGETS = Targets((YES, SPACE_YES, LOWER_YES), (NO, SPACE_NO), "max")
ITEMS = [Item(f"q{k}", k % 2, (Message("user", f"Question {k}?"),)) for k in range(23)]


Naming: TypeAlias = Literal["ignored", "refused", "shown", "renormalised"]


class Model:
    """An endpoint with eight tokens that shows the `most` likeliest logprobs, before or after the bias.

    ``naming`` is what it does with the field that names tokens.
    """

    def __init__(
        self,
        *,
        biased: bool = False,
        most: int = 3,
        obeys: bool = True,
        shows: bool = True,
        naming: Naming = "ignored",
    ) -> None:
        self.biased, self.most, self.obeys, self.shows, self.naming = biased, most, obeys, shows, naming
        self.asked = 0

    @staticmethod
    def logprobs(request: Request) -> FloatArray:
        seed = [ord(char) for char in request.messages[0].content]
        logits: FloatArray = np.random.default_rng(seed).normal(0, 3, len(TEXTS))
        logits -= np.logaddexp.reduce(logits)
        return logits

    async def ask(self, request: Request) -> Reply:
        self.asked += 1
        if request.top_logprobs > 100:
            raise FatalError("top_logprobs is too large")
        logprobs = self.logprobs(request)
        raised = logprobs.copy()
        for token, value in request.logit_bias.items() if self.obeys else ():
            raised[token] += value
        answer = int(raised.argmax())
        shown = raised - np.logaddexp.reduce(raised) if self.biased else logprobs
        best = np.argsort(-shown)[: min(self.most, request.top_logprobs)]
        top: Mapping[str, float] = {TEXTS[k]: float(shown[k]) for k in best}
        if not self.shows:
            return Reply(TEXTS[answer])
        named = request.fields.get("logprob_token_ids")
        if named and self.naming == "refused":
            raise FatalError("Extra inputs are not permitted: logprob_token_ids", status=400)
        if named and self.naming != "ignored":
            assert request.fields["return_tokens_as_token_ids"] is True
            if self.naming == "renormalised":
                shown = shown - np.logaddexp.reduce(shown[named])
            top = {f"token_id:{k}": float(shown[k]) for k in {answer, *named}}
        return Reply(TEXTS[answer], logprobs=top, logprob=float(shown[answer]))

    async def close(self) -> None:
        """Nothing to release."""


async def read(model: Model, targets: Targets = TARGETS) -> list[Score]:
    reader = await Reader.open(model, ITEMS[0], targets)
    return [score async for batch in read_all(reader, ITEMS, concurrency=4) for score in batch]


@pytest.mark.parametrize("biased", [False, True])
def test_endpoint_scores_are_the_models(biased: bool) -> None:
    """Whether logprobs come before or after the bias, every target's is found, also the unlikely ones."""
    scores = asyncio.run(read(Model(biased=biased, most=5)))
    for item, score in zip(ITEMS, scores, strict=True):
        truth = Model.logprobs(Request(item.messages))[[token.id for token in in_order(TARGETS)]]
        assert score.item == item
        assert np.allclose(score.logprobs, truth, atol=1e-9)
        assert score.mass == pytest.approx(np.exp(truth).sum())


@pytest.mark.parametrize("obeys", [True, False])
def test_named_tokens_take_one_request(obeys: bool) -> None:
    """Where a request can name tokens, as on vLLM, one per item reads them all, and no bias is needed."""
    model = Model(naming="shown", obeys=obeys)
    scores = asyncio.run(read(model))
    assert model.asked <= len(ITEMS) + 3
    for item, score in zip(ITEMS, scores, strict=True):
        truth = Model.logprobs(Request(item.messages))[[token.id for token in in_order(TARGETS)]]
        assert score.logprobs == pytest.approx(truth, abs=1e-12)
        assert score.mass == pytest.approx(np.exp(truth).sum())


@pytest.mark.parametrize("naming", ["refused", "renormalised"])
def test_named_tokens_that_cannot_be_trusted(naming: Naming) -> None:
    """If the field is refused, or its logprobs are not those of the list, tokens are forced."""
    unlikely = Targets((LOWER_YES,), (SPACE_NO,))
    plain = asyncio.run(read(Model(), unlikely))
    assert asyncio.run(read(Model(naming=naming), unlikely)) == plain


def test_unseen_mass_is_nan() -> None:
    """Where the bias shows and no target is likely, the odds are exact and the mass is not claimed."""
    scores = asyncio.run(read(Model(biased=True, most=2), Targets((YES,), (NO,))))
    masses = [score.mass for score in scores]
    assert any(map(math.isnan, masses))
    for item, score in zip(ITEMS, scores, strict=True):
        truth = Model.logprobs(Request(item.messages))
        assert score.logprobs[0] - score.logprobs[1] == pytest.approx(truth[YES.id] - truth[NO.id])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Model(shows=False), "shows no logprobs"),
        (Model(obeys=False), "logit_bias has no effect"),
        (Model(biased=True, most=3), "name one token per answer"),
    ],
)
def test_endpoints_that_cannot_be_scored(model: Model, message: str) -> None:
    """An endpoint without logprobs, without bias, or with too few logprobs is refused in words."""
    with pytest.raises(FatalError, match=message):
        asyncio.run(read(model))


@pytest.mark.parametrize(
    ("shown", "message"),
    [({"Yes": 21.5, "No": 20.0}, "logits"), ({"token_id:0": -0.1, "token_id:3": -2.4}, "by token id")],
)
def test_numbers_that_are_no_logprobs_are_refused(shown: dict[str, float], message: str) -> None:
    """Logits and lists by token id are named as what they are, and no score is made of them."""

    class Odd(Model):
        async def ask(self, request: Request) -> Reply:
            return replace(await super().ask(request), logprobs=shown)

    with pytest.raises(FatalError, match=message):
        asyncio.run(read(Odd()))


def test_log_odds() -> None:
    """Pair compares the first spellings, max the likeliest, sum all of them."""
    p = {YES: 0.1, SPACE_YES: 0.2, LOWER_YES: 0.05, NO: 0.15, SPACE_NO: 0.1}
    pair, greatest, total = log_odds(TARGETS, [math.log(p[token]) for token in in_order(TARGETS)])
    assert pair == pytest.approx(math.log(0.1 / 0.15))
    assert greatest == pytest.approx(math.log(0.2 / 0.15))
    assert total == pytest.approx(math.log(0.35 / 0.25))


def test_prefer() -> None:
    """The spelling that is most often the likeliest of its side becomes the pair's."""
    order = in_order(TARGETS)
    rows = [[{SPACE_YES: -1.0, SPACE_NO: -2.0}.get(token, -5.0) for token in order]] * 2
    rows.append([-0.1] * len(order))
    chosen = prefer(TARGETS, rows)
    assert in_order(chosen)[:2] == (SPACE_YES, SPACE_NO)
    assert set(in_order(chosen)) == set(order)


DIGESTS = {name: f"digest of {name}" for name in "abc"}


def score(name: str, first: float = -1.0) -> Score:
    return Score(Item(name, 1, ()), (first, -2.0, -3.0, -4.0, -5.0), 0.5)


def test_file_reads_as_a_score_file(tmp_path: Path) -> None:
    """A finished file is in the items' order and has id, label and p as its first columns."""
    writer = ScoreWriter.create(tmp_path / "new" / "scores.csv", TARGETS, DIGESTS)
    writer.add([score("b"), score("a", -2.0)])
    writer.finish()
    with writer.path.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["id"] for row in rows] == ["a", "b"]
    assert [float(row["p"]) for row in rows] == pytest.approx([0.5, 1 / (1 + math.exp(-1))])
    assert list(rows[0])[:6] == ["id", "label", "p", "p_max", "p_sum", "mass"]
    assert list(rows[0])[6:8] == ["Yes|0", "No|3"]


def test_file_is_taken_up_after_a_crash(tmp_path: Path) -> None:
    """A row cut off in the middle is dropped, whole ones stay, and the pair is the one begun with."""
    path = tmp_path / "scores.csv"
    begun = Targets((SPACE_YES, YES, LOWER_YES), (NO, SPACE_NO), "max")
    ScoreWriter.create(path, begun, DIGESTS).add([score("a"), score("b")])
    whole = path.read_bytes()
    path.write_bytes(whole + b"c,1,0.73,0.7")
    writer = ScoreWriter.resume(path, TARGETS, DIGESTS)
    assert writer is not None
    assert (writer.done, writer.targets) == ({"a", "b"}, begun)
    assert path.read_bytes() == whole
    assert ScoreWriter.resume(tmp_path / "none.csv", TARGETS, DIGESTS) is None


def test_file_of_other_tokens(tmp_path: Path) -> None:
    """A file scored for other answers, or that is no score file, is not continued."""
    path = tmp_path / "scores.csv"
    ScoreWriter.create(path, TARGETS, DIGESTS)
    with pytest.raises(InputError, match="other answer tokens"):
        ScoreWriter.resume(path, Targets((YES,), (NO,)), DIGESTS)
    path.write_text("something,else\n1,2\n")
    with pytest.raises(InputError, match="is not a score file"):
        ScoreWriter.resume(path, TARGETS, DIGESTS)


def test_file_of_another_model_or_prompt(tmp_path: Path) -> None:
    """Rows of another model, prompt or label are not mixed with new ones; more items of the same are."""
    path = tmp_path / "scores.csv"
    items = [Item(name, 1, (Message("user", f"Is {name} true?"),)) for name in "abc"]
    asked = prompt_digests(items, "m float32")
    ScoreWriter.create(path, TARGETS, asked).add([score("a"), score("b")])
    others = [
        prompt_digests(items, "another float32"),
        prompt_digests([replace(item, messages=(Message("user", "Is it?"),)) for item in items], "m float32"),
        prompt_digests([replace(item, label=0) for item in items], "m float32"),
    ]
    for other in others:
        with pytest.raises(InputError, match="another model, prompt or label"):
            ScoreWriter.resume(path, TARGETS, other)
    whole = ScoreWriter.resume(path, TARGETS, asked)
    assert whole is not None
    assert whole.done == {"a", "b"}
