"""Fragments as the arrays of an InsertFragments message, and back, with every check that needs no table."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from parl_mq.errors import WireError
from parl_mq.fragments import FragmentBatch
from parl_mq.spec import Space, TableSpec, limits_of
from parl_mq.wire.codec import Arrays, Shape, expect_arrays

PREFIX: Final = "fragment."
"""Of the arrays that describe the fragments, so that columns may have any name that one would give them."""
PRIORITIES: Final = f"{PREFIX}priorities"

_PER_FRAGMENT: Final[Mapping[str, tuple[Shape, str]]] = {
    "lengths": (("F",), "int32"),
    "num_context": (("F",), "int32"),
    "num_overlap": (("F",), "int32"),
    "starts_episode": (("F",), "bool"),
    "versions": (("F", 2), "uint32"),
}


def arrays_of(fragments: FragmentBatch) -> Arrays:
    """The arrays of an InsertFragments message; no copies."""
    described: Arrays = {PREFIX + name: getattr(fragments, name) for name in _PER_FRAGMENT}
    priorities = {} if fragments.priorities is None else {PRIORITIES: fragments.priorities}
    return {**fragments.columns, **described, **priorities}


def fragment_batch_of(
    arrays: Mapping[str, npt.NDArray[Any]], spec: TableSpec, *, must_be_sound: bool = False
) -> FragmentBatch:
    """The fragments in the arrays of an InsertFragments message; no copies.

    Args:
        arrays: as a Decoder returned them.
        spec: of the table.
        must_be_sound: values that no learner can use are refused, but where nobody reads them: numbers that are not
            finite, and those that a Discrete or MultiDiscrete space does not hold.

    Raises:
        WireError: something is wrong with them; it names the field.
    """
    expected: dict[str, tuple[Shape, str]] = {
        column.name: (("R", *column.shape), column.dtype) for column in spec.columns
    }
    expected |= {PREFIX + name: array for name, array in _PER_FRAGMENT.items()}
    if PRIORITIES in arrays:
        expected[PRIORITIES] = (("P",), "float64")
    sizes = expect_arrays(arrays, expected)
    described: dict[str, npt.NDArray[Any]] = {name: arrays[PREFIX + name] for name in _PER_FRAGMENT}
    fragments = FragmentBatch(
        columns={column.name: arrays[column.name] for column in spec.columns},
        priorities=arrays.get(PRIORITIES),
        **described,
    )
    _check_counts(fragments, sizes)
    _check_ends(fragments)
    if must_be_sound:
        _check_values(fragments, spec)
    return fragments


def _check_counts(fragments: FragmentBatch, sizes: Mapping[str, int]) -> None:
    if not fragments.num_fragments:
        raise WireError(f"field {PREFIX}lengths: no fragment at all")
    for name, least in (("lengths", 1), ("num_context", 0), ("num_overlap", 0)):
        counts = getattr(fragments, name)
        if (smallest := counts.min()) < least:
            raise WireError(
                f"field {PREFIX}{name}: {smallest} at fragment {counts.argmin()}, expected at least {least}"
            )
    num_rows = int(_rows_of(fragments).sum())
    if num_rows != sizes["R"]:
        raise WireError(f"field {PREFIX}lengths: the fragments have {num_rows} rows, the columns {sizes['R']}")
    if fragments.priorities is not None:
        _check_priorities(fragments.priorities, fragments.num_live)


def _check_priorities(priorities: npt.NDArray[np.float64], num_live: int) -> None:
    if len(priorities) != num_live:
        raise WireError(f"field {PRIORITIES}: {len(priorities)} for {num_live} live rows")
    is_good = (priorities >= 0) & (priorities < np.inf)  # both are false for NaN
    if not is_good.all():
        row = int(is_good.argmin())
        raise WireError(f"field {PRIORITIES}: {priorities[row]} at live row {row}, expected a finite number >= 0")


def _check_ends(fragments: FragmentBatch) -> None:
    """Only a fragment's last step may end an episode; closing rows are not read."""
    closing = _closing_rows(fragments)
    for name in ("terminated", "truncated"):
        ends = fragments.columns[name]
        if np.count_nonzero(ends) != np.count_nonzero(ends[closing]) + np.count_nonzero(ends[closing - 1]):
            row = np.setdiff1d(np.flatnonzero(ends), [*closing, *(closing - 1)])[0]
            raise WireError(f"field {name}: set at row {row}, which is not the last step of a fragment")


def _check_values(fragments: FragmentBatch, spec: TableSpec) -> None:
    """Of closing rows only the observations are read."""
    with np.errstate(over="ignore", invalid="ignore"):
        for name, values in fragments.columns.items():
            space = spec.spaces.get(name)
            if (is_bad := _unsound(values, space)) is None:
                continue
            if name not in spec.observation_names:
                is_bad[_closing_rows(fragments)] = False
            if is_bad.any():  # where it is read
                expected = "finite"
                if space is not None and values.dtype.kind != "f":
                    expected = f"from {min(space.low):g} to {max(space.high):g}"
                raise WireError(f"field {name}: row {int(is_bad.argmax())} is not {expected}")


def _unsound(values: npt.NDArray[Any], space: Space | None) -> npt.NDArray[np.bool_] | None:
    """[R] rows with values that no learner can use; None where there are none."""
    if values.dtype.kind == "f":
        flat = values.reshape(-1)
        if isfinite(np.dot(flat, flat)):  # which takes a third of the time; the squares of large ones are infinite
            return None
        is_bad = np.logical_not(np.isfinite(values))
    elif (limits := limits_of(space, values.shape[1:])) is not None:
        is_bad = np.logical_or(values < limits[0], values > limits[1])
    else:
        return None
    rows: npt.NDArray[np.bool_] = is_bad.reshape(len(values), -1).any(axis=1)
    return rows if rows.any() else None


def _rows_of(fragments: FragmentBatch) -> npt.NDArray[np.int64]:
    """[F] rows of each fragment, its closing row included; in int64, where three int32 cannot overflow."""
    return fragments.lengths.astype(np.int64) + fragments.num_context + fragments.num_overlap + 1


def _closing_rows(fragments: FragmentBatch) -> npt.NDArray[np.int64]:
    """[F] row of each fragment's closing row. The step before it is the fragment's last."""
    return np.cumsum(_rows_of(fragments)) - 1
