"""The directory of one table's ring: who may use it, what lies in it, and whether that is what is wanted."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from parl_mq.errors import RingRefused
from parl_mq.replay.durable import replacing
from parl_mq.replay.mapping import (
    FORMAT_VERSION,
    Segment,
    SegmentIdentity,
    changing_fields,
    has_rows,
    new_segment,
    next_position,
    open_segment,
    refusal,
)
from parl_mq.replay.settings import TableSettings
from parl_mq.spec import TableSpec

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_NOT_KEPT: Final = frozenset({"gamma"})
"""Settings that shape neither rows nor priorities, only what is drawn of them: they may change while the rows stay."""


def boot_id() -> str:
    """Tells one start of the machine from another."""
    return _BOOT_ID.read_text().strip()


@dataclass(frozen=True, slots=True)
class RingDescription:
    """What a ring is, in a file beside its segments.

    Attributes:
        ring_id: of the ring; each of its segments has it too.
        settings: of the table.
        columns: of the table, as TableSpec.to_wire has them.
        spaces: likewise.
        boot_id: of the machine's start in which it was opened or closed last.
        is_closed: it was closed in order, with everything on the disk, and not opened since.
        heads: what `changing_fields` said of each segment when it was closed; empty while it is open.
        labels: what its owner calls it.
    """

    ring_id: str
    settings: TableSettings
    columns: list[Any]
    spaces: dict[str, Any]
    boot_id: str
    is_closed: bool = False
    heads: list[dict[str, Any]] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def spec(self) -> TableSpec:
        """The table's columns."""
        return TableSpec.from_wire(self.columns, self.spaces)

    def identity(self, shard: int) -> SegmentIdentity:
        """Of one of its segments."""
        return SegmentIdentity(self.settings.segment_shape(shard, self.spec), self.ring_id, shard)

    def segment_paths(self, directory: Path) -> list[Path]:
        """Its segments' files."""
        return [segment_path(directory, self.settings.name, shard) for shard in range(self.settings.num_shards)]

    def check_heads(self, directory: Path) -> None:
        """Whether the segments' heads are as they were when the ring was closed, if it was.

        Raises:
            RingRefused: a field is not.
        """
        for path, head in zip(self.segment_paths(directory), self.heads, strict=False):
            for name, found in changing_fields(path).items():
                if found != head[name]:
                    raise refusal(path, f"field {name!r} of its head is {found}, and was {head[name]} at its close")

    def write(self, path: Path) -> None:
        """Replaces the file, durably."""
        text = json.dumps({"version": FORMAT_VERSION, **asdict(self)})
        with replacing(path) as file:
            file.write(json.dumps({"ring": text, "crc32": zlib.crc32(text.encode())}).encode())

    @classmethod
    def read(cls, path: Path) -> RingDescription:
        """What `write` wrote.

        Raises:
            RingRefused: the file is damaged, or of another version.
        """
        try:
            outer = json.loads(path.read_bytes())
            text = outer["ring"]
            if zlib.crc32(text.encode()) != outer["crc32"]:
                raise refusal(path, "its checksum is wrong")
            values = json.loads(text)
            version = values.pop("version")
            if version != FORMAT_VERSION:
                raise refusal(path, f"field 'version' is {version}, this program reads {FORMAT_VERSION}")
            description = cls(**{**values, "settings": TableSettings(**values["settings"])})
            _ = description.spec
            return description
        except OSError as error:
            raise refusal(path, f"it cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise refusal(path, f"it does not describe a ring: {error}") from error


def differing(stored: TableSettings, wanted: TableSettings) -> list[str]:
    """Names of settings that must be those with which rows were stored for them to be used, and are not."""
    kept = (item.name for item in fields(TableSettings) if item.name not in _NOT_KEPT)
    return [name for name in kept if getattr(stored, name) != getattr(wanted, name)]


def segment_path(directory: Path, table: str, shard: int) -> Path:
    """Where a segment lies."""
    return directory / f"{table}.{shard:03d}.ring"


def description_path(directory: Path, table: str) -> Path:
    """Where a ring's description lies."""
    return directory / f"{table}.json"


class RingFiles:
    """The directory of one table's ring, which no other process may open meanwhile.

    A ring counts from the moment its description is written, after all of its segments. The description also says
    whether the ring was closed in order: files on a disk may be incomplete after the machine went down without that.

    Attributes:
        directory: where it is.
    """

    def __init__(self, directory: Path, table: str) -> None:
        """Takes the directory, which is made if it is not there.

        Raises:
            RingRefused: another process uses it, or it cannot be made or entered.
        """
        self.directory = directory
        self._table = table
        self._segments: list[Segment] = []
        self._description: RingDescription | None = None
        self._made: list[Path] = []
        try:
            if not directory.is_dir():
                self._made.append(directory)
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise RingRefused(f"{directory}: it cannot hold a ring: {error.strerror}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._let_go()
            raise RingRefused(
                f"{directory}: another process has this ring open; stop that replay node, or give this one another "
                "node.ring_directory or --name"
            ) from error

    @property
    def found_files(self) -> list[Path]:
        """Files of a ring of this table."""
        paths = [
            *self.directory.glob(f"{glob.escape(self._table)}.*.ring"),
            description_path(self.directory, self._table),
        ]
        return [path for path in sorted(paths) if path.exists()]

    @property
    def num_bytes_found(self) -> int:
        """What they take."""
        return sum(path.stat().st_blocks * 512 for path in self.found_files)

    def has_ring(self) -> bool:
        """Whether a ring was made here; files of one whose making was cut short do not count.

        Raises:
            RingRefused: there are rows, but what describes them is missing.
        """
        if self._path.exists():
            return True
        for path in self.found_files:
            if path != self._path and has_rows(path):
                raise refusal(self._path, f"it is missing beside {path.name}, which holds rows")
        return False

    def reopen(self, settings: TableSettings, spec: TableSpec) -> list[Segment]:
        """The segments of the ring that was found, unchanged.

        Raises:
            RingRefused: it is damaged, of another table, or was not closed before the machine went down.
            MemoryRefused: its files have holes that cannot be filled.
        """
        found = RingDescription.read(self._path)
        self._compare(found, settings, spec)
        if found.boot_id != boot_id() and not found.is_closed:
            raise refusal(self._path, "the machine went down while this ring was open; its files may be incomplete")
        for shard, path in enumerate(found.segment_paths(self.directory)):
            self._segments.append(open_segment(found.identity(shard), path))
        found.check_heads(self.directory)
        self._description = replace(found, settings=settings)  # those that are not compared may have changed
        return self._segments

    def create(
        self, settings: TableSettings, spec: TableSpec, ring_id: str, labels: Mapping[str, str]
    ) -> list[tuple[Segment, int]]:
        """New segments in place of whatever lies here, each with the first position that no row of the old one had.

        Raises:
            MemoryRefused: there is no room.
            RingRefused: the files cannot be made.
        """
        columns, spaces = spec.to_wire()
        description = RingDescription(ring_id, settings, columns, spaces, boot_id(), labels=dict(labels))
        self._description = description
        try:
            old = self.found_files
            paths = description.segment_paths(self.directory)
            positions = [next_position(path) if path in old else 0 for path in paths]
            for path in (self._path, *old):  # the description first
                path.unlink(missing_ok=True)
            for shard, path in enumerate(paths):
                self._segments.append(new_segment(description.identity(shard), path))
                self._made.append(path)
        except OSError as error:
            raise RingRefused(f"{self.directory}: no ring can be made there: {error.strerror}") from error
        return list(zip(self._segments, positions, strict=True))

    def note_open(self) -> None:
        """From now on the ring counts, and may change at any moment."""
        assert self._description is not None
        opened = replace(self._description, boot_id=boot_id(), is_closed=False, heads=[])
        try:
            opened.write(self._path)
        except OSError as error:
            raise RingRefused(f"{self._path}: it cannot be written: {error.strerror}") from error
        self._description = opened
        self._made.clear()

    @property
    def ring_id(self) -> str:
        """Of the ring that is open."""
        assert self._description is not None
        return self._description.ring_id

    def close(self, *, remove: bool) -> None:
        """Lets the directory go; with everything on the disk, where the ring stays.

        The segments must have been closed: only their files are touched.

        Raises:
            RingRefused: a file cannot be written or removed; the ring counts as open then.
        """
        try:
            if remove:
                for path in self.found_files[::-1]:
                    path.unlink(missing_ok=True)
            elif self._description is not None:
                heads = [changing_fields(path) for path in self._description.segment_paths(self.directory)]
                closed = replace(self._description, boot_id=boot_id(), is_closed=True, heads=heads)
                closed.write(self._path)
        except OSError as error:
            what = "removed" if remove else "marked as closed, and will be refused after a reboot"
            raise RingRefused(f"{self.directory}: its ring cannot be {what}: {error.strerror}") from error
        finally:
            self._let_go()

    def abandon(self) -> None:
        """Lets the directory go without what was made in it."""
        for path in self._made[::-1]:
            with contextlib.suppress(OSError):
                path.rmdir() if path == self.directory else path.unlink()
        self._let_go()

    def _compare(self, found: RingDescription, settings: TableSettings, spec: TableSpec) -> None:
        for name in differing(found.settings, settings):
            old, new = getattr(found.settings, name), getattr(settings, name)
            raise refusal(self._path, f"its table was made with {name} = {old!r}, this one has {new!r}")
        if found.spec.digest != spec.digest:
            raise refusal(self._path, f"its columns are {_names(found.spec)}, this table has {_names(spec)}")

    @property
    def _path(self) -> Path:
        return description_path(self.directory, self._table)

    def _let_go(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


def _names(spec: TableSpec) -> str:
    return ", ".join(f"{column.name} {column.dtype} {column.shape}" for column in spec.columns)
