"""Scalars for TensorBoard: an event file of its own format, written without any of its packages.

A record is a length, a checksum of it, the bytes, and a checksum of them (TFRecord); the bytes are an `Event` message
of tensorflow/core/util/event.proto, of which a scalar needs five fields.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from parl_mq.replay.durable import append

LARGEST_FLOAT32: Final = 3.4028234663852886e38
VERSION: Final = b"brain.Event:2"
_POLYNOMIAL: Final = 0x82F63B78  # CRC-32C, reflected
_MASK: Final = 0xA282EAD8


def _table_entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE: Final = tuple(_table_entry(byte) for byte in range(256))


def crc32c(content: bytes) -> int:
    """CRC-32C (Castagnoli), as of RFC 3720; some 50 ns a byte."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def record(content: bytes) -> bytes:
    """One record of an event file."""
    length = struct.pack("<Q", len(content))
    return length + _masked(length) + content + _masked(content)


def scalars_event(wall_time: float, step: int, scalars: Mapping[str, float]) -> bytes:
    """An Event with one value for each tag.

    Args:
        wall_time: seconds since 1970.
        step: >= 0, the horizontal axis.
        scalars: tag -> value.
    """
    values = b"".join(
        _field(1, _field(1, tag.encode()) + b"\x15" + struct.pack("<f", _as_float32(value)))
        for tag, value in scalars.items()
    )
    return _start(wall_time) + b"\x10" + _varint(step) + _field(5, values)


def _as_float32(value: float) -> float:
    """The nearest one that there is: infinity beyond the largest."""
    return value if abs(value) <= LARGEST_FLOAT32 else math.copysign(math.inf, value)


class EventFile:
    """Appends scalars to an event file that it begins."""

    def __init__(self, folder: Path, wall_time: float, suffix: str) -> None:
        """Begins a file, `events.out.tfevents.TIME.SUFFIX`.

        Raises:
            OSError: it cannot be made.
        """
        folder.mkdir(exist_ok=True)
        self.path = folder / f"events.out.tfevents.{int(wall_time):010d}.{suffix}"
        append(self.path, record(_start(wall_time) + _field(3, VERSION)))

    def write(self, wall_time: float, step: int, scalars: Mapping[str, float]) -> None:
        """Adds one event.

        Raises:
            OSError: it cannot be written. A reader stops where a part of a record stands, so none stays.
        """
        append(self.path, record(scalars_event(wall_time, step, scalars)))


def _start(wall_time: float) -> bytes:
    return b"\x09" + struct.pack("<d", wall_time)


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes in a message."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _masked(content: bytes) -> bytes:
    crc = crc32c(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)
