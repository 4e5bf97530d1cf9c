"""The learner's end of the data plane: outstanding requests, batches that wait, priorities that ride along."""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import dataclass
from typing import Any, Final

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

ANSWER: Final = "an answer of the replay node"
"""What a learner waits for while the replay node has given no reason."""

log = logging.getLogger("parl_mq")


@dataclass(frozen=True, slots=True)
class Batch:
    """A reply and its arrays (parl_mq.replay.table.Draw), whose keys are those of one ring."""

    reply: SampleReply
    arrays: Arrays
    ring_id: str = ""


class SampleClient:
    """Keeps `prefetch` requests outstanding or answered and not yet taken: memory is bounded by that.

    Each request is sent once; only after a reconnect are unanswered ones asked again.

    Attributes:
        waiting_for: why there is no batch yet, as the replay node says.
    """

    def __init__(self, channel: ClientChannel, attach: Attach, *, batch_size: int, prefetch: int) -> None:
        self.waiting_for = ANSWER
        self._channel = channel
        self._link = ReplayLink(channel, attach, self._handle)
        self._batch_size = batch_size
        self._prefetch = prefetch
        self._numbers = itertools.count()
        self._outstanding: dict[int, SampleRequest] = {}
        self._batches: asyncio.Queue[Batch] = asyncio.Queue(prefetch)
        self._updates: list[Arrays] = []
        self._is_attached = False
        self._ring_id = ""

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
        """New priorities for a batch's rows; they ride on the next request.

        Those of a ring that is gone are dropped: another one uses the same keys for other rows.
        """
        if batch.ring_id != self._ring_id:
            return
        self._updates.append({"keys": batch.arrays["keys"], "magnitudes": magnitudes})

    def ask(self) -> None:
        """Sends requests until `prefetch` are outstanding or waiting to be taken.

        While the replay node is away nothing is sent: a new connection begins with what is missing.
        """
        while self._is_attached and self._num_missing > 0 and self._send(self._request()):
            pass

    def send_last_priorities(self) -> None:
        """Sends priorities that no request carries any more, if the replay node is there."""
        if self._updates:
            self._send(UpdatePriorities(table=MAIN_TABLE))

    @property
    def _num_missing(self) -> int:
        return self._prefetch - len(self._outstanding) - self._batches.qsize()

    def _request(self) -> SampleRequest:
        return SampleRequest(request_id=next(self._numbers), table=MAIN_TABLE, batch_size=self._batch_size)

    def _send(self, message: SampleRequest | UpdatePriorities) -> bool:
        """Sends a message with all priorities that wait, or keeps them."""
        names = ("keys", "magnitudes") if self._updates else ()
        updates = {name: np.concatenate([update[name] for update in self._updates]) for name in names}
        if not self._channel.try_send(encode(message, updates)):
            return False
        self._updates.clear()
        if isinstance(message, SampleRequest):
            self._outstanding[message.request_id] = message
        return True

    def _handle(self, message: Message, arrays: Arrays) -> list[list[Frame]]:
        match message:
            case Attached():
                return self._begin(message.ring_id)
            case SampleReply():
                self.waiting_for = ANSWER  # the reason of an earlier wait is no longer true
                if self._outstanding.pop(message.request_id, None) is not None:
                    self._batches.put_nowait(Batch(message, arrays, self._ring_id))
            case SampleWaiting():
                self.waiting_for = message.reason
            case SampleRefused():
                raise ParlError(f"the replay node refused a sample request: {message.reason}")
            case UpdateRefused():
                raise ParlError(f"the replay node refused priorities: {message.reason}")
            case _:
                log.warning("a learner has no use for a message of kind %s", type(message).__name__)
        return []

    def _begin(self, ring_id: str) -> list[list[Frame]]:
        """Asks again for what is unanswered, and for the first batches at the first time."""
        self._is_attached = True
        if ring_id != self._ring_id:
            self._ring_id = ring_id
            self._updates.clear()
        for _ in range(self._num_missing):
            request = self._request()
            self._outstanding[request.request_id] = request
        return [encode(request) for request in self._outstanding.values()]
