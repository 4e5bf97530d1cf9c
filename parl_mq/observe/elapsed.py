"""Since when a process runs: the interpreter's own start and all imports count as its time too."""

from __future__ import annotations

import os
import time


def process_started_at() -> float:
    """Monotonic time at which this process was started, s; to about 0.01 s."""
    with open("/proc/self/stat") as stat:
        ticks = int(stat.read().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age_s
