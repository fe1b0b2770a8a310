"""The paper's printed table, and populations fitted to it.

For each of its eight cells, a population (three humps of the hidden log-odds, and a curve E[Y|s]) is fitted
to the printed oracle, sampling and extraction rows: seventeen numbers that a population determines with
little noise if N is large. Many populations give the same seventeen, and the error of `blind` differs between
them: it depends on where within a bin the confidence lies. So each cell is fitted twice: without the printed
`blind`, and with it, within the noise of that number.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares
from scipy.special import expit
from scipy.stats import binom

from blindcal.estimate.published.face_value import EXTRACTION_REACH
from blindcal.estimate.truth import bin_index
from blindcal.records import FloatArray, IntArray

BINS = 5
MODELS = ("Qwen2.5-7B", "Llama-3.1-8B", "Mistral-7B", "Gemma-2-9B")
DATA = {"BoolQ": (3270, 0.6217), "MMLU": (56168, 0.25)}  # items, and the share of positive labels
CELLS = tuple((model, data) for model in MODELS for data in DATA)
ORACLE = (0.140, 0.156, 0.084, 0.070, 0.095, 0.339, 0.245, 0.313)
BLIND = (0.111, 0.133, 0.085, 0.074, 0.074, 0.340, 0.223, 0.314)
SAMPLING = (
    (0.160, 0.237, 0.332, 0.356, 0.201, 0.459, 0.317, 0.435),
    (0.150, 0.204, 0.179, 0.269, 0.152, 0.403, 0.257, 0.357),
    (0.145, 0.185, 0.117, 0.200, 0.133, 0.382, 0.246, 0.336),
    (0.143, 0.175, 0.101, 0.164, 0.119, 0.370, 0.245, 0.329),
    (0.145, 0.173, 0.087, 0.158, 0.113, 0.361, 0.244, 0.323),
    (0.141, 0.170, 0.079, 0.146, 0.106, 0.358, 0.245, 0.321),
    (0.143, 0.167, 0.069, 0.136, 0.104, 0.355, 0.243, 0.318),
    (0.143, 0.166, 0.067, 0.129, 0.105, 0.353, 0.243, 0.317),
)
EXTRACTION = (
    (0.156, 0.220, 0.194, 0.272, 0.170, 0.449, 0.325, 0.416),
    (0.150, 0.205, 0.172, 0.249, 0.148, 0.427, 0.303, 0.393),
    (0.140, 0.164, 0.062, 0.141, 0.101, 0.338, 0.222, 0.332),
    (0.138, 0.147, 0.063, 0.051, 0.088, 0.335, 0.237, 0.303),
    (0.139, 0.156, 0.073, 0.080, 0.094, 0.336, 0.242, 0.308),
    (0.140, 0.155, 0.085, 0.072, 0.094, 0.338, 0.243, 0.311),
    (0.140, 0.156, 0.085, 0.071, 0.094, 0.338, 0.244, 0.312),
    (0.140, 0.156, 0.084, 0.071, 0.094, 0.339, 0.245, 0.313),
)
_S = (np.arange(-400, 400) + 0.5) / 20  # cells of the log-odds, [-20, 20]
_F = expit(_S)
_DRAWS = {k: binom.pmf(np.arange(k + 1)[:, None], k, _F) for k in range(1, 9)}


@dataclass(frozen=True)
class Population:
    """A fitted population: the mass of each cell of the log-odds and the chance of a positive label in it."""

    model: str
    data: str
    n: int
    mass: FloatArray
    curve: FloatArray
    misfit: float

    @property
    def oracle(self) -> float:
        """Its binned ECE."""
        return float(_rows(self.mass, self.curve)[0])

    @property
    def blind(self) -> float:
        """The limit of `blind` on it as N grows."""
        return _blind(self.mass, self.curve)

    def sample(self, seed: int) -> tuple[IntArray, FloatArray]:
        """Labels and probabilities of as many items as the paper's data set has."""
        rng = np.random.default_rng([seed, 7])
        cell = rng.choice(_S.size, size=self.n, p=self.mass)
        p = expit(_S[cell] + rng.uniform(-0.025, 0.025, self.n)).round(6)  # the same on any machine
        return (rng.random(self.n) < self.curve[cell]).astype(np.int64), p


