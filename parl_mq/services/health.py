"""Which processes of a run give no sign of life, by what the hub tells of their heartbeats; pure."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final

from parl_mq.services.processes import Child
from parl_mq.wire.messages import RunProgress

OWN_ABSENCE_S: Final = 1.0
"""Between two looks; a supervisor that was away for longer has heard nobody, and that is nobody's fault."""
START_S: Final = 30.0
"""A process that has not joined yet may take this long, however short the limit for those that have."""
HUB_IS_THERE_S: Final = 2.0
"""The hub tells of its progress four times a second; older news say nothing of the others."""


class Watch:
    """Keeps the newest signs of life; every time is that of one monotonic clock, in s."""

    def __init__(self, busy_limit_s: float, learner_limit_s: float = inf) -> None:
        """Begins without a sign.

        Args:
            busy_limit_s: silence after which a process counts as hung.
            learner_limit_s: the same of a learner that others wait for, if that is less.
        """
        self._busy_limit_s = busy_limit_s
        self._learner_limit_s = min(busy_limit_s, learner_limit_s)
        self._progress_at = 0.0
        self._hub_since = 0.0
        self._pulses: dict[str, tuple[int, float, int]] = {}
        self._have_forked: set[int] = set()
        self._killed_at: dict[str, float] = {}
        self._looked_at = 0.0
        self._absent_until = 0.0

    def note(self, progress: RunProgress, now: float) -> None:
        """Takes the newest news of the hub."""
        if now - self._progress_at > HUB_IS_THERE_S:
            self._hub_since = now
        self._progress_at = now
        self._pulses = dict(progress.pulses)

    def note_fork(self, zygote_pid: int) -> None:
        """A zygote has made a child."""
        self._have_forked.add(zygote_pid)

    def note_killed(self, name: str, now: float) -> None:
        """A hung process was killed."""
        self._killed_at[name] = now

    def killed_for_s(self, name: str, now: float) -> float:
        """Seconds since a process of this name was killed because it hung."""
        return now - self._killed_at.get(name, now)

    def has_progress(self, child: Child) -> bool:
        """Whether a process has got something done since its start."""
        if child.is_zygote:
            return child.process.pid in self._have_forked
        if child.name == "hub":
            return self._progress_at > child.started_at
        pulse = self._pulses.get(child.name)
        return pulse is not None and pulse[0] == child.process.pid and pulse[2] > 0

    def hung(self, living: Iterable[Child], now: float) -> list[tuple[Child, float]]:
        """Processes that have been silent for longer than the limit, and for how long.

        A zygote beats for nobody: whoever waits for a fork notices. Of the others nothing is known while the hub is
        silent itself.
        """
        if self._looked_at and now - self._looked_at > OWN_ABSENCE_S:
            self._absent_until = now
        self._looked_at = now
        silences = [(child, *self._silence(child, now)) for child in living if not child.is_zygote]
        return [(child, silent_s) for child, silent_s, limit_s in silences if silent_s > limit_s]

    def _silence(self, child: Child, now: float) -> tuple[float, float]:
        """Seconds for which a process has been silent, and for which it may be."""
        at_start_s = max(START_S, self._busy_limit_s)
        known_since = max(child.started_at, self._absent_until)
        if child.name == "hub":
            has_spoken = self._progress_at > child.started_at
            return now - max(known_since, self._progress_at), self._busy_limit_s if has_spoken else at_start_s
        if now - self._progress_at > HUB_IS_THERE_S:
            return 0.0, self._busy_limit_s
        pulse = self._pulses.get(child.name)
        if pulse is not None and pulse[0] == child.process.pid:
            limit_s = self._learner_limit_s if child.role == "learner" else self._busy_limit_s
            return min(pulse[1] + now - self._progress_at, now - self._absent_until), limit_s
        return now - max(known_since, self._hub_since), at_start_s
