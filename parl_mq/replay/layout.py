"""Where the columns of a row lie in its record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from parl_mq.spec import STEP_COLUMNS, Column, TableSpec

HEADER_DTYPE: Final = np.dtype(
    [
        ("rows_left", "<u4"),
        ("rows_before", "<u4"),
        ("num_live", "<u4"),
        ("flags", "u1"),
        ("span", "u1"),
        ("unused", "<u2"),
    ]
)
"""`rows_left`: rows up to the closing row; `rows_before`: rows of the same fragment in front, context included;
`num_live`: live rows of the whole fragment; `span`: steps folded into the row. A stretch of dead rows that no fragment
covers looks like a fragment without live rows, so that walking by `rows_left` + 1 never loses its way."""
LIVE: Final = 1
STARTS_EPISODE: Final = 2
"""Bits of `flags`; STARTS_EPISODE stands in every row of a fragment whose first row is the first of its episode."""

HEADER_NAME: Final = "(header)"
CACHE_LINE: Final = 64
MAX_PADDING: Final = 1 / 8
"""Share of a record that may be spent on ending it at a cache line. Measured with HalfCheetah rows (116 bytes, 128 with
padding): a draw touches 3.9 lines instead of 4.5."""


@dataclass(frozen=True)
class RowLayout:
    """Offsets of a record: header, step columns, action and extra columns, observation.

    Records are whole rows, one behind the other, and not a file for each column: all that a draw reads of a row then
    lies in two or three neighbouring cache lines, and the next observation, which is the next row's, follows at once. A
    column file would cost a miss for each column and each row of the window. Every column is naturally aligned, and
    large ones come last, so that an n-step sum reads one line of each row.
    """

    spec: TableSpec

    def __post_init__(self) -> None:
        for name, dtype in zip(STEP_COLUMNS, ("float32", "bool", "bool"), strict=True):
            column = self.spec[name]
            if column.shape != () or column.dtype != dtype:
                raise ValueError(f"column {name!r} is {column.dtype} {column.shape}: it must be {dtype} ()")

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Byte offset of each column in a record."""
        return dict(self._place())

    @cached_property
    def stride(self) -> int:
        """Bytes from one record to the next: a multiple of 64 where that costs little, else of 8."""
        last = max(self.offsets, key=self.offsets.__getitem__)
        end = self.offsets[last] + self.spec[last].num_bytes
        whole_lines = _round_up(end, CACHE_LINE)
        return whole_lines if whole_lines - end <= whole_lines * MAX_PADDING else _round_up(end, 8)

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """A structured dtype that shows records in memory as arrays, by column name and HEADER_NAME."""
        columns = self.spec.columns
        return np.dtype(
            {
                "names": [HEADER_NAME, *(column.name for column in columns)],
                "formats": [HEADER_DTYPE, *((column.dtype, column.shape) for column in columns)],
                "offsets": [0, *(self.offsets[column.name] for column in columns)],
                "itemsize": self.stride,
            }
        )

    def records(self, memory: npt.NDArray[np.uint8]) -> npt.NDArray[np.void]:
        """The records that lie in `memory`, as a view."""
        return memory.view(self.dtype)

    def _place(self) -> Iterator[tuple[str, int]]:
        step = [self.spec[name] for name in STEP_COLUMNS]
        observation = [self.spec[name] for name in self.spec.observation_names]
        others = [column for column in self.spec.columns if column not in step and column not in observation]
        end = HEADER_DTYPE.itemsize
        for column in (
            *step,
            *sorted(others, key=_alignment, reverse=True),
            *sorted(observation, key=_alignment)[::-1],
        ):
            offset = _round_up(end, _alignment(column))
            yield column.name, offset
            end = offset + column.num_bytes


def _alignment(column: Column) -> int:
    return np.dtype(column.dtype).itemsize


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
