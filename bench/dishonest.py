"""What becomes of audits of misleading endpoints, and of honest ones beside them.

    python bench/dishonest.py [--repeats 20] [--honest 25] [--items 250]
    python bench/dishonest.py --decisions

Each audit is a whole one with no method named, over real HTTP: items of a recorded model are asked of a
server that misbehaves in one way, from the start or only after the probe. *Refused* audits give no interval.
*Warned* ones say beside the estimates why they may be wrong. Of the rest, the interval of the ECE has *held*
the ECE of all items of the model or *missed* it, which one honest interval in twenty does. The thresholds of
the probe were chosen on the models `TUNED` and other seeds; the table is from the other models.

With --decisions, the endpoints are decision APIs, asked in either form by turns. *Said* counts the audits
that name what is odd, in a warning, a note or a finding of the probe.
"""

from __future__ import annotations

from record import Cell, Table, parser, record, run_all, score_files, table

import json
import re
import tempfile
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from accuracy import load
from blindcal.auditing.audit import audit
from blindcal.errors import EndpointError, NotIdentifiedError
from blindcal.estimate.truth import binned_ece, given_confidence
from blindcal.items.catalogue import open_items
from blindcal.items.score_files import read_choices
from blindcal.records import FloatArray, IntArray
from blindcal.results.result import AuditResult
from blindcal.settings import Settings
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from decision_server import Deciding, DecisionServer
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

    ``unseen`` says why no audit could find it out, if none can. ``said`` is a pattern of what an audit should
    say about a decision API, ``path`` is where its address ends, and ``several`` asks for one of four.
    """

    name: str
    behaviour: Behaviour
    later: Behaviour | None = None
    delay: int = 0
    unseen: str = ""
    said: str = ""
    path: str = ""
    several: bool = False

    @property
    def form(self) -> str:
        """``each`` form of a decision API by turns, or the one that is found."""
        own = self.behaviour
        return "each" if isinstance(own, Deciding) and own.speaks == "either" else "found"


@dataclass(frozen=True, slots=True)
class Job:
    """One audit, of items of the model in ``path``."""

    case: Case
    path: Path
    items: int
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an audit, by which method, and whether it said what is odd."""

    word: str
    method: str
    said: bool


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


