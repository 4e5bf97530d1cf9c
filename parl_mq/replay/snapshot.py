"""A file of named arrays with a JSON head: written at once or not at all, and checked when read.

Layout: 8 bytes of magic, the head's length and its CRC-32 as uint64, the head, then each array's raw bytes in C order,
little-endian.
The head is a JSON object, filled up with blanks: `version`, `metadata`, and `arrays`, a list of name, dtype, shape, and
CRC-32.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from parl_mq.errors import SnapshotError
from parl_mq.replay.durable import replacing
from parl_mq.spec import DTYPES

MAGIC: Final = b"PARLSNAP"
FORMAT_VERSION: Final = 2
_CHUNK_BYTES: Final = 16 * 1024 * 1024
_MAX_HEAD_BYTES: Final = 64 * 1024 * 1024
_SLACK_BYTES: Final = 4096
_CRC_DIGITS: Final = 10
"""Room for numbers that grow while the arrays are written; the head comes in front of them, and last."""
_NUMBER_DTYPE: Final = np.dtype("<u8")

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    dtype: str
    shape: tuple[int, ...]
    crc32: int


def write_snapshot(
    path: Path,
    metadata: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
    arrays: Mapping[str, list[Array]],
) -> None:
    """Writes a snapshot under a temporary name, makes it durable, and renames it.

    Args:
        path: replaced if it exists.
        metadata: JSON values; a function is asked for them when all arrays were read, and before that for their size.
        arrays: by name, each as pieces that are joined along their first axis; read once, a chunk at a time.
    """
    tell = metadata if callable(metadata) else lambda: metadata
    shapes = [_entry(name, pieces, 0) for name, pieces in arrays.items()]
    room = len(_head(tell(), shapes)) + _SLACK_BYTES + _CRC_DIGITS * len(shapes)
    with replacing(path) as file:
        file.seek(len(MAGIC) + 2 * _NUMBER_DTYPE.itemsize + room)
        entries = [_entry(name, pieces, _write_array(file, pieces)) for name, pieces in arrays.items()]
        head = _head(tell(), entries).ljust(room)
        if len(head) != room:
            raise ValueError(f"the metadata have grown to {len(head)} bytes while the arrays were written")
        file.seek(0)
        file.write(MAGIC + np.array([len(head), zlib.crc32(head)], _NUMBER_DTYPE).tobytes() + head)


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array of a snapshot, which is read a chunk at a time: it may be larger than the memory that is left.

    Attributes:
        path: of the snapshot.
        name: of the array.
        dtype: of it.
        shape: of it.
        crc32: of its bytes.
        offset: where they lie in the file.
    """

    path: Path
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    crc32: int
    offset: int

    @property
    def num_bytes(self) -> int:
        """All of it."""
        return prod(self.shape) * self.dtype.itemsize

    def chunks(self) -> Iterator[Array]:
        """Its rows, in order, in arrays of a few MiB. The memory of one is used again for the next.

        Raises:
            SnapshotError: at its end, where the bytes are not those that were written.
        """
        row_bytes = max(prod(self.shape[1:]) * self.dtype.itemsize, 1)
        step = max(_CHUNK_BYTES // row_bytes, 1)
        buffer = np.empty((min(step, self.shape[0]), *self.shape[1:]), self.dtype)
        crc = 0
        with self.path.open("rb") as file:
            file.seek(self.offset)
            for start in range(0, self.shape[0], step):
                chunk = buffer[: min(step, self.shape[0] - start)]
                raw = chunk.reshape(-1).view(np.uint8).data
                if file.readinto(raw) != raw.nbytes:
                    raise SnapshotError(f"{self.path}: array {self.name!r} is cut short")
                crc = zlib.crc32(raw, crc)
                yield chunk
        if crc != self.crc32:
            raise SnapshotError(f"{self.path}: array {self.name!r} is damaged")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a snapshot's head says.

    Attributes:
        metadata: JSON values.
        arrays: by name.
    """

    metadata: dict[str, Any]
    arrays: dict[str, StoredArray]

    def verify(self) -> None:
        """Reads everything.

        Raises:
            SnapshotError: an array is damaged.
        """
        for array in self.arrays.values():
            for _ in array.chunks():
                pass


def open_snapshot(path: Path) -> Snapshot:
    """Reads a snapshot's head, and checks that the file is as long as it says.

    Raises:
        SnapshotError: the file is missing, damaged, of another kind or of another version.
    """
    try:
        with path.open("rb") as file:
            metadata, entries = _read_head(path, file)
            offset, size = file.tell(), os.fstat(file.fileno()).st_size
    except OSError as exc:
        raise SnapshotError(f"{path}: {exc.strerror}") from exc
    arrays = {}
    for entry in entries:
        array = StoredArray(path, entry.name, np.dtype(entry.dtype), entry.shape, entry.crc32, offset)
        arrays[entry.name] = array
        offset += array.num_bytes
        if offset > size:
            raise SnapshotError(f"{path}: array {entry.name!r} is cut short")
    if offset != size:
        raise SnapshotError(f"{path}: {size - offset} bytes follow its last array")
    return Snapshot(metadata, arrays)


def _head(metadata: Mapping[str, Any], entries: list[_Entry]) -> bytes:
    listed = [[entry.name, entry.dtype, entry.shape, entry.crc32] for entry in entries]
    return json.dumps({"version": FORMAT_VERSION, "metadata": metadata, "arrays": listed}).encode()


def _entry(name: str, pieces: list[Array], crc32: int) -> _Entry:
    first = pieces[0]
    return _Entry(name, first.dtype.name, (sum(len(piece) for piece in pieces), *first.shape[1:]), crc32)


def _write_array(file: BinaryIO, pieces: list[Array]) -> int:
    """Copies pieces a chunk at a time, as others may be changing them, and returns the CRC of what was written."""
    crc = 0
    for chunk in _chunks(pieces):
        crc = zlib.crc32(chunk, crc)
        file.write(chunk)
    return crc


def _chunks(pieces: list[Array]) -> Iterator[memoryview]:
    for piece in pieces:
        row_bytes = max(piece.nbytes // max(len(piece), 1), 1)
        step = max(_CHUNK_BYTES // row_bytes, 1)
        for start in range(0, len(piece), step):
            yield np.array(piece[start : start + step], order="C").reshape(-1).view(np.uint8).data


def _read_head(path: Path, file: BinaryIO) -> tuple[dict[str, Any], list[_Entry]]:
    if file.read(len(MAGIC)) != MAGIC:
        raise SnapshotError(f"{path}: this is no replay snapshot")
    length, crc = np.frombuffer(_read_exactly(path, file, 2 * _NUMBER_DTYPE.itemsize), _NUMBER_DTYPE).tolist()
    raw = _read_exactly(path, file, min(length, _MAX_HEAD_BYTES))
    if zlib.crc32(raw) != crc:
        raise SnapshotError(f"{path}: its head is damaged")
    try:
        head = json.loads(raw)
        if head["version"] != FORMAT_VERSION:
            raise SnapshotError(f"{path}: it has format {head['version']}, this version reads {FORMAT_VERSION}")
        entries = [_Entry(name, dtype, tuple(shape), crc) for name, dtype, shape, crc in head["arrays"]]
        return dict(head["metadata"]), _checked(path, entries)
    except (ValueError, KeyError, TypeError) as exc:
        raise SnapshotError(f"{path}: its head is damaged") from exc


def _checked(path: Path, entries: Iterable[_Entry]) -> list[_Entry]:
    for entry in (entries := list(entries)):
        if entry.dtype not in DTYPES or any(not isinstance(size, int) or size < 0 for size in entry.shape):
            raise SnapshotError(f"{path}: array {entry.name!r} is {entry.dtype} {entry.shape}")
    return entries


def _read_exactly(path: Path, file: BinaryIO, num_bytes: int) -> bytes:
    raw = file.read(num_bytes)
    if len(raw) < num_bytes:
        raise SnapshotError(f"{path}: it is cut short")
    return raw
