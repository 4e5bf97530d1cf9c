"""Writes down what happens in a run, as far as the disk lets it: a run does not end because it cannot be recorded."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from parl_mq.errors import RecordError, SnapshotError
from parl_mq.observe.sinks import Sink, tagged
from parl_mq.services.run_directory import RunDirectory

MAX_WAITING: Final = 2_000
"""Rows that are kept while they cannot be written, some megabytes; then the oldest figures go."""
SINK_SHARE: Final = 1 / 500
"""Of the run's time between two writes to the sinks, at least a second: a week makes some thousand points."""

log = logging.getLogger("parl_mq")


class Record:
    """The run directory and the sinks beside it.

    What cannot be written is said once and tried again with the next round, until it can. A sink that fails gets no
    figures meanwhile, which says nothing about the run directory.

    Attributes:
        num_failed: writes that failed.
    """

    def __init__(self, directory: RunDirectory, sinks: Sequence[Sink] = ()) -> None:
        """Begins with nothing to write."""
        self.num_failed = 0
        self.sinks = sinks
        self._directory = directory
        self._waiting: deque[Mapping[str, Any]] = deque()
        self._again: dict[str, Callable[[], object]] = {}
        self._num_dropped = 0
        self._next_sink_s = 0.0
        self._trouble: str | None = None
        self._failing: dict[Sink, str] = {}

    @property
    def trouble(self) -> str | None:
        """Why the record is behind, or a sink is, in words; None while nothing is."""
        return self._trouble or next(iter(self._failing.values()), None)

    @property
    def num_waiting(self) -> int:
        """Rows that could not be written yet."""
        return len(self._waiting)

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds a row to metrics.jsonl, behind those that wait."""
        self._waiting.append(row)
        if len(self._waiting) > MAX_WAITING:
            self._drop_one()
        self.attempt(self._write_waiting)

    def attempt(self, write: Callable[[], object], *, again: str | None = None) -> None:
        """Writes something; where that fails, only the record is behind.

        Args:
            write: does it.
            again: it is tried again in each round, unless something newer has come under the same name.
        """
        try:
            write()
        except (RecordError, SnapshotError, OSError) as error:
            self._note_failure(str(error))
            if again is not None:
                self._again[again] = write
        else:
            if again is not None:
                self._again.pop(again, None)

    def round(self, *writes: Callable[[], object]) -> None:
        """Writes several things, and what has failed before; if all succeed, no trouble is left."""
        failed_before = self.num_failed
        self.attempt(self._write_waiting)
        for name, write in list(self._again.items()):
            self.attempt(write, again=name)
        for write in writes:
            self.attempt(write)
        if self.num_failed == failed_before and self._trouble is not None:
            self._note_recovery()

    def feed(self, time_s: float, wall_time: float, env_steps: int, figures: Mapping[str, float]) -> None:
        """Gives figures to the sinks, if it is time.

        Args:
            time_s: of the run.
            wall_time: seconds since 1970.
            env_steps: the axis of the figures.
            figures: by the metric's key.
        """
        if time_s >= self._next_sink_s:
            self._next_sink_s = time_s + max(1.0, time_s * SINK_SHARE)
            self.tell_sinks(wall_time, env_steps, figures)

    def tell_sinks(self, wall_time: float, env_steps: int, figures: Mapping[str, float]) -> None:
        """Gives figures to the sinks now."""
        scalars = tagged(figures)
        for sink in self.sinks:
            try:
                sink.write(wall_time, env_steps, scalars)
            except (RecordError, SnapshotError, OSError) as error:
                self._note_failing(sink, str(error))
            else:
                if self._failing.pop(sink, None) is not None:
                    log.warning("%s takes figures again; those since its fault are missing there", sink.name)

    def _write_waiting(self) -> None:
        while self._waiting:
            self._directory.append_metrics(self._waiting[0])
            self._waiting.popleft()

    def _drop_one(self) -> None:
        """What an evaluation has found is worth more than the figures of a second."""
        oldest = next((i for i, row in enumerate(self._waiting) if row["kind"] != "evaluation"), 0)
        del self._waiting[oldest]
        self._num_dropped += 1

    def _note_failure(self, reason: str) -> None:
        self.num_failed += 1
        if self._trouble is None:
            self._trouble = (
                f"{reason}; the run goes on, but its record waits, and so do checkpoints: make room, or make the run "
                "directory writable again"
            )
            log.error("%s", self._trouble)

    def _note_failing(self, sink: Sink, reason: str) -> None:
        self.num_failed += 1
        if sink not in self._failing:
            self._failing[sink] = (
                f"{sink.name} takes no figures: {reason}; the run goes on, and its own record has them"
            )
            log.error("%s", self._failing[sink])

    def _note_recovery(self) -> None:
        lost = f"{self._num_dropped} rows of metrics are missing in it" if self._num_dropped else "nothing is missing"
        log.warning("the run directory can be written again; %s", lost)
        self._trouble, self._num_dropped = None, 0
