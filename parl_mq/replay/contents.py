"""The rows of a ring as plain columns, to be saved and put back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parl_mq.errors import SnapshotError
from parl_mq.replay.layout import LIVE

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class RingContents:
    """The valid rows of a ring, oldest first; R rows.

    Attributes:
        tail: position of the first.
        headers: the fields of the rows' headers by name, each as pieces that follow each other.
        columns: likewise.
        leaves: likewise.
    """

    tail: int
    headers: dict[str, list[Array]]
    columns: dict[str, list[Array]]
    leaves: list[Array]

    def named_arrays(self) -> dict[str, list[Array]]:
        """All of it under names that tell headers, columns and leaves apart."""
        return {
            **{f"header/{name}": pieces for name, pieces in self.headers.items()},
            **{f"column/{name}": pieces for name, pieces in self.columns.items()},
            "leaves": self.leaves,
        }

    @classmethod
    def from_named_arrays(cls, tail: int, arrays: Mapping[str, Array]) -> RingContents:
        """The contents whose arrays these are.

        Raises:
            SnapshotError: their lengths differ, or the leaves are missing.
        """
        if len({len(array) for array in arrays.values()}) != 1 or "leaves" not in arrays:
            raise SnapshotError("its arrays do not belong together")
        headers, columns = (
            {name.removeprefix(group): [array] for name, array in arrays.items() if name.startswith(group)}
            for group in ("header/", "column/")
        )
        return cls(tail, headers, columns, [arrays["leaves"]])


def slot_ranges(start: int, stop: int, num_rows: int) -> list[slice]:
    """The slots of the positions [start, stop), which are `num_rows` at most, in order."""
    if start == stop:
        return [slice(0, 0)]
    first, last = start % num_rows, (stop - 1) % num_rows + 1
    return [slice(first, last)] if first < last else [slice(first, num_rows), slice(0, last)]


def check_headers(headers: npt.NDArray[np.void], leaves: Array, tail: int, num_rows: int) -> int:
    """Whether rows are whole fragments one behind the other; returns their number of live rows.

    Draws and evictions follow these numbers through memory without looking back, so that none of them may be wrong.

    Args:
        headers: [R] in the order of positions.
        leaves: [R].
        tail: position of the first.
        num_rows: of the ring.

    Raises:
        SnapshotError: they are not.
    """
    left, before = headers["rows_left"].astype(np.int64), headers["rows_before"].astype(np.int64)
    is_live = (headers["flags"] & LIVE).astype(np.bool_)
    is_last = left == 0
    if len(headers) == 0:
        return 0
    is_at_end = (tail + np.arange(len(headers))) % num_rows == num_rows - 1
    starts = np.flatnonzero(before == 0)
    follows = np.where(is_last[:-1], before[1:] == 0, (left[1:] == left[:-1] - 1) & (before[1:] == before[:-1] + 1))
    is_whole = before[0] == 0 and is_last[-1] and follows.all() and is_last[is_at_end].all()
    if not is_whole or (is_live & is_last).any() or (headers["span"][is_live] == 0).any():
        raise SnapshotError("its rows are not whole fragments")
    num_live = np.add.reduceat(is_live.astype(np.int64), starts)
    if (num_live != headers["num_live"][starts]).any() or not (leaves[~is_live] == 0.0).all():
        raise SnapshotError("its live rows are not those that its fragments name")
    return int(num_live.sum())
