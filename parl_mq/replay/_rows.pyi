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
    row: int
    live: int
    """Rows of the batch, and live rows, in front of the part."""
    start: int
    end: int
    """The positions [start, end) that they and the gap in front of the jump take."""
    num_rows: int
    num_live: int
    before_wrap: int
    """Rows that lie in front of the jump; all of them where there is none."""
    old_tail: int
    tail: int
    """The positions [old_tail, tail) must go to make room."""
    num_evicted: int
    """Live rows among these."""

class Rows:
    """Records of one segment, and the counters that say which of them count.

    Layout: record `position % num_rows`, each a header and the columns as RowLayout places them. Positions only grow.

    Invariants: I1: tail <= committed <= reserved <= tail + num_rows. I2: tail stands at a fragment's first row, or at
    dead rows that look like one, so that stepping by `rows_left` + 1 visits all. I3: a fragment never wraps, so the
    window of a row at or behind the tail lies in memory that no insert touches.

    Threads: one caller at a time may write (plan to CommitLog.commit). `gather` may run beside it and says which rows
    were torn. Large copies release the GIL. Nothing here locks.
    """

    def __init__(
        self,
        memory: npt.NDArray[np.uint8],
        counters: Int64s,
        layout: RowLayout,
        *,
        prefix: int,
        frame_stack: int,
        n_step: int,
        gamma: float,
    ) -> None:
        """Rows over memory that is the caller's: whole records, and NUM_COUNTERS words.

        `prefix` is the key of position 0. Over arrays that are read-only, whose owner is another process, `plan`,
        `unfinished` and `restart` raise ValueError, and nothing that a Part is needed for can follow.

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

    def plan(self, incoming: Incoming, after: Part | None, capacity: int) -> Part:
        """Finds positions for as many fragments as fit at once; CommitLog.reserve takes them.

        Args:
            incoming: fragments that were checked here.
            after: the part before this one, of the same batch; None: this is the first.
            capacity: live rows that may remain.
        """

    def evict(self, part: Part) -> None:
        """Moves the tail, before anything overwrites what lies in front of it."""

    def scatter(
        self,
        incoming: Incoming,
        part: Part,
        values: Float64s | None,
        default: float,
        keys: npt.NDArray[np.uint64],
    ) -> None:
        """Copies a part's rows into their records; their leaves, 0 for dead rows, stay in the part.

        Args:
            incoming: as it was planned for.
            part: reserved and evicted for.
            values: leaves of all live rows of the batch, or None.
            default: the leaf of each where there are none.
            keys: of all live rows of the batch; the part's are filled in.
        """

    def unfinished(self) -> Part | None:
        """What was reserved and never committed, without fragments; None if there is nothing of that kind."""

    def bury(self, part: Part) -> None:
        """Makes all rows of a part dead."""

    def restart(self, tail: int, committed: int, num_live: int) -> None:
        """Starts with the rows in [tail, committed), or empty at a position that was never used."""

    def gather(
        self, keys: npt.NDArray[np.uint64], targets: tuple[Array, ...], start: int, stop: int
    ) -> list[int] | None:
        """Copies the windows that start at the live rows keys[start:stop] out, with n-step sums.

        Args:
            keys: [B], of rows that are or were valid.
            targets: C-contiguous arrays of at least `stop` rows, in the order of `draw_columns` without keys and
                probabilities; the window of keys[i] goes to row i.
            start: see above.
            stop: see above.

        Returns:
            None, or the indices of keys whose rows were overwritten meanwhile: what was copied of them may be anything.

        Raises:
            ValueError: an array is too short or not contiguous, or their number is wrong.
        """

    def are_live(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Whether a transition starts at each of the rows, which are valid."""
