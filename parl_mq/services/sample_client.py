"""The learner's end of the data plane: outstanding requests, batches that wait, priorities that ride along."""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parl_mq.errors import ParlError
from parl_mq.net.channel import ClientChannel, Frame
from parl_mq.services.replay_link import ReplayLink
from parl_mq.wire.codec import encode
from parl_mq.wire.messages import (
    MAIN_TABLE,
    Attach,
    Attached,
    Message,
    SampleRefused,
    SampleReply,
    SampleRequest,
    SampleWaiting,
    UpdatePriorities,
    UpdateRefused,
)

Arrays = dict[str, npt.NDArray[Any]]

log = logging.getLogger("parl_mq")


@dataclass(frozen=True, slots=True)
class Batch:
    """A reply and its arrays (parl_mq.replay.table.Draw)."""

    reply: SampleReply
    arrays: Arrays


class SampleClient:
    """Keeps `prefetch` requests outstanding or answered and not yet taken: memory is bounded by that.

    Each request is sent once; only after a reconnect are unanswered ones asked again.

    Attributes:
        waiting_for: why there is no batch yet, as the replay node says.
    """

    def __init__(self, channel: ClientChannel, attach: Attach, *, batch_size: int, prefetch: int) -> None:
        self.waiting_for = "the replay node"
        self._channel = channel
        self._link = ReplayLink(channel, attach, self._handle)
        self._batch_size = batch_size
        self._prefetch = prefetch
        self._numbers = itertools.count()
        self._outstanding: dict[int, SampleRequest] = {}
        self._batches: asyncio.Queue[Batch] = asyncio.Queue(prefetch)
        self._updates: list[Arrays] = []
        self._is_attached = False

    async def run(self) -> None:
        """Receives until cancelled."""
        await self._link.run()

    async def next_batch(self) -> Batch:
        """Waits for the oldest batch; take it, then `ask` for another."""
        return await self._batches.get()

    def ready_batches(self) -> list[Batch]:
        """All batches that have come, oldest first."""
        return [self._batches.get_nowait() for _ in range(self._batches.qsize())]

    def give_back(self, batch: Batch, magnitudes: npt.NDArray[np.float64]) -> None:
        """New priorities for a batch's rows; they ride on the next request."""
        self._updates.append({"keys": batch.arrays["keys"], "magnitudes": magnitudes})

    async def ask(self) -> None:
        """Sends requests until `prefetch` are outstanding or waiting to be taken."""
        while self._is_attached and len(self._outstanding) + self._batches.qsize() < self._prefetch:
            request = SampleRequest(request_id=next(self._numbers), table=MAIN_TABLE, batch_size=self._batch_size)
            self._outstanding[request.request_id] = request
            await self._channel.send(encode(request, self._take_updates()))

    async def send_last_priorities(self) -> None:
        """Sends priorities that no request carries any more."""
        if updates := self._take_updates():
            await self._channel.send(encode(UpdatePriorities(table=MAIN_TABLE), updates))

    def _take_updates(self) -> Arrays:
        updates, self._updates = self._updates, []
        if not updates:
            return {}
        return {name: np.concatenate([update[name] for update in updates]) for name in ("keys", "magnitudes")}

    def _handle(self, message: Message, arrays: Arrays) -> list[list[Frame]]:
        match message:
            case Attached():
                return self._begin()
            case SampleReply():
                if self._outstanding.pop(message.request_id, None) is not None:
                    self._batches.put_nowait(Batch(message, arrays))
            case SampleWaiting():
                self.waiting_for = message.reason
            case SampleRefused():
                raise ParlError(f"the replay node refused a sample request: {message.reason}")
            case UpdateRefused():
                raise ParlError(f"the replay node refused priorities: {message.reason}")
            case _:
                log.warning("a learner has no use for a message of kind %s", type(message).__name__)
        return []

    def _begin(self) -> list[list[Frame]]:
        """Asks again for what is unanswered, and for the first batches at the first time."""
        self._is_attached = True
        while len(self._outstanding) + self._batches.qsize() < self._prefetch:
            number = next(self._numbers)
            self._outstanding[number] = SampleRequest(request_id=number, table=MAIN_TABLE, batch_size=self._batch_size)
        return [encode(request) for request in self._outstanding.values()]
