"""What a decision API shows: are its probabilities whole, and the same for the same request again?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import expit

from blindcal.endpoints import Endpoint
from blindcal.endpoints.query_format import DecisionQuestion, ParsedAnswer
from blindcal.probing.client import ProbeClient
from blindcal.probing.findings import Probe
from blindcal.records import INVALID, FloatArray, Item, Reply, Targets

ITEMS = 6  # number of items that are asked, each twice
_ROUND_TO = 100  # probabilities may be whole multiples of its inverse
_EDGE = 0.005  # jitter is measured in log-odds between this and one minus this


async def probe_decisions(
    endpoint: Endpoint, items: Sequence[Item], targets: Targets, question: DecisionQuestion, model: str
) -> Probe:
    """Find out what a decision API shows, on a few of the audit's own ``items``, in about a dozen queries."""
    client = ProbeClient(endpoint, targets, 0)
    pairs: list[tuple[Reply, ParsedAnswer, Reply, ParsedAnswer]] = []
    refused = 0
    for item in items[:ITEMS]:
        request = question.request(item.messages, 0.0, 0.0)
        replies = [reply for _ in range(2) if (reply := await client.reply(request)) is not None]
        read = [question.parse(reply) for reply in replies]
        refused += any(parsed.answer == INVALID for parsed in read)
        if len(read) == 2 and INVALID not in (read[0].answer, read[1].answer):
            pairs.append((replies[0], read[0], replies[1], read[1]))
    trouble = _trouble(client, pairs, refused, model)
    return Probe(
        verdict="not auditable" if trouble else "decisions",
        reason=trouble or "probabilities are shown",
        **client.report,
        jitter=None if trouble else _jitter(_shown(pairs)),
        ways={"decisions": trouble},
        tempered=False,
    )


def _shown(pairs: Sequence[tuple[Reply, ParsedAnswer, Reply, ParsedAnswer]]) -> FloatArray:
    """The probabilities shown for each item, one row each, in two columns."""
    return expit(np.array([[first.low, second.low] for _, first, _, second in pairs], np.float64))


def _jitter(shown: FloatArray) -> float:
    odds = np.clip(shown, _EDGE, 1 - _EDGE)
    return float(np.diff(np.log(odds / (1 - odds))).std() / np.sqrt(2))


def _trouble(
    client: ProbeClient,
    pairs: Sequence[tuple[Reply, ParsedAnswer, Reply, ParsedAnswer]],
    refused: int,
    model: str,
) -> str:
    """Why the probabilities cannot be audited; empty if they can. The findings say what to mind."""
    if not pairs:
        broken = "every question was refused" if client.broken is None else client.broken.message
        return client.find("answers at all", "bad", broken, broken)
    if refused:
        client.find("answers at all", "caution", f"{refused} of {ITEMS} questions were refused")
    wrong = [each.reason for _, first, _, second in pairs for each in (first, second) if each.reason]
    asked, shown = 2 * len(pairs), _shown(pairs)
    if len(wrong) == asked:
        return client.find("agrees with itself", "bad", f"no: {wrong[0]}", wrong[0])
    if wrong:
        client.find("agrees with itself", "caution", f"not {len(wrong)} of {asked} replies: {wrong[0]}")
    if len(pairs) > 1 and np.isin(np.round(shown, 9), (0.0, 1.0)).all():
        only = "all probabilities shown are 0 or 1, which are not those of a model"
        return client.find("shows probabilities", "bad", only, only)
    if len(pairs) > 1 and np.ptp(shown) == 0:
        same = f"every item gets the same probability, {shown[0, 0]:.4g}"
        return client.find("shows probabilities", "bad", f"{same}: does the input reach the model?", same)
    coarse = np.allclose(shown * _ROUND_TO, np.round(shown * _ROUND_TO), atol=1e-6)
    rounded = "rounded to two decimals: no threshold between them can be told apart"
    client.find("shows probabilities", "caution" if coarse else "good", rounded if coarse else "yes")
    moved = np.abs(np.diff(shown)).max()
    still = "the same question gets the same probability"
    moves = f"the same question's probability moves by up to {moved:.2g}"
    client.find("repeatable alone", "caution" if moved else "good", moves if moved else still)
    named = {reply.model for first, _, second, _ in pairs for reply in (first, second)} - {None, model}
    if named:
        client.find("the model asked for", "caution", f"replies name {', '.join(sorted(map(str, named)))}")
    return ""
