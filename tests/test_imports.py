"""Imports point one way, lazily or not, and importing the package is quick."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
STANDARD = set(sys.stdlib_module_names)

#: The rooms from the ground up: a room imports only from those before it (docs/decisions/packages.md).
ROOMS = (
    "errors",
    "records",
    "text",
    "untrusted_json",
    "json_form",
    "atomic_write",
    "query_seeds",
    "confidence_prompt",
    "prices",
    "estimate",
    "design",
    "choice_design",
    "methods",
    "evidence",
    "items",
    "endpoints",
    "simulation",
    "store",
    "settings",
    "planning",
    "results",
    "report",
    "telemetry",
    "plot",
    "auditing",
    "scoring",
    "progress_bar",
    "reproduce",
    "notebook_display",
    "blindcal",
    "cli",
    "__main__",
)


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted((SOURCE / "blindcal").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(name: str) -> set[str]:
    """Every module that a module imports, anywhere in it; a package's member counts as itself."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: imports are written in full"
            assert node.module is not None
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {member if member in MODULES else node.module for member in members}
    return found


def room_of(name: str) -> str:
    """The room that a module is in: its package, or itself at the top; the facade is ``blindcal``."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def named(*packages: str) -> list[str]:
    """Modules of the given packages; at least one each, so that a renamed package is noticed."""
    assert all(any(within(name, package) for name in MODULES) for package in packages)
    return [name for name in MODULES if within(name, *packages)]


def of_ours(name: str) -> set[str]:
    return {one for one in imports(name) if within(one, "blindcal")}


def of_others(name: str) -> set[str]:
    return {one.split(".")[0] for one in imports(name)} - STANDARD - {"blindcal"}


def test_every_room_has_its_place() -> None:
    """A new top-level module or package is put into the order, and one that is gone leaves it."""
    assert {room_of(name) for name in MODULES} == set(ROOMS)


@pytest.mark.parametrize("name", list(MODULES))
def test_imports_point_down(name: str) -> None:
    """A module imports from its own room and from those below, also where it imports lazily."""
    mine = ROOMS.index(room_of(name))
    above = {one for one in of_ours(name) if ROOMS.index(room_of(one)) > mine}
    assert not above, f"{name} imports {', '.join(sorted(above))}"


@pytest.mark.parametrize("room", ROOMS)
def test_no_room_has_a_circle(room: str) -> None:
    """Within a room, too, imports go one way."""
    inside = [name for name in MODULES if room_of(name) == room]
    graph = {name: {one for one in of_ours(name) if one in inside and one != name} for name in inside}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for one in graph[name]:
                visit(one, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_the_drawn_graph_is_the_one_in_force() -> None:
    """docs/decisions/packages.md lists the rooms in this order with what each imports (bench/rooms.py)."""
    page = (ROOT / "docs" / "decisions" / "packages.md").read_text()
    drawn = dict(re.findall(r"^\| `(\w+)` \| [^|]* \| ([^|]*) \|$", page, re.M))
    assert list(drawn) == list(ROOMS)
    for room in ROOMS:
        used = {room_of(one) for name in MODULES if room_of(name) == room for one in of_ours(name)} - {room}
        assert drawn[room] == (", ".join(sorted(used, key=ROOMS.index)) or "nothing"), room


@pytest.mark.parametrize("name", named("blindcal.estimate", "blindcal.design", "blindcal.methods"))
def test_estimators_know_numbers_only(name: str) -> None:
    """Numbers in, numbers out: numpy and scipy; no I/O, clock, logging or async."""
    assert of_others(name) <= {"numpy", "scipy"}
    reaching = {
        *(
            "asyncio",
            "io",
            "logging",
            "os",
            "pathlib",
            "random",
            "socket",
            "sqlite3",
            "subprocess",
            "sys",
            "time",
        ),
    }
    assert not {one.split(".")[0] for one in imports(name)} & reaching


@pytest.mark.parametrize("name", named("blindcal.planning.shapes", "blindcal.planning.forecast"))
def test_forecasts_know_numbers_only(name: str) -> None:
    """What is assumed and expected follows from numbers: no files, no clock."""
    assert of_others(name) <= {"numpy", "scipy"}
    assert not {one.split(".")[0] for one in imports(name)} & {"os", "pathlib", "time", "io"}


def test_the_store_knows_records_only() -> None:
    """The run on disk knows neither HTTP nor the design, nor who fills it."""
    allowed = ("errors", "records", "text", "atomic_write", "store")
    rooms = [f"blindcal.{one}" for one in allowed]
    assert all(within(one, *rooms) for name in named("blindcal.store") for one in of_ours(name))


def test_cells_need_numbers_alone() -> None:
    """The cells of a table can be computed where nothing but numpy and scipy is installed."""
    script = "import blindcal.reproduce.table, sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {one.split(".")[0] for one in run.stdout.split()}
    assert not loaded & {"msgspec", "click", "aiohttp", "tqdm", "matplotlib", "jinja2"}


COMMAND_LINE = ("blindcal.cli", "blindcal.__main__")


@pytest.mark.parametrize("name", [name for name in MODULES if not within(name, *COMMAND_LINE)])
def test_only_the_command_line_prints(name: str) -> None:
    """Only cli prints to the terminal."""
    assert "click" not in of_others(name)
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            assert any(keyword.arg == "file" for keyword in node.keywords), f"{name}, line {node.lineno}"


@pytest.mark.parametrize("name", [name for name in MODULES if not within(name, *COMMAND_LINE)])
def test_only_the_command_line_speaks_of_flags(name: str) -> None:
    """Errors carry their options as data: no text outside cli quotes a flag of the command line."""
    flags = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
    tree = ast.parse(MODULES[name].read_text())
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            quoted = [flag for flag in flags.findall(node.value) if flag not in OTHERS_FLAGS.get(name, ())]
            assert not quoted, f"{name}, line {node.lineno}: {quoted}"


#: Flags of other programs, and CSS variables.
OTHERS_FLAGS = {
    "blindcal.endpoints.model_file": (
        "--quiet",
        "--no-deps",
        "--no-cache-dir",
        "--disable-pip-version-check",
        "--dest",
    ),
    "blindcal.report.style": ("--bc-font", "--bc-ink", "--bc-"),
}


@pytest.mark.parametrize("name", [n for n in MODULES if room_of(n) not in ("report", "plot", "reproduce")])
def test_drawing_lives_in_the_report(name: str) -> None:
    """matplotlib is imported by what draws alone."""
    assert "matplotlib" not in of_others(name)


@pytest.mark.parametrize("name", [name for name in MODULES if name != "blindcal.items.hub"])
def test_the_hub_has_one_door(name: str) -> None:
    """Hugging Face's datasets are loaded in one place."""
    assert "datasets" not in of_others(name)


