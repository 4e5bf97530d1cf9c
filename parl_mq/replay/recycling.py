"""Arrays of large batches, which are given out again once nobody holds them."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Kind = tuple[str, tuple[int, ...], np.dtype[Any]]

LEAST_BYTES: Final = 2**17
"""Of a batch that is worth it: about what the C library takes from the system by the page, and gives back at once."""
MOST_BYTES: Final = 2**26
"""Kept at most."""
_HELD_BY_US: Final = 3
"""References to an array that nobody else holds: of its list, of the loop that looks, and of the call that counts."""


class Recycler:
    """Gives out batches of arrays, and looks before it makes new ones whether earlier ones have been let go.

    The memory of a large array goes back to the system when it is freed, and comes again a page at a time, each with a
    fault; that can take as long as filling it, and stops other threads of the process. An array counts as let go when
    no object refers to it, or to a view of it.

    Threads: any may take. Memory: MOST_BYTES at most is kept beyond what callers hold.
    """

    def __init__(self) -> None:
        self._batches: deque[tuple[Sequence[Kind], list[Array], int]] = deque()

    def take(self, kinds: Sequence[Kind], num_bytes: int) -> list[Array]:
        """Arrays of these shapes and dtypes, whose contents may be anything.

        Args:
            kinds: the same object for batches of the same kind.
            num_bytes: of all of them.
        """
        if num_bytes < LEAST_BYTES:
            return _made(kinds)
        for _ in range(len(self._batches)):
            try:
                batch = self._batches.popleft()  # nobody else can get it while it is looked at
            except IndexError:
                break
            if batch[0] is not kinds:
                continue  # of another size than the newest
            is_free = all(sys.getrefcount(array) <= _HELD_BY_US for array in batch[1])
            given = list(batch[1])  # holds them before others can look
            self._batches.append(batch)
            if is_free:
                return given
        return self._kept(kinds, num_bytes)

    def _kept(self, kinds: Sequence[Kind], num_bytes: int) -> list[Array]:
        given = _made(kinds)
        if num_bytes + sum(size for _, _, size in tuple(self._batches)) <= MOST_BYTES:
            self._batches.append((kinds, list(given), num_bytes))
        return given


def _made(kinds: Sequence[Kind]) -> list[Array]:
    return [np.empty(shape, dtype) for _, shape, dtype in kinds]
