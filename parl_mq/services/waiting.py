"""Tells a person at a node's terminal what the node waits for, at a falling rate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final

FIRST_S: Final = 0.5
"""What comes sooner is not worth a line."""
SECOND_S: Final = 3.0
"""From the second line on each comes after twice the time of the one before."""

log = logging.getLogger("parl_mq")


def moments() -> Iterator[float]:
    """Seconds since the wait's start at which a line is due."""
    yield FIRST_S
    moment_s = SECOND_S
    while True:
        yield moment_s
        moment_s *= 2


@asynccontextmanager
async def told_while_waiting(what: str) -> AsyncIterator[None]:
    """Logs that `what` is waited for, and since when, while the block lasts.

    Args:
        what: such that "waiting for" may stand in front of it.
    """
    telling = asyncio.create_task(_tell(what))
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def _tell(what: str) -> None:
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    for moment_s in moments():
        await asyncio.sleep(began_at + moment_s - loop.time())  # the moment itself, not a wait for a condition
        log.info("waiting for %s%s", what, f" ({moment_s:.0f} s)" if moment_s >= 1 else "")
