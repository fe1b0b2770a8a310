"""Checks of arguments: each message names the argument, the rule and the value that broke it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from blindcal.errors import InputError
from blindcal.records import INVALID, UNLABELLED, BoolArray, FloatArray, IntArray

ArrayLike = npt.ArrayLike


def _vector(name: str, values: ArrayLike) -> npt.NDArray[Any]:
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(f"{name}: must be a flat sequence of numbers ({error})") from None
    if array.ndim != 1:
        raise InputError(f"{name}: must be one-dimensional, got shape {array.shape}")
    return array


def _first_bad(name: str, rule: str, array: npt.NDArray[Any], bad: BoolArray) -> None:
    if bad.any():
        where = int(np.argmax(bad))
        raise InputError(f"{name}: {rule}, got {array[where : where + 1].tolist()[0]!r} at position {where}")


def _numbers(name: str, values: ArrayLike, like: int | None = None) -> FloatArray:
    array = _vector(name, values)
    if array.dtype.kind == "O":  # None among numbers is the usual case: say so instead of "float() argument"
        _first_bad(name, "must hold numbers", array, np.array([not np.isscalar(v) for v in array], bool))
    try:
        numbers = array.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name}: must hold numbers, got {array[:1].tolist()[0]!r}") from None
    if like is not None:
        _same_length(name, numbers, like)
    return numbers


def labels_array(values: ArrayLike, name: str = "labels") -> IntArray:
    """Labels as 0/1 integers; booleans are accepted."""
    array = _numbers(name, values)
    if array.size == 0:
        raise InputError(f"{name}: must not be empty")
    _first_bad(name, "must be 0 or 1", array, ~((array == 0) | (array == 1)))
    return array.astype(np.int64)


def labels_of_some(values: ArrayLike, like: int) -> IntArray:
    """Labels as 0/1 integers, and -1 for items without one."""
    array = _numbers("labels", values, like)
    _first_bad("labels", "must be 0, 1 or -1 (no label)", array, ~np.isin(array, (0, 1, UNLABELLED)))
    return array.astype(np.int64)


def probabilities(values: ArrayLike, name: str = "p", like: int | None = None) -> FloatArray:
    array = _numbers(name, values, like)
    _first_bad(name, "must be a number in [0, 1]", array, ~((array >= 0) & (array <= 1)))
    return array


def reals(
    values: ArrayLike, name: str, like: int, *, minimum: float = -np.inf, infinite: bool = False
) -> FloatArray:
    """Real numbers of the expected length; a single number is repeated."""
    array = np.asarray(values)
    array = _numbers(name, np.full(like, array) if array.ndim == 0 else array, like)
    rule = "must be a number" if minimum == -np.inf else f"must be a number of at least {minimum:g}"
    bad = np.isnan(array) | (array < minimum)
    if not infinite:
        bad |= np.isinf(array)
        rule = rule.replace("a number", "a finite number")
    _first_bad(name, rule, array, bad)
    return array


def wholes(values: ArrayLike, name: str, like: int) -> IntArray:
    array = _numbers(name, values, like)
    counting = (array >= 1) & (array == np.rint(array))
    _first_bad(name, "must be a whole number of at least 1", array, ~counting)
    return array.astype(np.int64)


def answers_array(values: ArrayLike, like: int) -> IntArray:
    """Answers as 1 (or True), 0 (or False) and -1 for invalid ones (or NaN, None)."""
    array = _vector("answers", values)
    if array.dtype.kind == "O":
        array = np.array([INVALID if v is None else v for v in array])
    floats = _numbers("answers", array, like)
    floats = np.where(np.isnan(floats), INVALID, floats)
    known = np.isin(floats, (0, 1, INVALID))
    _first_bad("answers", "must be 1 (positive), 0 (negative) or -1 (invalid)", array, ~known)
    return floats.astype(np.int64)


def bounds_array(values: ArrayLike, like: int) -> FloatArray:
    """Pairs of log-odds, lower one first; NaN twice where there are none."""
    array = np.asarray(values, np.float64)
    if array.shape != (like, 2):
        raise InputError(f"bounds: must have one row of two per label ({like}, 2), got shape {array.shape}")
    ordered = (array[:, 0] <= array[:, 1]) | np.isnan(array).all(axis=1)
    _first_bad("bounds", "must be two log-odds, the lower one first, or NaN twice", array, ~ordered)
    return array


def codes(values: ArrayLike, name: str, like: int) -> IntArray:
    """Names of items or groups as integers 0..k-1, in sorted order."""
    array = _vector(name, values)
    _same_length(name, array, like)
    if array.dtype.kind == "f":
        _first_bad(name, "must not be NaN", array, np.isnan(array))
    try:
        return np.unique(array, return_inverse=True)[1].astype(np.int64)
    except TypeError:
        raise InputError(f"{name}: must be names of one kind (all text or all numbers)") from None


def per_item(name: str, per_row: IntArray, owner: IntArray) -> IntArray:
    """The value that all rows of an item share; an error if they differ."""
    values = np.empty(int(owner.max()) + 1, np.int64)
    values[owner] = per_row
    clash = values[owner] != per_row
    if clash.any():
        where = int(np.argmax(clash))
        raise InputError(
            f"{name}: must be the same for all queries of one item, got a change at position {where}"
        )
    return values


def _same_length(name: str, array: npt.NDArray[Any], like: int) -> None:
    if array.size != like:
        raise InputError(f"{name}: must be as long as labels ({like}), got {array.size}")


def whole(value: object, name: str, minimum: int = 1) -> int:
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value >= minimum:
        return int(value)
    raise InputError(f"{name}: must be a whole number of at least {minimum}, got {value!r}")


def fraction(value: float, name: str) -> float:
    if not 0 < value < 1:
        raise InputError(f"{name}: must be strictly between 0 and 1, got {value!r}")
    return float(value)
