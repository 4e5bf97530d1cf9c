"""Tasks that wait for something to happen to a channel."""

from __future__ import annotations

import asyncio


class Waiters:
    """The tasks that wait for one condition; true while there are any."""

    def __init__(self) -> None:
        self._futures: set[asyncio.Future[None]] = set()

    def __bool__(self) -> bool:
        return bool(self._futures)

    async def wait(self) -> None:
        """Waits until `wake`. It is registered before it first suspends, so a look just before the call suffices."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.add(future)
        try:
            await future
        finally:
            self._futures.discard(future)

    def wake(self) -> None:
        """The condition may hold: every task looks for itself."""
        for future in self._futures:
            if not future.done():
                future.set_result(None)
