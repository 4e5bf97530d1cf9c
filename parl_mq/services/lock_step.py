"""Rounds in which everything happens in one order, so that two runs of the same settings learn the same; pure.

A round: every actor brings one message of rows, which it has stepped with the weights of the round before; when all of
them and the learner's request are here, the rows are stored in the actors' order; then the learner draws the batches
that are owed for them, one after the other, each with the priorities of the one before in place; with the last one it
publishes weights, and the actors are told to step on with these. Who is slow is waited for: how long anything takes
changes nothing.
"""

from __future__ import annotations

import re
from typing import Generic, TypeVar

T = TypeVar("T")


class LockStep(Generic[T]):
    """Where a run in lock step is.

    Attributes:
        num_draws: batches that are still to be drawn in this round.
        version: counter of the weights that actors step with next; while draws are left, these are still to come.
    """

    def __init__(self, num_actors: int, *, samples_per_insert: float, batch_size: int, learning_starts: int) -> None:
        """Begins in front of the first round.

        Args:
            num_actors: that bring rows in each round.
            samples_per_insert: rows drawn for each live row that a round brings.
            batch_size: rows of a draw.
            learning_starts: live rows before the first draw.
        """
        self.num_draws = 0
        self.version = 0
        self._num_actors = num_actors
        self._samples_per_insert = samples_per_insert
        self._batch_size = batch_size
        self._learning_starts = learning_starts
        self._owed_rows = 0.0
        self._brought: dict[str, T] = {}

    def bring(self, actor: str, message: T) -> None:
        """An actor's rows of this round have come; the same message may come again after a reconnect."""
        self._brought[actor] = message

    @property
    def is_complete(self) -> bool:
        """Whether the last round is over and all rows of the next one are here."""
        return self.num_draws == 0 and len(self._brought) == self._num_actors

    def take(self) -> list[T]:
        """The rows of all actors in their order, `actor-2` in front of `actor-10`; they are to be stored now."""
        brought, self._brought = self._brought, {}
        return [brought[name] for name in sorted(brought, key=_in_order)]

    def begin_draws(self, num_rows: int, num_live: int) -> None:
        """The rows are stored.

        Args:
            num_rows: live rows of this round.
            num_live: of the table.
        """
        if self.version == 0 and num_live < self._learning_starts:
            return
        self._owed_rows += num_rows * self._samples_per_insert
        self.num_draws = int(self._owed_rows // self._batch_size)
        self._owed_rows -= self.num_draws * self._batch_size
        self.version += self.num_draws > 0

    def note_draw(self) -> bool:
        """A batch is drawn; whether it is the round's last one, after which the learner publishes."""
        self.num_draws -= 1
        return self.num_draws == 0

    @property
    def waiting_for(self) -> str:
        """Such that "NODE waits for" may stand in front of it."""
        if self.num_draws:
            return f"the learner, in lock step: {self.num_draws} batches of this round are still to be drawn"
        return f"the actors, in lock step: the rows of {len(self._brought)} of {self._num_actors} have come"


def _in_order(name: str) -> list[tuple[int, str]]:
    """Numbers within a name count as such."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
