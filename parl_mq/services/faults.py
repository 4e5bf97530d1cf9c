"""What follows from environments that break: made anew after a while, given up when that does not help."""

from __future__ import annotations

from typing import Final

from parl_mq.errors import EnvironmentFault

FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 30.0


class FaultCount:
    """Faults of one actor's environments. They are in a row while no episode ends between them.

    Attributes:
        num_faults: all of them.
    """

    def __init__(self, actor: str, max_in_a_row: int) -> None:
        """Begins without a fault.

        Args:
            actor: its name.
            max_in_a_row: faults in a row with which the actor ends.
        """
        self.num_faults = 0
        self._actor = actor
        self._max_in_a_row = max_in_a_row
        self._num_in_a_row = 0

    def note(self, fault: EnvironmentFault) -> float:
        """Seconds to wait before the environments are made anew.

        Raises:
            EnvironmentFault: that would not help; says which actor, how often, and what happened last.
        """
        self.num_faults += 1
        self._num_in_a_row += 1
        if self._num_in_a_row >= self._max_in_a_row:
            times = "" if self._num_in_a_row == 1 else f" {self._num_in_a_row} times in a row, without a whole episode"
            raise EnvironmentFault(f"{self._actor}: its environments broke{times}; the last fault: {fault}") from fault
        return float(min(FIRST_WAIT_S * 2 ** (self._num_in_a_row - 1), LONGEST_WAIT_S))

    def note_episode(self) -> None:
        """An episode went through to its end."""
        self._num_in_a_row = 0
