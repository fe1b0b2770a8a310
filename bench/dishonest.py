"""How many misleading endpoints the probe finds out, and how many honest ones it refuses.

    python bench/dishonest.py [--repeats 20] [--honest 100]

Every probe asks items of a recorded model, over real HTTP, of a server that misbehaves in one way. The
thresholds of the probe were chosen on the models `TUNED` and other seeds; the table is from the other models.
"""

from __future__ import annotations

from record import Cell, options, record, run_all, score_files, table

import asyncio
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from accuracy import load
from blindcal.asking.governor import GovernedEndpoint, Governor
from blindcal.asking.run_context import RunContext
from blindcal.auditing.prepare import objection
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.methods import METHODS
from blindcal.probing.findings import Probe
from blindcal.probing.probe import probe_endpoint
from blindcal.records import Item, Message, Targets, Token
from blindcal.simulation.recording import Recording
from misbehaving import Behaviour, Server

TUNED = (
    "Meta-Llama-3-8B-Instruct__boolq_0shot_1500",
    "OpenHermes-2-Mistral-7B__truthfulqa_binary",
    "gpt-4o-mini__mmlu_test_direct",
    "gpt3-curie__rte_train_0shot",
)
PAIR = Targets((Token(1, "Yes"),), (Token(2, "No"),))
ITEMS = 12
METHODS_JUDGED = ("latent", "temperature")


@dataclass(frozen=True, slots=True)
class Case:
    """A way to mislead, and words of which one must be in the reason, for each of the two methods.

    A method without words is not harmed.
    """

    name: str
    behaviour: Behaviour
    latent: str = ""
    temperature: str = ""


NO_BIAS = Behaviour(bias="ignored")
RANDOM = "follow|unreliable|change from query"
DEAF = "changes no answer|no more at a high temperature"
ALWAYS = "vary as at T|change from query"
CASES = (
    Case("bias ignored", NO_BIAS, latent="ignored"),
    Case("bias rejected", Behaviour(bias="rejected"), latent="not accepted"),
    Case("first answer to a prompt cached", Behaviour(cached=True), "ignored", DEAF),
    Case("bias inverted", Behaviour(bias_scale=-1), latent="sign inverted"),
    Case("bias clamped at 60", Behaviour(clamp=60), latent="clamped at about (59|60)|range"),
    Case("bias clamped at 30", Behaviour(clamp=30), latent="clamped at about (29|30)"),
    Case("bias rounded", Behaviour(integer_bias=True), latent="rounded"),
    Case("bias times 0.5", Behaviour(bias_scale=0.5), "wrong amount", "wrong amount"),
    Case("bias times 2", Behaviour(bias_scale=2), "wrong amount", "wrong amount"),
    Case("jitter .05", Behaviour(jitter=0.05), "repeatable", ""),
    Case("jitter .1", Behaviour(jitter=0.1), "repeatable", ""),
    Case("jitter .5", Behaviour(jitter=0.5), "repeatable|change from query", "repeatable|change from query"),
    Case("jitter 1", Behaviour(jitter=1), "repeatable|change from query", "repeatable|change from query"),
    Case("1% of answers flipped", Behaviour(flipped=0.01), RANDOM, RANDOM),
    Case("3% of answers flipped", Behaviour(flipped=0.03), RANDOM, RANDOM),
    Case("10% of answers flipped", Behaviour(flipped=0.1), RANDOM, RANDOM),
    Case("30% of answers are other words", Behaviour(outside=0.3), "neither", "neither"),
    Case("temperature ignored", Behaviour(temperature="ignored"), "", DEAF),
    Case("temperature ignored, jitter .05", Behaviour(temperature="ignored", jitter=0.05), "", DEAF),
    Case("temperature ignored, jitter .1", Behaviour(temperature="ignored", jitter=0.1), "", DEAF),
    Case("bias and temperature ignored", replace(NO_BIAS, temperature="ignored"), "ignored", DEAF),
    Case(
        "bias and temperature ignored, jitter .1",
        replace(NO_BIAS, temperature="ignored", jitter=0.1),
        "ignored",
        f"{DEAF}|could not be shown",
    ),
    Case("temperature always 1", Behaviour(temperature="fixed"), ALWAYS, ALWAYS),
    Case(
        "bias ignored, temperature always 1",
        replace(NO_BIAS, temperature="fixed"),
        "ignored",
        f"{ALWAYS}|{DEAF}|could not be shown",
    ),
    *(
        Case(name, replace(cut, sampler_fields="ignored"), "", "cut them off")
        for name, cut in (
            ("min_p .05", Behaviour(min_p=0.05)),
            ("min_p .05 after temperature", Behaviour(min_p=0.05, cut="after")),
            ("top_p .9", Behaviour(top_p=0.9)),
            ("top_p .9 after temperature", Behaviour(top_p=0.9, cut="after")),
        )
    ),
    Case("top_k 1", Behaviour(min_p=1, sampler_fields="ignored"), "", DEAF),
)
HONEST = (
    Case("honest", Behaviour()),
    Case("honest, jitter .02", Behaviour(jitter=0.02)),
    Case("honest, refuses unknown fields", Behaviour(sampler_fields="rejected")),
    Case("honest, min_p .05 unless told otherwise", Behaviour(min_p=0.05)),
)


