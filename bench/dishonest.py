"""How many misleading endpoints the probe finds out, and how many honest ones it refuses.

    python bench/dishonest.py [--repeats 20] [--honest 100]

Every probe asks items of a recorded model, over real HTTP, of a server that misbehaves in one way. The
thresholds of the probe were chosen on the models `TUNED` and seeds from 1,000,000; the table is from the
other models and seeds from 0. `--tuned` shows the former, with reasons, and records nothing.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from record import Cell, parser, record, table

import numpy as np

from blindcal.asking.governed_endpoint import GovernedEndpoint
from blindcal.asking.governor import Governor
from blindcal.asking.run_context import RunContext
from blindcal.auditing.prepare import objection
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.items.score_files import read_table
from blindcal.methods import METHODS
from blindcal.probing.findings import Probe
from blindcal.probing.probe import probe
from blindcal.records import FloatArray, Item, Message, Targets, Token
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
    Case("min_p .05", Behaviour(min_p=0.05, sampler_fields="ignored"), "", "cut them off"),
    Case(
        "min_p .05 after temperature",
        Behaviour(min_p=0.05, cut="after", sampler_fields="ignored"),
        "",
        "cut them off",
    ),
    Case("top_p .9", Behaviour(top_p=0.9, sampler_fields="ignored"), "", "cut them off"),
    Case(
        "top_p .9 after temperature",
        Behaviour(top_p=0.9, cut="after", sampler_fields="ignored"),
        "",
        "cut them off",
    ),
    Case("top_k 1", Behaviour(min_p=1, sampler_fields="ignored"), "", DEAF),
)
HONEST = (
    Case("honest", Behaviour()),
    Case("honest, jitter .02", Behaviour(jitter=0.02)),
    Case("honest, refuses unknown fields", Behaviour(sampler_fields="rejected")),
    Case("honest, min_p .05 unless told otherwise", Behaviour(min_p=0.05)),
)


@cache
def probabilities(path: Path) -> FloatArray:
    """The probabilities in a file of scores."""
    return np.array(read_table(path)["p"], float)


async def probed(behaviour: Behaviour, path: Path, seed: int) -> Probe:
    """What the probe finds on a random sample of a model's items."""
    rng = np.random.default_rng([seed, 17])
    p = rng.choice(probabilities(path), ITEMS, replace=False)
    items = [Item(f"{k}", 0, (Message("user", f"Question {k}? Yes or No."),)) for k in range(ITEMS)]
    recording = Recording.from_probabilities([item.id for item in items], p)
    async with (
        Server(recording, items, replace(behaviour, seed=seed)) as server,
        HttpEndpoint(Address(server.base_url, "replay"), environ={}) as endpoint,
    ):
        return await probe(GovernedEndpoint(Governor(endpoint, RunContext())), items, PAIR, seed=seed)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one method made of a probe, and whether for the right reason."""

    outcome: str
    right: bool
    reason: str
    queries: int


def judged(case: Case, paths: Sequence[Path], seed: int) -> dict[str, Judgement]:
    """What each method makes of one probe."""
    found = asyncio.run(probed(case.behaviour, paths[seed % len(paths)], seed))
    judgements = {}
    for method in METHODS_JUDGED:
        unfit = objection(found, METHODS[method])
        cautions = [f"{one.question}: {one.answer}" for one in found.findings if one.outcome == "caution"]
        reason = unfit or "; ".join(cautions)
        outcome = "refused" if unfit else "cautioned" if cautions else "passed"
        right = bool(re.search(getattr(case, method) or "$^", reason))
        judgements[method] = Judgement(outcome, right, reason, found.queries)
    return judgements


def rows(
    cases: Sequence[Case], paths: Sequence[Path], seeds: range, pool: Executor, *, show: bool
) -> list[list[Cell]]:
    """A row per case: what each method made of it, and the mean number of queries."""
    found = []
    for k, case in enumerate(cases):
        own = range(seeds.start + 1000 * k, seeds.stop + 1000 * k)
        each = list(pool.map(partial(judged, case, paths), own, chunksize=4))
        row: list[Cell] = [case.name]
        for method in METHODS_JUDGED:
            counts = Counter(one[method].outcome for one in each)
            right = sum(one[method].right for one in each)
            row += [counts["refused"], counts["cautioned"], right if getattr(case, method) else None]
            reasons = Counter(one[method].reason for one in each).most_common(4)
            if show:
                print(case.name, method, dict(counts), right, *reasons, sep="\n    ")
        found.append([*row, float(np.mean([one["latent"].queries for one in each]))])
    return found


def main() -> None:
    """Probe every kind of endpoint, and record how many were found out."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=20)
    options.add_argument("--honest", type=int, default=100, help="repeats of each honest endpoint")
    options.add_argument("--tuned", action="store_true", help="use the models and seeds of the tuning")
    options.add_argument("--only", default="", help="pattern of the cases to probe; records nothing")
    arguments = options.parse_args()
    show = arguments.tuned or bool(arguments.only)
    files = sorted((arguments.data / "scores").glob("*.csv.gz"))
    paths = [path for path in files if (path.name.removesuffix(".csv.gz") in TUNED) == arguments.tuned]
    first = 1_000_000 if arguments.tuned else 0
    chosen = [[case for case in cases if re.search(arguments.only, case.name)] for cases in (CASES, HONEST)]
    with ProcessPoolExecutor(arguments.processes) as pool:
        misleading, honest = (
            rows(cases, paths, range(first, first + many), pool, show=show)
            for cases, many in zip(chosen, (arguments.repeats, arguments.honest), strict=True)
        )
    if show:
        return
    named = {"endpoint": "{}"}
    for method in METHODS_JUDGED:
        named |= {
            f"`{method}` refuses": "{}",
            f"`{method}` cautions": "{}",
            f"`{method}`, right reason": "{}",
        }
    named |= {"queries": "{:.0f}"}
    brief = {name: form for name, form in named.items() if "reason" not in name}
    tables = {
        "misleading": table(named, misleading),
        "honest": table(brief, [[cell for k, cell in enumerate(row) if k not in (3, 6)] for row in honest]),
    }
    repeats = {"misleading endpoints": arguments.repeats, "honest ones": arguments.honest}
    record("dishonest", tables, arguments, repeats=repeats)


if __name__ == "__main__":
    main()
