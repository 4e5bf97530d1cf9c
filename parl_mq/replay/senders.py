"""Who has sent a ring's rows, and how far each has come."""

from __future__ import annotations

from typing import NamedTuple


class SenderMark(NamedTuple):
    """How far a sender's stream is stored; kept with the rows, so that neither survives a kill without the other.

    Attributes:
        name: of the sender; of a ring that was found only its digest is known.
        epoch: of the sender's process.
        sequence: of the newest message that is stored, or was refused for good.
        rows: live rows of this epoch that are stored.
        num_bytes: bytes of them.
    """

    name: str | bytes
    epoch: int
    sequence: int
    rows: int
    num_bytes: int


def newest(marks: list[SenderMark]) -> SenderMark | None:
    """The mark that holds, of those that several shards keep of one sender."""
    return max(marks, key=lambda mark: (mark.epoch, mark.sequence), default=None)
