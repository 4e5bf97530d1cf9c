"""Processor time of this process and all that it has started, as the kernel accounts for it."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_NS: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has had so far.

    Attributes:
        pid: its id.
        cpu_s: processor time of all its threads.
        busy_s: processor time of its busiest thread.
        delayed_s: time that this thread was ready to run and had to wait for a core.
    """

    pid: int
    cpu_s: float
    busy_s: float
    delayed_s: float

    def __add__(self, other: Usage) -> Usage:
        """Of both together; it keeps its own id, and what the busier of them has had."""
        busier = max(self, other, key=lambda usage: usage.busy_s)
        return Usage(self.pid, self.cpu_s + other.cpu_s, busier.busy_s, busier.delayed_s)


def usage_of_family(pid: int, proc: Path = PROC) -> list[Usage]:
    """Usage of a process and its living descendants; one that ends meanwhile is left out."""
    found = []
    for member in _family(pid, proc):
        with contextlib.suppress(OSError):
            found.append(usage_of(member, proc))
    return found


def usage_of(pid: int, proc: Path = PROC) -> Usage:
    """Usage of one process.

    Raises:
        OSError: there is none of this id.
    """
    threads = []
    for thread in (proc / str(pid) / "task").iterdir():
        with contextlib.suppress(OSError):
            cpu_ns, delayed_ns, _ = map(int, (thread / "schedstat").read_text().split())
            threads.append((cpu_ns, delayed_ns))
    if not threads:
        raise ProcessLookupError(pid)
    busy_ns, delayed_ns = max(threads)
    return Usage(pid, sum(cpu for cpu, _ in threads) * _NS, busy_ns * _NS, delayed_ns * _NS)


def _family(pid: int, proc: Path) -> Iterator[int]:
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in proc.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
                children[int(after_name[1])].append(int(entry.name))
    waiting = [pid]
    while waiting:
        member = waiting.pop()
        yield member
        waiting += children[member]
