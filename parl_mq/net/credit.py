"""The books of an acknowledged, credit-limited stream of messages, at both of its ends; pure."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from parl_mq.net.channel import Frame


@dataclass(frozen=True, slots=True)
class _Sent:
    sequence: int
    rows: int
    num_bytes: int
    frames: list[Frame]


class SenderBook:
    """What a sender has sent, may send, and must keep until it is acknowledged.

    At the end of a stream sent_rows = acknowledged_rows + abandoned_rows.

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
        self._credit_rows = 0
        self._credit_bytes = 0
        self._kept: deque[_Sent] = deque()
        self._ring_id: str | None = None
        self._rows_before_ring = 0
        self._bytes_before_ring = 0

    @property
    def available_rows(self) -> int:
        """Live rows that may be sent now; 0 while the credit in bytes is used up."""
        if self._sent_bytes - self._bytes_before_ring >= self._credit_bytes:
            return 0
        return max(0, self._credit_rows - (self.sent_rows - self._rows_before_ring))

    @property
    def unacknowledged_rows(self) -> int:
        """Live rows sent and neither acknowledged nor abandoned."""
        return self.sent_rows - self.acknowledged_rows - self.abandoned_rows

    def add(self, frames: list[Frame], *, rows: int, num_bytes: int) -> None:
        """Enters message `next_sequence`; its frames are kept until it is acknowledged."""
        self._kept.append(_Sent(self.next_sequence, rows, num_bytes, frames))
        self.next_sequence += 1
        self.sent_rows += rows
        self._sent_bytes += num_bytes

    def acknowledge(self, last_sequence: int | None) -> None:
        """All messages up to `last_sequence` are stored."""
        while self._kept and last_sequence is not None and self._kept[0].sequence <= last_sequence:
            stored = self._kept.popleft()
            self.acknowledged_rows += stored.rows
            self._acknowledged_bytes += stored.num_bytes

    def grant(self, rows: int, num_bytes: int) -> None:
        """Takes absolute credit: totals that this stream may have sent. Older, smaller grants change nothing."""
        self._credit_rows = max(self._credit_rows, rows)
        self._credit_bytes = max(self._credit_bytes, num_bytes)

    def reattach(self, ring_id: str, last_sequence: int | None) -> list[list[Frame]]:
        """The receiver is back with what it has stored; returns the messages to send again, oldest first.

        A new ring knows nothing of what the old one acknowledged, and counts credit from there on.
        """
        self.acknowledge(last_sequence)
        if ring_id != self._ring_id:
            self._ring_id = ring_id
            self._rows_before_ring, self._bytes_before_ring = self.acknowledged_rows, self._acknowledged_bytes
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
    """What a receiver has stored of one sender's stream.

    Attributes:
        last_sequence: the last contiguous number stored, or None.
        rows: live rows stored.
        num_bytes: bytes of them.
        num_duplicates: messages dropped because they were stored before.
    """

    def __init__(self) -> None:
        self.last_sequence: int | None = None
        self.rows = 0
        self.num_bytes = 0
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
        """Message `sequence` is stored."""
        self.last_sequence = sequence
        self.rows += rows
        self.num_bytes += num_bytes

    def skip(self, sequence: int) -> None:
        """Message `sequence` was refused for good; the next one may come."""
        self.last_sequence = sequence
