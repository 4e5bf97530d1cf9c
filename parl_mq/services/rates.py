"""How fast counters grow; pure."""

from __future__ import annotations

from collections import deque
from typing import Final

RATE_WINDOW_S: Final = 5.0


class Rates:
    """Rates of two counters over the last seconds."""

    def __init__(self) -> None:
        """Begins without a sample."""
        self._samples: deque[tuple[float, float, float]] = deque()

    def note(self, now: float, first: float, second: float) -> None:
        """The counters' values at a time."""
        self._samples.append((now, first, second))
        while len(self._samples) > 2 and self._samples[0][0] < now - RATE_WINDOW_S:
            self._samples.popleft()

    @property
    def per_s(self) -> tuple[float, float]:
        """Of each; 0 before there are two samples, and while a counter has fallen behind what it was."""
        if len(self._samples) < 2:
            return 0.0, 0.0
        (start, *before), (end, *after) = self._samples[0], self._samples[-1]
        elapsed = max(end - start, 1e-9)
        return max(0.0, (after[0] - before[0]) / elapsed), max(0.0, (after[1] - before[1]) / elapsed)
