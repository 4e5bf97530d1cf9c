"""A file of named arrays with a JSON head: written at once or not at all, and checked when read.

Layout: 8 bytes of magic, the head's length and its CRC-32 as uint64, the head, then each array's raw bytes in C order,
little-endian.
The head is a JSON object: `version`, `metadata`, and `arrays`, a list of name, dtype, shape, and CRC-32.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from parl_mq.errors import SnapshotError
from parl_mq.spec import DTYPES

MAGIC: Final = b"PARLSNAP"
FORMAT_VERSION: Final = 1
_CHUNK_BYTES: Final = 16 * 1024 * 1024
_MAX_HEAD_BYTES: Final = 64 * 1024 * 1024
_NUMBER_DTYPE: Final = np.dtype("<u8")

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    dtype: str
    shape: tuple[int, ...]
    crc32: int


def write_snapshot(path: Path, metadata: Mapping[str, Any], arrays: Mapping[str, list[Array]]) -> None:
    """Writes a snapshot under a temporary name, makes it durable, and renames it.

    Args:
        path: replaced if it exists.
        metadata: JSON values.
        arrays: by name, each as pieces that are joined along their first axis; read twice, a chunk at a time.
    """
    entries = [_describe(name, pieces) for name, pieces in arrays.items()]
    head = json.dumps(
        {
            "version": FORMAT_VERSION,
            "metadata": metadata,
            "arrays": [[entry.name, entry.dtype, entry.shape, entry.crc32] for entry in entries],
        }
    ).encode()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(MAGIC + np.array([len(head), zlib.crc32(head)], _NUMBER_DTYPE).tobytes() + head)
            for pieces in arrays.values():
                file.writelines(_chunks(pieces))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_directory(path.parent)


def read_snapshot(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Reads a snapshot whole.

    Raises:
        SnapshotError: the file is missing, damaged, of another kind or of a newer version.
    """
    try:
        with path.open("rb") as file:
            metadata, entries = _read_head(path, file)
            return metadata, {entry.name: _read_array(path, file, entry) for entry in entries}
    except OSError as exc:
        raise SnapshotError(f"{path}: {exc.strerror}") from exc


def _describe(name: str, pieces: list[Array]) -> _Entry:
    crc = 0
    for chunk in _chunks(pieces):
        crc = zlib.crc32(chunk, crc)
    first = pieces[0]
    shape = (sum(len(piece) for piece in pieces), *first.shape[1:])
    return _Entry(name, first.dtype.name, shape, crc)


def _chunks(pieces: list[Array]) -> Iterator[memoryview]:
    for piece in pieces:
        row_bytes = max(piece.nbytes // max(len(piece), 1), 1)
        step = max(_CHUNK_BYTES // row_bytes, 1)
        for start in range(0, len(piece), step):
            yield np.ascontiguousarray(piece[start : start + step]).reshape(-1).view(np.uint8).data


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


def _read_array(path: Path, file: BinaryIO, entry: _Entry) -> Array:
    dtype = np.dtype(entry.dtype)
    num_bytes = int(np.prod(entry.shape, dtype=np.int64)) * dtype.itemsize
    if num_bytes > path.stat().st_size - file.tell():
        raise SnapshotError(f"{path}: array {entry.name!r} is cut short")
    array = np.empty(entry.shape, dtype)
    raw = array.reshape(-1).view(np.uint8).data
    file.readinto(raw)  # type: ignore[attr-defined]  # every file that open gives has it, BinaryIO does not say so
    if zlib.crc32(raw) != entry.crc32:
        raise SnapshotError(f"{path}: array {entry.name!r} is damaged")
    return array


def _read_exactly(path: Path, file: BinaryIO, num_bytes: int) -> bytes:
    raw = file.read(num_bytes)
    if len(raw) < num_bytes:
        raise SnapshotError(f"{path}: it is cut short")
    return raw


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
