"""The books of an acknowledged, credit-limited stream of messages, at both of its ends; pure."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from parl_mq.errors import WireError
from parl_mq.net.channel import Frame


@dataclass(frozen=True, slots=True)
class _Sent:
    sequence: int
    rows: int
    num_bytes: int
    frames: list[Frame]


class SenderBook:
    """What a sender has sent to one receiver, may send, and must keep until it is acknowledged.

    At the end of a stream sent_rows = acknowledged_rows + abandoned_rows, and the receiver has all of the acknowledged
    ones but `lost_rows`. Memory is bounded by the credit: what is kept is at most that, and one message more in bytes.

    Attributes:
        next_sequence: of the next message.
        sent_rows: live rows given to `add`.
        acknowledged_rows: those of them that can be sampled.
        abandoned_rows: those given up unacknowledged.
    """

    def __init__(self) -> None:
        self.next_sequence = 0
        self.sent_rows = 0
        self.acknowledged_rows = 0
        self.abandoned_rows = 0
        self._sent_bytes = 0
        self._acknowledged_bytes = 0
        self._last_acknowledged = -1
        self._kept: deque[_Sent] = deque()
        # Credit on this book's own counts: what the receiver counts, plus what it counts too little.
        self._credit_rows = 0
        self._credit_bytes = 0
        self._uncounted_rows = 0
        self._uncounted_bytes = 0

    @property
    def available_rows(self) -> int:
        """Live rows that may be sent now; 0 while the credit in bytes is used up."""
        if self._sent_bytes >= self._credit_bytes:
            return 0
        return max(0, self._credit_rows - self.sent_rows)

    @property
    def unacknowledged_rows(self) -> int:
        """Live rows sent and neither acknowledged nor abandoned."""
        return self.sent_rows - self.acknowledged_rows - self.abandoned_rows

    @property
    def lost_rows(self) -> int:
        """Acknowledged live rows that the receiver does not have any more: its ring was made anew."""
        return self._uncounted_rows

    def add(self, frames: list[Frame], *, rows: int, num_bytes: int) -> None:
        """Enters message `next_sequence`; its frames are kept until it is acknowledged.

        Rows that were collected under a credit may be added although a reattachment has lowered it meanwhile.
        """
        self._kept.append(_Sent(self.next_sequence, rows, num_bytes, frames))
        self.next_sequence += 1
        self.sent_rows += rows
        self._sent_bytes += num_bytes

    def acknowledge(self, last_sequence: int | None) -> None:
        """All messages up to `last_sequence` are stored; None: none is.

        Raises:
            WireError: no such message was ever sent.
        """
        if last_sequence is None:
            return
        if last_sequence >= self.next_sequence:
            raise WireError(f"message {last_sequence} was acknowledged, the last one sent is {self.next_sequence - 1}")
        while self._kept and self._kept[0].sequence <= last_sequence:
            stored = self._kept.popleft()
            self.acknowledged_rows += stored.rows
            self._acknowledged_bytes += stored.num_bytes
        self._last_acknowledged = max(self._last_acknowledged, last_sequence)

    def grant(self, rows: int, num_bytes: int) -> None:
        """Takes absolute credit, on the receiver's counts: what this stream may have sent in all.

        Older, smaller grants change nothing.
        """
        self._credit_rows = max(self._credit_rows, rows + self._uncounted_rows)
        self._credit_bytes = max(self._credit_bytes, num_bytes + self._uncounted_bytes)

    def reattach(self, last_sequence: int | None, *, counted_rows: int, counted_bytes: int) -> list[list[Frame]]:
        """The receiver is there (again); all credit so far is void until the next grant.

        Args:
            last_sequence: the last message that it has stored, or None where it knows nothing of this stream.
            counted_rows: live rows up to there as it counts them: from 0 at each start of it.
            counted_bytes: the same in bytes.

        Returns:
            The messages to send again, oldest first.

        Raises:
            WireError: it lacks messages that it had acknowledged, but remembers earlier ones; or never sent ones.
        """
        if last_sequence is not None and last_sequence < self._last_acknowledged:
            raise WireError(f"message {self._last_acknowledged} was acknowledged, now the last is {last_sequence}")
        self.acknowledge(last_sequence)
        self._uncounted_rows = self.acknowledged_rows - counted_rows
        self._uncounted_bytes = self._acknowledged_bytes - counted_bytes
        self._credit_rows = self._credit_bytes = 0
        return [sent.frames for sent in self._kept]

    def abandon(self) -> None:
        """Gives up what is not acknowledged, and counts it."""
        self.abandoned_rows += sum(sent.rows for sent in self._kept)
        self._kept.clear()


class Arrival(enum.Enum):
    """What a receiver makes of a message's sequence number."""

    NEW = "new"
    DUPLICATE = "duplicate"  # stored before: acknowledge it again, store nothing
    GAP = "gap"  # something before it is missing: the sender must attach again and resend


class ReceiverBook:
    """What a receiver has stored of one sender's stream, that is of one (name, epoch).

    Attributes:
        last_sequence: the last contiguous number stored, or None.
        rows: live rows stored of this stream.
        num_bytes: bytes of them.
        credit_rows: rows that the sender may have sent in all, on the count of `rows`; never falls.
        credit_bytes: the same in bytes.
        num_duplicates: messages dropped because they were stored before.
    """

    def __init__(self, last_sequence: int | None = None, *, rows: int = 0, num_bytes: int = 0) -> None:
        """Begins a book, or goes on with one.

        Args:
            last_sequence: the last number that a ring remembers of this stream.
            rows: that it has stored of it.
            num_bytes: of them.
        """
        self.last_sequence = last_sequence
        self.rows = rows
        self.num_bytes = num_bytes
        self.credit_rows = 0
        self.credit_bytes = 0
        self.num_duplicates = 0

    def judge(self, sequence: int) -> Arrival:
        """Whether a message is the next one. A stream that is not known yet may start at any number."""
        if self.last_sequence is None or sequence == self.last_sequence + 1:
            return Arrival.NEW
        if sequence <= self.last_sequence:
            self.num_duplicates += 1
            return Arrival.DUPLICATE
        return Arrival.GAP

    def note(self, sequence: int, *, rows: int, num_bytes: int) -> None:
        """Message `sequence`, which is NEW, is stored."""
        self.skip(sequence)
        self.rows += rows
        self.num_bytes += num_bytes

    def skip(self, sequence: int) -> None:
        """Message `sequence`, which is NEW, was refused for good; the next one may come.

        Raises:
            ValueError: it is not NEW.
        """
        if self.last_sequence is not None and sequence != self.last_sequence + 1:
            raise ValueError(f"sequence={sequence} does not follow {self.last_sequence}")
        self.last_sequence = sequence

    def grant(self, rows: int, num_bytes: int) -> bool:
        """Allows the sender so much beyond what is stored; True where that is more than it was allowed before."""
        before = self.credit_rows, self.credit_bytes
        self.credit_rows = max(self.credit_rows, self.rows + rows)
        self.credit_bytes = max(self.credit_bytes, self.num_bytes + num_bytes)
        return before != (self.credit_rows, self.credit_bytes)
