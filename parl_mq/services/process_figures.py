"""What a process takes of its machine."""

from __future__ import annotations

import resource
from typing import Final

PAGE_BYTES: Final = resource.getpagesize()


def process_figures() -> dict[str, float]:
    """Memory and processor time of this process, by the metric's name."""
    with open("/proc/self/statm") as statm:
        _, resident, shared, *_ = map(int, statm.read().split())
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "rss_bytes": float(resident * PAGE_BYTES),
        "rss_anon_bytes": float((resident - shared) * PAGE_BYTES),
        "cpu_seconds_total": usage.ru_utime + usage.ru_stime,
    }
