"""Imports point one way, lazily or not, and what a module does stays in its room."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from paths import ROOT

SOURCE = ROOT / "src"
STANDARD = set(sys.stdlib_module_names)

#: What each room imports, from the ground up: a room imports only from those before it.
DRAWN = dict(
    re.findall(
        r"^\| `(\w+)` \| [^|]* \| ([^|]*) \|$",
        (ROOT / "docs" / "decisions" / "packages.md").read_text(),
        re.MULTILINE,
    )
)
ROOMS = tuple(DRAWN)


def modules() -> dict[str, Path]:
    named = {}
    for path in sorted((SOURCE / "blindcal").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


MODULES = modules()


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text())


@cache
def imports(name: str) -> set[str]:
    """Every module that a module imports, anywhere in it; a package's member counts as itself."""
    names: set[str] = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: imports are written in full"
            assert node.module is not None
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {member if member in MODULES else node.module for member in members}
    return names


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
    return {imported for imported in imports(name) if within(imported, "blindcal")}


def of_others(name: str) -> set[str]:
    return {imported.split(".")[0] for imported in imports(name)} - STANDARD - {"blindcal"}


def test_every_room_has_its_place() -> None:
    """A new top-level module or package is put into the order, and one that is gone leaves it."""
    assert {room_of(name) for name in MODULES} == set(ROOMS)


def test_imports_point_down() -> None:
    """A module imports from its own room and from those below, also where it imports lazily."""
    above = [
        f"{name} imports {imported}"
        for name in MODULES
        for imported in sorted(of_ours(name))
        if ROOMS.index(room_of(imported)) > ROOMS.index(room_of(name))
    ]
    assert above == []


def test_no_room_has_a_circle() -> None:
    """Within a room, too, imports go one way."""
    graph = {
        name: {other for other in of_ours(name) if room_of(other) == room_of(name) and other != name}
        for name in MODULES
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


def test_the_drawn_graph_is_the_one_in_force() -> None:
    """docs/decisions/packages.md lists what each room imports (bench/rooms.py)."""
    for room in ROOMS:
        mine = [name for name in MODULES if room_of(name) == room]
        used = {room_of(imported) for name in mine for imported in of_ours(name)} - {room}
        assert DRAWN[room] == (", ".join(sorted(used, key=ROOMS.index)) or "nothing"), room


def test_estimators_and_forecasts_know_numbers_only() -> None:
    """Numbers in, numbers out: numpy and scipy; no I/O, clock, logging or async."""
    estimators = named("blindcal.estimate", "blindcal.design", "blindcal.methods")
    forecasts = named("blindcal.planning.forecast")
    files = {"os", "pathlib", "time", "io"}
    others = {"asyncio", "logging", "random", "socket", "sqlite3", "subprocess", "sys"}
    offending = []
    for name in (*estimators, *forecasts):
        banned = files | others if name in estimators else files
        used = {imported.split(".")[0] for imported in imports(name)} & banned
        offending += [f"{name} imports {other}" for other in used | (of_others(name) - {"numpy", "scipy"})]
    assert offending == []


def test_the_store_knows_records_only() -> None:
    """The run on disk knows neither HTTP nor the design, nor who fills it."""
    allowed = ("errors", "records", "text", "atomic_write", "store")
    rooms = [f"blindcal.{room}" for room in allowed]
    assert all(within(used, *rooms) for name in named("blindcal.store") for used in of_ours(name))


COMMAND_LINE = ("blindcal.cli", "blindcal.__main__")


BELOW = [name for name in MODULES if not within(name, *COMMAND_LINE)]


def test_only_the_command_line_prints() -> None:
    """Only cli prints to the terminal."""
    printing = [f"{name} imports click" for name in BELOW if "click" in of_others(name)]
    for name in BELOW:
        calls = (node for node in ast.walk(tree(name)) if isinstance(node, ast.Call))
        printing += [
            f"{name}, line {call.lineno}"
            for call in calls
            if isinstance(call.func, ast.Name) and call.func.id == "print"
            if not any(keyword.arg == "file" for keyword in call.keywords)
        ]
    assert printing == []


def test_only_the_command_line_speaks_of_flags() -> None:
    """Errors carry their options as data: no text outside cli quotes a flag of the command line."""
    assert [place for name in BELOW for place in quoted_flags(name)] == []


def quoted_flags(name: str) -> list[str]:
    """Where the texts of a module, its docstrings apart, quote flags."""
    flags = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return [
        f"{name}, line {node.lineno}: {flag}"
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
        for flag in flags.findall(node.value)
        if flag not in OTHERS_FLAGS.get(name, ())
    ]


#: Flags of other programs, and CSS variables.
OTHERS_FLAGS = {
    "blindcal.endpoints.local_model": (
        "--quiet",
        "--no-deps",
        "--no-cache-dir",
        "--disable-pip-version-check",
        "--dest",
    ),
    "blindcal.report.style": ("--bc-font", "--bc-ink", "--bc-"),
}


def test_some_libraries_have_one_door() -> None:
    """matplotlib is imported by what draws alone, and Hugging Face's datasets are loaded in one place."""
    drawing = {name for name in MODULES if "matplotlib" in of_others(name)}
    assert {room_of(name) for name in drawing} <= {"report", "plot", "reproduce"}, drawing
    assert [name for name in MODULES if "datasets" in of_others(name)] == ["blindcal.items.catalogue"]


def test_a_class_name_occurs_once() -> None:
    """No two public classes or type aliases of the package share a name."""
    seen: dict[str, str] = {}
    for name in MODULES:
        for node in tree(name).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                assert seen.setdefault(node.name, name) == name, f"{node.name}: {seen[node.name]} and {name}"
