"""Memory of one ring segment: a file that other processes may map, or anonymous pages."""

from __future__ import annotations

import contextlib
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from parl_mq.errors import MemoryRefused, RingRefused
from parl_mq.replay._commits import PLANS_AT, RECORDS_AT, SENDERS_AT
from parl_mq.replay._rows import NUM_COUNTERS
from parl_mq.replay._sum_tree import padded_size
from parl_mq.replay.layout import RowLayout

MAGIC: Final = b"PARLRING"
FORMAT_VERSION: Final = 2
HEADER_BYTES: Final = 128 * 1024
"""Head of a segment: who it is and its counters, two commit records, two plans, and from SENDERS_AT on the senders."""
TAIL, RESERVED, COMMITTED, NUM_LIVE = range(NUM_COUNTERS)
"""Words of the counters."""
_COUNTERS: Final = ("tail", "reserved", "committed", "num_live")
_CHANGING: Final = ("counters", "newest", "max_magnitude", "max_magnitude_again", "counts", "counts_checksum", "words")
"""Fields of a head that do not say which segment it is."""
NUM_OWN_WORDS: Final = 8
"""int64 words in each head that are left to the table's owner."""
_PAGE_BYTES: Final = 4096
_LAST_POSITION: Final = 2**47
"""A ring that stands beyond it has a damaged head, or has stored rows for centuries."""

SEGMENT_HEAD: Final = np.dtype(
    {
        "names": [
            *("magic", "version", "stride", "num_rows", "ring_id", "digest", "arity", "shard"),
            *("counters", "newest", "max_magnitude", "counts", "max_magnitude_again", "counts_checksum", "words"),
        ],
        "formats": [
            *("S8", "<u4", "<u4", "<i8", "S16", "S16", "<u4", "<u4"),
            *(("<i8", NUM_COUNTERS), "<u8", "<f8", ("<i8", 4), "<f8", "<u8", ("<i8", NUM_OWN_WORDS)),
        ],
        "offsets": [0, 8, 12, 16, 24, 40, 56, 60, 64, 96, 104, 112, 144, 152, 192],
        "itemsize": RECORDS_AT,
    }
)
"""ext/commits.pyx describes the same bytes. `newest` is the number of the newest whole commit, `counts` what
_shard.Counts counts from `drawn` on. Nothing is kept in the bytes from 160 to 192."""
SENDER_DTYPE: Final = np.dtype(
    [
        ("name", "V16"),
        ("epoch", "<i8"),
        ("sequence", "<i8"),
        ("rows", "<i8"),
        ("num_bytes", "<i8"),
        ("number", "<u8"),
        ("checksum", "<u8"),
    ]
)
RECORD_DTYPE: Final = np.dtype(
    [
        ("number", "<u8"),
        ("committed", "<i8"),
        ("tail", "<i8"),
        ("num_live", "<i8"),
        ("num_inserted", "<i8"),
        ("max_magnitude", "<f8"),
        ("slot", "<i8"),
        ("unused", "<i8"),
        ("sender", SENDER_DTYPE),
    ]
)
PLAN_DTYPE: Final = np.dtype([("number", "<u8"), ("end", "<i8"), ("tail", "<i8"), ("checksum", "<u8")])


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


@dataclass(frozen=True, slots=True)
class SegmentIdentity:
    """Which segment of which ring a file is.

    Attributes:
        shape: sizes and columns.
        ring_id: of the ring, the same for all its shards.
        shard: index.
    """

    shape: SegmentShape
    ring_id: str
    shard: int

    def fields(self) -> dict[str, object]:
        """What stands in the head, by the field's name."""
        return {
            "magic": MAGIC,
            "version": FORMAT_VERSION,
            "stride": self.shape.layout.stride,
            "num_rows": self.shape.num_rows,
            "ring_id": self.ring_id.encode(),
            "digest": self.shape.layout.spec.digest.encode(),
            "arity": self.shape.arity,
            "shard": self.shard,
        }


