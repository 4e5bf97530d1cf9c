"""Who has sent a ring's rows, and how far each has come."""

from __future__ import annotations

from numbers import Integral
from typing import Final, NamedTuple

from parl_mq.replay._commits import digest_of as digest_of

_DIGEST_BYTES: Final = 16
_WORD_END: Final = 2**63


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

    @property
    def digest(self) -> bytes:
        """Of the name."""
        return digest_of(self.name)


def check_mark(mark: SenderMark) -> None:
    """Whether a mark can be stored.

    Raises:
        ValueError: its name or one of its numbers is none.
    """
    if not isinstance(mark, tuple) or len(mark) != len(SenderMark._fields):
        raise ValueError(f"sender is {mark!r}: it must be a mark of {', '.join(SenderMark._fields)}")
    name, *numbers = mark
    if not (isinstance(name, str) or (isinstance(name, bytes) and len(name) == _DIGEST_BYTES)):
        raise ValueError(f"name of the sender is {name!r}: it must be a str, or a digest of {_DIGEST_BYTES} bytes")
    if isinstance(name, str):
        name.encode()  # a ValueError where it cannot be
    for field, value in zip(SenderMark._fields[1:], numbers, strict=True):
        if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= value < _WORD_END:
            raise ValueError(f"{field} of the sender is {value!r}: it must be a whole number in [0, 2^63)")


def newest(marks: list[SenderMark]) -> SenderMark | None:
    """The mark that holds, of those that several shards keep of one sender."""
    return max(marks, key=lambda mark: (mark.epoch, mark.sequence), default=None)
