"""Compare two finished runs: the items they share, and how their estimates differ."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from blindcal.errors import InputError
from blindcal.estimate.latent.difference import Difference, differences
from blindcal.records import IntArray
from blindcal.results.run import Run, opened
from blindcal.text import printable


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunComparison:
    """The items that two runs share, and the second's estimates minus the first's.

    ``reworded`` counts the common items with different prompts.
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

    def __repr__(self) -> str:
        ece = next((each.difference for each in self.differences if each.quantity == "ece"), None)
        return f"RunComparison({self.first!r}, {self.second!r}, {self.common:,} items in common, ECE {ece})"

    @property
    def paired(self) -> bool:
        """Whether common items were resampled together; otherwise the runs count as independent."""
        return self.common > 0


def compare(
    first: Run | str | Path,
    second: Run | str | Path,
    *,
    bins: int | None = None,
    level: float = 0.95,
    resamples: int = 1000,
) -> RunComparison:
    """Compare two runs, paired on the items that both asked.

    Items with the same id and prompt are the same. If only the prompts differ, the items count as the same,
    reworded, provided that all of them have the same label in both runs; otherwise the ids are taken to be
    unrelated. Labels are not compared if the runs show the options in different random orders.
    """
    first, second = opened(first), opened(second)
    if first.result.answers != second.result.answers:
        words = [", ".join(run.result.answers) or "two answers" for run in (first, second)]
        raise InputError(
            f"the runs asked for different answers: {printable(words[0], 80)} and {printable(words[1], 80)}; "
            "only audits of the same answers can be compared"
        )
    each = sorted({len(run.result.bins) for run in (first, second)})
    if bins is None and len(each) > 1:
        raise InputError(
            f"the runs have {each[0]} and {each[1]} bins",
            remedy="give the number of bins for both",
        )
    bins = each[0] if bins is None else bins
    asked = [run.problem.items for run in (first, second)]
    matched, reworded = _matched(first, second, asked)
    units = _units(first, second, asked, matched) if matched else None
    fits = first.fit(resamples=resamples), second.fit(resamples=resamples)
    return RunComparison(
        first=str(first.folder),
        second=str(second.folder),
        models=(first.result.model, second.result.model),
        common=len(matched),
        reworded=reworded,
        only_first=asked[0].size - len(matched),
        only_second=asked[1].size - len(matched),
        bins=bins,
        level=level,
        differences=differences(fits[0], fits[1], units, bins=bins, level=level),
    )


def _matched(first: Run, second: Run, asked: list[IntArray]) -> tuple[dict[int, int], int]:
    """Map items of the second run to the same items of the first, and count the reworded ones."""
    of_first = {first.ids[k]: k for k in asked[0].tolist()}
    pairs = {k: of_first[second.ids[k]] for k in asked[1].tolist() if second.ids[k] in of_first}
    same = {k: j for k, j in pairs.items() if second.digests[k] == first.digests[j]}
    reworded = {k: j for k, j in pairs.items() if k not in same}
    reordered = first.settings.get("permute") != second.settings.get("permute")
    if not reordered and any(second.labels[k] != first.labels[j] for k, j in reworded.items()):
        return same, 0
    return same | reworded, len(reworded)


def _units(
    first: Run, second: Run, asked: list[IntArray], matched: dict[int, int]
) -> tuple[IntArray, IntArray]:
    numbers: dict[object, int] = {}

    def number(run: Run, item: int, itself: tuple[int, int]) -> int:
        group = run.group_names[item]
        return numbers.setdefault(itself if group is None else group, len(numbers))

    ones = [number(first, k, (0, k)) for k in asked[0].tolist()]
    of_first = dict(zip(asked[0].tolist(), ones, strict=True))
    twos = [of_first[matched[k]] if k in matched else number(second, k, (1, k)) for k in asked[1].tolist()]
    return np.array(ones), np.array(twos)
