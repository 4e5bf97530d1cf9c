"""Whether a learner's work thread hangs; where it does, the process ends, and whoever started it starts it again."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from math import inf
from typing import Final

from parl_mq.errors import EXIT_TEMPORARY
from parl_mq.learn.group import CONNECT_S
from parl_mq.services.runtime import WorkThread

LOOK_EVERY_S: Final = 1.0
OWN_ABSENCE_S: Final = 3.0
"""Between two looks; a process that was stopped for longer has seen nothing hang meanwhile."""
OUTLASTS_ABORT_S: Final = CONNECT_S + 5.0
"""So long the work thread may stay in an operation of a group that is over: connecting is given up by itself."""

log = logging.getLogger("parl_mq")


class LongWork:
    """Says that the work thread gets on while it does something that takes long, and says nothing itself."""

    def __init__(self, gets_on: Callable[[], object], clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing takes long yet; `gets_on` is called by `tell`."""
        self._gets_on = gets_on
        self._clock = clock
        self._until = -inf
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def lasting(self, until: float) -> Iterator[None]:
        """The block may take until this time; for the work thread."""
        self._set(until)
        try:
            yield
        finally:
            self._set(-inf)

    def tell(self) -> None:
        """To be called now and then by the loop."""
        with self._lock:  # once the block is left nothing is said any more: the thread may be idle
            if self._clock() < self._until:
                self._gets_on()

    def _set(self, until: float) -> None:
        with self._lock:
            self._until = until


async def end_if_it_hangs(
    work: WorkThread, long_work: LongWork, outlasts_abort_s: Callable[[], float], limit_s: float
) -> None:
    """Ends this process with code 75 when its work thread hangs, until cancelled.

    Args:
        work: the thread.
        long_work: what in it may take longer.
        outlasts_abort_s: for how long an operation of a group has gone on after that was over.
        limit_s: without anything done; `node.busy_limit_s`.
    """
    looked_at, absent_until = time.monotonic(), -inf
    while True:
        await asyncio.sleep(LOOK_EVERY_S)  # the period itself
        long_work.tell()
        now = time.monotonic()
        if now - looked_at > OWN_ABSENCE_S:
            absent_until = now
        looked_at, seen_s = now, now - absent_until
        if (outlasts_s := min(outlasts_abort_s(), seen_s)) > OUTLASTS_ABORT_S:
            _end_process(f"an operation of a group that is over has not ended within {outlasts_s:.0f} s")
        if (busy_s := min(work.busy_s or 0.0, seen_s)) > limit_s:
            _end_process(f"its work hangs: for {busy_s:.0f} s nothing got done (node.busy_limit_s = {limit_s:g})")


def _end_process(why: str) -> None:
    """At once, with the stack of each thread: one that hangs would be waited for."""
    log.error("this learner ends, to be started again: %s", why)
    faulthandler.dump_traceback(all_threads=True)
    os._exit(EXIT_TEMPORARY)
