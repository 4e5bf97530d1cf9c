"""Where a supervisor gets its nodes from: one kind of zygote, whichever process it is at the moment."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from parl_mq.services.early_start import EarlyStart, Kind
from parl_mq.services.processes import Child, size_of
from parl_mq.services.zygote import ChildProcess, Zygote

NAMES: Final[dict[Kind, str]] = {"torch": "zygote", "light": "zygote-light"}
MOST_DOUBLINGS: Final = 4
"""Of the time that a fork may take."""


class Nursery:
    """Starts a zygote, forks nodes from it, and waits for the next one where it has died.

    Attributes:
        name: of the zygote.
    """

    def __init__(
        self,
        kind: Kind,
        early: EarlyStart,
        logs: Path,
        *,
        at_first_s: float,
        on_fork: Callable[[int], None],
        lock_fd: int | None = None,
    ) -> None:
        """Prepares one.

        Args:
            kind: of the zygote.
            early: that has started the first one.
            logs: folder of the logs.
            at_first_s: time that a fork may take, of which the first has to wait for what is imported.
            on_fork: called with the zygote's process id when it has made a child.
            lock_fd: descriptor of a lock that lasts as long as the zygote and its children; None: there is none.
        """
        self.name = NAMES[kind]
        self._kind = kind
        self._early = early
        self._logs = logs
        self._at_first_s = at_first_s
        self._on_fork = on_fork
        self._lock_fd = lock_fd
        self._zygote: Zygote | None = None
        self._child: Child | None = None
        self._is_there = asyncio.Event()
        self._forking = asyncio.Lock()
        self._vain_forks = 0

    async def start(self) -> Child:
        """A zygote, in place of one that has died."""
        log = self._logs / f"{self.name}.log"
        log_start, started_at = size_of(log), asyncio.get_running_loop().time()
        await self.close()
        self._zygote = await Zygote.take_over(self._early.take_zygote(self._kind), log, self._lock_fd)
        self._is_there.set()
        process = self._zygote.process
        self._child = Child(self.name, "supervisor", process, log, started_at=started_at, log_start=log_start)
        return self._child

    def note_end(self) -> None:
        """The zygote has died; who needs a node waits for the next one."""
        self._is_there.clear()

    async def fork(self, request: dict[str, Any]) -> Child:
        """A new node, as `request` describes it, as soon as there is a zygote that can."""
        log = self._logs / f"{request['name']}.log"
        while True:
            await self._is_there.wait()
            if (zygote := self._zygote) is None:
                raise RuntimeError("there is no zygote although it was said to be there")
            log_start = size_of(log)
            async with self._forking:
                process = await self._fork_or_fell(zygote, request, log)
            if process is not None:
                self._on_fork(zygote.process.pid)
                started_at = asyncio.get_running_loop().time()
                name, role = request["name"], request["role"]
                return Child(name, role, process, log, started_at=started_at, log_start=log_start, zygote=zygote)

    def end_hung(self, silent_s: float) -> None:
        """Kills the zygote, which does not tell that a child has ended."""
        if self._child is not None:
            self._child.hung_s = silent_s
            self._child.send_signal(signal.SIGKILL)

    async def close(self) -> None:
        """Lets the zygote end; its children must have ended before."""
        if self._zygote is not None:
            await self._zygote.close()

    async def _fork_or_fell(self, zygote: Zygote, request: dict[str, Any], log: Path) -> ChildProcess | None:
        """A new child; None where the zygote has died, or hangs and is killed."""
        limit_s = self._fork_limit_s
        try:
            async with asyncio.timeout(limit_s):
                forked = await zygote.fork(request, log)
            self._vain_forks = 0
            return forked
        except ConnectionError:
            self._is_there.clear()
        except TimeoutError:
            self._is_there.clear()
            self._vain_forks += 1
            self.end_hung(limit_s)
        return None

    @property
    def _fork_limit_s(self) -> float:
        """Twice as long each time in a row: to kill a zygote again and again would not make its imports faster."""
        return self._at_first_s * 2.0 ** min(self._vain_forks, MOST_DOUBLINGS)
