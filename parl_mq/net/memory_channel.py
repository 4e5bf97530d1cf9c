"""Channels in memory, for tests of the layers above: the same contract, without a port."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

from parl_mq.errors import ChannelClosed
from parl_mq.net.channel import Frame, LinkEvent, PeerId, SendOutcome

T = TypeVar("T")

QUEUE_MESSAGES: Final = 1000
MESSAGES_PER_CALL: Final = 64


class MemoryNetwork:
    """Connects client and server channels by endpoint. A server may be bound after its clients have connected."""

    def __init__(self, queue_messages: int = QUEUE_MESSAGES) -> None:
        self._queue_messages = queue_messages
        self._servers: dict[str, MemoryServerChannel] = {}
        self._clients: list[MemoryClientChannel] = []
        self._ids = itertools.count(1)

    def connect(self, endpoint: str, max_message_bytes: int = 0) -> MemoryClientChannel:
        """A client channel, connected as soon as a server is bound to `endpoint`."""
        del max_message_bytes
        client = MemoryClientChannel(b"\0peer%d" % next(self._ids), endpoint, self._queue_messages)
        self._clients.append(client)
        if endpoint in self._servers:
            client.link(self._servers[endpoint])
        return client

    def bind(self, endpoint: str, max_message_bytes: int = 0) -> MemoryServerChannel:
        """A server channel; the clients that wait for it are connected."""
        del max_message_bytes
        server = self._servers[endpoint] = MemoryServerChannel(endpoint, self._queue_messages)
        for client in self._clients:
            if client.server_endpoint == endpoint:
                client.link(server)
        return server

    def close(self, linger_s: float = 0.0) -> None:
        """Closes every channel."""
        for client in self._clients:
            client.close(linger_s)
        for server in self._servers.values():
            server.close(linger_s)


class _Inbox(Generic[T]):
    """A bounded queue whose waiting ends can be closed."""

    def __init__(self, bound: int) -> None:
        self._items: deque[T] = deque()
        self._bound = bound
        self._changed = asyncio.Event()
        self.is_closed = False
        self.is_stalled = False

    def offer(self, item: T) -> bool:
        if len(self._items) >= self._bound:
            return False
        self._items.append(item)
        self._changed.set()
        return True

    async def take(self, most: int = MESSAGES_PER_CALL) -> list[T]:
        while not self.is_closed:
            if self._items and not self.is_stalled:
                return [self._items.popleft() for _ in range(min(len(self._items), most))]
            self._changed.clear()
            await self._changed.wait()
        raise ChannelClosed("the channel is closed")

    def close(self) -> None:
        self.is_closed = True
        self._changed.set()

    def stall(self, is_stalled: bool) -> None:
        self.is_stalled = is_stalled
        self._changed.set()


class MemoryClientChannel:
    """ClientChannel in memory. A test may `cut` its connection and `link` it again, or `stall` its reading."""

    def __init__(self, peer: PeerId, server_endpoint: str, bound: int) -> None:
        self.server_endpoint = server_endpoint
        self._peer = peer
        self._server: MemoryServerChannel | None = None
        self._inbox: _Inbox[list[memoryview]] = _Inbox(bound)
        self._events: _Inbox[LinkEvent] = _Inbox(bound)
        self._may_send = asyncio.Event()

    def link(self, server: MemoryServerChannel) -> None:
        """Connects to `server`; it knows this client by a new routing id each time."""
        self._server = server
        self._peer += b"+"
        server.clients[self._peer] = self
        self._events.offer(LinkEvent.CONNECTED)
        self._may_send.set()

    def cut(self) -> None:
        """Loses the connection, and what was not yet read at either end of it."""
        if self._server is not None:
            del self._server.clients[self._peer]
            self._server = None
            self._events.offer(LinkEvent.DISCONNECTED)

    def stall(self, is_stalled: bool) -> None:
        """Stops or goes on reading; what arrives meanwhile fills the queue."""
        self._inbox.stall(is_stalled)

    def try_send(self, frames: Sequence[Frame]) -> bool:
        """See ClientChannel."""
        if self._inbox.is_closed:
            raise ChannelClosed("the channel is closed")
        return self._server is not None and self._server.arrive(self._peer, _checked(frames))

    async def send(self, frames: Sequence[Frame]) -> None:
        """See ClientChannel."""
        while not self.try_send(frames):
            self._may_send.clear()
            await self._may_send.wait()

    async def receive_many(self) -> list[list[memoryview]]:
        """See ClientChannel."""
        return await self._inbox.take()

    async def next_event(self) -> LinkEvent:
        """See ClientChannel."""
        return (await self._events.take(1))[0]

    def close(self, linger_s: float = 1.0) -> None:
        """See ClientChannel."""
        del linger_s
        self.cut()
        self._inbox.close()
        self._events.close()
        self._may_send.set()

    def arrive(self, frames: list[memoryview]) -> bool:
        """The server's message comes in; False where the queue is full."""
        return self._inbox.offer(frames)

    def may_send(self) -> None:
        """The server has read: there is room in its queue."""
        self._may_send.set()


class MemoryServerChannel:
    """ServerChannel in memory.

    Attributes:
        clients: those that are connected, by routing id.
    """

    def __init__(self, endpoint: str, bound: int) -> None:
        self.clients: dict[PeerId, MemoryClientChannel] = {}
        self._endpoint = endpoint
        self._inbox: _Inbox[tuple[PeerId, list[memoryview]]] = _Inbox(bound)

    @property
    def endpoint(self) -> str:
        """See ServerChannel."""
        return self._endpoint

    def try_send(self, peer: PeerId, frames: Sequence[Frame]) -> SendOutcome:
        """See ServerChannel."""
        if self._inbox.is_closed:
            raise ChannelClosed("the channel is closed")
        client = self.clients.get(peer)
        if client is None:
            return SendOutcome.GONE
        return SendOutcome.SENT if client.arrive(_checked(frames)) else SendOutcome.FULL

    async def receive_many(self) -> list[tuple[PeerId, list[memoryview]]]:
        """See ServerChannel."""
        messages = await self._inbox.take()
        for client in self.clients.values():
            client.may_send()
        return messages

    def close(self, linger_s: float = 1.0) -> None:
        """See ServerChannel."""
        del linger_s
        for client in list(self.clients.values()):
            client.cut()
        self._inbox.close()

    def arrive(self, peer: PeerId, frames: list[memoryview]) -> bool:
        """A client's message comes in; False where the queue is full."""
        return self._inbox.offer((peer, frames))


def _checked(frames: Sequence[Frame]) -> list[memoryview]:
    """Copies, as a network would.

    Raises:
        TypeError: a frame is not bytes-like.
    """
    if not frames:
        raise ValueError("a message has at least one frame")
    return [memoryview(bytes(memoryview(frame))) for frame in frames]
