"""The rows of a ring as plain columns, to be saved and put back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from parl_mq.errors import SnapshotError
from parl_mq.replay.layout import HEADER_DTYPE, HEADER_NAME
from parl_mq.replay.mapping import Segment
from parl_mq.replay.senders import SenderMark
from parl_mq.replay.snapshot import StoredArray

Array = npt.NDArray[Any]
T = TypeVar("T")


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
        senders = [[mark.digest.hex(), *mark[1:]] for mark in self.senders]
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

    @property
    def end(self) -> int:
        """The position behind the last."""
        return self.tail + sum(len(piece) for piece in self.leaves)

    def named_arrays(self) -> dict[str, list[Array]]:
        """All of it under names that tell headers, columns and leaves apart."""
        return _named(self.headers, self.columns, self.leaves)


@dataclass(frozen=True, slots=True)
class StoredContents:
    """The same in a snapshot.

    Attributes:
        start: position of the arrays' first row.
        tail: position of the first valid one; those in front of it may be anything.
        arrays: by the names of `RingContents.named_arrays`.
    """

    start: int
    tail: int
    arrays: Mapping[str, StoredArray]

    @property
    def end(self) -> int:
        """The position behind the last row."""
        return self.start + min((array.shape[0] for array in self.arrays.values()), default=0)

    def check(self, segment: Segment) -> None:
        """Whether the rows fit into a segment.

        Raises:
            SnapshotError: they have other columns, do not belong together, or are too many.
        """
        targets = _targets(segment)
        if targets.keys() != self.arrays.keys():
            raise SnapshotError(f"its arrays are {sorted(self.arrays)}: they must be {sorted(targets)}")
        for name, array in self.arrays.items():
            if array.dtype != targets[name].dtype or array.shape[1:] != targets[name].shape[1:]:
                raise SnapshotError(f"its array {name!r} is {array.dtype} {array.shape}")
            if self.start + array.shape[0] != self.end:
                raise SnapshotError("its arrays do not belong together")
        if not 0 <= self.start <= self.tail <= self.end <= self.tail + segment.shape.num_rows:
            raise SnapshotError(
                f"its rows at positions [{self.start}, {self.end}), valid from {self.tail} on, do not fit into "
                f"{segment.shape.num_rows}"
            )

    def write(self, segment: Segment) -> None:
        """Copies the valid rows and their leaves into a segment that was checked.

        Raises:
            SnapshotError: an array is damaged.
        """
        for name, target in _targets(segment).items():
            position = self.start
            for chunk in self.arrays[name].chunks():
                valid = chunk[max(self.tail - position, 0) :]
                position += len(chunk)
                done = 0
                for slots in slot_ranges(position - len(valid), position, segment.shape.num_rows):
                    size = slots.stop - slots.start
                    target[slots] = valid[done : done + size]
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


def marks_of(senders: npt.NDArray[np.void]) -> list[SenderMark]:
    """The marks in a table of senders, the one that was silent for longest first."""
    entries = senders[senders["number"] > 0]
    return [
        SenderMark(bytes(entry["name"]), *(int(entry[name]) for name in ("epoch", "sequence", "rows", "num_bytes")))
        for entry in entries[np.argsort(entries["number"])]
    ]


def _targets(segment: Segment) -> dict[str, Array]:
    headers, columns = _fields(segment.records())
    return _named(headers, columns, segment.leaves)


def _named(headers: Mapping[str, T], columns: Mapping[str, T], leaves: T) -> dict[str, T]:
    return {
        **{f"header/{name}": value for name, value in headers.items()},
        **{f"column/{name}": value for name, value in columns.items()},
        "leaves": leaves,
    }


def _fields(records: npt.NDArray[np.void]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Views of the fields of headers, and of the columns, by name."""
    headers = records[HEADER_NAME]
    return (
        {name: headers[name] for name in HEADER_DTYPE.names or ()},
        {name: records[name] for name in records.dtype.names or () if name != HEADER_NAME},
    )
