"""A threshold chosen on audited items and deployed on others: the precision is what was promised."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import blindcal as bc
from blindcal.certifying.decision_request import decision_request
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.errors import NotIdentifiedError
from blindcal.items.score_files import read_scores
from blindcal.methods import make_design
from blindcal.records import Message, Request
from blindcal.results.run import open_run
from blindcal.simulation.simulate import ask
from deciding import TEMPLATE, audited, model, serving, write_items
from paths import SHARED

LOGITS = SHARED / "logits" / "qwen__boolq__logits.csv.gz"


def test_the_deployed_endpoint_keeps_the_promise_over_http(tmp_path: Path) -> None:
    """Audited on 700 items over HTTP and deployed on 700 others with the printed bias."""
    labels, p = model(1400, 21)
    everything = write_items(tmp_path / "all.jsonl", labels)
    lines = everything.read_text().splitlines(keepends=True)
    (tmp_path / "audited.jsonl").write_text("".join(lines[:700]))
    with serving(everything, p) as server:
        run = open_run(audited(tmp_path / "audited.jsonl", server, tmp_path / "run"))
        fit = run.fit(resamples=300)
        point = fit.choose_threshold(precision=0.9, max_shift=run.max_shift).point
        bias = {
            int(token): value for token, value in decision_request(run, point.shift).ask["logit_bias"].items()
        }

        async def decide() -> list[bool]:
            async with HttpEndpoint(Address(server.base_url, "replay"), environ={}) as endpoint:
                texts = [TEMPLATE.replace("{n}", str(k)) for k in range(700, 1400)]
                asked = [endpoint.ask(Request((Message("user", text),), bias)) for text in texts]
                return [reply.text == "Yes" for reply in await asyncio.gather(*asked)]

        said = np.array(asyncio.run(decide()))
    assert (said == (p[700:] >= point.threshold)).mean() > 0.998  # the bias has four digits
    right = labels[700:][said]
    assert right.mean() in fit.next_precision(point.threshold, right.size)
    assert said[labels[700:] == 1].mean() == pytest.approx(point.recall.value, abs=0.1)


@pytest.mark.skipif(not LOGITS.is_file(), reason="needs the recorded logits beside the project")
def test_promises_about_a_real_model_are_kept_on_the_other_half() -> None:
    """Of three random halves of BoolQ at most one leaves the interval, for a precision of 0.8 and of 0.85.

    0.85 is near what the model can reach: an audit may say that it cannot be promised. An interval for the
    share of right ones among as many decisions as were made takes in that the other half is a sample too.
    """
    known = read_scores(LOGITS, words=("True", "False"))
    labels, p = known.labels, known.p
    missed, short, silent = Counter[float](), Counter[float](), Counter[float]()
    for seed in range(3):
        order = np.random.default_rng([seed, 6]).permutation(labels.size)
        ours, theirs = order[:1635], order[1635:]
        asked = ask(make_design("latent", labels[ours], seed=seed), p[ours])
        fit = bc.latent(
            labels[ours][asked.items], asked.shifts, asked.answers, 0.0, asked.items, resamples=200
        )
        for goal in (0.8, 0.85):
            try:
                threshold = fit.choose_threshold(precision=goal).point.threshold
            except NotIdentifiedError:
                silent[goal] += 1
                continue
            right = labels[theirs][p[theirs] >= threshold]
            missed[goal] += right.mean() not in fit.next_precision(threshold, right.size)
            # its own two standard errors
            short[goal] += right.mean() < goal - 2 * np.sqrt(goal * (1 - goal) / right.size)
    assert silent[0.8] == 0
    assert silent[0.85] <= 2
    for goal in (0.8, 0.85):
        assert missed[goal] <= 1
        assert short[goal] <= 1
