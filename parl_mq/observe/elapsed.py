"""Since when a command runs: the interpreter's own start and all imports count as its time too."""

from __future__ import annotations

import os
import time
from typing import Final

STARTUP_S: Final = 2.0
"""The interpreter takes less until it loads this module. A process that is older was a shell before, which became the
command at its line's end (`sh -c "make && parl-mq train ..."`), and whose time is not the command's.
"""


def started_at(now: float, age_s: float, processor_s: float) -> float:
    """When a command was started that has loaded this module now, s.

    Args:
        now: monotonic, s.
        age_s: of its process, s.
        processor_s: processor time that it has taken, s: since its start where a shell has only waited before.
    """
    return now - (age_s if age_s < STARTUP_S else min(processor_s, STARTUP_S))


def process_started_at() -> float:
    """Monotonic time at which this command was started, s; to about 0.01 s."""
    return _STARTED_AT


def _age_s() -> float:
    with open("/proc/self/stat") as stat:
        ticks = int(stat.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


_STARTED_AT: Final = started_at(time.monotonic(), _age_s(), time.process_time())
