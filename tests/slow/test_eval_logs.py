"""Questions from the logs of other tools, which run here for real against the embedded model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blindcal.auditing.audit import audit
from blindcal.endpoints.local_model import Served, ServerSettings, serve
from blindcal.errors import InputError
from blindcal.estimate.truth import binned_ece
from blindcal.items.catalogue import open_items
from blindcal.items.eval_logs import LoggedQuestion, item_records
from blindcal.items.record_format import RecordFormat
from blindcal.records import Message
from blindcal.settings import Settings
from commanding import blindcal, refusal
from paths import ROOT
from serving import model_or_skip

#: Three tasks of Inspect: two answers, options, and free text.
INSPECT_TASKS = """
    import sys
    from inspect_ai import Epochs, Task, eval
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.log import convert_eval_logs
    from inspect_ai.model import GenerateConfig, get_model
    from inspect_ai.scorer import choice, match
    from inspect_ai.solver import generate, multiple_choice, system_message

    base_url, model, folder = sys.argv[1:]
    asked = get_model(f"openai-api/served/{model}", base_url=base_url, api_key="none")
    greedy = GenerateConfig(temperature=0, max_tokens=4)


    def task(name, samples, solver, scorer, **more):
        data = MemoryDataset(samples)
        return Task(dataset=data, solver=solver, scorer=scorer, name=name, config=greedy, **more)


    odd = [
        Sample(f"Is {k} odd? Yes or No?", target="Yes" if k % 2 else "No", id=k, metadata={"even": 1 - k % 2})
        for k in range(6)
    ]
    quiz = [
        Sample(f"What is {k} + 1?", choices=[str(k + 1), str(k)], target="A", id=f"q{k}") for k in range(3)
    ]
    tasks = [
        task("odd", odd, [system_message("Be brief."), generate()], match()),
        task("quiz", quiz, multiple_choice(), choice(), epochs=Epochs(2)),
        task("capitals", [Sample("Capital of France?", target="Paris")], generate(), match()),
    ]
    logs = eval(tasks, model=asked, log_dir=f"{folder}/eval", display="none", max_tasks=1)
    assert all(log.status == "success" for log in logs), [log.error for log in logs]
    convert_eval_logs(f"{folder}/eval", "json", f"{folder}/json")
"""

#: One task of the harness that is generated, and two whose answers are scored, by a model that guesses.
LM_EVAL_TASKS = """
    import sys
    import lm_eval
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    base_url, model, folder = sys.argv[1:]
    tasks = TaskManager(include_path=folder, include_defaults=False)
    where = {"model": model, "base_url": f"{base_url}/chat/completions"}
    for kind, args, names in (
        ("local-chat-completions", where, ["odd_said"]),
        ("dummy", {}, ["odd_scored", "sums_scored"]),
    ):
        tracker = EvaluationTracker(output_path=f"{folder}/{kind}")
        found = lm_eval.simple_evaluate(
            model=kind, model_args=args, tasks=names, task_manager=tasks, log_samples=True, bootstrap_iters=0,
            evaluation_tracker=tracker, apply_chat_template=kind != "dummy",
        )
        samples = found.pop("samples")
        tracker.save_results_aggregated(found, samples)
        for name in names:
            tracker.save_results_samples(name, samples[name])
"""


def run(script: str, served: Served, folder: Path) -> None:
    """Run a script in a process of its own, without a network but this machine's."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), served.base_url, served.model, str(folder)],
        env={**os.environ, **offline, "OPENAI_API_KEY": "none"},
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve(model_or_skip(), ServerSettings(context=512, threads=1)) as served:
        yield served