class Segment:
    """The mapped parts of one segment, as arrays; those of a segment that is only looked at are read-only.

    Attributes:
        path: of the file; None in anonymous memory.
        shape: sizes and columns.
        head: [HEADER_BYTES] uint8.
        counters: [NUM_COUNTERS] int64.
        newest: [1] uint64, the number of the newest whole commit.
        max_magnitude: [1] float64.
        max_magnitude_again: [1] float64, the same.
        counts: [4] int64, the statistics of _shard.Counts from `drawn` on, as they were at the newest commit.
        counts_checksum: [1] uint64, of these; 0 before the first of them was written.
        words: [NUM_OWN_WORDS] int64, which belong to the table's owner.
        records_of_commits: [2] RECORD_DTYPE.
        plans: [2] PLAN_DTYPE.
        senders: [NUM_SENDERS] SENDER_DTYPE.
        leaves: float64, as long as the tree wants.
        rows: uint8, whole records.
    """

    def __init__(self, shape: SegmentShape, memory: mmap.mmap, path: Path | None) -> None:
        self.path = path
        self.shape = shape
        self._map = memory
        whole = np.frombuffer(memory, np.uint8)
        self.head: npt.NDArray[np.uint8] = whole[:HEADER_BYTES]
        header = self.head[:RECORDS_AT].view(SEGMENT_HEAD)
        self._header = header
        self.counters: npt.NDArray[np.int64] = header["counters"][0]
        self.newest: npt.NDArray[np.uint64] = header["newest"]
        self.max_magnitude: npt.NDArray[np.float64] = header["max_magnitude"]
        self.max_magnitude_again: npt.NDArray[np.float64] = header["max_magnitude_again"]
        self.counts: npt.NDArray[np.int64] = header["counts"][0]
        self.counts_checksum: npt.NDArray[np.uint64] = header["counts_checksum"]
        self.words: npt.NDArray[np.int64] = header["words"][0]
        self.records_of_commits = self.head[RECORDS_AT : RECORDS_AT + 2 * RECORD_DTYPE.itemsize].view(RECORD_DTYPE)
        self.plans = self.head[PLANS_AT : PLANS_AT + 2 * PLAN_DTYPE.itemsize].view(PLAN_DTYPE)
        self.senders = self.head[SENDERS_AT : SENDERS_AT + 64 * 1024].view(SENDER_DTYPE)
        leaves_end = HEADER_BYTES + shape.leaves_bytes
        self.leaves: npt.NDArray[np.float64] = whole[HEADER_BYTES:leaves_end].view(np.float64)
        self.rows: npt.NDArray[np.uint8] = whole[leaves_end : shape.num_bytes]

    def records(self) -> npt.NDArray[np.void]:
        """The rows, as a structured view."""
        return self.shape.layout.records(self.rows)

    def name(self, identity: SegmentIdentity) -> None:
        """Writes into a new segment's head which one it is."""
        for field, value in identity.fields().items():
            self._header[field] = value

    def check(self, identity: SegmentIdentity) -> None:
        """Whether it is that segment.

        Raises:
            RingRefused: a field of the head differs.
        """
        for field, wanted in identity.fields().items():
            found = self._header[field][0]
            if found != wanted:
                raise refusal(self.path, f"field {field!r} of its head is {_shown(found)}, not {_shown(wanted)}")

    def flush(self) -> None:
        """Writes everything to the disk, if it lies on one, and waits for it.

        Raises:
            RingRefused: it cannot be written.
        """
        try:
            self._map.flush()
        except OSError as exc:
            raise RingRefused(f"{self.path}: it cannot be written to the disk: {exc.strerror}") from exc

    def close(self, *, remove: bool) -> None:
        """Gives the memory back; views that others still hold keep it until they go.

        Args:
            remove: the file goes too.
        """
        for name in [name for name, value in vars(self).items() if isinstance(value, np.ndarray)]:
            delattr(self, name)
        with contextlib.suppress(BufferError):
            self._map.close()
        if remove and self.path is not None:
            self.path.unlink(missing_ok=True)


