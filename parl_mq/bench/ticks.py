"""What a process has done in the course of time, in steps that can be compared with other processes'."""

from __future__ import annotations

import time
from collections.abc import Callable

from parl_mq.bench.service_node import TICK_S

Ticks = list[tuple[float, int]]
"""(monotonic clock, items so far)."""


def ticks_of(take: Callable[[], int], seconds: float) -> Ticks:
    """Calls `take`, which gives a number of items, for some seconds, and notes what it has done at each TICK_S."""
    count = 0
    ticks = [(time.monotonic(), 0)]
    while ticks[-1][0] < ticks[0][0] + seconds:
        count += take()
        if (now := time.monotonic()) >= ticks[-1][0] + TICK_S:
            ticks.append((now, count))
    return ticks
