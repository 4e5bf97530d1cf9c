"""A table's settings, and what they make of its size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Final, Literal

from parl_mq.replay.keys import MAX_SHARDS, MAX_TABLES
from parl_mq.replay.layout import RowLayout
from parl_mq.replay.mapping import SegmentShape
from parl_mq.replay.memory import MemoryNeed
from parl_mq.spec import TableSpec

FRAGMENTS_PER_SEGMENT: Final = 4
"""A segment has room for so many of the largest fragments."""
_MAX_N_STEP: Final = 64
_MAX_FRAME_STACK: Final = 16
_KINDS: Final = ("prioritized", "uniform")
_WHOLE_NUMBERS: Final = (
    ("capacity", 0, 2**40),
    ("table_index", 0, MAX_TABLES - 1),
    ("num_shards", 1, MAX_SHARDS),
    ("n_step", 1, _MAX_N_STEP),
    ("frame_stack", 1, _MAX_FRAME_STACK),
    ("fragment_length", 1, 2**24),
    ("arity", 2, 64),
)
_NUMBERS: Final = (("gamma", 0.0, 1.0), ("alpha", 0.0, 1.0), ("eps", 0.0, 1e100), ("row_overhead", 1.0, 1e6))
"""Settings, and the range of each."""


@dataclass(frozen=True, slots=True)
class TableSettings:
    """How a table keeps and draws its rows.

    Attributes:
        name: of the table and of its files.
        capacity: live rows of all shards; each shard holds its share.
        kind: `prioritized` draws in proportion to (magnitude + eps)^alpha, `uniform` gives each live row the same.
        alpha: exponent; 0 draws all rows alike whose magnitude + eps is not 0.
        eps: added to each magnitude. With eps = 0 a row of magnitude 0 is not drawn beside others, even at alpha = 0.
        n_step: steps of a return.
        gamma: discount of one step.
        frame_stack: frames of one observation; 1: observations are stored whole.
        fragment_length: live rows of a usual fragment.
        num_shards: ring segments.
        arity: K of the sum trees.
        table_index: of the table in its node, the first byte of its keys.
        row_overhead: physical rows for each live one; None takes (L + stack-1 + n-1 + 1) / L for fragments of
            L = `fragment_length` steps. Shorter fragments take more room, so that rows may go before `capacity` is
            reached.
    """

    name: str
    capacity: int
    kind: Literal["prioritized", "uniform"] = "prioritized"
    alpha: float = 0.6
    eps: float = 1e-6
    n_step: int = 1
    gamma: float = 0.99
    frame_stack: int = 1
    fragment_length: int = 1
    num_shards: int = 1
    arity: int = 8
    table_index: int = 0
    row_overhead: float | None = None

    def __post_init__(self) -> None:
        for name, low, high in _WHOLE_NUMBERS:
            value = whole_number(name, getattr(self, name), low, high)
            object.__setattr__(self, name, value)  # a plain int, which files can hold
        for name, least, most in _NUMBERS:
            if (number := getattr(self, name)) is not None or name != "row_overhead":
                object.__setattr__(self, name, real_number(name, number, least, most))  # likewise
        if self.kind not in _KINDS:
            raise ValueError(f"kind is {self.kind!r}: it must be one of {', '.join(_KINDS)}")
        if not isinstance(self.name, str) or not self.name or "/" in self.name or "\0" in self.name:
            raise ValueError(f"name is {self.name!r}: it must be one that files can have")
        if self.capacity < self.fragment_length * self.num_shards:
            raise ValueError(
                f"capacity is {self.capacity}: {self.num_shards} shards of fragments of {self.fragment_length} live "
                f"rows need at least {self.fragment_length * self.num_shards}"
            )

    @property
    def usual_fragment_rows(self) -> int:
        """Physical rows of a full fragment with its context, overlap and closing row."""
        return self.fragment_length + self.frame_stack - 1 + self.n_step - 1 + 1

    def shard_capacity(self, shard: int) -> int:
        """Live rows that a shard holds."""
        return self.capacity // self.num_shards + (shard < self.capacity % self.num_shards)

    def segment_shape(self, shard: int, spec: TableSpec) -> SegmentShape:
        """Sizes of a shard's segment: room for its live rows, and for the gap at the end that a fragment leaves."""
        overhead = self.row_overhead or self.usual_fragment_rows / self.fragment_length
        wanted = math.ceil(self.shard_capacity(shard) * overhead) + self.usual_fragment_rows
        num_rows = max(wanted, FRAGMENTS_PER_SEGMENT * self.usual_fragment_rows)
        return SegmentShape(RowLayout(spec), num_rows, self.arity)

    def memory_need(self, spec: TableSpec) -> MemoryNeed:
        """Bytes and rows that the table takes."""
        shapes = [self.segment_shape(shard, spec) for shard in range(self.num_shards)]
        rows_bytes = sum(shape.rows_bytes for shape in shapes)
        return MemoryNeed(
            num_rows=sum(shape.num_rows for shape in shapes),
            row_bytes=shapes[0].layout.stride,
            rows_bytes=rows_bytes,
            tree_bytes=sum(shape.num_bytes + shape.inner_tree_bytes for shape in shapes) - rows_bytes,
        )


def whole_number(name: str, value: Any, low: int, high: int) -> int:
    """A setting or an argument as a plain int.

    Raises:
        ValueError: it is no whole number, or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name} is {value!r}: it must be a whole number")
    _check(name, int(value), low, high)
    return int(value)


def real_number(name: str, value: Any, low: float, high: float) -> float:
    """A setting or an argument as a plain float.

    Raises:
        ValueError: it is no number, or out of range.
    """
    _check(name, value, low, high)
    return float(value)


def _check(name: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name} is {value!r}: it must be a number")
    if not low <= float(value) <= high:
        raise ValueError(f"{name} is {value}: it must lie in [{low}, {high:g}]")