def refusal(path: Path | None, what: str) -> RingRefused:
    """The error that a file of a ring stands for."""
    folder = f"remove {path.parent}" if path is not None else "leave it"
    return RingRefused(f"{path}: {what}; start the replay node with --fresh, or {folder}, to begin with an empty ring")


def new_segment(identity: SegmentIdentity, path: Path | None) -> Segment:
    """A segment of zeros.

    A file is allocated in full before it is mapped: touching a page of a sparse file in a full tmpfs would kill the
    process. Anonymous pages come into being as rows are written.

    Raises:
        MemoryRefused: there is no room for the file.
        OSError: it cannot be made, or is there.
    """
    num_bytes = identity.shape.num_bytes
    segment = Segment(identity.shape, _map_anonymous(num_bytes) if path is None else _map_new(path, num_bytes), path)
    segment.name(identity)
    return segment


def open_segment(identity: SegmentIdentity, path: Path, *, read_only: bool = False) -> Segment:
    """A segment that was found.

    Raises:
        RingRefused: the file is missing, cut short, or another one.
        MemoryRefused: it has holes, and there is no room to fill them.
    """
    segment = Segment(identity.shape, _map_found(path, identity.shape.num_bytes, read_only), path)
    try:
        segment.check(identity)
    except RingRefused:
        segment.close(remove=False)
        raise
    return segment


def next_position(path: Path) -> int:
    """The first position that the ring in a file never used; 0 if the file is no ring."""
    position = int(_head_in(path)["counters"][:NUM_LIVE].max())
    return position if 0 <= position < _LAST_POSITION else 0


def has_rows(path: Path) -> bool:
    """Whether a file is a segment with live rows."""
    return bool(_head_in(path)["counters"][NUM_LIVE] > 0)


def changing_fields(path: Path) -> dict[str, Any]:
    """What changes in a segment's head while it is in use, by the field's name, in JSON values."""
    head = _head_in(path)
    values = {name: head[name].tolist() for name in _CHANGING}
    return {**dict(zip(_COUNTERS, values.pop("counters"), strict=True)), **values}


def _head_in(path: Path) -> Any:
    """The head in a file; zeros where the file is no segment."""
    with path.open("rb") as file:
        raw = file.read(SEGMENT_HEAD.itemsize)
    if len(raw) == SEGMENT_HEAD.itemsize:
        head = np.frombuffer(raw, SEGMENT_HEAD)[0]
        if head["magic"] == MAGIC and head["version"] == FORMAT_VERSION:
            return head
    return np.zeros((), SEGMENT_HEAD)


def _map_anonymous(num_bytes: int) -> mmap.mmap:
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)  # random reads of a large ring miss the TLB 500 times less
    return memory


def _map_new(path: Path, num_bytes: int) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        return _map_whole(descriptor, path, num_bytes)
    except MemoryRefused:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _map_found(path: Path, num_bytes: int, read_only: bool) -> mmap.mmap:
    try:
        descriptor = os.open(path, (os.O_RDONLY if read_only else os.O_RDWR) | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as exc:
        raise refusal(path, f"it cannot be opened: {exc.strerror}") from exc
    try:
        size = os.fstat(descriptor).st_size
        if size != num_bytes:
            raise refusal(path, f"it has {size:,} bytes instead of {num_bytes:,}")
        if read_only:
            return mmap.mmap(descriptor, num_bytes, access=mmap.ACCESS_READ)
        return _map_whole(descriptor, path, num_bytes)
    finally:
        os.close(descriptor)


def _map_whole(descriptor: int, path: Path, num_bytes: int) -> mmap.mmap:
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
        return mmap.mmap(descriptor, num_bytes)
    except OSError as exc:
        raise MemoryRefused(f"cannot allocate {num_bytes:,} bytes for {path}: {exc.strerror}") from exc


def _shown(value: object) -> str:
    return repr(value.decode(errors="replace") if isinstance(value, bytes) else value)
