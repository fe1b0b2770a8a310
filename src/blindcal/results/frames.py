"""Columns as a frame of pandas or polars, whichever is installed; neither is required."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from blindcal.errors import InputError, MissingExtraError

FrameLibrary: TypeAlias = Literal["pandas", "polars"]
LIBRARIES: tuple[FrameLibrary, ...] = get_args(FrameLibrary)


def frame(
    columns: Mapping[str, Sequence[Any]], library: FrameLibrary | None = None, *, texts: Collection[str] = ()
) -> Any:
    """A ``DataFrame`` of these columns; ``None`` in them is an unknown value.

    Without a ``library``, it is one of pandas if that is installed, otherwise one of polars. ``texts`` names
    columns of text that may hold no text at all.

    Raises
    ------
    MissingExtraError
        If the library is not installed, or neither is.
    """
    name, module = _imported(library)
    kinds = {column: "text" if column in texts else _kind(values) for column, values in columns.items()}
    if name == "polars":
        types = {"text": "String", "bool": "Boolean", "whole": "Int64", "real": "Float64"}
        schema = {column: getattr(module, types[kind]) for column, kind in kinds.items()}
        return module.DataFrame(dict(columns), schema=schema)
    return module.DataFrame(
        {column: _series(module, values, kinds[column]) for column, values in columns.items()}
    )


def _imported(library: str | None) -> tuple[str, Any]:
    if library is not None and library not in LIBRARIES:
        raise InputError(f"library: must be one of {', '.join(LIBRARIES)}, got {library!r}")
    wanted = LIBRARIES if library is None else (library,)
    for name in wanted:
        try:
            return name, importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:  # it is there, but lacks something itself
                raise
    raise MissingExtraError(
        f"a frame needs {' or '.join(wanted)}, which {'is' if library else 'are'} not installed",
        remedy=" or ".join(f"pip install {name}" for name in wanted),
    )


def _kind(values: Sequence[Any]) -> str:
    """The type of a column, by the values in it that are known."""
    types = {type(value) for value in values if value is not None}
    if str in types:
        return "text"
    if types and types <= {bool}:
        return "bool"
    return "whole" if types and types <= {int} else "real"


def _series(pandas: Any, values: Sequence[Any], kind: str) -> Any:
    missing = any(value is None for value in values)
    if kind == "real":
        return pandas.Series(values, dtype="float64")
    if kind == "whole":
        return pandas.Series(values, dtype="Int64" if missing else "int64")
    if kind == "bool":
        return pandas.Series(values, dtype="boolean" if missing else "bool")
    # the type of text depends on the version of pandas; a column without any has none to find it by
    return pandas.Series(values, dtype=None if any(values) else "object")
