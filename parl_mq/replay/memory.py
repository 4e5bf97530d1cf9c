"""Whether a table fits in memory, before any of it is allocated."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from parl_mq.errors import MemoryRefused

_PROC: Final = Path("/proc")
_CGROUPS: Final = Path("/sys/fs/cgroup")
_SHARE: Final = 0.95
"""Of what is free, the rest of the process needs some."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes that a table takes.

    Attributes:
        num_rows: physical rows of all shards, dead ones included.
        row_bytes: of one record.
        rows_bytes: of all records.
        tree_bytes: of all sum trees and heads of segments.
    """

    num_rows: int
    row_bytes: int
    rows_bytes: int
    tree_bytes: int

    @property
    def num_bytes(self) -> int:
        """The sum."""
        return self.rows_bytes + self.tree_bytes

    def __str__(self) -> str:
        return (
            f"{self.num_rows:,} rows x {self.row_bytes:,} bytes = {gib(self.rows_bytes)} + sum tree "
            f"{gib(self.tree_bytes)} = {gib(self.num_bytes)}"
        )


def check_memory(
    need: MemoryNeed, directory: Path | None, *, reused: int = 0, proc: Path = _PROC, cgroups: Path = _CGROUPS
) -> None:
    """Refuses a table that would not fit.

    Args:
        need: what it takes.
        directory: where its files go, on tmpfs or a disk; None: in the memory of this process.
        reused: bytes of files there that it takes over or takes the place of.
        proc: where /proc is mounted.
        cgroups: where the cgroup hierarchy is mounted.

    Raises:
        MemoryRefused: the sum and what there is.
    """
    limits = {"the memory available": available_memory(proc), "the cgroup's limit": cgroup_headroom(proc, cgroups)}
    if directory is not None:
        place = _existing_parent(directory)
        free = os.statvfs(place)
        on_disk = {f"the space in {place}": free.f_bavail * free.f_frsize}
        limits = {**limits, **on_disk} if is_in_memory(place, proc) else {**on_disk}
    for what, there_is in limits.items():
        if there_is is not None and need.num_bytes - reused > there_is * _SHARE:
            raise MemoryRefused(
                f"the table needs {need}, which is more than {_SHARE:.0%} of {what}, {gib(there_is)}; lower "
                "replay.buffer_size, or use a machine or a ring directory with more room"
            )


def available_memory(proc: Path = _PROC) -> int | None:
    """Bytes that new memory may take without swapping; None where the kernel does not say."""
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def cgroup_headroom(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int | None:
    """Bytes left in the tightest memory cgroup above this process; None without a limit."""
    return min((left for group in _groups(proc, cgroups) if (left := _left_in(group)) is not None), default=None)


def is_in_memory(directory: Path, proc: Path = _PROC) -> bool:
    """Whether files of a directory take memory: it lies on a tmpfs or ramfs."""
    mounts = [line.split() for line in (proc / "mounts").read_text().splitlines()]
    points = [(Path(point.encode().decode("unicode_escape")), kind) for _, point, kind, *_ in mounts]
    resolved = directory.resolve()
    holding = [(len(point.parts), kind) for point, kind in points if resolved.is_relative_to(point)]
    return max(holding, default=(0, ""))[1] in ("tmpfs", "ramfs")


def _groups(proc: Path, cgroups: Path) -> list[Path]:
    """Directories of this process's memory cgroup and all above it, of either version."""
    groups = []
    for line in (proc / "self" / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            root = cgroups / controllers
            group = root / path.lstrip("/")
            groups += [level for level in (group, *group.parents) if level.is_relative_to(root)]
    return groups


def _left_in(group: Path) -> int | None:
    for limit_name, used_name, files_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, used = group / limit_name, group / used_name
        if limit.is_file() and used.is_file() and (text := limit.read_text().strip()) != "max":
            return max(int(text) - max(int(used.read_text()) - _reclaimable(group, files_name), 0), 0)
    return None


def _reclaimable(group: Path, name: str) -> int:
    """Bytes of files that the kernel keeps in memory only until it is asked for."""
    stat = group / "memory.stat"
    lines = [line.split() for line in stat.read_text().splitlines()] if stat.is_file() else []
    return next((int(value) for found, value in lines if found == name), 0)


def _existing_parent(directory: Path) -> Path:
    return next(path for path in (directory, *directory.absolute().parents) if path.exists())


def gib(num_bytes: int) -> str:
    """A size for people."""
    return f"{num_bytes / 2**30:,.2f} GiB"


def mib(num_bytes: int) -> str:
    """A smaller one."""
    return f"{num_bytes / 2**20:,.1f} MiB"
