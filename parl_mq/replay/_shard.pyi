"""Draws from a shard, and updates of rows of several: each is one call, most of it without the GIL."""

from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from parl_mq.replay._commits import CommitLog
from parl_mq.replay._priorities import Priorities
from parl_mq.replay._rows import Incoming, Part, Rows
from parl_mq.replay._sum_tree import SumTree
from parl_mq.replay.senders import SenderMark

Keys = npt.NDArray[np.uint64]
Float64s = npt.NDArray[np.float64]

class Lock:
    """Mutual exclusion that kernels take without the GIL; `with lock:` takes it from Python. Not reentrant.

    Nobody waits for it while holding the GIL, so its holder may run Python.
    """

    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

class Counts:
    """What happened in a shard since it was made, in rows; changed under its lock."""

    inserted: int
    evicted: int
    drawn: int
    updated: int
    stale: int
    torn: int

class Shard:
    """Rows and the tree of their leaves, behind one lock.

    Threads: `total`, `choose`, `store` and `update` take the lock themselves; for the others the caller holds it.
    Draws and updates of 512 items and more give the GIL up; fewer take less time than getting it back.
    """

    def __init__(
        self,
        rows: Rows,
        tree: SumTree,
        rng: np.random.Generator,
        max_magnitude: Float64s,
        max_magnitude_again: Float64s,
    ) -> None:
        """A shard over what exists already.

        Args:
            rows: records and their counters.
            tree: one slot for each record.
            rng: of the draws; used by nobody else but under the lock.
            max_magnitude: [1], where the running maximum is kept; the caller's memory.
            max_magnitude_again: [1], where it stands a second time, written after the first.
        """

    @property
    def rows(self) -> Rows:
        """As given."""

    @property
    def tree(self) -> SumTree:
        """As given."""

    @property
    def lock(self) -> Lock:
        """Held for everything but the copying of rows."""

    @property
    def counts(self) -> Counts:
        """Kept up to date."""

    @property
    def max_magnitude(self) -> float:
        """The largest magnitude that was ever applied."""

    def raise_maximum(self, magnitude: float) -> None:
        """Makes the running maximum at least this."""

    def total(self) -> float:
        """Sum of all leaves, fresh."""

    def choose(
        self, keys: Keys, probabilities: Float64s, start: int, stop: int, chance: float, is_again: bool = False
    ) -> float:
        """Draws rows in proportion to their leaves; copies nothing.

        Args:
            keys: [B], filled in [start, stop).
            probabilities: [B], likewise, with chance x leaf / total.
            start: see above.
            stop: see above.
            chance: of this shard among those of its table.
            is_again: not to be counted as drawn.

        Returns:
            The total; where that is 0 nothing was drawn.

        Raises:
            ValueError: an array is too short or not contiguous.
        """

    def draw(
        self,
        keys: Keys,
        probabilities: Float64s,
        targets: tuple[npt.NDArray[Any], ...],
        start: int,
        stop: int,
        chance: float,
    ) -> tuple[float, list[int] | None]:
        """`choose`, and Rows.gather of what was chosen, with the GIL given up once.

        Returns:
            The total, and what Rows.gather returns.

        Raises:
            ValueError: as both.
        """

    observer: Callable[[str], object] | None
    """Hears of each step of `store` when it is done: for tests, which look at what a kill just then would leave."""

    def store(
        self,
        log: CommitLog,
        incoming: Incoming,
        after: Part | None,
        capacity: int,
        values: Float64s | None,
        default: float,
        max_magnitude: float,
        keys: Keys,
        sender: SenderMark | None,
    ) -> Part:
        """Stores as many fragments as fit at once: one part of an insert, whose caller holds the ring's writer.

        In this order: reserves positions; under the lock sets the victims' leaves to 0 and moves the tail past them;
        copies the rows; under the lock writes their leaves and commits, or publishes a part that is not the last.

        Args:
            log: of the same segment.
            incoming: checked by these rows.
            after: the part before it; None: it is the first.
            capacity: live rows that may remain.
            values: leaves of all live rows of the batch, or None.
            default: the leaf of each where there are none.
            max_magnitude: the largest magnitude that somebody gave for them.
            keys: of all live rows of the batch; the part's are filled in.
            sender: committed with the last part.
        """

    def zero(self, start: int, stop: int) -> None:
        """Sets the leaves of the positions [start, stop) to 0.

        Raises:
            ValueError: these are none, or more than there are rows.
        """

    def write_leaves(self, part: Part) -> None:
        """Writes the leaves of a part that was scattered.

        Raises:
            ValueError: it was not.
        """

def largest_magnitude(shards: list[Shard], least: float) -> float:
    """The largest magnitude that was ever applied in any of them, at least `least`."""

def totals(shards: list[Shard], is_exact: bool = False) -> Float64s:
    """[S] sum of the leaves of each shard.

    Args:
        shards: 1 to 256.
        is_exact: waits for a shard that another thread is at work on; else the newest total that is known will do.
    """

def update(shards: list[Shard], rule: Priorities, keys: Keys, magnitudes: Float64s) -> int:
    """Gives rows new priorities, the last one where a key stands twice, and notes the largest magnitude.

    Everything is checked before the first leaf is written. Then one shard after the other is locked, first those that
    nobody else holds, and keys whose rows have gone by then are left out and counted as stale.

    Args:
        shards: all of a table, in the order of their keys.
        rule: makes priorities of magnitudes.
        keys: [U].
        magnitudes: [U].

    Returns:
        The number of keys that were still valid.

    Raises:
        PrioritiesRefused: a magnitude is NaN, infinite or negative, or there are not U.
        KeysRefused: a key is of no shard here, or was never given to a live row.
    """
