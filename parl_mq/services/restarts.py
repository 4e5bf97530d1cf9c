"""When a node that has failed is started again, and when that has been tried often enough; pure."""

from __future__ import annotations

from collections import deque
from typing import Final

FIRST_WAIT_S: Final = 0.2
LONGEST_WAIT_S: Final = 10.0
WINDOW_S: Final = 60.0
"""A failure counts for this long; one that came without progress since the last, for as long as that goes on."""


class FailureRecord:
    """The failures of one node.

    Attributes:
        num_failures: all of them.
        first_words: what the node said before the first one.
    """

    def __init__(self, max_restarts: int) -> None:
        """Begins without a failure.

        Args:
            max_restarts: restarts that may be in vain, or within WINDOW_S, before a failure is the last.
        """
        self.num_failures = 0
        self.first_words = ""
        self._max_restarts = max_restarts
        self._times: deque[float] = deque()
        self._num_fruitless = 0

    def note(self, now: float, words: str, *, had_progress: bool) -> float | None:
        """Takes a failure.

        Args:
            now: the time, s.
            words: what the node said before.
            had_progress: it had got something done since its start.

        Returns:
            Seconds to wait before the node is started again; None: another start would not help.
        """
        if not self.num_failures:
            self.first_words = words
        self.num_failures += 1
        self._num_fruitless = 1 if had_progress else self._num_fruitless + 1
        self._times.append(now)
        while self._times[0] <= now - WINDOW_S:
            self._times.popleft()
        count = max(len(self._times), self._num_fruitless)
        if count > self._max_restarts:
            return None
        return float(min(FIRST_WAIT_S * 2 ** (count - 1), LONGEST_WAIT_S))
