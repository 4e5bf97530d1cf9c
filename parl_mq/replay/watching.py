"""Figures of a table in use that are cheap enough to be taken every second: priorities of some rows, ages of a draw."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from parl_mq.metrics import PRIORITY_EDGES, labelled
from parl_mq.replay.keys import Keys
from parl_mq.replay.table import Table

NUM_SAMPLED: Final = 8192
"""Rows that are looked at: half a millisecond, and an effective number of rows that is off by a percent or two."""

Values = npt.NDArray[np.float64]


class TableWatch:
    """Looks at a table now and then, from the thread that uses it.

    Attributes:
        wants_draw: the next draw's keys are to be given to `note_draw`.
    """

    def __init__(self, table: Table) -> None:
        """Begins without figures."""
        self.wants_draw = True
        self._table = table
        self._rng = np.random.default_rng(0)  # its own, so that draws do not depend on who watches
        self._ages: dict[str, float] = {}
        self._priorities: dict[str, float] = {}

    def note_draw(self, keys: Keys) -> None:
        """Takes the ages of the rows that have just been drawn."""
        self.wants_draw = False
        ages = self._table.ages(keys)
        self._ages = {"sampled_age_rows": float(ages.mean()), "sampled_age_rows_max": float(ages.max())}

    def look(self) -> None:
        """Takes the priorities anew, and asks for the next draw."""
        self.wants_draw = True
        priorities, scale = self._table.some_priorities(NUM_SAMPLED, self._rng)
        self._priorities = priority_figures(priorities, scale)

    @property
    def figures(self) -> dict[str, float]:
        """Of the newest look and draw, by the metric's name."""
        return {**self._ages, **self._priorities}


def priority_figures(priorities: Values, scale: float) -> dict[str, float]:
    """Histogram and effective number of rows.

    Args:
        priorities: [P], positive, of some rows.
        scale: rows that each of them stands for.
    """
    at_most = np.searchsorted(np.sort(priorities), PRIORITY_EDGES, side="right")
    counts = [*at_most.tolist(), len(priorities)]
    edges = [*(f"{edge:.3g}" for edge in PRIORITY_EDGES), "+Inf"]
    rows = {labelled("replay_priority_rows", le=le): n * scale for le, n in zip(edges, counts, strict=True)}
    return {**rows, "replay_effective_rows": effective_rows(priorities) * scale}


def effective_rows(priorities: Values) -> float:
    """(sum p)^2 / sum p^2: so many rows of equal priority would be drawn as evenly; 0 where there are none."""
    largest = priorities.max(initial=0.0)
    if largest == 0.0:
        return 0.0
    shares = priorities / largest  # their squares neither vanish nor overflow
    return float(shares.sum() ** 2 / (shares @ shares))
