"""What becomes of audits of misleading endpoints, and of honest ones beside them.

    python bench/dishonest.py [--repeats 20] [--honest 25] [--items 250]

Each audit is a whole one with no method named, over real HTTP: items of a recorded model are asked of a
server that misbehaves in one way, from the start or only after the probe. *Refused* audits give no interval.
*Warned* ones say beside the estimates why they may be wrong. Of the rest, the interval of the ECE has *held*
the ECE of all items of the model or *missed* it, which one honest interval in twenty does. The thresholds of
the probe were chosen on the models `TUNED` and other seeds; the table is from the other models.
"""

from __future__ import annotations

from record import Cell, options, record, run_all, score_files, table

import json
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from accuracy import load
from blindcal.auditing.audit import audit
from blindcal.errors import EndpointError, NotIdentifiedError
from blindcal.estimate.truth import binned_ece
from blindcal.records import Item, Message
from blindcal.settings import Settings
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from misbehaving import Behaviour, Server

TUNED = (
    "Meta-Llama-3-8B-Instruct__boolq_0shot_1500",
    "OpenHermes-2-Mistral-7B__truthfulqa_binary",
    "gpt-4o-mini__mmlu_test_direct",
    "gpt3-curie__rte_train_0shot",
)
RESAMPLES = 100
WORDS = ("held", "warned", "refused", "missed")


@dataclass(frozen=True, slots=True)
class Case:
    """An endpoint, which behaves as ``later`` says from ``delay`` queries after the probe on.

    ``unseen`` says why no audit could find it out, if none can.
    """

    name: str
    behaviour: Behaviour
    later: Behaviour | None = None
    delay: int = 0
    unseen: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """One audit, of items of the model in ``path``."""

    case: Case
    path: Path
    items: int
    seed: int


NO_BIAS = Behaviour(bias="rejected")
NEITHER = Behaviour(bias="rejected", temperature="rejected")
SHOWN = Behaviour(logprobs=True)
CUT = Behaviour(sampler_fields="ignored")
SURE = "`repeated`: an item whose answers agree may be one that the model is sure of"
SERVED = "`repeated` measures the answers as they are served"
CASES = (
    Case("bias ignored", Behaviour(bias="ignored")),
    Case("first answer to a prompt cached", Behaviour(cached=1.0)),
    Case("bias inverted", Behaviour(bias_scale=-1)),
    Case("bias clamped at 60", Behaviour(clamp=60)),
    Case("bias clamped at 30", Behaviour(clamp=30)),
    Case("bias rounded", Behaviour(integer_bias=True)),
    Case("bias times 0.5", Behaviour(bias_scale=0.5)),
    Case("bias times 2", Behaviour(bias_scale=2)),
    Case("bias times 0.5, temperature ignored", Behaviour(bias_scale=0.5, temperature="ignored")),
    Case("jitter .1", Behaviour(jitter=0.1)),
    Case("jitter .5", Behaviour(jitter=0.5)),
    Case("jitter 1", Behaviour(jitter=1)),
    Case("1% of answers flipped", Behaviour(flipped=0.01)),
    Case("3% of answers flipped", Behaviour(flipped=0.03), unseen=SERVED),
    Case("10% of answers flipped", Behaviour(flipped=0.1), unseen=SERVED),
    Case("30% of answers are other words", Behaviour(outside=0.3)),
    Case("temperature ignored", Behaviour(temperature="ignored")),
    Case("bias and temperature ignored", Behaviour(bias="ignored", temperature="ignored")),
    Case(
        "bias and temperature ignored, jitter .1",
        Behaviour(bias="ignored", temperature="ignored", jitter=0.1),
        unseen=SERVED,
    ),
    Case("temperature always 1", Behaviour(temperature="fixed")),
    Case("bias ignored, temperature always 1", Behaviour(bias="ignored", temperature="fixed")),
    Case("no bias, temperature times 0.5", replace(NO_BIAS, temperature_scale=0.5)),
    Case("no bias, temperature times 2", replace(NO_BIAS, temperature_scale=2)),
    Case("min_p .05", replace(CUT, min_p=0.05)),
    Case("no bias, min_p .05", replace(CUT, min_p=0.05, bias="rejected")),
    Case("no bias, top_p .9 after temperature", replace(CUT, top_p=0.9, cut="after", bias="rejected")),
    Case("top_k 1", replace(CUT, min_p=1)),
    Case("no bias, one seed", replace(NO_BIAS, draws="one seed")),
    Case("no bias, a seed by prompt", replace(NO_BIAS, draws="by prompt")),
    Case("no bias, half of the prompts from a cache", replace(NO_BIAS, cached=0.5), unseen=SURE),
    Case("neither, one seed", replace(NEITHER, draws="one seed")),
    Case("neither, a seed by prompt", replace(NEITHER, draws="by prompt")),
    Case("neither, half of the requests from a cache", replace(NEITHER, cached_requests=0.5)),
    Case("neither, half of the prompts from a cache", replace(NEITHER, cached=0.5), unseen=SURE),
    Case("logprobs swapped", replace(SHOWN, logprobs_of="answers swapped")),
    Case("logprobs of another item", replace(SHOWN, logprobs_of="another item")),
    Case("logprobs times 0.5", replace(SHOWN, logprobs_scale=0.5)),
    Case("logprobs times 2", replace(SHOWN, logprobs_scale=2)),
    Case("one logprob shown", replace(SHOWN, top_logprobs=1)),
    Case("bias ignored after 60 queries", Behaviour(), Behaviour(bias="ignored"), 60),
    Case("30% of the requests ignore the bias, after the probe", Behaviour(), Behaviour(bias_ignored=0.3)),
    Case("log-odds + 1 after 125 queries", Behaviour(), Behaviour(drift=1), 125),
    Case("log-odds + 2 little by little", Behaviour(), Behaviour(drift=2, drift_over=250)),
    Case("no bias, log-odds + 2 little by little", NO_BIAS, replace(NO_BIAS, drift=2, drift_over=750)),
    Case("3% of the answers flipped, after the probe", Behaviour(), Behaviour(flipped=0.03)),
    Case("jitter .5 after the probe", Behaviour(), Behaviour(jitter=0.5)),
    Case("jitter 1 after the probe", Behaviour(), Behaviour(jitter=1)),
)
HONEST = (
    Case("all that is asked", Behaviour()),
    Case("jitter .02", Behaviour(jitter=0.02)),
    Case("unknown fields refused", Behaviour(sampler_fields="rejected")),
    Case("min_p .05 unless told otherwise", Behaviour(min_p=0.05)),
    Case("logprobs shown", SHOWN),
    Case("no bias", NO_BIAS),
    Case("neither bias nor temperature", NEITHER),
    Case("neither, one answer per request", replace(NEITHER, n="ignored")),
)


