"""What an actor sends, and where: a stream to each replay node of the run, with the books of each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

import numpy.typing as npt

from parl_mq.errors import ParlError
from parl_mq.fragments import FragmentBatch
from parl_mq.net.channel import ClientChannel, Frame
from parl_mq.net.credit import SenderBook
from parl_mq.services.replay_link import ReplayLink
from parl_mq.services.runtime import StopSignal
from parl_mq.wire.codec import encode
from parl_mq.wire.fragments import arrays_of
from parl_mq.wire.messages import MAIN_TABLE, Attach, Attached, Credit, InsertFragments, InsertRefused, Message

CREDIT: Final = "the replay node to take more rows"
"""What an actor waits for while the replay node has given no reason."""

log = logging.getLogger("parl_mq")


class ReplayStream:
    """The stream to one replay node.

    What is not acknowledged stays in its book, and goes to this node and no other, however long it is away.

    Attributes:
        book: what was sent, and may be.
        is_up: the node has said Attached, and the connection was not lost since.
        waiting_for: why there is no more credit, as the node says.
        version: in lock step, counter of the weights to go on with; None: it does not go in lock step.
    """

    def __init__(self, channel: ClientChannel, attach: Attach, changed: asyncio.Event) -> None:
        """A stream that is not attached yet.

        Args:
            channel: to the node.
            attach: its first message.
            changed: set whenever the book or `is_up` has changed.
        """
        self.book = SenderBook()
        self.is_up = False
        self.waiting_for = CREDIT
        self.version: int | None = None
        self._link = ReplayLink(channel, attach, self.handle, on_loss=self._lose)
        self._changed = changed
        self._lost = asyncio.Event()

    @property
    def num_reconnects(self) -> int:
        """Times that the connection came back."""
        return self._link.num_reconnects

    async def run(self) -> None:
        """Receives until cancelled.

        Raises:
            Refused: the replay node refused this client and said why.
        """
        await self._link.run()

    def handle(self, message: Message, arrays: dict[str, npt.NDArray[Any]]) -> list[list[Frame]]:
        """Takes one message of the replay node and returns what must be sent again."""
        del arrays
        again: list[list[Frame]] = []
        match message:
            case Attached():
                again = self._begin(message)
            case Credit():
                self.book.acknowledge(message.last_sequence)
                self.book.grant(message.credit_rows, message.credit_bytes)
                self.waiting_for = message.waiting_for or CREDIT
                self.version = message.version
            case InsertRefused():
                raise ParlError(f"the replay node refused rows of this actor: {message.reason}")
            case _:
                log.warning("an actor has no use for a message of kind %s", type(message).__name__)
        self._changed.set()
        return again

    async def insert(self, fragments: FragmentBatch, stop: StopSignal) -> None:
        """Enters rows in the book and sends them. What is not sent, at the stop or without a peer, the book has."""
        message = InsertFragments(sequence=self.book.next_sequence, table=MAIN_TABLE)
        frames = encode(message, arrays_of(fragments))
        self.book.add(frames, rows=fragments.num_live, num_bytes=fragments.num_bytes)
        if self.is_up and not self._link.channel.try_send(frames):
            await stop.wait_for(self._send_unless_lost(frames))

    async def _send_unless_lost(self, frames: list[Frame]) -> None:
        sending = asyncio.ensure_future(self._link.channel.send(frames))
        losing = asyncio.ensure_future(self._lost.wait())
        try:
            await asyncio.wait({sending, losing}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (sending, losing):
                task.cancel()
            await asyncio.gather(sending, losing, return_exceptions=True)

    def _begin(self, attached: Attached) -> list[list[Frame]]:
        lost_before = self.book.lost_rows
        again = self.book.reattach(
            attached.last_sequence, counted_rows=attached.counted_rows, counted_bytes=attached.counted_bytes
        )
        if (lost := self.book.lost_rows - lost_before) > 0:
            log.warning("%d rows that the replay node had acknowledged are gone with its ring", lost)
        self.book.grant(attached.credit_rows, attached.credit_bytes)
        self.version = attached.version
        self.is_up = True
        self._lost.clear()
        return again

    def _lose(self) -> None:
        self.is_up = False
        self._lost.set()
        self._changed.set()


class ReplayStreams:
    """The streams to all replay nodes: new rows go to the actor's home node, or to the next one that is up.

    Memory is bounded by the credit of each node.

    Attributes:
        changed: set whenever there may be more credit, or another acknowledgement.
    """

    def __init__(self, channels: Sequence[ClientChannel], attach: Attach, *, index: int = 0) -> None:
        """Streams that are not attached yet.

        Args:
            channels: to the replay nodes, by their index.
            attach: the first message to each.
            index: of the actor among the actors; its home is this, modulo the replay nodes.
        """
        self.changed = asyncio.Event()
        streams = [ReplayStream(channel, attach, self.changed) for channel in channels]
        home = index % len(streams)
        self._streams = streams[home:] + streams[:home]

    async def run(self) -> None:
        """Receives until cancelled.

        Raises:
            Refused: a replay node refused this client and said why.
        """
        async with asyncio.TaskGroup() as tasks:
            for stream in self._streams:
                tasks.create_task(stream.run())

    @property
    def target(self) -> ReplayStream:
        """Where new rows go now; the home node while none is up."""
        return next((stream for stream in self._streams if stream.is_up), self._streams[0])

    @property
    def unacknowledged_rows(self) -> int:
        """Live rows sent to any node, and neither acknowledged nor abandoned."""
        return sum(stream.book.unacknowledged_rows for stream in self._streams)

    @property
    def num_reconnects(self) -> int:
        """Times that a connection came back."""
        return sum(stream.num_reconnects for stream in self._streams)

    def abandon(self) -> None:
        """Gives up what is not acknowledged, and counts it."""
        for stream in self._streams:
            stream.book.abandon()

    def counters(self) -> dict[str, int]:
        """For the heartbeats: what became of the rows, and how many more may be sent."""
        books = [stream.book for stream in self._streams]
        return {
            "sent_rows_total": sum(book.sent_rows for book in books),
            "acknowledged_rows_total": sum(book.acknowledged_rows for book in books),
            "abandoned_rows_total": sum(book.abandoned_rows for book in books),
            "lost_rows_total": sum(book.lost_rows for book in books),
            "credit_rows": self.target.book.available_rows,
            "unacknowledged_rows": self.unacknowledged_rows,
        }
