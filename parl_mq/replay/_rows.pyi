"""Records of one segment in memory: where fragments go, copying them in and windows of them out."""

from typing import Final

import numpy as np
import numpy.typing as npt

from parl_mq.fragments import FragmentBatch
from parl_mq.replay.layout import RowLayout

Array = npt.NDArray[np.generic]
Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

NUM_COUNTERS: Final[int]
"""int64 words of a segment's counters: tail, reserved, committed, live rows."""

class Incoming:
    """Fragments that were checked, and where their arrays lie."""

    num_fragments: int
    num_rows: int
    num_live: int

class Part:
    """Fragments that are stored in one go: at positions that follow each other, but for one jump to slot 0 at most."""

    first: int
    stop: int
    """The fragments [first, stop) of the batch."""
    start: int
    end: int
    """The positions [start, end) that they and the gap in front of the jump take."""
    num_rows: int
    num_live: int
    before_wrap: int
    """Rows that lie in front of the jump; all of them where there is none."""

class Rows:
    """Records of one segment, and the counters that say which of them count.

    Layout: record `position % num_rows`, each a header and the columns as RowLayout places them. Positions only grow.

    Invariants: I1: tail <= committed <= reserved <= tail + num_rows. I2: tail stands at a fragment's first row, or at
    dead rows that look like one, so that stepping by `rows_left` + 1 visits all. I3: a fragment never wraps, so the
    window of a row at or behind the tail lies in memory that no insert touches.

    Threads: one caller at a time may write (plan to commit). `gather` may run beside it and says which rows were torn.
    Large copies release the GIL. Nothing here locks.
    """

    def __init__(
        self,
        memory: npt.NDArray[np.uint8],
        counters: Int64s,
        layout: RowLayout,
        *,
        frame_stack: int,
        n_step: int,
        gamma: float,
    ) -> None:
        """Rows over memory that is the caller's: whole records, and NUM_COUNTERS words.

        Raises:
            ValueError: the memory does not hold whole records, or there are too many columns.
        """

    @property
    def num_rows(self) -> int:
        """Physical rows."""

    @property
    def tail(self) -> int:
        """The oldest position that is still valid."""

    @property
    def reserved(self) -> int:
        """The position that the next insert starts at."""

    @property
    def committed(self) -> int:
        """The position behind the newest that is valid."""

    @property
    def num_live(self) -> int:
        """Live rows in [tail, committed)."""

    def take(
        self, fragments: FragmentBatch, spans: npt.NDArray[np.uint8] | None, most_rows: int, most_live: int
    ) -> Incoming:
        """Checks fragments; the result may be stored again and again, each time with what the arrays hold then.

        Args:
            fragments: any; kept, not copied.
            spans: [R] steps folded into each row; None: 1 each.
            most_rows: a fragment's physical rows at most.
            most_live: a fragment's live rows at most.

        Raises:
            FragmentsRefused: a column, a length or a flag does not fit; the message names it.
        """

    def plan(self, incoming: Incoming, first: int, most_live: int) -> Part:
        """Where as many fragments from `first` on as fit at once would go."""

    def reserve(self, end: int) -> None:
        """Says that positions up to `end` are being written."""

    def tail_after(self, end: int, most_live: int) -> tuple[int, int]:
        """The tail, and the live rows, once there is room up to `end` and at most `most_live` rows live."""

    def evict(self, tail: int, num_live: int) -> None:
        """Moves the tail, before anything overwrites what lies in front of it."""

    def scatter(
        self,
        incoming: Incoming,
        part: Part,
        row: int,
        values: Float64s | None,
        default: float,
        leaves: Float64s,
        positions: Int64s,
    ) -> None:
        """Copies a part's rows into their records.

        Args:
            incoming: fragments that were checked here.
            part: from `plan`; its positions are reserved and evicted.
            row: the batch's row at which the part starts.
            values: [part.num_live] leaves of the live rows, or None.
            default: the leaf of each where there are none.
            leaves: [part.num_rows] is filled with those, and 0 for dead rows.
            positions: [part.num_live] is filled with the live rows' positions.
        """

    def commit(self, end: int, num_live: int) -> None:
        """Makes what was written up to `end` count, `num_live` rows of all then being live."""

    def bury(self, start: int, stop: int) -> None:
        """Makes positions dead that no fragment covers."""

    def restart(self, position: int) -> None:
        """Starts empty, at a position that was never used."""

    def locate(self, slots: Int64s) -> None:
        """Turns slots of valid rows into their positions, in place."""

    def gather(self, positions: Int64s, targets: tuple[Array, ...], first: int) -> list[int] | None:
        """Copies the windows that start at live rows out, with n-step sums.

        Args:
            positions: [B].
            targets: C-contiguous arrays of at least first + B rows, in the order of TableColumns.
            first: row of the targets that the first window goes to.

        Returns:
            None, or which of the positions were overwritten meanwhile; their rows hold anything.
        """

    def are_live(self, positions: Int64s) -> npt.NDArray[np.bool_]:
        """Whether a transition starts at each position of [tail, committed)."""

    def find(self, keys: npt.NDArray[np.uint64], prefix: int, slots: Int64s, indices: Int64s) -> int:
        """Which keys are still valid, and their slots.

        Args:
            keys: [U].
            prefix: what keys of this shard start with.
            slots: [U], filled from the front with the valid keys' slots, in order.
            indices: [U], filled with the indices of these keys.

        Returns:
            The number of valid keys; the others are stale.

        Raises:
            KeysRefused: a key belongs elsewhere, or was never given to a live row.
        """
