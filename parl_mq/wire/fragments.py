"""Fragments as the arrays of an InsertFragments message, and back with every check."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from parl_mq.errors import WireError
from parl_mq.fragments import FragmentBatch
from parl_mq.spec import TableSpec
from parl_mq.wire.codec import Arrays, expect_arrays

_PREFIX = "fragment."
_FIELDS = {
    "lengths": (("F",), "int32"),
    "num_context": (("F",), "int32"),
    "num_overlap": (("F",), "int32"),
    "starts_episode": (("F",), "bool"),
    "versions": (("F", 2), "uint32"),
}


def arrays_of(fragments: FragmentBatch) -> Arrays:
    """The arrays of the message; what describes fragments has a prefix that no column's name can have."""
    arrays: Arrays = {name: np.asarray(column) for name, column in fragments.columns.items()}
    arrays |= {_PREFIX + name: getattr(fragments, name) for name in _FIELDS}
    if fragments.priorities is not None:
        arrays[f"{_PREFIX}priorities"] = fragments.priorities
    return arrays


def fragment_batch_of(arrays: Arrays, spec: TableSpec) -> FragmentBatch:
    """The fragments that `arrays_of` described.

    Raises:
        WireError: an array is missing, foreign, of another dtype or shape, or they contradict each other.
    """
    expected: dict[str, tuple[tuple[int | str, ...], str]] = {
        column.name: (("R", *column.shape), column.dtype) for column in spec.columns
    }
    expected |= {_PREFIX + name: row for name, row in _FIELDS.items()}
    if f"{_PREFIX}priorities" in arrays:
        expected[f"{_PREFIX}priorities"] = (("T",), "float64")
    sizes = expect_arrays(arrays, expected)
    described: dict[str, npt.NDArray[Any]] = {name: arrays[_PREFIX + name] for name in _FIELDS}
    _check_counts(described, sizes)
    return FragmentBatch(
        columns={column.name: arrays[column.name] for column in spec.columns},
        priorities=arrays.get(f"{_PREFIX}priorities"),
        **described,
    )


def _check_counts(described: dict[str, npt.NDArray[Any]], sizes: dict[str, int]) -> None:
    lengths, context, overlap = (described[name].astype(np.int64) for name in ("lengths", "num_context", "num_overlap"))
    if not len(lengths):
        raise WireError("field lengths: a message must have at least one fragment")
    for name, values, smallest in (("lengths", lengths, 1), ("num_context", context, 0), ("num_overlap", overlap, 0)):
        if values.min() < smallest:
            raise WireError(f"field {name}: got {values.min()}, expected at least {smallest}")
    rows = int((lengths + context + overlap + 1).sum())
    if rows != sizes["R"]:
        raise WireError(f"field lengths: the fragments have {rows} rows, the columns {sizes['R']}")
    if "T" in sizes and sizes["T"] != int(lengths.sum()):
        raise WireError(f"field priorities: got {sizes['T']} values, expected {int(lengths.sum())}")
