"""Imports point one way, and importing the package is quick."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
STANDARD = set(sys.stdlib_module_names)


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


@pytest.mark.parametrize("name", named("blindcal.errors", "blindcal.records"))
def test_errors_and_records_import_nothing_of_ours(name: str) -> None:
    """What everything passes around knows nobody."""
    assert of_ours(name) <= {"blindcal.errors"}


@pytest.mark.parametrize("name", named("blindcal.estimate"))
def test_estimators_know_numbers_only(name: str) -> None:
    """estimate imports numpy, scipy, errors, records and itself; no I/O, clock, logging or async.

    The one way out is named: what draws itself asks the report to, when it is asked to and not before.
    """
    assert of_others(name) <= {"numpy", "scipy"}
    way_out = {"blindcal.report"} if name == "blindcal.estimate.drawn" else set()
    allowed = ("blindcal.errors", "blindcal.records", "blindcal.estimate", *way_out)
    assert all(within(one, *allowed) for one in of_ours(name))
    reaching = {
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
    }
    assert not {one.split(".")[0] for one in imports(name)} & reaching


def test_the_design_knows_estimators_only() -> None:
    """design imports estimate, errors and records."""
    assert of_others("blindcal.design") <= {"numpy", "scipy"}
    allowed = ("blindcal.errors", "blindcal.records", "blindcal.estimate")
    assert all(within(one, *allowed) for one in of_ours("blindcal.design"))


@pytest.mark.parametrize(
    "name", named("blindcal.planning.shapes", "blindcal.planning.forecast", "blindcal.auditing.item_sample")
)
def test_promises_know_numbers_only(name: str) -> None:
    """What is assumed and promised, and which items take part, follows from numbers: no files, no clock."""
    assert of_others(name) <= {"numpy", "scipy"}
    pure = ("errors", "records", "estimate", "design", "methods", "simulate", "planning.shapes")
    assert all(within(one, *(f"blindcal.{each}" for each in pure)) for one in of_ours(name))


@pytest.mark.parametrize("name", named("blindcal.items"))
def test_items_know_nobody_who_is_asked(name: str) -> None:
    """Questions and their labels are read without a thought of what is done with them."""
    allowed = ("blindcal.errors", "blindcal.records", "blindcal.text", "blindcal.items")
    assert all(within(one, *allowed) for one in of_ours(name))


@pytest.mark.parametrize("name", named("blindcal.endpoints"))
def test_endpoints_know_nobody_who_asks(name: str) -> None:
    """An endpoint turns requests into replies: it may know items (a replay does), but no store and no run."""
    allowed = ("errors", "records", "text", "chance", "wording", "items", "endpoints")
    assert all(within(one, *(f"blindcal.{each}" for each in allowed)) for one in of_ours(name))


def test_the_store_knows_records_only() -> None:
    """The run on disk knows neither the wire nor the design, nor who fills it."""
    allowed = {"blindcal.errors", "blindcal.records", "blindcal.store.run_file", "blindcal.text"}
    assert of_ours("blindcal.store.run_store") <= allowed
    assert of_ours("blindcal.store.run_file") <= {"blindcal.errors"}


def test_cells_need_numbers_alone() -> None:
    """The cells of a table can be computed where nothing but numpy and scipy is installed."""
    script = "import blindcal.reproduce.table, sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {one.split(".")[0] for one in run.stdout.split()}
    assert not loaded & {"msgspec", "click", "aiohttp", "tqdm", "matplotlib", "jinja2"}


COMMAND_LINE = ("blindcal.cli", "blindcal.__main__")


@pytest.mark.parametrize("name", [name for name in MODULES if not within(name, *COMMAND_LINE)])
def test_nothing_imports_the_command_line(name: str) -> None:
    """cli uses everything and nothing uses cli; only cli prints to the terminal."""
    assert not any(within(one, "blindcal.cli") for one in of_ours(name))
    assert "click" not in of_others(name)
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            assert any(keyword.arg == "file" for keyword in node.keywords), f"{name}, line {node.lineno}"


@pytest.mark.parametrize("name", [name for name in MODULES if not within(name, "blindcal.report")])
def test_drawing_lives_in_the_report(name: str) -> None:
    """matplotlib is imported by report alone."""
    assert "matplotlib" not in of_others(name)


@pytest.mark.parametrize("name", [name for name in MODULES if name != "blindcal.items.hub"])
def test_the_hub_has_one_door(name: str) -> None:
    """Hugging Face's datasets are loaded in one place."""
    assert "datasets" not in of_others(name)


@pytest.mark.parametrize("name", named("blindcal.items.record_files", "blindcal.items.hub"))
def test_records_are_read_before_they_mean_anything(name: str) -> None:
    """What reads records knows neither items nor audits."""
    assert of_ours(name) <= {"blindcal.errors", "blindcal.text", "blindcal.items.record_files"}


@pytest.mark.parametrize("name", named("blindcal.endpoints.query_format", "blindcal.confidence_prompt"))
def test_a_question_knows_nobody_who_asks_it(name: str) -> None:
    """How a query is put and read does not depend on who sends, keeps or answers it."""
    assert not any(
        within(
            one,
            "blindcal.endpoints",
            "blindcal.store.run_store",
            "blindcal.asking",
            "blindcal.auditing.audit",
        )
        for one in of_ours(name)
    )


def at_once(name: str) -> set[str]:
    """What of ours a module imports as soon as it is imported itself."""
    found = set()
    for node in ast.parse(MODULES[name].read_text()).body:
        if isinstance(node, ast.ImportFrom) and within(str(node.module), "blindcal"):
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {member if member in MODULES else str(node.module) for member in members}
    return found - {"blindcal"}


def assert_no_circle(graph: dict[str, set[str]]) -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for one in graph[name]:
                visit(one, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_no_module_imports_itself_in_a_circle() -> None:
    """The graph of top-level imports has no cycle."""
    assert_no_circle({name: at_once(name) for name in MODULES})


def test_no_package_imports_itself_in_a_circle() -> None:
    """Nor has that of packages: each is built on those below it."""

    def package(name: str) -> str:
        return ".".join(name.split(".")[:2])

    graph: dict[str, set[str]] = {package(name): set() for name in MODULES}
    for name in MODULES:
        graph[package(name)] |= {package(one) for one in at_once(name)} - {package(name)}
    assert_no_circle(graph)


def test_importing_is_quick_and_light() -> None:
    """A fresh `import blindcal` takes well under a second and loads no client, reader, model or plot."""
    heavy = (
        "aiohttp",
        "datasets",
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