DECISIONS = (
    Case("all that is asked", Deciding()),
    Case("all that is asked, of four answers", Deciding(), several=True),
    Case("four answers, in another order than asked", Deciding(reversed=True), several=True),
    Case("systemone at /decisions", Deciding(speaks="systemone"), path="/decisions", said="speaks systemone"),
    Case("decisions at /systemone", Deciding(speaks="decisions"), path="/systemone", said="speaks decisions"),
    Case("neither, logprobs shown", Deciding(speaks="neither", logprobs=True), said="no decision API"),
    Case("rounded to two decimals", Deciding(decimals=2), said="rounded to two decimals"),
    Case("jitter .02 of the probability", Deciding(moves=0.02), said="moves by"),
    Case("another model named", Deciding(named="another"), said="name another"),
    Case("another model after 125 queries", Deciding(), Deciding(swapped_from=0), 125, said="changed"),
    Case("10% of the positive questions refused", Deciding(refused=0.1), said="refus"),
    Case("probabilities add up to .9", Deciding(sums=0.9), several=True, said="add up to"),
    Case("a confidence of .99", Deciding(confidence=0.99), several=True, said="confidence"),
)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Items drawn from a recorded model; whether it is right, and how sure, on all that they come from."""

    labels: IntArray
    recording: Recording
    right: IntArray
    confidence: FloatArray


def draw(job: Job, file: Path) -> Drawn:
    """Draw the items of an audit, and write them to its file."""
    rng = np.random.default_rng([job.seed, 17])
    if job.case.several:
        scores = read_choices(job.path)
        chosen = rng.choice(scores.labels.size, job.items, replace=False)
        labels, logits = scores.labels[chosen], scores.logits[chosen]
        given, confidence = given_confidence(scores.logits)
        right = (given == scores.labels).astype(np.int64)
    else:
        right, confidence = load(job.path)
        chosen = rng.choice(confidence.size, job.items, replace=False)
        labels = right[chosen]
    names = [f"q{k}" for k in range(job.items)]
    rows = [
        {"id": name, "prompt": f"Question {k}? Yes or No.", "label": int(labels[k])}
        for k, name in enumerate(names)
    ]
    if job.case.several:
        options = {"choices": [f"{answer} is right" for answer in scores.answers]}
        rows = [{**row, **options} for row in rows]
        recording = Recording.of_choices(names, logits, scores.answers)
    else:
        recording = Recording.from_probabilities(names, confidence[chosen])
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Drawn(labels, recording, right, confidence)


def outcome(job: Job) -> Outcome:
    """What became of one audit."""
    told: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "items.jsonl"
        known = draw(job, file)
        server = _server(job, known, file)

        def follow(step: str) -> None:
            told.append(step)
            if step == "asking" and (later := job.case.later) is not None:
                begins = server.requests + job.case.delay + 1
                later = replace(later, seed=job.seed)
                server.behaviour = replace(server.behaviour, later=later, later_from=begins)

        api = "systemone" if job.seed % 2 and job.case.form == "each" else "auto"
        with running(server):
            url = server.base_url + job.case.path
            settings = Settings(model="replay", base_url=url, api=api, seed=job.seed, resamples=RESAMPLES)
            try:
                result = audit(file, settings, out=Path(folder) / "run", stage=follow)
            except (EndpointError, NotIdentifiedError) as error:
                return Outcome("refused", "", _said(job.case, [str(error)]))
    said = _said(job.case, [*told, *_sentences(result)])
    if not result.ece.has_interval:
        return Outcome("refused", result.method, said)
    if result.warnings or result.unverified is not None:
        return Outcome("warned", result.method, said)
    truth = float(binned_ece(known.right, known.confidence, len(result.bins)).ece)
    return Outcome("held" if truth in result.ece else "missed", result.method, said)


def _server(job: Job, known: Drawn, file: Path) -> Server:
    items = open_items(file, Settings(model="replay").prompt)
    behaviour = replace(job.case.behaviour, seed=job.seed)
    if not isinstance(behaviour, Deciding):
        return Server(known.recording, items, behaviour)
    positive = tuple(np.flatnonzero(known.labels == 1).tolist())
    return DecisionServer(known.recording, items, replace(behaviour, refusable=positive))


def _sentences(result: AuditResult) -> list[str]:
    findings = result.probe.findings if result.probe else ()
    steady = result.steadiness
    notes = (*steady.warnings, *steady.notes) if steady else ()
    return [*notes, *result.invalid_reasons, *(finding.answer for finding in findings)]


def _said(case: Case, lines: Sequence[str]) -> bool:
    return bool(case.said) and any(re.search(case.said, line) for line in lines)


def main() -> None:
    """Audit every kind of endpoint, and record what became of it."""
    options = parser(__doc__, repeats=20, honest=25, items=250)
    options.add_argument("--decisions", action="store_true", help="audit decision APIs")
    arguments = options.parse_args()
    paths = [path for path in score_files(arguments.data) if path.name.removesuffix(".csv.gz") not in TUNED]
    if arguments.decisions:
        tables = {"decisions": measured(DECISIONS, paths, arguments, arguments.repeats, "said")}
        record("dishonest-decisions", tables, arguments)
        return
    tables = {
        "misleading": measured(CASES, paths, arguments, arguments.repeats, "cannot be seen"),
        "honest": measured(HONEST, paths, arguments, arguments.honest),
    }
    repeats = {"misleading endpoints": arguments.repeats, "honest ones": arguments.honest}
    record("dishonest", tables, arguments, repeats=repeats)


def measured(
    cases: Sequence[Case], paths: Sequence[Path], arguments: Namespace, repeats: int, last: str = ""
) -> Table:
    """The table of these endpoints, with the column ``last``."""
    several = sorted((arguments.data / "choices").glob("*.csv.gz"))
    jobs = [
        Job(case, known[seed % len(known)], arguments.items, 1000 * k + seed)
        for k, case in enumerate(cases)
        for known in [several if case.several else paths]
        for seed in range(repeats)
    ]
    each = run_all(outcome, jobs, arguments, chunk=4)
    rows: list[list[Cell]] = []
    for k, case in enumerate(cases):
        own = each[k * repeats : (k + 1) * repeats]
        words, used = Counter(one.word for one in own), Counter(one.method for one in own if one.method)
        methods = ", ".join(f"`{method}` {many}" for method, many in used.items())
        said = sum(one.said for one in own) if case.said else None
        row: list[Cell] = [case.name, *map(words.__getitem__, WORDS), methods]
        rows.append([*row, said if last == "said" else case.unseen] if last else row)
    columns = {"endpoint": "{}", **dict.fromkeys(WORDS, "{}"), "audited by": "{}"}
    return table(columns | ({last: "{}"} if last else {}), rows)


if __name__ == "__main__":
    main()
