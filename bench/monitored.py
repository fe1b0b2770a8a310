"""How good the alarms of a watch are: how often they are false, and how soon they find what is wrong.

    python bench/monitored.py validity [--streams 1000]
    python bench/monitored.py power [--streams 100]
    python bench/monitored.py references [--streams 21]
    python bench/monitored.py changed [--streams 100]
    python bench/monitored.py swapped [--streams 300]
    python bench/monitored.py shown [--streams 1000]

Each part writes a file of its own. Items are drawn with replacement from real models' probabilities (twelve
score sets and four recorded cells), and each gets one query at a uniform threshold. Every alarm has the level
0.05 and is looked at after every observation.

validity    nothing is wrong: the share of streams of 20,000 items that ever raise the alarm
power       labels are the real ones: items until the calibration alarm, beside a z-test that is redone
references  against audits: how often alarms are false, and items until one if labels are inverted or items
            come from another set
changed     after 5,000 quiet items, calibration is lost, or the questions change: items until the alarm
swapped     another model, or shifted log-odds: anchor queries until the endpoint alarm
shown       probabilities that are read: false alarms, items until the calibration alarm beside one answer per
            item (a fiftieth of the streams for each file), and against audits (a 140th)
"""

from __future__ import annotations

from record import Cell, Table, parser, record, recorded_cells, run_all, score_files, table

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TypeAlias

import numpy as np
from scipy.stats import norm

import blindcal as bc
from blindcal.estimate.shown import ShownFit
from blindcal.estimate.streams.betting import CurveClaim, Game, Reference, calibration_cells, question_cells
from blindcal.estimate.streams.shown_bets import LabelGame, RangeGame, claim_of
from blindcal.records import FloatArray, IntArray
from blindcal.simulation.simulate import log_odds
from blindcal.watching.monitor import FOR_REFERENCE, Monitor
from populations import simulated_fit
from streams import FARTHEST, OFF, Stream, ask_anchors, recorded, set_up_anchors
from wealth import first_reached, wealth_path

LEVEL, ITEMS = 0.05, 20_000
BAR = 1 / LEVEL
REFERENCE_BAR = BAR / (1 - FOR_REFERENCE)
MAX_ECE = 0.05
AT_THE_LIMIT = f"calibration, `max_ece` {MAX_ECE:g}, which is the true ECE"
REFERENCE_SIZES = (400, 1000, 2000)
REFERENCES = 3  # audits of each size and file
ANCHORS, CONFIRMATIONS, ANCHOR_QUERIES = 8, 200, 2000
ENDPOINT_JITTERS = (0.0, 0.2, 0.28)  # of the log-odds; the last is 0.2 on each logit
SET_UPS = (60, 200)  # confirmations
LOOK = 50  # items between two looks of the test that is redone
QUIET = 5000
FEW_ITEMS = 2000
FOLLOWED = 25  # streams that follow the same reference
SHIFT = 0.5
AFTER_SWAP, SOON = 400, 50  # anchor queries

VALIDITY = {"alarm": "{}", "streams": "{:,}", "observations": "{:,}", "raised": "{}", "share": "{:.1%}"}

Study: TypeAlias = Callable[["StreamJob"], list[float]]
Runner: TypeAlias = Callable[[Study, Sequence["StreamJob"]], FloatArray]


@dataclass(frozen=True)
class StreamJob:
    """A stream of one study: its number, the file it draws from, its length and its kind."""

    number: int
    path: Path
    items: int = ITEMS
    kind: str = ""

    def rng(self, study: int) -> np.random.Generator:
        """The randomness of this stream."""
        return np.random.default_rng([self.number, study, 15])


