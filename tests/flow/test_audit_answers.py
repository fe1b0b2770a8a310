"""Audits of questions with several answers: what is asked, kept, watched and counted."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from answering import LETTERS, audited, greedy, serving, write_choices
from blindcal.asking.controls import Control, ControlAnswer, Controls, forced_in_vain
from blindcal.asking.job import Job, request_numbers
from blindcal.auditing.conclude import check_steadiness
from blindcal.choice_design import GivenAnswerDesign
from blindcal.design import answer_design
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.errors import InputError
from blindcal.estimate.noise import ControlCounts, forced_noise
from blindcal.estimate.truth import top_label_ece
from blindcal.estimation import EstimationInput, estimate
from blindcal.items.catalogue import open_items
from blindcal.items.record_format import RecordFormat
from blindcal.items.score_files import read_choices
from blindcal.records import INVALID, PLAIN, AnswerTable, Item, Message, Reply, Round, Targets, Token
from blindcal.results.compare import compare
from blindcal.results.merge import merge, together
from blindcal.results.result import AuditResult, read_truth
from blindcal.results.run import open_run
from blindcal.results.tables import ANSWERS_FILE, write_answers
from blindcal.store.run_file import StoredReply
from blindcal.store.run_store import RUN_FILE, Store
from reporting import logits_of

TOKENS = Targets((), (), answers=tuple((Token(k + 1, letter),) for k, letter in enumerate("ABC")))
N = 240


def items(n: int = 12) -> list[Item]:
    """Questions with three answers; every other one has two."""
    return [Item(f"q{k}", k % 2, (Message("user", f"Which is {k}?"),), choices=3 - k % 2) for k in range(n)]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """An audit of these questions that has not begun."""
    with Store.open(tmp_path / RUN_FILE) as store:
        store.begin({"items": 12}, items())
        yield Job(items=items(), question=TokenQuestion(TOKENS, 50.0), store=store, max_shift=40.0, answers=3)


def test_any_answer_of_the_item_can_be_forced_and_read(job: Job) -> None:
    """The largest shift raises one answer; those that the item lacks get no bias, and are invalid."""
    assert job.forced(0, 2).logit_bias == {1: 50.0, 2: 50.0, 3: 90.0}
    assert job.forced(1, 0).logit_bias == {1: 90.0, 2: 50.0}
    assert [job.read(Reply("C"), choices=size).answer for size in (3, 2)] == [2, INVALID]


def test_controls_force_each_answer_in_turn_and_repeat_all_biases(job: Job) -> None:
    """Forced controls raise the answers of the item in turn; repeated ones differ in the common bias only."""
    rng = np.random.default_rng(0)
    biases = rng.gumbel(size=(12, 3))
    biases[1::2, 2] = -np.inf
    asked = Round(np.arange(12), biases[:, 0], np.zeros(12), about=np.zeros(12, np.int64), biases=biases)
    controls = Controls(job, every=1)
    forced, repeated = [], []
    for query in range(12):
        control = controls.next(query, asked, 0)
        assert control is not None
        request = controls.request(control, asked, 0)
        if control.forces is None:
            repeated.append(control)
            place = control.again
            count = 3 - place % 2
            wanted = {k + 1: 49.0 + biases[place, k] for k in range(count)}
            assert request.logit_bias == pytest.approx(wanted)
        else:
            forced.append(control.forces)
            assert request.logit_bias[control.forces + 1] == 90.0
    assert len(repeated) == 6
    assert set(forced) == {0, 1, 2}


def _heard(place: int, answer: int, wanted: int) -> ControlAnswer:
    return ControlAnswer(Control(carrier=place, nth=0, item=0, forces=wanted), place, answer)


def test_a_bias_that_stops_acting_is_noticed() -> None:
    """Forced answers that come out otherwise raise the alarm; invalid ones do not count."""
    good = [_heard(k, k % 3, k % 3) for k in range(100)]
    assert not forced_in_vain(good)
    bad = [_heard(100 + k, 0, 1 + k % 2) for k in range(10)]
    assert forced_in_vain([*good, *bad]) == bad
    assert not any(one.wrong for one in (_heard(0, INVALID, 1), good[5]))


def test_flips_are_estimated_from_forced_queries_alone() -> None:
    """The share of wrong forced answers with its exact binomial interval; the jitter is the probe's."""
    found = forced_noise(ControlCounts(100, 3, 50, 20), 0.2)
    assert (found.posterior.best.flip_rate, found.posterior.best.jitter) == pytest.approx((0.03, 0.2))
    # Clopper and Pearson's interval of 3 in 100, as tables give it
    assert (found.flip_rate.low, found.flip_rate.high) == pytest.approx((0.0062, 0.0852), abs=1e-4)
    clean = forced_noise(ControlCounts(50, 0, 50, 3), 0.0)
    assert (clean.posterior.best.flip_rate, clean.plausible) == (0.0, ())


