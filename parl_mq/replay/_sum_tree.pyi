"""A K-ary sum tree in float64: writes are lazy, draws are exact and batched."""

from typing import Final

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

LARGEST_VALUE: Final[float]
"""The largest value of a leaf, 1e290: no sum of 2^32 of them is infinite."""

def padded_size(capacity: int, arity: int) -> int:
    """Number of float64 values in the leaf row: `capacity`, filled up to whole groups and cache lines.

    Raises:
        ValueError: `capacity` is not in [1, 2^32] or `arity` is not a power of two in [2, 64].
    """

def available_kernels() -> tuple[str, ...]:
    """The search kernels that this processor can run, fastest first; the last is always "portable"."""

class SumTree:
    """Non-negative float64 values of slots, and draws of slots in proportion to them.

    Layout: one row a level, from the leaves to the root, each trimmed to the whole groups that it needs. The K children
    of node i are the nodes K i to K i + K - 1 of the row below; every group starts at a multiple of min(64, 8 K) bytes,
    so that with K = 8 it is exactly one cache line.

    Invariants: a parent is the sum of its children, computed from them and never adjusted, so it cannot drift; or it is
    marked, and everything above it is out of date. The association of the sums is the same for every kernel, so kernels
    agree to the bit. A slot of value 0 is never found, nor one outside [0, capacity).

    Cost: a write touches its leaf and marks its parent. The first find, draw, `total` or `refresh` after it sums the
    marked nodes, once each, row by row; rows not much longer than the list of marks are summed whole. A batch of draws
    descends row by row together. Above the leaves lie about capacity / (K - 1) values and capacity / K indices of 4
    bytes.

    Threads: there is no lock inside; callers hold one around every method, reading ones included, as those may sum.
    The GIL is released where a batch has at least 2,048 items (a range 65,536); smaller ones end sooner than the GIL
    would be had back. Different trees may be used at the same time.
    """

    def __init__(
        self, capacity: int, *, arity: int = 8, leaves: Float64s | None = None, kernel: str | None = None
    ) -> None:
        """A tree over `capacity` slots.

        Args:
            capacity: slots, 1 to 2^32.
            arity: K, a power of two from 2 to 64.
            leaves: memory to keep the leaf row in, at least `padded_size` values at a 64-byte aligned address; it stays
                the caller's, who writes to it through the tree alone. The values found there are kept, and the padding
                behind `capacity` is set to 0. Without it, memory of zeros is allocated.
            kernel: one of `available_kernels()`; the fastest by default.

        Raises:
            ValueError: an argument is out of range, or a value found in `leaves` is not in [0, LARGEST_VALUE].
            TypeError: `leaves` is not a one-dimensional float64 array.
        """

    @property
    def capacity(self) -> int:
        """Number of slots."""

    @property
    def arity(self) -> int:
        """K, the children of a node."""

    @property
    def kernel(self) -> str:
        """Name of the search kernel in use."""

    @property
    def leaves(self) -> Float64s:
        """The values, [capacity]: a read-only view that shows later writes."""

    @property
    def total(self) -> float:
        """The sum of all values, fresh."""

    def set(self, slots: Int64s, values: Float64s) -> None:
        """Writes values to slots; of equal slots the last wins.

        Args:
            slots: [N], C-contiguous int64, each in [0, capacity).
            values: [N], C-contiguous float64, each in [0, LARGEST_VALUE].

        Raises:
            ValueError: lengths differ, or an item is out of range (NaN and infinity are); nothing is written then.
            TypeError: an argument is not an array.
        """

    def update(self, slots: Int64s, values: Float64s) -> None:
        """The same, and a `refresh`."""

    def fill(self, start: int, stop: int, value: float) -> None:
        """Writes one value to the slots in [start, stop).

        Raises:
            ValueError: the range or the value is out of range; nothing is written then.
        """

    def write(self, start: int, values: Float64s) -> None:
        """Writes values to as many slots from `start` on.

        Raises:
            ValueError: the range or a value is out of range; nothing is written then.
        """

    def refresh(self) -> None:
        """Sums what writes have marked; whoever holds the lock anyway may do so to spare the next draw."""

    def find(self, targets: Float64s) -> Int64s:
        """Slots whose share of the cumulative values contains each target.

        Args:
            targets: [B], each in [0, total). Order is kept.

        Returns:
            [B] slots in [0, capacity); never one of value 0.

        Raises:
            ValueError: a target is NaN or outside the range, or the total is 0. Nothing is returned in part.
        """

    def draw(
        self, uniforms: Float64s, out_slots: Int64s | None = None, out_values: Float64s | None = None
    ) -> tuple[Int64s, Float64s]:
        """Slots drawn in proportion to their values: slot `find(u * total)` for each uniform.

        Args:
            uniforms: [B], each in [0, 1). Order is kept.
            out_slots: [B], where to put the slots.
            out_values: [B], where to put their values; may be `uniforms` itself.

        Returns:
            The slots and their values, [B] each: the arrays given, or new ones.

        Raises:
            ValueError: a uniform is NaN or outside the range, a length differs, or the total is 0; nothing is written
                then.
        """

    @property
    def _num_marked(self) -> int:
        """Nodes above the leaves that wait to be summed, for tests."""

    def _rows(self) -> tuple[Float64s, ...]:
        """The rows from the leaves to the root with their padding, as they are now; to be read only, by tests."""