def outcome(job: Job) -> tuple[str, str]:
    """What became of one audit, and its method."""
    labels, p = load(job.path)
    rng = np.random.default_rng([job.seed, 17])
    chosen = rng.choice(p.size, job.items, replace=False)
    items = [
        Item(f"q{k}", int(labels[row]), (Message("user", f"Question {k}? Yes or No."),))
        for k, row in enumerate(chosen)
    ]
    recording = Recording.from_probabilities([item.id for item in items], p[chosen])
    server = Server(recording, items, replace(job.case.behaviour, seed=job.seed))

    def follow(step: str) -> None:
        if step == "asking" and (later := job.case.later) is not None:
            later = replace(later, seed=job.seed)
            begins = server.requests + job.case.delay + 1
            server.behaviour = replace(server.behaviour, later=later, later_from=begins)

    with tempfile.TemporaryDirectory() as folder, running(server):
        file = Path(folder) / "items.jsonl"
        records = ({"id": q.id, "label": q.label, "prompt": q.messages[0].content} for q in items)
        file.write_text("".join(json.dumps(each) + "\n" for each in records))
        settings = Settings(model="replay", base_url=server.base_url, seed=job.seed, resamples=RESAMPLES)
        try:
            result = audit(file, settings, out=Path(folder) / "run", stage=follow)
        except (EndpointError, NotIdentifiedError):
            return "refused", ""
    if not result.ece.has_interval:
        return "refused", result.method
    if result.warnings or result.unverified is not None:
        return "warned", result.method
    truth = float(binned_ece(labels, p, len(result.bins)).ece)
    return "held" if truth in result.ece else "missed", result.method


def main() -> None:
    """Audit every kind of endpoint, and record what became of it."""
    arguments = options(__doc__, repeats=20, honest=25, items=250)
    paths = [path for path in score_files(arguments.data) if path.name.removesuffix(".csv.gz") not in TUNED]
    tables = {}
    for name, cases, repeats in (
        ("misleading", CASES, arguments.repeats),
        ("honest", HONEST, arguments.honest),
    ):
        jobs = [
            Job(case, paths[seed % len(paths)], arguments.items, 1000 * k + seed)
            for k, case in enumerate(cases)
            for seed in range(repeats)
        ]
        each = run_all(outcome, jobs, arguments, chunk=4)
        rows: list[list[Cell]] = []
        for k, case in enumerate(cases):
            words, methods = zip(*each[k * repeats : (k + 1) * repeats], strict=True)
            used = ", ".join(f"`{method}` {many}" for method, many in Counter(filter(None, methods)).items())
            row: list[Cell] = [case.name, *map(words.count, WORDS), used]
            rows.append([*row, case.unseen] if name == "misleading" else row)
        columns = {"endpoint": "{}", **dict.fromkeys(WORDS, "{}"), "audited by": "{}"}
        columns |= {"cannot be seen": "{}"} if name == "misleading" else {}
        tables[name] = table(columns, rows)
    repeats = {"misleading endpoints": arguments.repeats, "honest ones": arguments.honest}
    record("dishonest", tables, arguments, repeats=repeats)


if __name__ == "__main__":
    main()