def in_turn(
    streams: int, paths: Sequence[Path], items: int = ITEMS, kinds: Sequence[str] = ("",)
) -> list[StreamJob]:
    """Streams that go through the files in turn, and through every kind with every file."""
    return [
        StreamJob(k, paths[k % len(paths)], items, kinds[k // len(paths) % len(kinds)])
        for k in range(streams)
    ]


def calibration_alarm(stream: Stream, game: Game, bar: float = BAR) -> float:
    """Items until the calibration alarm."""
    cells = calibration_cells(stream.labels, stream.thresholds, stream.answers)
    return first_reached(wealth_path(game, cells), bar)


def questions_alarm(stream: Stream, game: Game) -> float:
    """Items until the questions alarm."""
    cells = question_cells(stream.thresholds, stream.answers)
    return first_reached(wealth_path(game, cells), REFERENCE_BAR)


def shown_alarm(stream: Stream, game: Game, bar: float = BAR) -> float:
    """Items until the calibration alarm, with probabilities that are read."""
    return first_reached(wealth_path(game, np.column_stack([stream.f, stream.labels])), bar)


@lru_cache(maxsize=2)
def reference(path: Path, seed: int, items: int = 1000) -> Reference:
    """An audit of items like those of the stream."""
    labels, f = audited_items(path, seed, items)
    return Reference.of(simulated_fit(labels, f, seed=seed, resamples=1000).smooth, LEVEL * FOR_REFERENCE)


@lru_cache(maxsize=2)
def shown_reference(path: Path, seed: int, items: int) -> tuple[LabelGame, RangeGame]:
    """An audit of the same items whose probabilities were read."""
    labels, f = audited_items(path, seed, items)
    fit = ShownFit(labels=labels, p=f, resamples=1000, seed=seed)
    missed = LEVEL * FOR_REFERENCE
    return LabelGame(claim_of(fit, missed)), RangeGame(fit, missed)


def audited_items(path: Path, seed: int, items: int) -> tuple[IntArray, FloatArray]:
    """Labels and probabilities of random items."""
    traffic = recorded(path)
    picked = np.random.default_rng([seed, 2, 15]).integers(traffic.f.size, size=items)
    return traffic.labels[picked], traffic.f[picked]


# Nothing is wrong


def calibrated(job: StreamJob) -> list[float]:
    """Items until the calibration alarm, though labels are drawn from f."""
    traffic = recorded(job.path)
    return [calibration_alarm(traffic.stream(job.items, job.rng(0), traffic.f), CurveClaim().game)]


def at_the_limit(job: StreamJob) -> list[float]:
    """Items until the calibration alarm, though the ECE is just the limit."""
    traffic = recorded(job.path)
    stream = traffic.stream(job.items, job.rng(1), OFF[job.kind](traffic.f, MAX_ECE))
    return [calibration_alarm(stream, CurveClaim(allowance=MAX_ECE).game)]


def watched_endpoint(
    s: FloatArray,
    now: FloatArray,
    jitter: float,
    queries: int,
    rng: np.random.Generator,
    confirmations: int = CONFIRMATIONS,
) -> float:
    """Anchor queries until the endpoint alarm, with log-odds ``now`` that were ``s`` at the set-up."""
    ready = set_up_anchors(s, jitter, confirmations, rng)
    monitor = Monitor(level=LEVEL)
    monitor.expect_anchors(ready.up_wrong, ready.up_asked, ready.down_wrong, ready.down_asked)
    monitor.add_anchors(*ask_anchors(now, ready, jitter, queries, rng))
    alarm = monitor.state().alarm("endpoint")
    assert alarm is not None
    return np.inf if alarm.raised_at is None else float(alarm.raised_at)


def anchors(path: Path, rng: np.random.Generator) -> np.ndarray:
    """Random reference items of a file."""
    return rng.choice(recorded(path).f.size, ANCHORS, replace=False)


def hidden(path: Path, items: np.ndarray) -> FloatArray:
    """The log-odds of some items."""
    return np.clip(log_odds(recorded(path).f[items]), -FARTHEST, FARTHEST)


def same_endpoint(job: StreamJob) -> list[float]:
    """Anchor queries until the endpoint alarm, though nothing changed."""
    rng = job.rng(5)
    s = hidden(job.path, anchors(job.path, rng))
    return [watched_endpoint(s, s, float(job.kind), job.items, rng)]


def validity(paths: Sequence[Path], streams: int, run: Runner) -> dict[str, Table]:
    """The share of streams that ever raise each alarm, though nothing is wrong."""
    cells = [path for path in paths if path.parent.name == "logits"]
    found = {
        "calibration, against perfect calibration": run(calibrated, in_turn(streams, paths))[:, 0],
        AT_THE_LIMIT: run(at_the_limit, in_turn(streams, paths, kinds=tuple(OFF)))[:, 0],
        **{
            f"endpoint, jitter {jitter:g}": run(
                same_endpoint, in_turn(streams, cells, ANCHOR_QUERIES, (str(jitter),))
            )[:, 0]
            for jitter in ENDPOINT_JITTERS
        },
    }
    rows: list[list[Cell]] = []
    for name, raised in found.items():
        often = int(np.isfinite(raised).sum())
        length = ANCHOR_QUERIES if name.startswith("endpoint") else ITEMS
        rows.append([name, raised.size, length, often, often / raised.size])
    return {"validity": table(VALIDITY, rows)}


# Something is wrong


def redone_z_test(stream: Stream) -> float:
    """Items until a two-sided z-test of the mean gap rejects at a look, with Bonferroni over all looks."""
    gap = (stream.answers - stream.labels).astype(np.float64)
    n = np.arange(LOOK, gap.size + 1, LOOK)
    mean, square = np.cumsum(gap)[n - 1] / n, np.cumsum(gap**2)[n - 1] / n
    error = np.sqrt(np.maximum(square - mean**2, 0) / (n - 1))
    rejected = np.abs(mean) > norm.isf(LEVEL / (2 * n.size)) * error
    return float(n[rejected.argmax()]) if rejected.any() else np.inf


def miscalibrated(job: StreamJob) -> list[float]:
    """Items until our alarm, and until that of the test that is redone."""
    stream = recorded(job.path).stream(job.items, job.rng(6))
    return [calibration_alarm(stream, CurveClaim().game), redone_z_test(stream)]


def by_file(
    study: Study, paths: Sequence[Path], streams: int, run: Runner, kind: str = ""
) -> dict[Path, FloatArray]:
    """The outcomes of so many streams of each file."""
    jobs = [StreamJob(k, path, kind=kind) for path in paths for k in range(streams)]
    found = run(study, jobs).reshape(len(paths), streams, -1)
    return dict(zip(paths, found, strict=True))


def spread(delays: FloatArray) -> Cell:
    """Median and quartiles, the median alone if the last quarter has no alarm, nothing if half have none."""
    median, *quartiles = (float(np.quantile(delays, q, method="higher")) for q in (0.5, 0.25, 0.75))
    if np.isinf(median):
        return None
    return median if np.isinf(quartiles[1]) else (median, *quartiles)


SPREAD = "{:,.0f} ({:,.0f} to {:,.0f})"


def power(paths: Sequence[Path], streams: int, run: Runner) -> dict[str, Table]:
    """Items until the calibration alarm, beside another test."""
    rows: list[list[Cell]] = []
    for path, each in by_file(miscalibrated, paths, streams, run).items():
        traffic, ours = recorded(path), each[:, 0]
        ece = float(bc.binned_ece(traffic.labels, traffic.f, 15).ece)
        alarms = float(np.isfinite(ours).mean())
        rows.append([traffic.name, ece, traffic.gap, spread(ours), alarms, spread(each[:, 1])])
    columns = {
        "model and set": "{}",
        "ECE": "{:.3f}",
        "mean gap": "{:+.3f}",
        "items to the alarm": SPREAD,
        f"alarms within {ITEMS:,}": "{:.0%}",
        "redone z-test": SPREAD,
    }
    return {"power": table(columns, rows)}


# Against audits


def after_audit(job: StreamJob) -> list[float]:
    """Items until an alarm against an audit whose number of items and seed are the kind.

    The calibration and the questions alarm if all is as in the audit; the first one with inverted labels; the
    first of both with items of another file.
    """
    how, *numbers = job.kind.split()
    items, seed = map(int, numbers)
    files = (score_files if job.path.parent.name == "scores" else recorded_cells)(job.path.parents[1])
    other = files[(files.index(job.path) + 1) % len(files)]

    def calibration(stream: Stream) -> float:
        if how == "shown":
            return shown_alarm(stream, shown_reference(job.path, seed, items)[0], REFERENCE_BAR)
        return calibration_alarm(stream, reference(job.path, seed, items).curve.game, REFERENCE_BAR)

    def questions(stream: Stream) -> float:
        if how == "shown":
            game = shown_reference(job.path, seed, items)[1]
            return first_reached(wealth_path(game, game.ranges(stream.f)), REFERENCE_BAR)
        return questions_alarm(stream, reference(job.path, seed, items).share.game)

    same = recorded(job.path).stream(job.items, job.rng(3))
    wrong = recorded(job.path).stream(FEW_ITEMS, job.rng(11))
    swap = recorded(other).stream(FEW_ITEMS, job.rng(12))
    return [
        calibration(same),
        questions(same),
        calibration(replace(wrong, labels=1 - wrong.labels)),
        min(calibration(swap), questions(swap)),
    ]


def references(paths: Sequence[Path], streams: int, run: Runner, how: str = "answers") -> dict[str, Table]:
    """How often alarms are false against audits of several sizes, and how soon they find great changes."""
    each: list[FloatArray] = []
    columns = {"model and set": "{}"}
    for size in REFERENCE_SIZES:
        begun = len(each) * len(paths) * streams
        jobs = [
            StreamJob(
                begun + k, paths[k // streams], kind=f"{how} {size} {k % streams * REFERENCES // streams}"
            )
            for k in range(len(paths) * streams)
        ]
        each.append(run(after_audit, jobs).reshape(len(paths), streams, -1))
        columns |= {f"inverted labels, audit of {size:,}": SPREAD, f"another set, audit of {size:,}": SPREAD}
    found = [
        [recorded(path).name, *(spread(outcomes[k, :, n]) for outcomes in each for n in (2, 3))]
        for k, path in enumerate(paths)
    ]
    false: list[list[Cell]] = []
    for size, outcomes in zip(REFERENCE_SIZES, each, strict=True):
        often = np.isfinite(outcomes[:, :, :2]).mean(axis=(0, 1)).tolist()
        medians = [spread(outcomes[:, :, n].ravel()) for n in (2, 3)]
        false.append([size, REFERENCES * len(paths), len(paths) * streams, *often, *medians])
    summary = (
        "items of the audit {:,} | audits {} | streams {:,} | calibration, false {:.1%} | "
        f"questions, false {{:.1%}} | inverted labels {SPREAD} | another set {SPREAD}"
    )
    return {"references": table(summary, false), "files": table(columns, found)}


def lost_calibration(job: StreamJob) -> list[float]:
    """Items from the change until the alarm; before it, labels are drawn from f."""
    traffic, rng = recorded(job.path), job.rng(8)
    stream = traffic.stream(QUIET, rng, traffic.f).then(traffic.stream(job.items, rng))
    return [calibration_alarm(stream, CurveClaim().game) - QUIET]


def changed_questions(job: StreamJob) -> list[float]:
    """Items from the change until the questions alarm, if log-odds are those of the reference before."""
    traffic, rng = recorded(job.path), job.rng(9)
    stream = traffic.stream(QUIET, rng).then(traffic.shifted(SHIFT).stream(job.items, rng))
    return [questions_alarm(stream, reference(job.path, job.number // FOLLOWED).share.game) - QUIET]


def changed(paths: Sequence[Path], streams: int, run: Runner) -> dict[str, Table]:
    """Items until an alarm after a long quiet time."""
    studies: Mapping[str, Study] = {
        "calibration: the real labels": lost_calibration,
        f"questions: log-odds + {SHIFT:g}": changed_questions,
    }
    found = {name: by_file(study, paths, streams, run) for name, study in studies.items()}
    rows: list[list[Cell]] = []
    for path in paths:
        row: list[Cell] = [recorded(path).name]
        for each in found.values():
            delays = each[path][:, 0]
            row += [spread(delays[delays > 0]), int((delays <= 0).sum())]
        rows.append(row)
    columns = {"model and set": "{}"}
    for name in studies:
        columns |= {name: SPREAD, f"alarms before ({name.partition(':')[0]})": "{}"}
    return {"changed": table(columns, rows)}


def swapped_endpoint(job: StreamJob) -> list[float]:
    """Anchor queries until the endpoint alarm; the kind has the change, the jitter and the confirmations."""
    change, jitter, confirmations = job.kind.split()
    rng = job.rng(10)
    items = anchors(job.path, rng)
    s = hidden(job.path, items)
    if change == "swap":
        now = hidden(job.path.with_name(job.path.name.replace("qwen", "smollm2")), items)
    else:
        now = s + SHIFT * rng.choice([-1, 1])
    return [watched_endpoint(s, now, float(jitter), job.items, rng, int(confirmations))]


def swapped(paths: Sequence[Path], streams: int, run: Runner) -> dict[str, Table]:
    """Anchor queries until the endpoint alarm."""
    cells = [path for path in paths if path.name.startswith("qwen__")]
    changes = {"swap": "qwen becomes smollm2", "shift": f"all log-odds shifted by {SHIFT:g}"}
    rows: list[list[Cell]] = []
    for (change, words), jitter, asked in product(changes.items(), ENDPOINT_JITTERS, SET_UPS):
        kind = f"{change} {jitter} {asked}"
        delays = run(swapped_endpoint, in_turn(streams, cells, AFTER_SWAP, (kind,)))[:, 0]
        far = [float(np.quantile(delays, q, method="higher")) for q in (0.5, 0.95, 1.0)]
        rows.append(
            [
                words,
                jitter,
                asked,
                *(each if np.isfinite(each) else None for each in far),
                float((delays <= SOON).mean()),
            ]
        )
    columns = {
        "change": "{}",
        "jitter": "{:g}",
        "confirmations": "{}",
        "median queries to the alarm": "{:.0f}",
        "95% within": "{:.0f}",
        "all within": "{:.0f}",
        f"share within {SOON}": "{:.1%}",
    }
    return {"swapped": table(columns, rows)}


def shown(paths: Sequence[Path], streams: int, run: Runner) -> dict[str, Table]:
    """The alarms of probabilities that are read, beside those of one answer per item."""
    perfect, limited = (
        int(np.isfinite(run(study, in_turn(streams, paths, kinds=kinds))).sum())
        for study, kinds in ((shown_calibrated, ("",)), (shown_at_the_limit, tuple(OFF)))
    )
    false: list[list[Cell]] = [
        ["calibration, against perfect calibration", streams, ITEMS, perfect, perfect / streams],
        [AT_THE_LIMIT, streams, ITEMS, limited, limited / streams],
    ]
    rows: list[list[Cell]] = []
    for path, each in by_file(shown_miscalibrated, paths, max(2, streams // 50), run).items():
        rows.append([recorded(path).name, *(spread(delays) for delays in each.T)])
    columns = {"model and set": "{}", "shown probabilities": SPREAD, "one answer per item": SPREAD}
    return {
        "validity": table(VALIDITY, false),
        "power": table(columns, rows),
        "references": references(paths, max(1, streams // 140), run, "shown")["references"],
    }


def shown_calibrated(job: StreamJob) -> list[float]:
    """Items until the calibration alarm, though labels are drawn from the probabilities that are shown."""
    traffic = recorded(job.path)
    return [shown_alarm(traffic.stream(job.items, job.rng(0), traffic.f), LabelGame(CurveClaim()))]


def shown_at_the_limit(job: StreamJob) -> list[float]:
    """Items until the calibration alarm of shown probabilities, though the ECE is just the limit."""
    traffic = recorded(job.path)
    stream = traffic.stream(job.items, job.rng(1), OFF[job.kind](traffic.f, MAX_ECE))
    return [shown_alarm(stream, LabelGame(CurveClaim(allowance=MAX_ECE)))]


def shown_miscalibrated(job: StreamJob) -> list[float]:
    """Items until the alarm of shown probabilities, and of one answer per item."""
    stream = recorded(job.path).stream(QUIET, job.rng(6))
    return [shown_alarm(stream, LabelGame(CurveClaim())), calibration_alarm(stream, CurveClaim().game)]


PARTS = {
    "shown": (shown, 1000),
    "validity": (validity, 1000),
    "power": (power, 100),
    "references": (references, 21),
    "changed": (changed, 100),
    "swapped": (swapped, 300),
}


def main() -> None:
    """Run one part, and record its tables."""
    options = parser(__doc__)
    options.add_argument("part", choices=list(PARTS))
    options.add_argument("--streams", type=int, help="streams of each row")
    arguments = options.parse_args()
    study, streams = PARTS[arguments.part]
    streams = arguments.streams or streams

    def run(what: Study, jobs: Sequence[StreamJob]) -> FloatArray:
        return np.array(run_all(what, jobs, arguments, chunk=max(1, min(25, len(jobs) // 40))))

    tables = study([*score_files(arguments.data), *recorded_cells(arguments.data)], streams, run)
    record(f"monitored-{arguments.part}", tables, arguments, repeats={"streams": streams})


if __name__ == "__main__":
    main()
