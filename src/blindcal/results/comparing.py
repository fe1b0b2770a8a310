"""Two finished runs side by side: which items they share, and how their figures differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blindcal.errors import ConfigError
from blindcal.estimate.paired import Difference, differences
from blindcal.records import IntArray
from blindcal.results.finished import Finished

NAMES = {
    "ece": "ECE",
    "accuracy": "accuracy",
    "auroc": "AUROC",
    "brier": "Brier score",
    "log_loss": "log loss",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two runs have in common, and their differences: the second's figures minus the first's.

    ``common`` items are in both runs, ``reworded`` of them asked in other words. ``paired`` says whether the
    intervals rest on that; runs without a common item are independent.
    """

    first: str
    second: str
    models: tuple[str, str]
    common: int
    reworded: int
    only_first: int
    only_second: int
    bins: int
    level: float
    differences: tuple[Difference, ...]

    @property
    def paired(self) -> bool:
        """Whether items in common were drawn together."""
        return self.common > 0


def compare(
    first: Finished,
    second: Finished,
    *,
    bins: int | None = None,
    level: float = 0.95,
    resamples: int | None = None,
) -> Comparison:
    """Compare two runs, paired where they asked about the same items.

    An item is the same if its id and its prompt are. Items with one id and other prompts are the same too,
    asked in other words, if every such item has the same label in both runs; otherwise the ids mean
    nothing across the runs, and these items are taken for different ones.
    """
    if bins is None:
        each = {len(run.result.bins) for run in (first, second)}
        if len(each) > 1:
            raise ConfigError(
                f"the runs have {' and '.join(map(str, sorted(each)))} bins: choose one with --bins"
            )
        bins = each.pop()
    asked = [np.unique(run.answered.items) for run in (first, second)]
    matched, reworded = _matched(first, second, asked)
    units = _units(first, second, asked, matched) if matched else None
    found = differences(first.fit(resamples), second.fit(resamples), units, bins=bins, level=level)
    return Comparison(
        str(first.folder),
        str(second.folder),
        (first.result.model, second.result.model),
        len(matched),
        reworded,
        asked[0].size - len(matched),
        asked[1].size - len(matched),
        bins,
        level,
        found,
    )


def verdict(one: Difference) -> str:
    """What a difference's interval shows."""
    if one.low <= 0 <= one.high:
        return "no difference shown"
    return "higher in B" if one.value > 0 else "lower in B"


def pairing(found: Comparison) -> str:
    """Which items the comparison rests on, in a sentence."""
    rest = found.only_first + found.only_second
    if not found.paired:
        return (
            "not paired: the runs have no item in common, so the intervals are those of independent samples"
        )
    words = f", {found.reworded:,} of them asked in other words" if found.reworded else ""
    others = (
        f"; beside them A has {found.only_first:,} and B {found.only_second:,} of its own" if rest else ""
    )
    return f"paired on {found.common:,} items that both runs asked about{words}{others}"


def _matched(first: Finished, second: Finished, asked: list[IntArray]) -> tuple[dict[int, int], int]:
    """Items of the second run and the same ones of the first, and how many of them were reworded."""
    of_first = {first.ids[k]: k for k in asked[0].tolist()}
    pairs = {k: of_first[second.ids[k]] for k in asked[1].tolist() if second.ids[k] in of_first}
    same = {k: j for k, j in pairs.items() if second.digests[k] == first.digests[j]}
    reworded = {k: j for k, j in pairs.items() if k not in same}
    if any(second.labels[k] != first.labels[j] for k, j in reworded.items()):
        return same, 0
    return same | reworded, len(reworded)


def _units(
    first: Finished, second: Finished, asked: list[IntArray], matched: dict[int, int]
) -> tuple[IntArray, IntArray]:
    """The number of the unit that each item asked belongs to: its group where it has one, else itself."""
    numbers: dict[object, int] = {}

    def number(run: Finished, item: int, itself: tuple[int, int]) -> int:
        group = run.group_names[item]
        return numbers.setdefault(itself if group is None else group, len(numbers))

    ones = [number(first, k, (0, k)) for k in asked[0].tolist()]
    of_first = dict(zip(asked[0].tolist(), ones, strict=True))
    twos = [of_first[matched[k]] if k in matched else number(second, k, (1, k)) for k in asked[1].tolist()]
    return np.array(ones), np.array(twos)