async def probed(behaviour: Behaviour, path: Path, seed: int) -> Probe:
    """What the probe finds on a random sample of a model's items."""
    rng = np.random.default_rng([seed, 17])
    p = rng.choice(load(path)[1], ITEMS, replace=False)
    items = [Item(f"{k}", 0, (Message("user", f"Question {k}? Yes or No."),)) for k in range(ITEMS)]
    recording = Recording.from_probabilities([item.id for item in items], p)
    async with (
        Server(recording, items, replace(behaviour, seed=seed)) as server,
        HttpEndpoint(Address(server.base_url, "replay"), environ={}) as endpoint,
    ):
        return await probe_endpoint(
            GovernedEndpoint(Governor(endpoint, RunContext())), items, PAIR, seed=seed
        )


def judged(job: tuple[Case, Path, int]) -> tuple[int, dict[str, tuple[str, bool]]]:
    """The queries of one probe; and what each method makes of it, and whether for the right reason."""
    case, path, seed = job
    probe = asyncio.run(probed(case.behaviour, path, seed))
    cautions = [f"{one.question}: {one.answer}" for one in probe.findings if one.outcome == "caution"]
    judgements = {}
    for method in METHODS_JUDGED:
        unfit = objection(probe, METHODS[method])
        outcome = "refused" if unfit else "cautioned" if cautions else "passed"
        pattern = getattr(case, method) or "$^"
        judgements[method] = outcome, bool(re.search(pattern, unfit or "; ".join(cautions)))
    return probe.queries, judgements


def main() -> None:
    """Probe every kind of endpoint, and record how many were found out."""
    arguments = options(__doc__, repeats=20, honest=100)
    paths = [path for path in score_files(arguments.data) if path.name.removesuffix(".csv.gz") not in TUNED]
    heads = {
        f"`{method}`{said}": "{}"
        for method in METHODS_JUDGED
        for said in (" refuses", " cautions", ", right reason")
    }
    tables = {}
    for name, cases, repeats in (
        ("misleading", CASES, arguments.repeats),
        ("honest", HONEST, arguments.honest),
    ):
        rows: list[list[Cell]] = []
        for k, case in enumerate(cases):
            seeds = range(1000 * k, 1000 * k + repeats)
            jobs = [(case, paths[seed % len(paths)], seed) for seed in seeds]
            each = run_all(judged, jobs, arguments, chunk=4)
            row: list[Cell] = [case.name]
            for method in METHODS_JUDGED:
                outcomes, right = zip(*(judgement[method] for _, judgement in each), strict=True)
                row += [outcomes.count("refused"), outcomes.count("cautioned")]
                if name == "misleading":
                    row.append(sum(right) if getattr(case, method) else None)
            rows.append([*row, float(np.mean([queries for queries, _ in each]))])
        shown = {head: form for head, form in heads.items() if name == "misleading" or "reason" not in head}
        tables[name] = table({"endpoint": "{}", **shown, "queries": "{:.0f}"}, rows)
    repeats = {"misleading endpoints": arguments.repeats, "honest ones": arguments.honest}
    record("dishonest", tables, arguments, repeats=repeats)


if __name__ == "__main__":
    main()