@pytest.fixture(scope="module")
def inspect(served: Served, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Logs that Inspect wrote, by the names of its tasks, with ``.json`` after it for those in JSON."""
    pytest.importorskip("inspect_ai", reason="Inspect needs: pip install 'blindcal[inspect]'")
    folder = tmp_path_factory.mktemp("inspect")
    run(INSPECT_TASKS, served, folder)
    logs = [*folder.glob("eval/*.eval"), *folder.glob("json/**/*.json")]
    return {path.name.split("_")[1] + path.suffix.replace(".eval", ""): path for path in logs}


#: What the tasks of the harness ask, and the rows that they ask about.
HARNESS: dict[str, tuple[str, dict[str, object]]] = {
    "odd_said": (
        "odd",
        {
            "output_type": "generate_until",
            "doc_to_text": "{{question}} Yes or No?",
            "doc_to_target": "{{['No', 'Yes'][answer]}}",
            "generation_kwargs": {"until": ["\n"], "do_sample": False, "max_gen_toks": 4},
        },
    ),
    "odd_scored": (
        "odd",
        {"doc_to_text": "{{question}}\nAnswer:", "doc_to_target": "answer", "doc_to_choice": ["no", "yes"]},
    ),
    "sums_scored": (
        "sums",
        {
            "doc_to_text": "What is {{sum}}?\nAnswer:",
            "doc_to_target": "right",
            "doc_to_choice": "{{options}}",
        },
    ),
}
ROWS: dict[str, list[dict[str, object]]] = {
    "odd": [{"question": f"Is {k} odd?", "answer": k % 2} for k in range(12)],
    "sums": [{"sum": f"{k} + 1", "options": [f"it is {k}", f"it is {k + 1}"], "right": 1} for k in range(3)],
}


@pytest.fixture(scope="module")
def harness(served: Served, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Logs that lm-evaluation-harness wrote, by the names of its tasks."""
    pytest.importorskip("lm_eval", reason="the harness needs: pip install 'lm-eval[api]'")
    folder = tmp_path_factory.mktemp("harness")
    for name, rows in ROWS.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, (rows_of, asked) in HARNESS.items():
        metric = "exact_match" if name == "odd_said" else "acc"
        task = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(folder / f"{rows_of}.jsonl")}},
            "test_split": "test",
            "output_type": "multiple_choice",
            "metric_list": [{"metric": metric, "aggregation": "mean", "higher_is_better": True}],
            **asked,
        }
        (folder / f"{name}.yaml").write_text(json.dumps(task))  # JSON is YAML
    run(LM_EVAL_TASKS, served, folder)
    return {
        path.name.rpartition("_")[0].removeprefix("samples_"): path for path in folder.glob("*/*/samples_*")
    }


# Inspect


@pytest.mark.parametrize("kind", ["", ".json"])
def test_inspect_asks_what_was_sent(inspect: dict[str, Path], kind: str, tmp_path: Path) -> None:
    """Messages, targets and metadata of a log in either form are its samples', also once converted."""
    log, out = inspect[f"odd{kind}"], tmp_path / "items.jsonl"
    items = open_items(log, RecordFormat(by_field="even"))
    asked = {item.id: item for item in items}
    assert items.words == ("Yes", "No")
    assert asked["3"].messages == (Message("system", "Be brief."), Message("user", "Is 3 odd? Yes or No?"))
    assert {name: item.label for name, item in asked.items()} == {str(k): k % 2 for k in range(6)}
    assert set(items.parts or ()) == {"0", "1"}
    assert blindcal("items", log, "--out", out).exit_code == 0
    again = open_items(out, RecordFormat(by_field="even"))
    assert (list(again), again.digest) == (list(items), items.digest)


def test_inspect_options_are_shown_in_a_prompt_of_ours(inspect: dict[str, Path]) -> None:
    """Multiple choice is answered with a letter, and of several epochs each sample is asked once."""
    items = open_items(inspect["quiz"])
    assert items.words == ("B", "A")  # of two options, the second is the positive answer
    asked = {item.id: item for item in items}
    assert sorted(asked) == ["q0", "q1", "q2"]
    (message,) = asked["q2"].messages
    assert message.content == "What is 2 + 1?\nA. 3\nB. 2\nReply only with the letter of the right answer."
    assert {item.label for item in items} == {0}


def test_a_second_turn_is_refused(inspect: dict[str, Path], tmp_path: Path) -> None:
    """The model's first answer is no part of a question."""
    from inspect_ai.log import read_eval_log, write_eval_log
    from inspect_ai.model import ChatMessageAssistant, ChatMessageUser

    log = read_eval_log(str(inspect["odd"]))
    for sample in log.samples or ():
        sample.messages += [ChatMessageUser(content="Are you sure?"), ChatMessageAssistant(content="Yes")]
    write_eval_log(log, str(tmp_path / "other.eval"))
    with pytest.raises(InputError, match="several turns"):
        open_items(tmp_path / "other.eval")


def test_inspect_free_text_is_refused_with_a_cure(inspect: dict[str, Path], tmp_path: Path) -> None:
    """Targets that are no words of a fixed set end the command in one line; the user can name the set."""
    log, out = inspect["capitals"], tmp_path / "items.jsonl"
    line = refusal(blindcal("items", log))
    assert line.startswith(f"{log}: the target 'Paris' is free text: ")
    assert "--answers" in line
    assert blindcal("items", log, "--answers", "Paris,Rome,Oslo", "--out", out).exit_code == 0
    items = open_items(out)
    assert (items.answers, items[0].label) == (("Paris", "Rome", "Oslo"), 0)


# lm-evaluation-harness


