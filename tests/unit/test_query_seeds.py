"""Seeds of queries and the draws they decide."""

from __future__ import annotations

import numpy as np

from blindcal.endpoints.query_format import TokenQuestion
from blindcal.query_seeds import query_seeds, uniform_draws
from blindcal.records import Request
from serving import PAIR, items


def test_a_query_has_the_same_seed_wherever_counting_begins() -> None:
    """The seed of query q depends on the run's seed and on q alone, and any server takes it."""
    whole = query_seeds(7, 0, 1000)
    assert np.array_equal(query_seeds(7, 990, 10), whole[990:])
    assert whole.min() >= 0
    assert whole.max() < 2**31
    assert np.unique(whole).size == whole.size
    assert not np.isin(query_seeds(8, 0, 1000), whole).any()


def test_draws_are_uniform_and_unrelated() -> None:
    """10^6 draws of two runs: ten equal bins and no correlation, within five standard errors."""
    n = 10**6
    one, other = uniform_draws(query_seeds(0, 0, n)), uniform_draws(query_seeds(1, 0, n))
    counts = np.histogram(one, bins=10, range=(0, 1))[0]
    assert np.abs(counts - n / 10).max() < 5 * np.sqrt(n * 0.1 * 0.9)
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(n)
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 5 / np.sqrt(n)


def test_only_sampled_queries_of_a_run_with_a_seed_carry_one() -> None:
    """A greedy query needs no luck; without a seed nothing is sent that a server might refuse."""
    messages = items(1)[0].messages
    assert TokenQuestion(PAIR, seed=3).request(messages, 0.0, 1.0, 5).seed == query_seeds(3, 5, 1)[0]
    assert (
        TokenQuestion(PAIR, biased=False, seed=3).request(messages, 0.0, 2.0, 6).seed
        == query_seeds(3, 6, 1)[0]
    )
    assert TokenQuestion(PAIR, seed=3).request(messages, 0.0, 0.0, 5).seed is None
    assert TokenQuestion(PAIR).request(messages, 0.0, 1.0, 5) == Request(messages, {1: 50.0, 2: 50.0}, 1.0)