def test_a_class_name_occurs_once() -> None:
    """No two public classes or type aliases of the package share a name."""
    seen: dict[str, str] = {}
    for name, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                assert seen.setdefault(node.name, name) == name, f"{node.name}: {seen[node.name]} and {name}"


def test_importing_is_quick_and_light() -> None:
    """A fresh `import blindcal` takes well under a second and loads no client, reader, model or plot."""
    heavy = (
        "aiohttp",
        "datasets",
        "pandas",
        "polars",
        "pyarrow",
        "torch",
        "transformers",
        "matplotlib",
        "xllamacpp",
        "scipy.stats",
    )
    script = (
        "import time; begin = time.process_time(); import blindcal; spent = time.process_time() - begin\n"
        f"import sys; print(spent, *[name for name in {heavy!r} if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    spent, *loaded = run.stdout.split()
    assert loaded == []
    assert float(spent) < 1.0  # seconds of the process's own time: a busy machine does not matter much


def test_the_command_line_starts_without_numpy() -> None:
    """`blindcal --help` loads no numpy, so that its choice of threads holds; the user's own wins."""
    script = "import blindcal.cli, os, sys; print(os.environ['OPENBLAS_NUM_THREADS'], 'numpy' in sys.modules)"
    for environ, threads in (({}, "1"), ({"OPENBLAS_NUM_THREADS": "2"}, "2")):
        clean = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
        run = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=clean | environ
        )
        assert run.stdout.split() == [threads, "False"]


def test_public_names_are_there() -> None:
    """Everything that __all__ promises can be had."""
    script = "import blindcal; print(*[name for name in blindcal.__all__ if not hasattr(blindcal, name)])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_the_package_runs_as_a_module() -> None:
    """``python -m blindcal`` is the command line, where its command is not on the path."""
    run = subprocess.run(
        [sys.executable, "-m", "blindcal", "--version"], capture_output=True, text=True, check=True
    )
    assert "version" in run.stdout