def test_harness_texts_are_audited(harness: dict[str, Path], served: Served, tmp_path: Path) -> None:
    """What the harness sent as a chat is asked again."""
    items = open_items(harness["odd_said"])
    assert items.words == ("Yes", "No")
    assert items[3].messages == (Message("user", "Is 3 odd? Yes or No?"),)
    assert items.labels.tolist() == [k % 2 for k in range(12)]
    settings = Settings(model=served.model, base_url=served.base_url, method="logprobs", resamples=20)
    result = audit(harness["odd_said"], settings, out=tmp_path / "run")
    assert (result.complete, result.counts.items) == (True, 12)


def test_harness_options_that_were_scored_are_the_answers(harness: dict[str, Path]) -> None:
    """The same words for all answer the prompt as it was; longer texts get letters in place of the cue."""
    items = open_items(harness["odd_scored"], RecordFormat(role="prompt"))
    assert items.words == ("yes", "no")
    assert items[3].messages == (Message("prompt", "Is 3 odd?\nAnswer:"),)
    assert items.labels.tolist() == [k % 2 for k in range(12)]
    items = open_items(harness["sums_scored"])
    assert items.words == ("B", "A")
    assert items[2].messages[0].content == (
        "What is 2 + 1?\nA. it is 2\nB. it is 3\nReply only with the letter of the right answer."
    )
    assert items.labels.tolist() == [1, 1, 1]


def test_a_target_that_could_be_an_index_or_a_text_is_refused(
    harness: dict[str, Path], tmp_path: Path
) -> None:
    """The harness writes indices as texts, so that of options "1" and "2" the target "1" may be either."""
    path = tmp_path / "samples_odd_2026.jsonl"
    lines = harness["odd_scored"].read_text().replace('" no"', '"1"').replace('" yes"', '"2"')
    path.write_text(lines)
    with pytest.raises(InputError, match="may be the text of an option or its index"):
        open_items(path)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"target": "[0, 1]"}, r"sample 1: the target '\[0, 1\]' is not exactly one of its 2 options"),
        ({"arguments": {}}, "sample 1: is not one of lm-evaluation-harness"),
    ],
)
def test_harness_samples_that_are_no_questions(
    harness: dict[str, Path], tmp_path: Path, change: dict[str, Any], error: str
) -> None:
    """What cannot be audited is named with its place."""
    lines = harness["odd_scored"].read_text().splitlines()
    path = tmp_path / "samples_odd_2026.jsonl"
    path.write_text("\n".join([json.dumps({**json.loads(lines[0]), **change}), *lines[1:]]))
    with pytest.raises(InputError, match=error):
        open_items(path)


# Scored answers


@pytest.mark.parametrize(
    ("log", "items", "question"), [("capitals", 1, "Capital of France?"), ("quiz", 6, "0 + 1")]
)
def test_a_self_check_asks_about_the_answers_that_inspect_scored(
    inspect: dict[str, Path], served: Served, log: str, items: int, question: str
) -> None:
    """The answer and its score are those of the log, of every epoch, and the model is named."""
    checked = open_items(inspect[log], RecordFormat(self_check=True))
    assert (len(checked), set(checked.parts or ())) == (items, {f"openai-api/served/{served.model}"})
    from inspect_ai.log import read_eval_log

    scored = [
        next(iter((sample.scores or {}).values())).value
        for sample in read_eval_log(str(inspect[log])).samples or ()
    ]
    assert checked.labels.tolist() == [int(value == "C") for value in scored]
    text = checked[0].messages[0].content
    assert question in text
    assert text.endswith("Is the proposed answer correct? Reply only with Yes or No.")
    with pytest.raises(InputError, match="has no score 'other'"):
        open_items(inspect[log], RecordFormat(self_check=True, label_field="other"))


def test_a_self_check_asks_about_the_answers_that_the_harness_scored(
    harness: dict[str, Path], served: Served
) -> None:
    """A generated answer has one text and a score; choices that were only compared have none."""
    checked = open_items(harness["odd_said"], RecordFormat(self_check=True))
    scores = [json.loads(line)["exact_match"] for line in harness["odd_said"].read_text().splitlines()]
    assert checked.labels.tolist() == scores
    assert set(checked.parts or ()) == {served.model}
    assert checked[3].messages[0].content.startswith("Question: Is 3 odd? Yes or No?\nProposed answer: ")
    with pytest.raises(InputError, match="line 1: has no single answer in text"):
        open_items(harness["odd_scored"], RecordFormat(self_check=True))


# The ECE as a metric of the other tool, as the pages show it


def page_block(page: str, heading: str, kind: str) -> str:
    """The first fenced block of a kind after a heading of a page."""
    text = (ROOT / "docs" / page).read_text().partition(f"## {heading}\n")[2]
    found = re.search(rf"^```{kind}\n(.*?)^```$", text, re.M | re.S)
    assert found is not None
    return found[1]


