"""The rows of a ring as plain columns, to be saved and put back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parl_mq.errors import SnapshotError
from parl_mq.replay._commits import digest_of
from parl_mq.replay.layout import HEADER_DTYPE, HEADER_NAME
from parl_mq.replay.mapping import Segment
from parl_mq.replay.senders import SenderMark

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class RingAccount:
    """What a ring knows beside its rows.

    Attributes:
        num_inserted: live rows that were ever committed.
        max_magnitude: the running maximum.
        senders: how far each sender's stream is stored, the one that was silent for longest first.
    """

    num_inserted: int
    max_magnitude: float
    senders: list[SenderMark]

    def to_json(self) -> dict[str, Any]:
        """In JSON values."""
        senders = [[digest_of(mark.name).hex(), *mark[1:]] for mark in self.senders]
        return {"num_inserted": self.num_inserted, "max_magnitude": self.max_magnitude, "senders": senders}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RingAccount:
        """What `to_json` gave."""
        senders = [SenderMark(bytes.fromhex(name), *numbers) for name, *numbers in values["senders"]]
        return cls(values["num_inserted"], values["max_magnitude"], senders)


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
    def from_named_arrays(cls, start: int, tail: int, arrays: Mapping[str, Array]) -> RingContents:
        """The contents whose arrays these are, as far as they lie behind the tail; one piece of each.

        Args:
            start: position of the arrays' first row.
            tail: position of the first valid one.
            arrays: by the names of `named_arrays`.

        Raises:
            SnapshotError: their lengths differ, or the leaves are missing.
        """
        if len({len(array) for array in arrays.values()}) != 1 or "leaves" not in arrays:
            raise SnapshotError("its arrays do not belong together")
        if not 0 <= start <= tail <= start + len(arrays["leaves"]):
            raise SnapshotError(f"its rows start at position {start}, and the valid ones at {tail}")
        headers, columns = (
            {
                name.removeprefix(group): [array[tail - start :]]
                for name, array in arrays.items()
                if name.startswith(group)
            }
            for group in ("header/", "column/")
        )
        return cls(tail, headers, columns, [arrays["leaves"][tail - start :]])

    @property
    def end(self) -> int:
        """The position behind the last row."""
        return self.tail + sum(len(piece) for piece in self.leaves)

    def write(self, segment: Segment) -> None:
        """Copies the rows, which are one piece, and their leaves into a segment.

        Raises:
            SnapshotError: it has other columns, or is too small.
        """
        num_rows = segment.shape.num_rows
        if self.end - self.tail > num_rows:
            raise SnapshotError(f"{self.end - self.tail} rows do not fit into {num_rows}")
        headers, columns = _fields(segment.records())
        ranges = slot_ranges(self.tail, self.end, num_rows)
        for targets, given in (
            (headers, self.headers),
            (columns, self.columns),
            ({"": segment.leaves}, {"": self.leaves}),
        ):
            if targets.keys() != given.keys():
                raise SnapshotError(f"its columns are {sorted(given)}: they must be {sorted(targets)}")
            for name, (column,) in given.items():
                if column.dtype != targets[name].dtype or column.shape[1:] != targets[name].shape[1:]:
                    raise SnapshotError(f"its column {name!r} is {column.dtype} {column.shape}")
                done = 0
                for slots in ranges:
                    size = slots.stop - slots.start
                    targets[name][slots] = column[done : done + size]
                    done += size


def slot_ranges(start: int, stop: int, num_rows: int) -> list[slice]:
    """The slots of the positions [start, stop), which are `num_rows` at most, in order."""
    if start == stop:
        return [slice(0, 0)]
    first, last = start % num_rows, (stop - 1) % num_rows + 1
    return [slice(first, last)] if first < last else [slice(first, num_rows), slice(0, last)]


def contents_of(segment: Segment, tail: int, committed: int) -> RingContents:
    """The rows at the positions [tail, committed) of a segment, as views."""
    ranges = slot_ranges(tail, committed, segment.shape.num_rows)
    headers, columns = _fields(segment.records())
    return RingContents(
        tail,
        {name: [array[slots] for slots in ranges] for name, array in headers.items()},
        {name: [array[slots] for slots in ranges] for name, array in columns.items()},
        [segment.leaves[slots] for slots in ranges],
    )


def marks_of(segment: Segment) -> list[SenderMark]:
    """The marks of all senders that a segment knows, the one that was silent for longest first."""
    entries = segment.senders[segment.senders["number"] > 0]
    return [
        SenderMark(bytes(entry["name"]), *(int(entry[name]) for name in ("epoch", "sequence", "rows", "num_bytes")))
        for entry in entries[np.argsort(entries["number"])]
    ]


def _fields(records: npt.NDArray[np.void]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Views of the fields of headers, and of the columns, by name."""
    headers = records[HEADER_NAME]
    return (
        {name: headers[name] for name in HEADER_DTYPE.names or ()},
        {name: records[name] for name in records.dtype.names or () if name != HEADER_NAME},
    )
