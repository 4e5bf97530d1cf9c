"""When a node that has failed is started again, and when that has been tried often enough; pure."""

from __future__ import annotations

import re
import sysconfig
from collections import deque
from pathlib import Path
from typing import Final

FIRST_WAIT_S: Final = 0.2
LONGEST_WAIT_S: Final = 10.0
WINDOW_S: Final = 60.0
"""A failure counts for this long; one that came without progress since the last, for as long as that goes on."""
_FRAME: Final = re.compile(r'^ +File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_NOT_THE_USERS: Final = ("<", sysconfig.get_path("stdlib"), f"{Path(__file__).parents[1]}/")


class FailureRecord:
    """The failures of one node.

    Attributes:
        num_failures: all of them.
        first_words: what the node said before the first one.
        is_constant: the last one was the same as the one before, and the node has never got anything done.
    """

    def __init__(self, max_restarts: int) -> None:
        """Begins without a failure.

        Args:
            max_restarts: restarts that may be in vain, or within WINDOW_S, before a failure is the last.
        """
        self.num_failures = 0
        self.first_words = ""
        self.is_constant = False
        self._has_got_on = False
        self._place: object = None
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
        self._has_got_on |= had_progress
        before, self._place = self._place, _place_of(words)
        self.is_constant = not self._has_got_on and before == self._place is not None
        self._num_fruitless = 1 if had_progress else self._num_fruitless + 1
        self._times.append(now)
        while self._times[0] <= now - WINDOW_S:
            self._times.popleft()
        count = max(len(self._times), self._num_fruitless)
        if self.is_constant or count > self._max_restarts:
            return None
        return float(min(FIRST_WAIT_S * 2 ** (count - 1), LONGEST_WAIT_S))


def cause_in_words(traceback: str) -> str:
    """The exception, and the line of the user's own code that it went through last, if there is one."""
    frames = [(path, line, function) for path, line, function in _FRAME.findall(traceback) if _is_the_users(path)]
    exception = traceback.splitlines()[-1].strip()
    return f"{exception} ({frames[-1][0]}:{frames[-1][1]}, in {frames[-1][2]})" if frames else exception


def _is_the_users(path: str) -> bool:
    return not path.startswith(_NOT_THE_USERS) and "-packages/" not in path


def _place_of(words: str) -> object:
    """Type of an exception and the lines that it went through; None where there is no traceback."""
    frames = _FRAME.findall(words)
    return (words.splitlines()[-1].partition(":")[0], frames) if frames else None
