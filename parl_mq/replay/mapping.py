"""Memory of one ring segment: a file that other processes may map, or anonymous pages."""

from __future__ import annotations

import contextlib
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from parl_mq.errors import MemoryRefused
from parl_mq.replay._rows import NUM_COUNTERS
from parl_mq.replay._sum_tree import padded_size
from parl_mq.replay.layout import RowLayout

MAGIC: Final = b"PARLRING"
FORMAT_VERSION: Final = 1
HEADER_BYTES: Final = 128 * 1024
"""Head of a segment. The bytes from 256 on are kept for two commit records (64 bytes each) and, from 4,096 on, a table
of 1,024 senders (64 bytes each)."""
_PAGE_BYTES: Final = 4096

SEGMENT_HEAD: Final = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("stride", "<u4"),
        ("num_rows", "<i8"),
        ("ring_id", "S16"),
        ("digest", "S16"),
        ("counters", "<i8", NUM_COUNTERS),
        ("max_magnitude", "<f8"),
    ]
)


@dataclass(frozen=True, slots=True)
class SegmentShape:
    """Sizes of a segment's parts, in this order: header, leaves of the tree, records."""

    layout: RowLayout
    num_rows: int
    arity: int

    @property
    def leaves_bytes(self) -> int:
        """Bytes of the tree's leaf row, up to a whole page."""
        return -(-padded_size(self.num_rows, self.arity) * 8 // _PAGE_BYTES) * _PAGE_BYTES

    @property
    def rows_bytes(self) -> int:
        """Bytes of the records."""
        return self.num_rows * self.layout.stride

    @property
    def inner_tree_bytes(self) -> int:
        """Bytes that the tree takes beside the segment: sums above the leaves, and marks of 4 bytes."""
        return self.num_rows * 8 // (self.arity - 1) + self.num_rows * 4 // self.arity

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole segment."""
        return HEADER_BYTES + self.leaves_bytes + self.rows_bytes


class Segment:
    """The mapped parts of one segment, as arrays.

    A file is allocated in full before it is mapped: touching a page of a sparse file in a full tmpfs would kill the
    process. Anonymous pages come into being as rows are written.

    Attributes:
        counters: [NUM_COUNTERS] int64.
        max_magnitude: [1] float64.
        leaves: float64, as long as the tree wants.
        rows: uint8, whole records.
        first_position: where positions must start, so that none of a ring that was found here is used again.
        is_replacement: a ring was found at the path; it is gone.
    """

    def __init__(self, shape: SegmentShape, path: Path | None, ring_id: str) -> None:
        self._path = path
        self._layout = shape.layout
        self.is_replacement = path is not None and path.exists()
        self.first_position = _next_position(path) if path is not None and self.is_replacement else 0
        self._map = _map_anonymous(shape.num_bytes) if path is None else _map_file(path, shape.num_bytes)
        memory = np.frombuffer(self._map, np.uint8)
        header = memory[: SEGMENT_HEAD.itemsize].view(SEGMENT_HEAD)
        header["magic"], header["version"], header["ring_id"] = MAGIC, FORMAT_VERSION, ring_id.encode()
        header["digest"], header["num_rows"] = shape.layout.spec.digest.encode(), shape.num_rows
        header["stride"] = shape.layout.stride
        self.counters: npt.NDArray[np.int64] = header["counters"][0]
        self.max_magnitude: npt.NDArray[np.float64] = header["max_magnitude"]
        leaves_end = HEADER_BYTES + shape.leaves_bytes
        self.leaves: npt.NDArray[np.float64] = memory[HEADER_BYTES:leaves_end].view(np.float64)
        self.rows: npt.NDArray[np.uint8] = memory[leaves_end : shape.num_bytes]

    def records(self) -> npt.NDArray[np.void]:
        """The rows, as a structured view."""
        return self._layout.records(self.rows)

    def close(self, *, remove: bool) -> None:
        """Gives the memory back; views that others still hold keep it until they go.

        Args:
            remove: the file goes too.
        """
        del self.counters, self.max_magnitude, self.leaves, self.rows
        with contextlib.suppress(BufferError):
            self._map.close()
        if remove and self._path is not None:
            self._path.unlink(missing_ok=True)


def _next_position(path: Path) -> int:
    """The first position that the ring in a file never used; 0 if the file is no ring."""
    with path.open("rb") as file:
        raw = file.read(SEGMENT_HEAD.itemsize)
    if len(raw) < SEGMENT_HEAD.itemsize:
        return 0
    header = np.frombuffer(raw, SEGMENT_HEAD)[0]
    return int(header["counters"].max()) if header["magic"] == MAGIC and header["version"] == FORMAT_VERSION else 0


def _map_anonymous(num_bytes: int) -> mmap.mmap:
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)  # random reads of a large ring miss the TLB 500 times less
    return memory


def _map_file(path: Path, num_bytes: int) -> mmap.mmap:
    """A new file in place of any other; who has mapped the old one keeps it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
        return mmap.mmap(descriptor, num_bytes)
    except OSError as exc:
        path.unlink(missing_ok=True)
        raise MemoryRefused(f"cannot allocate {num_bytes:,} bytes for {path}: {exc.strerror}") from exc
    finally:
        os.close(descriptor)
