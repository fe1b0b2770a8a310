"""Every figure of docs/benchmarks.md, from recorded models to the page.

    python bench/benchmarks.py --write docs/benchmarks.md [--data ../shared] [--cache .bench] [--jobs 2]

Cells already computed are read from the cache, so a second run is free and an interrupted one goes on. The
cache may be filled elsewhere (`--compute` needs numpy and scipy alone) and copied over.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import pages
import paper
from blindcal.reproduce import sources
from blindcal.reproduce.cells import Cache, CellSelection, Found, compute
from blindcal.reproduce.sources import Source

SEEDS = 20
SIZES = (250, 500, 1000, 2000, 4000, 8000, 16000, 32000)
BINS = (2, 3, 5, 8, 10, 15, 20)


HEAD = """Made by `python bench/benchmarks.py{options} --write docs/benchmarks.md` from recorded models; every
figure on this page comes from that command. `blindcal reproduce` makes the same tables for
models of your own ([how](reproduce.md)). The oracle is the binned ECE of the hidden
probabilities, 5 equal bins on the positive class unless said otherwise; errors are |estimate -
oracle|. The over-HTTP counterpart is at the end of [reproduce](reproduce.md)."""
Work = list[tuple[Source, CellSelection]]


def studies(data: Path, cache: Path, seeds: tuple[int, ...]) -> dict[str, Work]:
    """Everything that is computed, by the name of its section."""
    recorded = [sources.read(path) for path in sources.find([data / "logits"])]
    scores = [sources.read(path) for path in sources.find([data / "scores"])]
    plain = tuple(range(SEEDS))
    whole = CellSelection(seeds=seeds, plain_seeds=plain)
    once = replace(whole, ways=("blind", "latent"), budgets=(1,))
    spelled = replace(once, ways=("blind", "latent", "sampling+latent"))
    found: dict[str, Work] = {
        "recorded": [(source, whole) for source in recorded],
        "scores": [(source, whole) for source in scores],
        "spelled": [(source.spelled("max"), spelled) for source in recorded],
        "bins": [(source, replace(once, bins=bins)) for bins in BINS for source in recorded],
        "size": [],
        "unseen": [],
        "seen": [],
    }
    populations = {name: paper.fitted(cache, seen_blind=name == "seen") for name in ("unseen", "seen")}
    for seed in dict.fromkeys(seeds + plain):
        wanted = replace(once, seeds=(seed,) if seed in seeds else (), plain_seeds=(seed,))
        for source in recorded:
            order = np.random.default_rng([seed, 8]).permutation(source.n)
            parts = [source.part(np.sort(order[:size])) for size in SIZES if size < source.n]
            found["size"] += [(part, wanted) for part in parts]
        for name, every in populations.items():
            found[name] += [
                (sources.from_probabilities(one.model, one.data, *one.sample(seed)), wanted) for one in every
            ]
    return found


def computed(work: dict[str, Work], cache: Path, jobs: int) -> dict[str, list[Found]]:
    """Every cell of every study, in one go."""

    def show(done: int, total: int) -> None:
        print(f"\r{done}/{total} cells ", end="" if done < total else "\n", file=sys.stderr, flush=True)

    found = iter(
        compute([one for each in work.values() for one in each], Cache(cache), jobs=jobs, progress=show)
    )
    return {name: [next(found) for _ in each] for name, each in work.items()}


def page(work: dict[str, Work], found: dict[str, list[Found]], cache: Path, options: str) -> str:
    """The whole page."""
    whole = pages.comparison(work["recorded"], found["recorded"])
    fits = {name: paper.fitted(cache, seen_blind=name == "seen") for name in ("unseen", "seen")}
    moved = pages.moved(
        pages.sizes(work["size"], found["size"], whole),
        pages.binned(work["bins"], found["bins"]),
        pages.by_budget(whole),
    )
    scored = [pages.scored(work["scores"], found["scores"])] if "scores" in work else []
    return pages.joined(
        [
            f"# Benchmarks\n\n{pages.prose(HEAD.format(options=options))}",
            pages.recorded(work["recorded"], found["recorded"]),
            *scored,
            pages.predicted(work, found, fits),
            moved,
            pages.spelled(work["spelled"], found["spelled"]),
            pages.bounded(whole),
        ]
    )


def main() -> None:
    """Compute what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared")
    parser.add_argument("--cache", type=Path, default=Path(".bench"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--compute", action="store_true", help="fill the cache and write no page")
    parser.add_argument("--write", type=Path, default=Path("docs/benchmarks.md"))
    parser.add_argument(
        "--no-scores", action="store_true", help="leave out the twelve sets, two thirds of it"
    )
    arguments = parser.parse_args()
    work = studies(arguments.data, arguments.cache, tuple(range(arguments.seeds)))
    if arguments.no_scores:
        del work["scores"]
    found = computed(work, arguments.cache, arguments.jobs)
    if not arguments.compute:
        options = f" --seeds {arguments.seeds}" if arguments.seeds != SEEDS else ""
        options += " --no-scores" if arguments.no_scores else ""
        pages.draw(work["recorded"], found["recorded"], arguments.write.parent / pages.IMAGES)
        arguments.write.write_text(page(work, found, arguments.cache, options), encoding="utf-8")


if __name__ == "__main__":
    main()
