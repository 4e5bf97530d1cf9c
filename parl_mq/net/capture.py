"""A record of the messages that a process sends and receives, for people who look for a fault in what was said.

A capture file is MAGIC and then parts, each behind its length as a little-endian uint32. Each message is two parts: a
JSON object with `time`, `sent`, `endpoint`, `peer` and `slab_bytes`, and the header as it was. The slab is not
kept: the header says what is in it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from parl_mq.errors import RecordError
from parl_mq.net.channel import Frame

MAGIC: Final = b"parl_mq capture 1\n"
MAX_CAPTURE_BYTES: Final = 256 * 1024 * 1024
"""A file ends there: a forgotten capture must not fill a disk."""
_LENGTH: Final = struct.Struct("<I")
_LAST_TIME_S: Final = 2.5e11
"""Some seven thousand years; calendars end soon after it."""
_KINDS: Final = {"time": (int, float), "sent": (bool,), "endpoint": (str,), "peer": (str,), "slab_bytes": (int,)}


@dataclass(frozen=True, slots=True)
class Captured:
    """One message of a capture.

    Attributes:
        time_s: wall time.
        sent: by the process that captured it; else received.
        endpoint: of the socket.
        peer: route of the other end at a server socket, hexadecimal; empty at a client's.
        header: the message's first frame.
        slab_bytes: size of the second one; 0 where there is none.
    """

    time_s: float
    sent: bool
    endpoint: str
    peer: str
    header: bytes
    slab_bytes: int


class Capture:
    """Writes a capture file. What is written is in the file when a call returns."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        """Begins a file, or adds to one.

        Args:
            path: of the file.
            clock: wall time, s.
        """
        self._file = path.open("ab", buffering=0)
        self._clock = clock
        self._left_bytes = MAX_CAPTURE_BYTES - self._file.tell()
        if not self._file.tell():
            self._file.write(MAGIC)

    def note(self, frames: Sequence[Frame], *, sent: bool, endpoint: str, peer: bytes = b"") -> None:
        """Adds a message, while there is room."""
        if not frames:
            return
        about = {
            "time": self._clock(),
            "sent": sent,
            "endpoint": endpoint,
            "peer": peer.hex(),
            "slab_bytes": sum(memoryview(frame).nbytes for frame in frames[1:]),
        }
        parts = (json.dumps(about).encode(), bytes(frames[0]))
        record = b"".join(_LENGTH.pack(len(part)) + part for part in parts)
        self._left_bytes -= len(record)
        if self._left_bytes >= 0:
            self._file.write(record)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def read_capture(path: Path) -> Iterator[Captured]:
    """The messages of a file, oldest first.

    Raises:
        RecordError: it cannot be read, is no capture, or is damaged from some message on; the death of its writer, too,
            may have cut the last one short.
    """
    number = 0
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise RecordError(f"{path} is no capture; --set node.capture_directory=DIR makes some")
            while length := file.read(_LENGTH.size):
                number += 1
                about = _part(file, length)
                yield _captured(about, _part(file, file.read(_LENGTH.size)))
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is damaged: message {number}: {error}") from error


def _part(file: BinaryIO, length: bytes) -> bytes:
    if len(length) == _LENGTH.size:
        (num_bytes,) = _LENGTH.unpack(length)
        if num_bytes <= MAX_CAPTURE_BYTES and len(part := file.read(num_bytes)) == num_bytes:
            return part
    raise ValueError("it is cut short, or its length is wrong")


def _captured(about: bytes, header: bytes) -> Captured:
    """One message.

    Raises:
        ValueError: what goes with it is not what `Capture.note` writes.
    """
    told = json.loads(about)
    if not isinstance(told, dict):
        raise ValueError("what goes with it is no object")
    for name, kinds in _KINDS.items():
        if type(told.get(name)) not in kinds:
            raise ValueError(f"{name} is {told.get(name)!r:.100}")
    if not 0 <= told["time"] < _LAST_TIME_S or told["slab_bytes"] < 0:
        raise ValueError(f"time is {told['time']!r}, slab_bytes {told['slab_bytes']!r}")
    return Captured(told["time"], told["sent"], told["endpoint"], told["peer"], header, told["slab_bytes"])
