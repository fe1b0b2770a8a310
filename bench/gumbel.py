"""The response curve of Gumbel queries (METHOD 8), measured on the embedded model over HTTP.

    python bench/gumbel.py [--repeats 400]

A question with four options is asked with a shift b on one answer and fresh Gumbel numbers on the others, at
temperature 0. The share of that answer must be exp(-exp(-(s + b))), with its log-odds s against the other
answers from the same server's logprobs. The shifts are those at which this is 10% to 90%.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import numpy as np
from scipy.special import logsumexp
from scipy.stats import binomtest

from blindcal.endpoints import tokens, vocabulary
from blindcal.endpoints.address import Address
from blindcal.endpoints.base import Patient
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.local_server import ServerSettings, serve
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.records import Item, Message
from blindcal.scoring.logprobs import Reader
from record import Cell, parser, record, table

CHANCES = (0.1, 0.3, 0.5, 0.7, 0.9)
LETTERS = "ABCD"
ITEM = Item(
    "planet",
    1,
    (
        Message(
            "user",
            "Which planet is the largest?\nA. Mars\nB. Jupiter\nC. Venus\nD. Earth\n"
            "Reply only with the letter of the right answer.",
        ),
    ),
    choices=4,
)


async def measured(base_url: str, model: str, repeats: int, seed: int) -> list[list[Cell]]:
    """A row per shift: how often the likeliest answer came, and how often it should."""
    async with HttpEndpoint(Address(base_url, model, timeout=300)) as endpoint:
        patient = Patient(endpoint)
        encode = vocabulary.served(endpoint, model)
        spelled = [await tokens.candidates(letter, encode, choice=True) for letter in LETTERS]
        targets = (await tokens.choose(patient, [ITEM], spelled)).targets
        reader = await Reader.open(patient, ITEM, targets)
        logits = np.array((await reader.read(ITEM)).logprobs)
        own = int(logits.argmax())
        log_odds = logits[own] - logsumexp(np.delete(logits, own))
        question, rng = TokenQuestion(targets), np.random.default_rng(seed)

        async def answer(biases: Sequence[float]) -> int:
            request = question.request(ITEM.messages, 0.0, 0.0, biases=np.asarray(biases))
            return question.parse(await patient.ask(request)).answer

        rows: list[list[Cell]] = []
        for chance in CHANCES:
            shift = -math.log(-math.log(chance)) - float(log_odds)
            biases = rng.gumbel(size=(repeats, len(LETTERS)))
            biases[:, own] = shift
            answers = np.array([await answer(row) for row in biases.tolist()])
            hits = int((answers == own).sum())
            test = binomtest(hits, repeats, chance)
            between = test.proportion_ci(0.95)
            predicted = int((answers == (logits + biases).argmax(axis=1)).sum())
            rows.append(
                [shift, chance, hits / repeats, (between.low, between.high), float(test.pvalue), predicted]
            )
        return rows


def main() -> None:
    """Measure the curve, and record the table."""
    arguments = parser(__doc__)
    arguments.add_argument("--repeats", type=int, default=400)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--threads", type=int, default=0)
    options = arguments.parse_args()
    with serve(settings=ServerSettings(threads=options.threads)) as served:
        rows = asyncio.run(measured(served.base_url, served.model, options.repeats, options.seed))
    columns = {
        "shift": "{:+.2f}",
        "expected": "{:.3f}",
        "share": "{:.3f}",
        "95% interval": "{:.3f} to {:.3f}",
        "p-value": "{:.2f}",
        "as predicted": "{:,}",
    }
    tables = {"curve": table(columns, rows)}
    seeds = f"seed {options.seed}"
    record("gumbel", tables, folder=options.results, repeats=options.repeats, seeds=seeds)


if __name__ == "__main__":
    main()
