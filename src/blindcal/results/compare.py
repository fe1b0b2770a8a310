"""Compare two finished runs: the items they share, and how their estimates differ."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blindcal.errors import ConfigError
from blindcal.estimate.latent.paired import Difference, differences
from blindcal.records import IntArray
from blindcal.results.run import Run, opened
from blindcal.text import listed, printable

NAMES = {
    "ece": "ECE",
    "accuracy": "accuracy",
    "auroc": "AUROC",
    "brier": "Brier score",
    "log_loss": "log loss",
}


OTHER_SEMANTICS = (
    "The runs measured different things: one spelling of each answer (pair), the likeliest one (max) or all "
    "together (sum). Part of a difference may be that."
)
#: For the other quantities, higher is better.
LOWER_IS_BETTER = ("ece", "brier", "log_loss")


@dataclass(frozen=True, slots=True, repr=False)
class RunComparison:
    """What two runs have in common, and their differences: the second's estimates minus the first's.

    ``common`` items are in both runs; ``reworded`` of them have different prompts. ``paired`` says whether
    the intervals use the common items; runs without any are independent.
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
        ece = next((one.difference for one in self.differences if one.quantity == "ece"), None)
        return f"RunComparison({self.first!r}, {self.second!r}, {self.common:,} items in common, ECE {ece})"

    @property
    def paired(self) -> bool:
        """Whether common items were resampled together."""
        return self.common > 0


def compare(
    first: Run | str | Path,
    second: Run | str | Path,
    *,
    bins: int | None = None,
    level: float = 0.95,
    resamples: int = 1000,
) -> RunComparison:
    """Compare two runs, or the runs in two folders, paired on the items that both asked.

    Items with the same id and prompt are the same. Items with the same id but different prompts count as the
    same item, reworded, if each of them has the same label in both runs; otherwise the ids of the two runs
    are unrelated, and all these items count as different. If the options of the runs are in different random
    orders, their labels are not comparable, and items with the same id are the same.
    """
    first, second = opened(first), opened(second)
    if first.result.answers != second.result.answers:
        words = [", ".join(run.result.answers) or "two answers" for run in (first, second)]
        raise ConfigError(
            f"the runs asked for different answers: {printable(words[0], 80)} and {printable(words[1], 80)}; "
            "only audits of the same answers can be compared"
        )
    if bins is None:
        each = {len(run.result.bins) for run in (first, second)}
        if len(each) > 1:
            raise ConfigError(
                f"the runs have {' and '.join(map(str, sorted(each)))} bins",
                remedy="choose one with {bins}",
                options={"bins": max(each)},
            )
        bins = each.pop()
    asked = [run.problem.items for run in (first, second)]
    matched, reworded = _matched(first, second, asked)
    units = _units(first, second, asked, matched) if matched else None
    one, two = (run.fit(resamples=resamples) for run in (first, second))
    found = differences(one, two, units, bins=bins, level=level)
    return RunComparison(
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
    """What the interval of a difference shows."""
    if 0 in one.difference:
        return "no difference shown"
    return "higher in B" if float(one.difference) > 0 else "lower in B"


def better(one: Difference) -> str | None:
    """The run that a significant difference favours, ``A`` or ``B``; ``None`` if it is not significant."""
    if 0 in one.difference:
        return None
    return "B" if (float(one.difference) < 0) == (one.quantity in LOWER_IS_BETTER) else "A"


def headline(found: RunComparison) -> tuple[str, ...]:
    """What the comparison shows, in plain sentences.

    First the calibration error, then the other quantities. If a single quantity other than the ECE differs,
    the last sentence says that this may be chance.
    """
    ece = next(one for one in found.differences if one.quantity == "ece")
    others = [one for one in found.differences if one.quantity != "ece"]
    a, b = f"{float(ece.first):.1%}", f"{float(ece.second):.1%}"
    low, high = ece.difference.low or 0.0, ece.difference.high or 0.0
    sure = f"{found.level:.0%} sure"
    if better(ece) is None:
        most = 100 * max(abs(low), abs(high))
        first = (
            f"The runs do not differ significantly in calibration error: A has {a}, B has {b}, and the "
            f"difference is at most {most:.1f} points ({sure})."
        )
    else:
        off = float(ece.difference)
        which, near, far = ("lower", -high, -low) if off < 0 else ("higher", low, high)
        first = (
            f"B's calibration error is {100 * abs(off):.1f} points {which} than A's: {b} against {a} "
            f"({sure}: {100 * near:.1f} to {100 * far:.1f} points)."
        )
    shown = [one for one in others if better(one) is not None]
    if not shown:
        names = listed([NAMES[one.quantity] for one in others])
        return (first, f"{names[0].upper()}{names[1:]} do not differ significantly.")
    sides = {
        side: [NAMES[one.quantity] for one in shown if (float(one.difference) > 0) == (side == "higher")]
        for side in ("higher", "lower")
    }
    directions = " and ".join(
        f"{listed(names)} {'is' if len(names) == 1 else 'are'} {side}"
        for side, names in sides.items()
        if names
    )
    sentences = [first, f"{directions[0].upper()}{directions[1:]} in B."]
    if better(ece) is None and len(shown) == 1:
        chance = min(1.0, (1 - found.level) * len(found.differences))
        sentences.append(
            f"This may be chance: with {len(found.differences)} quantities, up to {chance:.0%} of "
            "comparisons between identical models show at least one difference."
        )
    return tuple(sentences)


def differing(first: Run, second: Run) -> tuple[tuple[str, str, str], ...]:
    """The settings that differ: name, value in the first run, value in the second."""
    sides = [_settings(run) for run in (first, second)]
    names = dict.fromkeys([*sides[0], *sides[1]])
    return tuple(
        (name, str(sides[0].get(name, "")), str(sides[1].get(name, "")))
        for name in names
        if sides[0].get(name) != sides[1].get(name)
    )


def _settings(run: Run) -> dict[str, Any]:
    """The settings of a run, including those that only its result records."""
    kept = {name: value for name, value in run.settings.items() if name != "items_digest"}
    result = run.result
    known = {"items": result.counts.items, "estimator": result.estimator, "bins": len(result.bins)}
    return kept | known | {"semantics": result.semantics}


def pairing(found: RunComparison) -> str:
    """Which items the comparison uses, in words."""
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


def _matched(first: Run, second: Run, asked: list[IntArray]) -> tuple[dict[int, int], int]:
    """Map items of the second run to the same items of the first; also the number of reworded ones."""
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
    """The number of each asked item's resampling unit: its group if it has one, else the item itself."""
    numbers: dict[object, int] = {}

    def number(run: Run, item: int, itself: tuple[int, int]) -> int:
        group = run.group_names[item]
        return numbers.setdefault(itself if group is None else group, len(numbers))

    ones = [number(first, k, (0, k)) for k in asked[0].tolist()]
    of_first = dict(zip(asked[0].tolist(), ones, strict=True))
    twos = [of_first[matched[k]] if k in matched else number(second, k, (1, k)) for k in asked[1].tolist()]
    return np.array(ones), np.array(twos)
