"""A simulated audit, for most of the benchmarks."""

from __future__ import annotations

import blindcal as bc
from blindcal.methods import make_design, method_of
from blindcal.records import FloatArray, IntArray
from blindcal.simulation.simulate import ask

RESAMPLES = 300
"""Refits behind each interval: fewer than the default of 1,000, to save time."""


def simulated_fit(
    labels: IntArray,
    p: FloatArray,
    *,
    method: str = "latent",
    queries: float = 1.0,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> bc.LatentFit:
    """The fit of one simulated audit of items with known probabilities."""
    design = make_design(method, labels, queries=queries, seed=seed)
    answers = ask(design, p, seed=seed, logprobs=method_of(method).logprobs)
    return bc.latent(
        labels[answers.items],
        answers.shifts,
        answers.answers,
        answers.temperatures,
        answers.items,
        bounds=answers.bounds,
        resamples=resamples,
        seed=seed,
    )
