"""The learner's end of the data plane: outstanding requests, batches that wait, priorities that ride along."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from parl_mq.errors import ParlError, WireError
from parl_mq.net.channel import ClientChannel, Frame
from parl_mq.replay.draws import KEYS, PROBABILITIES
from parl_mq.replay.mapped import MappedTable
from parl_mq.replay.refusals import KeysRefused
from parl_mq.services.replay_link import ReplayLink
from parl_mq.services.row_map import RowMap
from parl_mq.wire.codec import encode, expect_arrays
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
class Origin:
    """Rows [start, stop) of a batch, which came from one of several replay nodes, and its ring."""

    node: int
    ring_id: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A reply and its arrays (parl_mq.replay.table.Draw), whose keys are those of one ring, or of each origin's.

    Attributes:
        reply: as it came; of several replay nodes, with their sums.
        arrays: valid until the batch is given back.
        ring_id: of that ring.
        num_torn: rows that were overwritten before they could be read: they show another row, at probability 0.
        own: those of the arrays that are the client's own, and used again: rows that it read from the ring.
        origins: where its rows came from, if the run has several replay nodes.
    """

    reply: SampleReply
    arrays: Arrays
    ring_id: str = ""
    num_torn: int = 0
    own: Arrays | None = None
    origins: tuple[Origin, ...] = ()


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request that is not answered in full, and the priorities that ride on it."""

    request: SampleRequest
    updates: Arrays

    def encoded(self) -> list[Frame]:
        return encode(self.request, self.updates)


class SampleClient:
    """Keeps `prefetch` batches asked for, or here and not yet taken: memory is bounded by that.

    Each request is sent once; only after a reconnect are unanswered ones asked again, in their order and with their
    priorities, which changes nothing where these have been applied. Where the table is mapped, a
    reply brings keys, and their rows are copied as soon as it comes: the later, the more of them are overwritten.

    Attributes:
        waiting_for: why there is no batch yet, as the replay node says.
        num_torn: rows of all batches so far that were overwritten before they could be read.
    """

    def __init__(
        self, channel: ClientChannel, attach: Attach, *, batch_size: int, prefetch: int, row_map: RowMap | None = None
    ) -> None:
        """Makes a client; `run` attaches it.

        Args:
            channel: to the replay node.
            attach: its first message.
            batch_size: B of all requests.
            prefetch: see above.
            row_map: for rows of a replay node on this host; None: they come over the socket.
        """
        self.waiting_for = ANSWER
        self.num_torn = 0
        self._channel = channel
        self._row_map = row_map
        self._link = ReplayLink(channel, attach, self._handle, on_loss=self._lose)
        self._batch_size = batch_size
        self._prefetch = prefetch
        self._numbers = itertools.count()
        self._outstanding: dict[int, _Asked] = {}
        self._batches: asyncio.Queue[Batch] = asyncio.Queue(prefetch)
        self._updates: list[Arrays] = []
        self._spare: list[Arrays] = []
        self._is_attached = False
        self._ring_id = ""

    @property
    def num_reconnects(self) -> int:
        """Times that the connection came back."""
        return self._link.num_reconnects

    async def run(self) -> None:
        """Receives until cancelled, and lets go of the map then.

        Raises:
            Refused: the replay node refused this client and said why.
            ConfigError: its rows must be mapped and cannot be.
        """
        try:
            await self._link.run()
        finally:
            self._lose()

    async def next_batch(self) -> Batch:
        """Waits for the oldest batch; take it, then `ask` for another."""
        return await self._batches.get()

    def ready_batches(self) -> list[Batch]:
        """All batches that have come, oldest first."""
        return [self._batches.get_nowait() for _ in range(self._batches.qsize())]

    def give_back(self, batch: Batch, magnitudes: npt.NDArray[np.float64]) -> None:
        """New priorities for a batch's rows; they ride on the next request. The batch's arrays may be used again.

        Priorities for a ring that is gone are dropped: another one uses the same keys for other rows.
        """
        if batch.ring_id != self._ring_id:
            return
        keys = batch.arrays[KEYS]
        if batch.num_torn:
            is_whole = batch.arrays[PROBABILITIES] > 0.0
            keys, magnitudes = keys[is_whole], magnitudes[is_whole]
        self._updates.append({"keys": keys, "magnitudes": magnitudes})
        if batch.own is not None:
            self._spare.append(batch.own)

    def ask(self) -> None:
        """Asks for as many batches as make `prefetch` that are on their way or waiting to be taken.

        While the replay node is away nothing is sent: a new connection begins with what is missing.
        """
        if self._is_attached and self._num_missing > 0:
            asked = self._asking(self._num_missing)
            if self._channel.try_send(asked.encoded()):
                self._enter(asked)

    def send_last_priorities(self) -> None:
        """Sends priorities that no request carries any more, if the replay node is there."""
        if self._updates:
            message = encode(UpdatePriorities(table=MAIN_TABLE), joined_updates(self._updates))
            if self._channel.try_send(message):
                self._updates.clear()

    @property
    def _num_missing(self) -> int:
        num_asked = sum([asked.request.num_batches for asked in self._outstanding.values()])
        return self._prefetch - num_asked - self._batches.qsize()

    def _asking(self, num_batches: int) -> _Asked:
        """A request with all priorities that wait, which it takes along once it is entered."""
        request = SampleRequest(
            request_id=next(self._numbers),
            table=MAIN_TABLE,
            batch_size=self._batch_size,
            num_batches=num_batches,
            rows=self._table is None,
        )
        return _Asked(request, joined_updates(self._updates))

    def _enter(self, asked: _Asked) -> _Asked:
        self._outstanding[asked.request.request_id] = asked
        self._updates.clear()
        return asked

    @property
    def _table(self) -> MappedTable | None:
        return None if self._row_map is None else self._row_map.table

    def _handle(self, message: Message, arrays: Arrays) -> list[list[Frame]]:
        match message:
            case Attached():
                return self._begin(message.ring_id)
            case SampleReply():
                self.waiting_for = ANSWER  # the reason of an earlier wait is no longer true
                return self._take(message, arrays)
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
            self._outstanding = {number: replace(asked, updates={}) for number, asked in self._outstanding.items()}
        if self._row_map is not None:
            self._row_map.attach(ring_id)
        for number, asked in self._outstanding.items():
            request = asked.request.model_copy(update={"rows": self._table is None})
            self._outstanding[number] = replace(asked, request=request)
        if self._num_missing > 0:
            self._enter(self._asking(self._num_missing))
        return [asked.encoded() for asked in self._outstanding.values()]

    def _lose(self) -> None:
        """The connection is gone, or this client: the map's ring may have been removed."""
        self._is_attached = False
        self._spare.clear()
        if self._row_map is not None:
            self._row_map.detach()

    def _take(self, reply: SampleReply, arrays: Arrays) -> list[list[Frame]]:
        """Queues the batches that a reply brings; asks once more for those whose rows have all gone meanwhile.

        Raises:
            WireError: it is no answer to its request.
        """
        asked = self._outstanding.get(reply.request_id)
        if asked is None or ((table := self._table) is None and not asked.request.rows):
            return []  # an answer over a connection that has gone: its request was, or will be, sent again
        request = asked.request
        num_left = request.num_batches - reply.num_batches
        num_rows = reply.num_batches * self._batch_size
        if num_left < 0 or any(array.shape[:1] != (num_rows,) for array in arrays.values()):
            raise WireError(
                f"the replay node sent {reply.num_batches} batches of another size or number than asked for"
            )
        if num_left:
            rest = request.model_copy(update={"num_batches": num_left})
            self._outstanding[reply.request_id] = _Asked(rest, {})  # its priorities have been applied
        else:
            del self._outstanding[reply.request_id]
        parts = _parts(arrays, self._batch_size)
        batches = [Batch(reply, part, self._ring_id) for part in parts]
        if table is not None and not request.rows:
            batches = [self._gathered(table, reply, part) for part in parts]
        return self._keep(batches)

    def _keep(self, batches: list[Batch]) -> list[list[Frame]]:
        num_lost = 0
        for batch in batches:
            self.num_torn += batch.num_torn
            if batch.num_torn < self._batch_size:
                self._batches.put_nowait(batch)
            else:
                num_lost += 1
        return [self._enter(self._asking(num_lost)).encoded()] if num_lost else []

    def _gathered(self, table: MappedTable, reply: SampleReply, arrays: Arrays) -> Batch:
        """The batch whose keys have come.

        Raises:
            WireError: a key is none, or the arrays are not keys and probabilities.
        """
        expect_arrays(arrays, {KEYS: (("B",), "uint64"), PROBABILITIES: (("B",), "float64")})
        columns = self._spare.pop() if self._spare else table.arrays(self._batch_size)
        try:
            torn = table.gather(arrays[KEYS], columns)
        except KeysRefused as error:
            raise WireError(f"the replay node has drawn a row that is not in its ring: {error}") from error
        probabilities = arrays[PROBABILITIES]
        if len(torn):
            probabilities = probabilities.copy()
            probabilities[torn] = 0.0
        columns_and_keys = {**columns, KEYS: arrays[KEYS], PROBABILITIES: probabilities}
        return Batch(reply, columns_and_keys, self._ring_id, num_torn=len(torn), own=columns)


def joined_updates(updates: Sequence[Arrays]) -> Arrays:
    """Priorities of several batches as one message has them; none where there are none."""
    names = ("keys", "magnitudes") if updates else ()
    return {name: np.concatenate([update[name] for update in updates]) for name in names}


def _parts(arrays: Arrays, size: int) -> list[Arrays]:
    """The arrays cut into batches."""
    num_rows = len(next(iter(arrays.values()), ()))
    if num_rows == size:
        return [arrays]
    return [{name: array[start : start + size] for name, array in arrays.items()} for start in range(0, num_rows, size)]