def fitted(folder: Path, *, seen_blind: bool) -> list[Population]:
    """The eight populations; fitting takes a minute, so they are cached in a folder."""
    source = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    kept = folder / f"populations-{source}-{int(seen_blind)}.npy"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}.npy")
        np.save(part, np.array([_fit(number, seen_blind) for number in range(len(CELLS))]))
        part.replace(kept)
    return [_made(number, at) for number, at in enumerate(np.load(kept))]


def printed(number: int) -> FloatArray:
    """The printed numbers of a cell that are fitted: oracle, sampling K = 1..8, extraction K = 1..8."""
    return np.array([ORACLE[number], *(row[number] for row in (*SAMPLING, *EXTRACTION))])


def _fit(number: int, seen_blind: bool) -> FloatArray:
    n, positive = DATA[CELLS[number][1]]
    wanted = printed(number)
    noise = _BLIND_NOISE[n]

    def misfits(at: FloatArray) -> FloatArray:
        mass, curve = _population(at)
        rows = [*(_rows(mass, curve) - wanted), float(mass @ curve) - positive]
        blind = (_blind(mass, curve) - BLIND[number]) / noise if seen_blind else 0.0
        return np.array([*(np.array(rows) / _PRINTED), blind])

    rng = np.random.default_rng(number)
    starts = (rng.normal(0, 1, 12) * _SCALE + _CENTRE for _ in range(STARTS))
    found = [least_squares(misfits, start, max_nfev=150) for start in starts]
    return np.asarray(min(found, key=lambda one: float(one.cost)).x)


def _made(number: int, at: FloatArray) -> Population:
    model, data = CELLS[number]
    mass, curve = _population(at)
    misfit = float(np.abs(_rows(mass, curve) - printed(number)).mean())
    return Population(model, data, DATA[data][0], mass, curve, misfit)


STARTS = 12
_PRINTED = 0.002  # tolerance of the fit to a printed number
_BLIND_NOISE = {3270: 0.01, 56168: 0.003}  # about the standard deviation of `blind` at that many items
_CENTRE = np.array([0, 0, -3, 0, 3, 0.7, 0.7, 0.7, 0, 0.4, 0, 0], float)
_SCALE = np.array([0.5, 0.5, 1.5, 1, 1.5, 0.3, 0.3, 0.3, 0.5, 0.2, 0.3, 0.3], float)


def _population(at: FloatArray) -> tuple[FloatArray, FloatArray]:
    weights = np.exp(np.array([0.0, at[0], at[1]]) - max(0.0, at[0], at[1]))
    widths = np.exp(np.clip(at[5:8], -1.5, 2.5))
    humps = np.exp(-0.5 * ((_S[:, None] - at[2:5]) / widths) ** 2) / widths
    mass = humps @ (weights / weights.sum())
    link = at[8] + at[9] * _S + at[10] * np.tanh(_S) + at[11] * np.tanh(_S / 4) ** 2
    return mass / mass.sum(), expit(link)


def _rows(mass: FloatArray, curve: FloatArray) -> FloatArray:
    """What the table would print for a population, without noise."""
    rows = [_ece(mass, curve, _F)]
    for k in range(1, 9):
        shares = np.arange(k + 1) / k
        chance = _DRAWS[k]  # of each share, in each cell
        said = shares * (chance @ mass) - chance @ (mass * curve)
        gaps = np.bincount(bin_index(shares, BINS), said, minlength=BINS)
        rows.append(float(np.abs(gaps).sum()))
    low, high = np.full(_S.size, -EXTRACTION_REACH), np.full(_S.size, EXTRACTION_REACH)
    for _ in range(8):
        middle = (low + high) / 2
        positive = -middle <= _S
        low, high = np.where(positive, low, middle), np.where(positive, middle, high)
        rows.append(_ece(mass, curve, expit(-(low + high) / 2)))
    return np.array(rows)


def _blind(mass: FloatArray, curve: FloatArray) -> float:
    """The limit of `blind`, which takes the midpoint of a bin for the confidence (METHOD 3)."""
    where = bin_index(_F, BINS)
    middle = (where + 0.5) / BINS
    return float(np.abs(np.bincount(where, mass * (middle - curve), minlength=BINS)).sum())


def _ece(mass: FloatArray, curve: FloatArray, said: FloatArray) -> float:
    gaps = np.bincount(bin_index(said, BINS), mass * (said - curve), minlength=BINS)
    return float(np.abs(gaps).sum())
