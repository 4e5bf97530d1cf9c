"""A table of another process on this host, read through the files of its ring."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from parl_mq.replay._rows import Rows
from parl_mq.replay.draws import draw_columns
from parl_mq.replay.keys import POSITION_BITS, Keys, key_prefix, shards_of
from parl_mq.replay.mapping import HEADER_BYTES, SEGMENT_HEAD, SegmentIdentity
from parl_mq.replay.refusals import KeysRefused, NotMapped
from parl_mq.replay.ring_files import segment_path
from parl_mq.replay.settings import TableSettings
from parl_mq.spec import Column, TableSpec

Arrays = dict[str, npt.NDArray[Any]]

_NOTHING_TORN: Final = np.zeros(0, np.intp)


class MappedTable:
    """Windows of rows whose keys the table's owner has drawn; the reader neither locks nor writes anything.

    A file is mapped only when its size and head are exactly those of the table that is expected, and it belongs to this
    user: its owner allocates it in full and never shortens it, which would kill a process that reads it (SIGBUS).
    Mapped, it stays whole even after it has been removed; `close` lets go of that memory.

    Threads: one at a time.
    """

    def __init__(self, settings: TableSettings, spec: TableSpec, *, directory: Path, ring_id: str) -> None:
        """Maps all shards.

        Args:
            settings: those that the owner has made its table with.
            spec: likewise.
            directory: where its ring lies.
            ring_id: `Table.ring_id` of the owner; a ring of another id is none of its.

        Raises:
            NotMapped: a file is missing, foreign, another user's or of another shape.
        """
        self._settings = settings
        self._spec = spec
        self._newest_batch: tuple[int, list[tuple[str, tuple[int, ...], np.dtype[Any]]]] = (0, [])
        self._segments: dict[int, _MappedSegment] = {}
        try:
            for shard in range(settings.num_shards):
                prefix = key_prefix(settings.table_index, shard)
                identity = SegmentIdentity(settings.segment_shape(shard, spec), ring_id, shard)
                path = segment_path(directory, settings.name, shard)
                self._segments[prefix >> POSITION_BITS] = _MappedSegment(settings, identity, prefix, path)
        except NotMapped:
            self.close()
            raise

    def close(self) -> None:
        """Unmaps the files; nothing may be called after it."""
        while self._segments:
            self._segments.popitem()[1].close()

    def arrays(self, batch_size: int) -> Arrays:
        """New arrays for `gather`, by name: those of a draw without keys and probabilities."""
        return {name: np.empty(shape, dtype) for name, shape, dtype in self._arrays_of(batch_size)}

    def gather(self, keys: Keys, out: Arrays) -> npt.NDArray[np.intp]:
        """Copies the windows of drawn rows out.

        Args:
            keys: [B] that the owner has drawn.
            out: from `arrays(B)`; filled.

        Returns:
            Indices of rows that were overwritten since they were drawn. Their place shows the window of another row of
            the batch: what was copied of them may be anything, and no number that nobody checked may reach a network.
            Where all rows are torn, so are the shown ones.

        Raises:
            KeysRefused: a key is not of this table, or was never given to a row of it.
        """
        if not isinstance(keys, np.ndarray) or keys.dtype != np.uint64 or keys.ndim != 1:
            raise KeysRefused(f"keys are {keys!r}: they must be uint64 [B]")
        columns = tuple(out.values())
        torn: list[int] = []
        for segment, start, stop in self._runs(keys):
            torn += segment.gather(keys, columns, start, stop)
        if not torn:
            return _NOTHING_TORN
        is_torn = np.zeros(len(keys), np.bool_)
        is_torn[torn] = True
        if not is_torn.all():
            whole = int(is_torn.argmin())
            for column in columns:
                column[is_torn] = column[whole]
        return np.flatnonzero(is_torn)

    def _runs(self, keys: Keys) -> Iterator[tuple[_MappedSegment, int, int]]:
        """Segments and the stretches [start, stop) of keys that lie in them."""
        shards = shards_of(keys)
        cuts = [0, *(np.flatnonzero(shards[1:] != shards[:-1]) + 1), len(keys)]
        for start, stop in pairwise(cuts):
            segment = self._segments.get(int(shards[start]))
            if segment is None:
                raise KeysRefused(f"keys[{start}] is {keys[start]}: it is not of table {self._settings.name}")
            yield segment, int(start), int(stop)

    def _arrays_of(self, batch_size: int) -> list[tuple[str, tuple[int, ...], np.dtype[Any]]]:
        if batch_size != self._newest_batch[0]:
            self._newest_batch = (
                batch_size,
                [(column.name, column.shape, np.dtype(column.dtype)) for column in self._columns(batch_size)],
            )
        return self._newest_batch[1]

    def _columns(self, batch_size: int) -> list[Column]:
        settings = self._settings
        columns = draw_columns(
            self._spec, batch_size=batch_size, frame_stack=settings.frame_stack, n_step=settings.n_step
        )
        return columns[:-2]


class _MappedSegment:
    """One shard's rows, read-only."""

    def __init__(self, settings: TableSettings, identity: SegmentIdentity, prefix: int, path: Path) -> None:
        shape = identity.shape
        self._map = _map(path, identity)
        memory = np.frombuffer(self._map, np.uint8)
        head = memory[: SEGMENT_HEAD.itemsize].view(SEGMENT_HEAD)
        self._prefix = prefix
        self._rows = Rows(
            memory[HEADER_BYTES + shape.leaves_bytes :],
            head["counters"][0],
            shape.layout,
            prefix=self._prefix,
            frame_stack=settings.frame_stack,
            n_step=settings.n_step,
            gamma=settings.gamma,
        )

    def gather(self, keys: Keys, columns: tuple[npt.NDArray[Any], ...], start: int, stop: int) -> list[int]:
        """Copies the windows of keys[start:stop] to these rows of the columns; indices of torn ones."""
        if (newest := int(keys[start:stop].max())) >= self._prefix + self._rows.committed:
            raise KeysRefused(f"key {newest}: no row of this shard ever had it")
        return self._rows.gather(keys, columns, start, stop) or []

    def close(self) -> None:
        """Unmaps the file, at once or as soon as a gather under way has ended."""
        del self._rows
        with contextlib.suppress(BufferError):
            self._map.close()


def _map(path: Path, identity: SegmentIdentity) -> mmap.mmap:
    """A read-only map of a file that is exactly what it should be.

    Raises:
        NotMapped: it is not, or cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as exc:
        raise NotMapped(f"{path}: {exc.strerror}") from exc
    try:
        _check(path, descriptor, identity)
        return mmap.mmap(descriptor, identity.shape.num_bytes, prot=mmap.PROT_READ)
    except OSError as exc:
        raise NotMapped(f"{path}: {exc.strerror}") from exc
    finally:
        os.close(descriptor)


def _check(path: Path, descriptor: int, identity: SegmentIdentity) -> None:
    """Looks at the file before it is mapped: reading from a map of a short file would kill the process."""
    status, num_bytes = os.fstat(descriptor), identity.shape.num_bytes
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise NotMapped(f"{path}: it is no regular file of this user")
    if status.st_size != num_bytes:
        raise NotMapped(f"{path}: it has {status.st_size:,} bytes instead of {num_bytes:,}")
    head = np.frombuffer(os.pread(descriptor, SEGMENT_HEAD.itemsize, 0), SEGMENT_HEAD)[0]
    for field, wanted in identity.fields().items():
        if head[field] != wanted:
            raise NotMapped(f"{path}: field {field!r} of its head is another one than that of the replay node's ring")
