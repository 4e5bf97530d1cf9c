"""What the services need from a network: two Protocols, with a ZeroMQ and an in-memory implementation.

A channel moves frames and never decodes them. It belongs to the loop's thread.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

Frame = bytes | bytearray | memoryview
"""One frame. A sent memoryview must not change until the channel is done with it: hand it over, never reuse it."""
PeerId = bytes
"""Opaque routing id of one connection to a server channel; never an identity."""


class LinkEvent(enum.Enum):
    """What the monitor saw on a client channel's connection."""

    CONNECTED = "connected"  # handshake done; also after a reconnect
    DISCONNECTED = "disconnected"
    REFUSED = "refused"  # the peer speaks another protocol or mechanism, or does not accept this key


class SendOutcome(enum.Enum):
    """What became of a message given to a server channel."""

    SENT = "sent"
    FULL = "full"  # the peer's queue is full: keep the message and try again when it has read
    GONE = "gone"  # no such peer: drop the message


class ClientChannel(Protocol):
    """The connecting end (DEALER).

    A message is one or two frames. Sending raises ValueError, before anything is sent, where it is none, or one that
    is over the channel's limit; TypeError where a frame is not bytes-like; ChannelClosed on a closed channel.

    Messages of one connection arrive whole and in order. Those under way when it breaks may be lost.
    """

    def try_send(self, frames: Sequence[Frame]) -> bool:
        """Hands the message to the transport without waiting.

        Returns:
            False when there is no peer, its queue is full, or another task waits in `send`; nothing was sent then.
        """

    async def send(self, frames: Sequence[Frame]) -> None:
        """Waits until the message can be handed over, and does so. Tasks that wait are served in their order.

        Raises:
            ChannelClosed: the channel was closed meanwhile.
        """

    async def receive_many(self) -> list[list[memoryview]]:
        """Waits for at least one message and returns all that are ready (64 at most), each a list of frames.

        A frame stays valid as long as a view on it lives. Cancelled, it has taken nothing. Where messages come without
        an end, other tasks get their turn between two calls.

        Raises:
            ChannelClosed: the channel was closed meanwhile.
        """

    async def next_event(self) -> LinkEvent:
        """Waits for the next change of the connection.

        Events queue up; of more than 256 that nobody took, the oldest go.

        Raises:
            ChannelClosed: the channel was closed meanwhile.
        """

    def close(self, linger_s: float = 1.0) -> None:
        """Closes the channel at once; unsent messages are given `linger_s` to leave. Closing it again does nothing."""


class ServerChannel(Protocol):
    """The binding end (ROUTER). What ClientChannel says of messages holds here too."""

    @property
    def endpoint(self) -> str:
        """The first of the bound addresses, with the real port where 0 was asked for."""

    @property
    def endpoints(self) -> Sequence[str]:
        """All of them."""

    def key_of(self, peer: PeerId) -> str | None:
        """The public key that a peer has proved, to be asked when a message of it was received; None: it has none.

        Only peers on a socket that is private to this machine, or not guarded at all, have none.
        """

    def cut(self, peer: PeerId) -> bool:
        """Closes a peer's connection; it may connect again, if its key is still welcome. False: there was none."""

    def cut_denied(self) -> Sequence[str]:
        """Closes the connections of keys that are not welcome any more, and those that have said nothing yet.

        Returns:
            These keys.
        """

    def try_send(self, peer: PeerId, frames: Sequence[Frame]) -> SendOutcome:
        """Hands the message for `peer` to the transport without waiting; nothing is sent unless SENT."""

    async def receive_many(self) -> list[tuple[PeerId, list[memoryview]]]:
        """Waits for at least one message and returns all that are ready (64 at most), each with its peer.

        Raises:
            ChannelClosed: the channel was closed meanwhile.
        """

    def close(self, linger_s: float = 1.0) -> None:
        """Closes the channel at once; unsent messages are given `linger_s` to leave. Closing it again does nothing."""
