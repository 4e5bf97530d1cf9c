"""What a segment's head says about its rows: commits are written here, and what a restart finds is checked."""

from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

RECORDS_AT: Final[int]
"""Byte of the head at which the two commit records of 128 bytes lie."""
PLANS_AT: Final[int]
"""Byte of the head at which the two plans of 32 bytes lie."""
SENDERS_AT: Final[int]
"""Byte of the head at which the sender table lies, NUM_SENDERS entries of 64 bytes."""
NUM_SENDERS: Final[int]

class _Counts(Protocol):
    drawn: int
    updated: int
    stale: int
    torn: int

_Sender = tuple[str | bytes, int, int, int, int]
"""Name (or its digest), epoch, sequence, rows, bytes; parl_mq.replay.senders.SenderMark."""

class CommitLog:
    """Writes the commits of one segment.

    Layout: two records, two plans, and the sender table. Of two the one that does not hold the newest is overwritten,
    and each ends in a checksum, so that one of them is always whole. An insert writes its plan, then `reserved`; at
    last its record, then the entry of the sender in the table, then the number of the commit that is whole, then the
    counters. The newest commit's entry can be written again from its record.

    Invariants: I1: the number of the newest whole record is `newest`, or one more while a commit is under way. I2: of
    the plans one has the `reserved` of the counters as its end.

    A record has 128 bytes, two cache lines, as it also holds the tail, and what its sender has been credited for.

    Threads: callers hold the ring's lock, or for `reserve` its writer. The GIL is kept: no signal handler runs within a
    method. Cost: a handful of cache lines.
    """

    def __init__(self, head: npt.NDArray[np.uint8]) -> None:
        """A log over a segment's head, whose records and entries were checked, or are zeros."""

    @property
    def number(self) -> int:
        """Of the newest commit; 0 before `begin`."""

    @property
    def num_inserted(self) -> int:
        """Live rows of all commits, and of what was published beyond them."""

    def begin(self, num_inserted: int, max_magnitude: float) -> None:
        """Commits what the counters say: a new ring's first commit, or a repaired one's."""

    @property
    def is_settled(self) -> bool:
        """Whether the newest plan was carried out to its end."""

    @property
    def planned_tail(self) -> int:
        """Where the newest plan lets the tail go."""

    def reserve(self, end: int, tail: int) -> None:
        """Takes the positions up to `end`; those in front of `tail` will go for them.

        It comes before a leaf in front of the tail is set to 0: rows without a leaf must not stand behind the tail when
        the process is killed in between.
        """

    def publish(self, committed: int, num_live: int) -> int:
        """Makes rows count that a restart is to forget: those of an insert that goes on. Returns `num_inserted`."""

    def commit(
        self, committed: int, num_live: int, max_magnitude: float, sender: _Sender | None, counts: _Counts
    ) -> int:
        """Makes rows count, for good.

        Args:
            committed: the position behind them.
            num_live: live ones among them.
            max_magnitude: the running maximum.
            sender: who sent them, and its account with them; None: nobody's.
            counts: kept as they are.

        Returns:
            `num_inserted`.
        """

    def sender(self, name: str | bytes) -> tuple[int, int, int, int] | None:
        """Epoch, sequence, rows and bytes of a sender's newest commit here."""

def checksum(words: npt.NDArray[np.uint8]) -> int:
    """The checksum of whole words of 8 bytes; any one changed word changes it."""

def digest_of(name: str | bytes) -> bytes:
    """The 16 bytes that stand for a name; a digest stands for itself."""

def check_rows(
    rows: npt.NDArray[np.uint8], stride: int, leaves: npt.NDArray[np.float64], tail: int, committed: int
) -> tuple[int, int]:
    """Walks the fragments in [tail, committed), which draws and evictions follow through memory without looking back.

    Args:
        rows: whole records, C-contiguous.
        stride: bytes of a record.
        leaves: at least as many as there are records.
        tail: position of the first row.
        committed: position behind the last.

    Returns:
        The live rows, and the position where the first fragment begins that is not whole, or whose live rows are not
        those that its headers name, or whose dead rows have a priority; `committed` where there is none.

    Raises:
        ValueError: the positions do not fit.
    """