def printed_by(script: str, folder: Path) -> dict[str, float]:
    """The JSON that a script prints last."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, **offline},
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


INSPECT_METRIC = """
    import json, random
    from inspect_ai import Task, eval
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.scorer import Score, accuracy, scorer
    from inspect_ai.solver import solver
    from ece import ece

    rng = random.Random(0)
    shown = [rng.random() for _ in range(300)]
    right = [int(rng.random() < p**2) for p in shown]

    @solver
    def idle():
        async def solve(state, generate):
            return state
        return solve

    @scorer(metrics=[accuracy(), ece()])
    def confident():
        async def score(state, target):
            return Score(value=right[state.sample_id], metadata={"confidence": shown[state.sample_id]})
        return score

    data = MemoryDataset([Sample("?", id=k) for k in range(300)])
    task = Task(dataset=data, solver=idle(), scorer=confident())
    (log,) = eval(task, model="mockllm/model", display="none")
    assert log.status == "success", log.error
    found = {name: one.value for score in log.results.scores for name, one in score.metrics.items()}
    print(json.dumps(found | {"right": right, "shown": shown}))
"""


def test_the_metric_for_inspect_prints_an_interval(tmp_path: Path) -> None:
    """Inspect shows the ECE of the confidences that a scorer wrote down."""
    pytest.importorskip("inspect_ai")
    (tmp_path / "ece.py").write_text(page_block("inspect.md", "The ECE as a metric of Inspect", "python"))
    found: dict[str, Any] = printed_by(INSPECT_METRIC, tmp_path)
    assert found["accuracy"] == pytest.approx(np.mean(found["right"]))
    assert found["ece"] == pytest.approx(binned_ece(found["right"], found["shown"], 5).ece.value)
    assert 0.05 < found["ece_low"] < found["ece"] < found["ece_high"] < 0.3


HARNESS_METRIC = """
    import json
    import lm_eval
    from lm_eval.tasks import TaskManager

    tasks = TaskManager(include_path=".", include_defaults=False)
    found = lm_eval.simple_evaluate(model="dummy", tasks=["quiz"], task_manager=tasks, bootstrap_iters=0)
    print(json.dumps({k.removesuffix(",none"): v for k, v in found["results"]["quiz"].items()}))
"""


def test_the_recipe_for_the_harness_prints_an_interval(tmp_path: Path) -> None:
    """The harness shows the ECE of a model that guesses, whatever it prefers."""
    pytest.importorskip("lm_eval")
    rows = [{"question": f"Which is {k}?", "options": list("abcd"), "label": k % 4} for k in range(200)]
    (tmp_path / "quiz.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = {
        "task": "quiz",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "quiz.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{options}}",
        "doc_to_target": "label",
    }
    heading = "The ECE as a metric of the harness"
    lines = "".join(f"{name}: {json.dumps(value)}\n" for name, value in asked.items())
    (tmp_path / "quiz.yaml").write_text(lines + page_block("lm-eval.md", heading, "yaml"))
    (tmp_path / "ece.py").write_text(page_block("lm-eval.md", heading, "python"))
    found = printed_by(HARNESS_METRIC, tmp_path)
    assert 0.1 < found["acc"] < 0.4
    assert 0 <= found["ece_low"] < found["ece"] < found["ece_high"] < 0.4


# What is asked and what is not


def records_of(*targets: str) -> list[dict[str, Any]]:
    asked = (Message("user", "?"),)
    questions = [LoggedQuestion(id=t, messages=asked, target=t, question="?") for t in targets]
    return list(item_records(questions))


@pytest.mark.parametrize(
    ("targets", "answers"),
    [
        (("no", "no"), ["yes", "no"]),
        (("TRUE", "FALSE"), ["TRUE", "FALSE"]),
        (("A", "C", "B"), ["A", "B", "C"]),
    ],
)
def test_targets_show_the_answers(targets: tuple[str, ...], answers: list[str]) -> None:
    """Yes or no, true or false, and letters are recognised, in the spelling of the log."""
    assert [record["answers"] for record in records_of(*targets)] == [answers] * len(targets)


def test_targets_that_show_too_little() -> None:
    """One letter, or words of two pairs, could mean anything."""
    for targets in (("A", "A"), ("yes", "false")):
        with pytest.raises(InputError, match="do not show which answers are possible"):
            records_of(*targets)


def test_a_damaged_log_is_named(tmp_path: Path) -> None:
    """A file that only looks like a log of Inspect is one line, with the path."""
    pytest.importorskip("inspect_ai")
    path = tmp_path / "broken.eval"
    path.write_bytes(b"PK\x03\x04 not a log")
    with pytest.raises(InputError, match=r"broken\.eval: is not a log that Inspect can read"):
        open_items(path)