def test_equal_queries_have_equal_biases() -> None:
    """Several answers are asked for at once only where every bias is the same."""
    zero, three = np.zeros(4), np.zeros(4, np.int64)
    biases = np.array([[0, 0, -np.inf], [0, 0, -np.inf], [0, 1, -np.inf], [0, 0, -np.inf]])
    asked = Round(three, zero, zero + 1, about=three + PLAIN, biases=biases)
    numbers = request_numbers(asked, 4)
    assert numbers[0] == numbers[1] == numbers[3] != numbers[2]


def test_the_table_of_answers_has_words_and_biases(tmp_path: Path) -> None:
    """Labels and answers are words, and each answer has a column with what was added to it."""
    with Store.open(tmp_path / RUN_FILE) as store:
        store.begin({}, items(2))
        biases = np.array([[0.0, 0.0, 0.0], [0.0, -1.5, -np.inf]])
        store.add_round(
            Round(np.arange(2), np.array([0.0, -1.5]), np.zeros(2), about=np.array([PLAIN, 1]), biases=biases)
        )
        with store._db:
            store._insert([StoredReply(answer=2, text="C"), StoredReply(query=1, answer=INVALID, text="?")])
        write_answers(store, tmp_path / "a.csv", ("A", "B", "=C"))
        stored = store.items()
    assert stored.choices is not None
    assert stored.choices.tolist() == [3, 2]
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["label"] == "A"
    assert (rows[0]["about"], rows[0]["answer"]) == ("", "'=C")
    assert (rows[1]["label"], rows[1]["about"], rows[1]["shift"]) == ("B", "B", "-1.5")
    assert rows[1]["answer"] == "invalid"
    assert (rows[1]["bias_A"], rows[1]["bias_B"], rows[1]["bias_=C"]) == ("0", "-1.5", "")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, AuditResult]:
    """A finished audit of questions with two to four options, and its folder."""
    folder = tmp_path_factory.mktemp("run")
    labels, logits = logits_of(4, N)
    choices = np.where(np.arange(N) % 5 == 0, 3, 4)
    logits[choices == 3, 3] = -np.inf
    labels = np.where(labels < choices, labels, 0)
    path = write_choices(folder / "items.jsonl", labels, choices, topic=["x", "y"] * (N // 2))
    with (folder / "oracle.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "label", *(f"logit_{letter}" for letter in "ABCD")])
        for k in range(N):
            table.writerow([f"q{k}", labels[k], *("" if np.isinf(z) else z for z in logits[k])])
    with serving(path, logits) as server:
        result = audited(path, server, folder / "run", bins=10, by_field="topic")
    return folder, result


def test_a_whole_audit_counts_what_was_answered(run: tuple[Path, AuditResult]) -> None:
    """Every number of answers agrees: those of the store, the table of answers and the counts."""
    folder, result = run
    opened = open_run(folder / "run")
    assert result.answers == LETTERS[:4]
    assert result.counts.answers == len(opened.answered) == sum(result.counts.each)
    assert (result.counts.positive, result.counts.negative, result.counts.positive_labels) == (0, 0, 0)
    assert np.sum(result.confusion) == N == sum(one.given or 0 for one in result.by_answer)
    assert result.accuracy.value == pytest.approx(np.trace(result.confusion) / N)
    assert result.margins is not None
    assert result.margins.given == pytest.approx(np.sum(result.confusion, axis=0) / N)
    assert opened.choices is not None
    assert np.bincount(opened.choices)[3:].tolist() == [N // 5, N - N // 5]
    assert result.steadiness is not None
    assert result.steadiness.controls == ControlCounts(N // 4, 0, N // 4, 0)  # every fourth query has one
    assert {part.name for part in result.parts} == {"x", "y"}
    with (folder / "run" / ANSWERS_FILE).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(opened.answered)
    assert sum(row["about"] == "" for row in rows) == N


def test_a_run_read_back_has_the_same_fit(run: tuple[Path, AuditResult]) -> None:
    """The result survives its file, and the answers on disk give its estimates."""
    folder, result = run
    assert AuditResult.load(folder / "run" / "result.json") == result
    fit = open_run(folder / "run").fit(resamples=40)
    for name in ("ece", "accuracy", "overconfidence"):
        assert float(getattr(fit, name)) == pytest.approx(float(getattr(result, name)))


def test_a_choice_file_is_the_truth(run: tuple[Path, AuditResult]) -> None:
    """The oracle is the top-label ECE of the logits; other answers and other labels are refused."""
    folder, result = run
    scores = read_choices(folder / "oracle.csv")
    loaded = open_items(folder / "items.jsonl")
    labels = loaded.labels
    truth = read_truth(folder / "oracle.csv", loaded, "replay")
    found = truth.compare(labels, result.ece, 10)
    assert found.ece == pytest.approx(top_label_ece(labels, scores.logits, 10).ece.value)
    assert found.inside_interval
    text = (folder / "oracle.csv").read_text()
    (folder / "other.csv").write_text(text.replace("logit_B", "logit_E"))
    with pytest.raises(InputError, match=r"has the logits of A, E, C, D, and the answers of the items are"):
        read_truth(folder / "other.csv", loaded, "replay")
    loaded = open_items(folder / "items.jsonl", RecordFormat(permute=0))
    with pytest.raises(InputError, match="or of their options in another order"):
        read_truth(folder / "oracle.csv", loaded, "replay")


def test_items_without_an_answer_may_hide_any_error() -> None:
    """The bounds for invalid answers hold for the items that gave no plain answer, however wrong it was."""
    labels, logits = logits_of(4, 400)
    hidden = np.arange(400) % 4 == 0
    logits[hidden, labels[hidden]] -= 20  # sure of something wrong
    choices = np.full(400, 4)
    design = GivenAnswerDesign(labels, choices, 2.0, 0)
    answer = greedy(logits)
    answered = answer_design(
        design, lambda asked, first: np.where(hidden[asked.items], INVALID, answer(asked, first))
    )
    evidence = EstimationInput(
        method="latent", design=design, labels=labels, answers=answered, resamples=0, choices=choices
    )
    found = estimate(evidence)
    low, high = found.ece_if_invalid
    assert float(found.ece) + 0.1 < float(top_label_ece(labels, logits, 5).ece) < high
    assert low < float(found.ece) < high


def test_a_method_that_cannot_is_refused_before_anything_is_asked(
    run: tuple[Path, AuditResult], tmp_path: Path
) -> None:
    """Two-answer methods, and too few queries to say anything."""
    folder, _ = run
    with serving(folder / "items.jsonl", np.zeros((N, 4))) as server:
        for more, why in (
            ({"method": "extraction"}, "extraction audits two answers only"),
            ({"queries": 1.0}, "more than 1 per item is needed"),
            ({"queries": 1.0, "method": "auto"}, "more than 1 per item is needed"),
        ):
            with pytest.raises(InputError, match=why):
                audited(folder / "items.jsonl", server, tmp_path / "run", **more)
        assert server.requests == 0


def test_a_change_during_the_run_is_noticed(tmp_path: Path) -> None:
    """Answers that are no longer about the question asked change the result's warnings."""
    rng = np.random.default_rng(1)
    n = 600
    labels = rng.integers(0, 3, n)
    asked = Round(np.arange(n), np.zeros(n), np.zeros(n), about=np.full(n, PLAIN), biases=np.zeros((n, 3)))
    good = np.where(rng.random(n) < 0.8, labels, (labels + 1) % 3)
    questions = [Item(f"q{k}", int(y), (Message("user", str(k)),), choices=3) for k, y in enumerate(labels)]
    pvalues = []
    for changed in (False, True):
        with Store.open(tmp_path / str(changed) / RUN_FILE) as store:
            store.begin({}, questions)
            store.add_round(asked)
            order = np.random.default_rng(0).permutation(n)  # the order of asking of a first round
            answers = good.copy()
            if changed:
                answers[order[n // 2 :]] = 0
            store._insert([StoredReply(query=k, answer=int(a)) for k, a in enumerate(answers)])
            table = AnswerTable.empty().with_round(asked, answers)
            steady, _ = check_steadiness(store, labels, table, 0.0, slack=1)
        assert steady.drift is not None
        pvalues.append(steady.drift.pvalue)
    assert pvalues[0] > 0.01
    assert pvalues[1] < 1e-6


def test_runs_compare_by_their_answers(run: tuple[Path, AuditResult]) -> None:
    """A run does not differ from itself; other answers are refused, and shuffled options are said."""
    one = open_run(run[0] / "run")
    found = compare(one, one, resamples=40)
    assert found.common == N
    assert all(float(each.difference) == 0.0 for each in found.differences)
    shuffled = replace(
        one, settings=one.settings | {"permute": 1}, digests=tuple(b"x%d" % k for k in range(N))
    )
    shuffled = replace(shuffled, labels=(one.labels + 1) % one.choices)  # type: ignore[operator]
    assert compare(one, shuffled, resamples=40).reworded == N
    other = replace(one, result=replace(one.result, answers=("A", "B", "C", "E")))
    with pytest.raises(InputError, match=r"asked for different answers: A, B, C, D and A, B, C, E"):
        compare(one, other)
    with pytest.raises(InputError, match="asked for other answers"):
        together([one, other])


def test_halves_merge_into_the_whole(run: tuple[Path, AuditResult]) -> None:
    """Counts add up, and the estimates are those of all answers together."""
    folder, result = run
    whole = open_run(folder / "run")
    assert whole.choices is not None
    halves = []
    for mine in (slice(0, N // 2), slice(N // 2, N)):
        rows = whole.answered.of(np.arange(N)[mine])
        each = tuple(np.bincount(rows.answers, minlength=4).tolist())
        counts = replace(result.counts, items=N // 2, each=each)
        half = replace(
            whole,
            result=replace(whole.result, by=None, counts=counts),
            answered=replace(rows, items=rows.items - mine.start),
            labels=whole.labels[mine],
            choices=whole.choices[mine],
            **{name: getattr(whole, name)[mine] for name in ("ids", "group_names", "parts", "digests")},
        )
        halves.append(half)
    merged = merge(halves, resamples=40)
    assert (merged.confusion, merged.counts.each) == (result.confusion, result.counts.each)
    assert merged.ece.value == pytest.approx(result.ece.value, abs=1e-6)
    assert merged.margins == result.margins
    assert json.loads(merged.to_json())["answers"] == ["A", "B", "C", "D"]
