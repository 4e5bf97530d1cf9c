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
        delayed_s: time that its busiest thread was ready to run and had to wait for a core.
    """

    pid: int
    cpu_s: float
    delayed_s: float

    def __add__(self, other: Usage) -> Usage:
        """Of both together; it keeps its own id, and the longer delay."""
        return Usage(self.pid, self.cpu_s + other.cpu_s, max(self.delayed_s, other.delayed_s))


def usage_of_family(pid: int, proc: Path = PROC) -> list[Usage]:
    """Usage of a process and its living descendants; one that ends meanwhile is left out."""
    found = []
    for member in _family(pid, proc):
        with contextlib.suppress(OSError):
            found.append(_usage(member, proc))
    return found


def _usage(pid: int, proc: Path) -> Usage:
    threads = []
    for thread in (proc / str(pid) / "task").iterdir():
        with contextlib.suppress(OSError):
            cpu_ns, delayed_ns, _ = map(int, (thread / "schedstat").read_text().split())
            threads.append((cpu_ns, delayed_ns))
    if not threads:
        raise ProcessLookupError(pid)
    return Usage(pid, sum(cpu for cpu, _ in threads) * _NS, max(threads)[1] * _NS)


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
