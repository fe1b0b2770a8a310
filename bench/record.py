"""The frame of every benchmark: its options, its processes, and the record of what it found.

A benchmark reads its options with `options`, computes with `run_all`, and ends with one call of `record`,
which prints its tables and writes them to ``bench/results/NAME.json``: the numbers in full precision, how to
format them, and how they were made. ``python bench/docs.py`` then puts them into README.md and docs/. No
number is typed by hand.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

# before numpy is loaded, which is why every benchmark imports this module first: threads slow small fits down
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from tqdm import tqdm

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")
ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "unit")]  # servers that misbehave, examples, rooms
RESULTS = ROOT / "bench" / "results"
SHARED = ROOT.parent / "shared"
RESAMPLES = 300
"""Refits behind the intervals of a study: fewer than the default of 1,000, to save time."""

Cell: TypeAlias = str | float | Sequence[float] | None
_FIELD = re.compile(r"[^{}]*\{[^}]*\}")
_STARTED = time.monotonic()


@dataclass(frozen=True, slots=True)
class Column:
    """A column's name, and how ``str.format`` writes its cells.

    A cell may have several numbers; if they are fewer than the fields of the format, the first are filled.
    """

    name: str
    format: str = "{}"

    def show(self, cell: Cell) -> str:
        """A cell as text; strings are only escaped, and ``None`` is empty."""
        if cell is None:
            return ""
        if isinstance(cell, str):
            return cell.replace("|", "\\|")
        numbers = cell if isinstance(cell, Sequence) else [cell]
        fields = _FIELD.findall(self.format)
        fewer = "".join(fields[: len(numbers)])
        return (self.format if len(numbers) == len(fields) else fewer).format(*numbers)


@dataclass(frozen=True, slots=True)
class Table:
    """Columns, and rows with a cell per column."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def markdown(self) -> str:
        """The table as Markdown."""
        lines = [[column.name.replace("|", "\\|") for column in self.columns], ["---"] * len(self.columns)]
        for row in self.rows:
            lines.append([column.show(cell) for column, cell in zip(self.columns, row, strict=True)])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


@dataclass(frozen=True, slots=True)
class Results:
    """What one run of a benchmark found, and how it was made.

    ``repeats`` is one number, or one for each part of the work, by the part's name. ``files`` are those of
    the project that the run used, and ``code`` is their digest.
    """

    command: str
    repeats: int | Mapping[str, int]
    seeds: str
    version: str
    date: str
    machine: str
    seconds: float
    tables: Mapping[str, Table]
    files: Sequence[str] = ()
    code: str = ""

    @property
    def stale(self) -> bool:
        """Whether the code is no longer that which made these tables."""
        return self.code != digest(self.files)

    @property
    def script(self) -> Path:
        """The script that made the results."""
        return ROOT / shlex.split(self.command)[1]

    @property
    def origin(self) -> str:
        """How the results were made, in one line."""
        parts = {"": self.repeats} if isinstance(self.repeats, int) else self.repeats
        counted = "; ".join(
            f"{name}: {_count(many)}" if name else _count(many) for name, many in parts.items()
        )
        seeds = f", {self.seeds}" if self.seeds else ""
        return f"`{self.command}`: {counted}{seeds}; blindcal {self.version}, {self.date}."


def _count(repeats: int) -> str:
    return "1 repeat" if repeats == 1 else f"{repeats:,} repeats"


def table(columns: str | Mapping[str, str], rows: Iterable[Sequence[Any]]) -> Table:
    """A table from its rows, and the names of its columns with their formats: ``name {:.3f} | name {:,}``."""
    if isinstance(columns, str):
        each = (column.partition("{") for column in columns.split(" | "))
        columns = {name.strip(): brace + form for name, brace, form in each}
    return Table(tuple(Column(*both) for both in columns.items()), tuple(tuple(row) for row in rows))


def parser(doc: str | None, **defaults: int) -> argparse.ArgumentParser:
    """The options that all benchmarks share, and one for each of these whole numbers."""
    shared = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared.add_argument("--data", type=Path, default=SHARED, help="folder of the recorded models")
    shared.add_argument("--results", type=Path, default=RESULTS, help="folder that the tables are written to")
    shared.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    for name, number in defaults.items():
        shared.add_argument(f"--{name.replace('_', '-')}", type=int, default=number)
    return shared


def options(doc: str | None, **defaults: int) -> argparse.Namespace:
    """The options of a benchmark that needs no others."""
    return parser(doc, **defaults).parse_args()


