"""How fast counters grow; pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

RATE_WINDOW_S: Final = 5.0


class Rates:
    """Rates of some counters over the last seconds."""

    def __init__(self) -> None:
        """Begins without a sample."""
        self._samples: deque[tuple[float, Mapping[str, float]]] = deque()

    def note(self, now: float, counters: Mapping[str, float]) -> None:
        """The counters' values at a time, always the same ones."""
        self._samples.append((now, counters))
        while len(self._samples) > 2 and self._samples[0][0] < now - RATE_WINDOW_S:
            self._samples.popleft()

    @property
    def per_s(self) -> dict[str, float]:
        """Of each; 0 while there is one sample, and while a counter has fallen behind what it was."""
        if not self._samples:
            return {}
        (start, before), (end, after) = self._samples[0], self._samples[-1]
        elapsed = max(end - start, 1e-9)
        return {name: max(0.0, (value - before[name]) / elapsed) for name, value in after.items()}
