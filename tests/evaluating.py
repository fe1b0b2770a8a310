"""Evaluations by other tools, run for real: they ask a served model, and write their own logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

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


def run_inspect(base_url: str, model: str, folder: Path) -> dict[str, Path]:
    """The logs of Inspect's tasks by name, with ``.json`` after it for those in JSON."""
    _run(INSPECT_TASKS, base_url, model, folder)
    logs = [*folder.glob("eval/*.eval"), *folder.glob("json/**/*.json")]
    return {path.name.split("_")[1] + path.suffix.replace(".eval", ""): path for path in logs}


def run_lm_eval(base_url: str, model: str, folder: Path) -> dict[str, Path]:
    """The sample logs of the harness by the names of its tasks."""
    odd = [{"question": f"Is {k} odd?", "answer": k % 2} for k in range(12)]
    sums = [{"sum": f"{k} + 1", "options": [f"it is {k}", f"it is {k + 1}"], "right": 1} for k in range(3)]
    for name, rows in (("odd", odd), ("sums", sums)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _write_task(
        folder, "odd_said", "odd", "generate_until", "exact_match",
        doc_to_text="{{question}} Yes or No?", doc_to_target="{{['No', 'Yes'][answer]}}",
        generation_kwargs={"until": ["\n"], "do_sample": False, "max_gen_toks": 4},
    )  # fmt: skip
    _write_task(
        folder, "odd_scored", "odd", "multiple_choice", "acc",
        doc_to_text="{{question}}\nAnswer:", doc_to_target="answer", doc_to_choice=["no", "yes"],
    )  # fmt: skip
    _write_task(
        folder, "sums_scored", "sums", "multiple_choice", "acc",
        doc_to_text="What is {{sum}}?\nAnswer:", doc_to_target="right", doc_to_choice="{{options}}",
    )  # fmt: skip
    _run(LM_EVAL_TASKS, base_url, model, folder)
    return {
        path.name.rpartition("_")[0].removeprefix("samples_"): path for path in folder.glob("*/*/samples_*")
    }


def _write_task(folder: Path, name: str, rows: str, kind: str, metric: str, **more: object) -> None:
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / f"{rows}.jsonl")}},
        "test_split": "test",
        "output_type": kind,
        "metric_list": [{"metric": metric, "aggregation": "mean", "higher_is_better": True}],
        **more,
    }
    (folder / f"{name}.yaml").write_text(json.dumps(task))  # JSON is YAML


def _run(script: str, base_url: str, model: str, folder: Path) -> None:
    """Run a script in a process of its own, without a network but this machine's."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), base_url, model, str(folder)],
        env={**os.environ, **offline, "OPENAI_API_KEY": "none"},
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-4000:]
