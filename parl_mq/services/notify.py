"""What a node tells the service manager that started it: that it is ready, that its work gets on, that it ends.

This is the protocol of sd_notify(3): datagrams of `NAME=value` lines to the socket named in NOTIFY_SOCKET. A node tells
that it is alive only while that is so (`WorkWatch`), so a manager with a watchdog ends it when its loop or its work
thread hangs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, MutableMapping
from typing import Final, Protocol

ADDRESS: Final = "NOTIFY_SOCKET"
WATCHDOG: Final = "WATCHDOG_USEC"
WATCHDOG_PID: Final = "WATCHDOG_PID"
BEATS_A_WATCHDOG: Final = 4
"""Signs of life within the watchdog's time: some may come late on a busy machine."""
TELL_EVERY_S: Final = 5.0
"""Where there is no watchdog, the manager is told this often what the node does."""
MORE_TIME_S: Final = 30
"""A node that is not ready yet asks for this much more with each sign of life."""
SEND_S: Final = 1.0
MAX_STATUS: Final = 200
"""Characters of what is said about the node in a line."""

log = logging.getLogger("parl_mq")


class Notifier:
    """Tells the service manager; silent where none has started this process."""

    def __init__(
        self, address: str | None = None, watchdog_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Says nothing yet.

        Args:
            address: of the manager's socket, a path or `@` and an abstract name; None: there is no manager.
            watchdog_s: seconds without a sign of life after which the manager ends this process; None: it never does.
            clock: monotonic, s.
        """
        self._address = address
        self._beat_every_s = TELL_EVERY_S if watchdog_s is None else watchdog_s / BEATS_A_WATCHDOG
        self._clock = clock
        self._next_beat_at = 0.0
        self._is_ready = False
        self._is_stopping = False
        self._has_complained = False

    @classmethod
    def taken_from(cls, environ: MutableMapping[str, str]) -> Notifier:
        """The one of this process, whose variables are removed: processes that it starts are not the service."""
        address, watchdog, pid = (environ.pop(name, "") for name in (ADDRESS, WATCHDOG, WATCHDOG_PID))
        is_watched = watchdog.isdigit() and int(watchdog) > 0 and pid in ("", str(os.getpid()))
        return cls(address or None, int(watchdog) / 1e6 if is_watched else None)

    @property
    def beat_every_s(self) -> float:
        """Seconds between two signs of life."""
        return self._beat_every_s

    def ready(self, doing: str) -> None:
        """The node has started, as far as it can alone; only the first call counts."""
        if not self._is_ready:
            self._is_ready = True
            self._send("READY=1", _status(doing))

    def beat(self, doing: str) -> None:
        """The node's work gets on; to be called often, and sent when it is due."""
        if (now := self._clock()) >= self._next_beat_at:
            self._next_beat_at = now + self._beat_every_s
            sign = "WATCHDOG=1" if self._is_ready else f"EXTEND_TIMEOUT_USEC={MORE_TIME_S * 1_000_000}"
            self._send(sign, _status(doing))

    def stopping(self, why: str) -> None:
        """The node ends; only the first call counts. From now on the manager's time limit holds, and no watchdog."""
        if not self._is_stopping:
            self._is_stopping = True
            self._send("STOPPING=1", "WATCHDOG_USEC=0", _status(f"ends: {why}"))

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
                manager.settimeout(SEND_S)
                manager.sendto("\n".join(lines).encode(), address)
        except OSError as error:
            if not self._has_complained:
                log.warning("the service manager at %s cannot be told anything: %s", self._address, error)
            self._has_complained = True


def _status(doing: str) -> str:
    return f"STATUS={' '.join(doing.split())[:MAX_STATUS]}"


class Status(Protocol):
    """What is asked of a node's status (parl_mq.services.hub_link.NodeStatus)."""

    progress: int
    state: str

    @property
    def waiting_for(self) -> str | None: ...  # noqa: D102 - as NodeStatus has it


class Work(Protocol):
    """What is asked of a node's work thread (parl_mq.services.runtime.WorkThread)."""

    @property
    def busy_s(self) -> float | None: ...  # noqa: D102 - as WorkThread has it


class WorkWatch:
    """Whether a node's work gets on; pure.

    A call in the work thread may last as long as the limit. Beside such calls, the work loop either waits for something
    elsewhere, and says for what, or it gets something done within the limit.
    """

    def __init__(self, status: Status, work: Work | None, limit_s: float, clock: Callable[[], float]) -> None:
        """Begins to watch.

        Args:
            status: what the node says of itself.
            work: its work thread, if it has one.
            limit_s: seconds without anything done after which its work counts as hung.
            clock: monotonic, s.
        """
        self._status = status
        self._work = work
        self._limit_s = limit_s
        self._clock = clock
        self._progress = status.progress
        self._alive_at = clock()

    def is_alive(self) -> bool:
        """To be called at least twice within the limit."""
        now, busy_s = self._clock(), None if self._work is None else self._work.busy_s
        if busy_s is not None:
            if busy_s <= self._limit_s:
                self._alive_at = now
            return busy_s <= self._limit_s
        if self._status.waiting_for is not None or self._status.progress != self._progress:
            self._progress, self._alive_at = self._status.progress, now
        return now - self._alive_at <= self._limit_s

    @property
    def doing(self) -> str:
        """In a few words, for people."""
        waiting_for = self._status.waiting_for
        return self._status.state if waiting_for is None else f"waits for {waiting_for}"


async def give_signs_of_life(notifier: Notifier, watch: WorkWatch) -> None:
    """Tells the manager that the work gets on while it does, until cancelled."""
    was_alive = True
    while True:
        is_alive = watch.is_alive()
        if is_alive:
            notifier.beat(watch.doing)
        elif was_alive:
            log.error("the work hangs (%s): the service manager is told no more that it gets on", watch.doing)
        was_alive = is_alive
        await asyncio.sleep(notifier.beat_every_s)  # the period itself
