"""A client's end of the data plane: attaches, attaches again after each reconnect, and hands messages on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from parl_mq.errors import EXIT_NOT_ALLOWED, Refused
from parl_mq.net.channel import ClientChannel, Frame, LinkEvent
from parl_mq.wire.codec import Decoder, encode
from parl_mq.wire.messages import Attach, AttachRefused, Message, SayHello
from parl_mq.wire.messages import FromReplay as FromReplay

Handler = Callable[[Message, dict[str, npt.NDArray[Any]]], list[list[Frame]]]

log = logging.getLogger("parl_mq")


class ReplayLink:
    """Keeps one client attached to one replay node.

    Everything but the refusals goes to `handle`, which returns what must be sent; at Attached, which comes after each
    reconnect, that is what is unanswered. `on_loss` hears of each connection that is lost, and of a node that does not
    know this client: it was started again.
    """

    def __init__(
        self,
        channel: ClientChannel,
        attach: Attach,
        handle: Handler,
        *,
        on_loss: Callable[[], object] = lambda: None,
    ) -> None:
        self.channel = channel
        self._num_connects = 0
        self._attach = attach
        self._handle = handle
        self._on_loss = on_loss
        self._decode = Decoder(FromReplay)

    @property
    def num_reconnects(self) -> int:
        """Times that the connection came back."""
        return max(0, self._num_connects - 1)

    async def run(self) -> None:
        """Receives until cancelled.

        Raises:
            Refused: the replay node refused this client and said why.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._receive())
            tasks.create_task(self._watch_link())

    async def _watch_link(self) -> None:
        while True:
            match await self.channel.next_event():
                case LinkEvent.CONNECTED:
                    self._num_connects += 1
                    await self.channel.send(encode(self._attach))
                case LinkEvent.DISCONNECTED:
                    self._on_loss()
                    log.warning("lost the connection to the replay node; waiting for it")
                case LinkEvent.REFUSED:
                    raise Refused(
                        "the replay node refused the connection: this node's key is not allowed there, or the replay "
                        "node has another key than the hub says",
                        EXIT_NOT_ALLOWED,
                    )

    async def _receive(self) -> None:
        while True:
            for frames in await self.channel.receive_many():
                message, arrays = self._decode(frames)
                match message:
                    case SayHello():  # it knows nothing of what was asked
                        self._on_loss()
                        await self.channel.send(encode(self._attach))
                    case AttachRefused():
                        raise Refused(f"the replay node refused this node: {message.reason}", message.exit_code)
                    case _:
                        for answer in self._handle(message, arrays):
                            await self.channel.send(answer)