_USED: set[str] = set()
_NO_NUMBERS = tuple(
    str(Path("src/blindcal", name)) for name in ("cli", "report", "text", "progress_bar", "plot")
)
"""Code that prints and draws: no table depends on it."""


def run_all(
    work: Callable[[Job], Outcome], jobs: Sequence[Job], options: argparse.Namespace, *, chunk: int = 1
) -> list[Outcome]:
    """The outcome of each job, computed in processes, with a progress bar."""
    with ProcessPoolExecutor(options.processes) as pool:
        each = tqdm(pool.map(partial(_traced, work), jobs, chunksize=chunk), total=len(jobs), disable=None)
        outcomes = []
        for outcome, files in each:
            _USED.update(files)
            outcomes.append(outcome)
        return outcomes


def _traced(work: Callable[[Job], Outcome], job: Job) -> tuple[Outcome, frozenset[str]]:
    """The outcome of a job, and the files of the project that its process has loaded."""
    return work(job), _loaded()


def _loaded() -> frozenset[str]:
    return _files_of(len(sys.modules))


@lru_cache(maxsize=1)  # a benchmark has thousands of jobs
def _files_of(_modules: int) -> frozenset[str]:
    files = (Path(getattr(module, "__file__", None) or "/") for module in tuple(sys.modules.values()))
    inside = (str(file.relative_to(ROOT)) for file in files if file.is_relative_to(ROOT))
    return frozenset(
        file
        for file in inside
        if file.startswith(("src", "tests", "bench")) and not file.startswith(_NO_NUMBERS)
    )


def whole_source() -> frozenset[str]:
    """Every file on which a number may depend, for a benchmark that runs the command line in a process."""
    files = (str(file.relative_to(ROOT)) for file in (ROOT / "src").rglob("*.py"))
    return frozenset(file for file in files if not file.startswith(_NO_NUMBERS))


def digest(files: Iterable[str]) -> str:
    """A digest of the code of these files, in which comments and docstrings do not count."""
    code = hashlib.sha256()
    for path in (ROOT / file for file in sorted(files)):
        code.update(_bare(path).encode() if path.is_file() else b"gone")
    return code.hexdigest()[:16]


def _bare(path: Path) -> str:
    """The syntax tree of a file, without its docstrings and other bare strings."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [line for line in node.body if not _is_bare_string(line)]
    return ast.dump(tree)


def _is_bare_string(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


def score_files(data: Path) -> list[Path]:
    """The score files of the recorded models."""
    return _files(data / "scores", "*.csv.gz")


def recorded_cells(data: Path) -> list[Path]:
    """The files with a whole recording each."""
    return _files(data / "logits", "*__logits.csv.gz")


def _files(folder: Path, pattern: str) -> list[Path]:
    paths = sorted(folder.glob(pattern))
    if not paths:
        raise SystemExit(f"{folder} has no recorded models: name the folder above it with --data")
    return paths


def record(
    name: str,
    tables: Mapping[str, Table],
    options: argparse.Namespace,
    *,
    repeats: int | Mapping[str, int] | None = None,
    seeds: str = "seeds from 0",
    runs: Iterable[str] = (),
) -> Results:
    """Print the tables, and write them and how they were made to NAME.json in the folder of results.

    ``runs`` are files that other processes have run.
    """
    files = sorted((_USED | _loaded()).difference(["bench/record.py"]) | set(runs))
    results = Results(
        command=_command(sys.argv),
        repeats=options.repeats if repeats is None else repeats,
        seeds=seeds,
        version=importlib.metadata.version("blindcal"),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        machine=f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        seconds=round(time.monotonic() - _STARTED, 1),
        tables=tables,
        files=files,
        code=digest(files),
    )
    for title, shown in tables.items():
        print(f"\n{title}\n\n{shown.markdown()}", end="")
    print(f"\n{results.origin} {results.seconds:.0f} s")
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / f"{name}.json"
    path.write_text(json.dumps(asdict(results), indent=1, ensure_ascii=False) + "\n")
    return results


def _command(argv: Sequence[str]) -> str:
    """The command line, without options that change no number."""
    script, *words = argv
    for option in ("--processes", "--results", "--threads", "--out"):
        if option in words:
            place = words.index(option)
            words[place : place + 2] = []
    return shlex.join(["python", f"bench/{Path(script).name}", *words])


def read(path: Path) -> Results:
    """Read a file of results."""
    content: dict[str, Any] = json.loads(path.read_text())
    tables = {
        name: Table(tuple(Column(**column) for column in found["columns"]), tuple(map(tuple, found["rows"])))
        for name, found in content["tables"].items()
    }
    return Results(**{**content, "tables": tables})
