"""Channels in memory, for tests of the layers above: the same contract, without a port.

What goes wrong in a network is done by hand here: a test cuts a client's connection, stalls it, and revives it.
"""

from __future__ import annotations

import asyncio
import itertools
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from parl_mq.errors import ChannelClosed, ConfigError
from parl_mq.net.channel import Frame, LinkEvent, PeerId, SendOutcome
from parl_mq.net.frames import MAX_EVENTS, MAX_MESSAGE_BYTES, MESSAGES_PER_CALL, QUEUE_MESSAGES, checked
from parl_mq.net.waiters import Waiters


class _Parcel:
    """A message under way: copied, and the sender's own frames watched, which must not change before it is read."""

    def __init__(self, views: Sequence[memoryview]) -> None:
        self._views = views
        self._frames = [memoryview(view.tobytes()) for view in views]

    def open(self) -> list[memoryview]:
        if any(zlib.crc32(view) != zlib.crc32(frame) for view, frame in zip(self._views, self._frames, strict=True)):
            raise AssertionError("a sender changed a frame that it had handed over")
        return self._frames


@dataclass(slots=True, eq=False)
class _Connection:
    """One client's connection, from one CONNECTED to the next DISCONNECTED.

    Attributes:
        bound: messages that wait in each direction at most.
        is_stalled: nothing is read at either end.
        is_open: False once the client has closed its end; what it had sent can still be read.
    """

    peer: PeerId
    client: MemoryClientChannel
    server: MemoryServerChannel
    bound: int
    to_client: deque[_Parcel] = field(default_factory=deque)
    to_server: deque[_Parcel] = field(default_factory=deque)
    is_stalled: bool = False
    is_open: bool = True


class MemoryNetwork:
    """Connects clients with servers by endpoint, in whatever order they come."""

    def __init__(self) -> None:
        self._servers: dict[str, MemoryServerChannel] = {}
        self._clients: list[MemoryClientChannel] = []
        self._numbers = itertools.count(1)

    def trust(self, server_keys: Mapping[str, str]) -> None:
        """See parl_mq.net.zmq_channel.Network; here nothing is encrypted."""

    def connect(
        self,
        endpoint: str,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        *,
        queue_messages: int = QUEUE_MESSAGES,
        key: str | None = None,
    ) -> MemoryClientChannel:
        """A client channel; see parl_mq.net.zmq_channel.Network. Its connections prove `key`."""
        client = MemoryClientChannel(self, endpoint, max_message_bytes, queue_messages, key)
        self._clients.append(client)
        self.join(client)
        return client

    def bind(
        self,
        endpoint: str,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        *,
        queue_messages: int = QUEUE_MESSAGES,
        also: Sequence[str] = (),
    ) -> MemoryServerChannel:
        """A server channel; the clients that wait for it are connected. `queue_messages` is each client's own.

        Raises:
            ConfigError: the endpoint is in use.
        """
        del queue_messages, also
        if endpoint in self._servers and not self._servers[endpoint].is_closed:
            raise ConfigError(f"cannot bind {endpoint!r}: it is in use")
        server = self._servers[endpoint] = MemoryServerChannel(endpoint, max_message_bytes)
        for client in self._clients:
            self.join(client)
        return server

    def join(self, client: MemoryClientChannel) -> None:
        """Connects a client that is neither connected nor closed, where its server is there."""
        server = self._servers.get(client.endpoint)
        if server is not None and not (server.is_closed or client.is_closed or client.is_connected):
            client.begin(server, b"peer-%d" % next(self._numbers))

    def close(self, linger_s: float = 0.5) -> None:
        """Closes every channel."""
        for client in self._clients:
            client.close(linger_s)
        for server in self._servers.values():
            server.close(linger_s)


class MemoryClientChannel:
    """ClientChannel in memory."""

    def __init__(
        self, network: MemoryNetwork, endpoint: str, max_message_bytes: int, bound: int, key: str | None = None
    ) -> None:
        self.endpoint = endpoint
        self.key = key
        self.is_closed = False
        self._network = network
        self._max_message_bytes = max_message_bytes
        self._bound = bound
        self._connection: _Connection | None = None
        self._events: deque[LinkEvent] = deque(maxlen=MAX_EVENTS)
        self._turn = asyncio.Lock()
        self._changed = Waiters()

    # What a test does to the connection

    def cut(self) -> None:
        """Breaks the connection; what was under way in either direction is lost."""
        if self._connection is not None:
            self._connection.server.lose(self._connection)
            self.lose()

    def stall(self) -> None:
        """Lets nothing through in either direction until `revive`, as if the peers' machines had stopped."""
        if self._connection is not None:
            self._connection.is_stalled = True

    def revive(self) -> None:
        """Ends a stall; connects again after a cut, under a new routing id."""
        if self._connection is not None:
            self._connection.is_stalled = False
            self._connection.server.wake()
            self.wake()
        self._network.join(self)

    # ClientChannel

    def try_send(self, frames: Sequence[Frame]) -> bool:
        """See ClientChannel."""
        views = checked(frames, self._max_message_bytes)
        self._check_open()
        return not self._turn.locked() and self._hand_over(views)

    async def send(self, frames: Sequence[Frame]) -> None:
        """See ClientChannel."""
        views = checked(frames, self._max_message_bytes)
        async with self._turn:
            while not self._hand_over(views):
                await self._changed.wait()

    async def receive_many(self) -> list[list[memoryview]]:
        """See ClientChannel."""
        await asyncio.sleep(0)
        while not (parcels := self._take()):
            await self._changed.wait()
        return [parcel.open() for parcel in parcels]

    async def next_event(self) -> LinkEvent:
        """See ClientChannel."""
        while not self._events:
            self._check_open()
            await self._changed.wait()
        return self._events.popleft()

    def close(self, linger_s: float = 1.0) -> None:
        """See ClientChannel; what was sent stays readable, as if it had left in time."""
        del linger_s
        if self._connection is not None:
            self._connection.is_open = False
            self._connection = None
        self.is_closed = True
        self.wake()

    # For the network and the server

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, stalled or not."""
        return self._connection is not None

    def begin(self, server: MemoryServerChannel, peer: PeerId) -> None:
        """A new connection."""
        self._connection = _Connection(peer, self, server, self._bound)
        server.begin(self._connection)
        self._events.append(LinkEvent.CONNECTED)
        self.wake()

    def lose(self) -> None:
        """The connection is gone."""
        self._connection = None
        self._events.append(LinkEvent.DISCONNECTED)
        self.wake()

    def wake(self) -> None:
        """Something may be read or sent."""
        self._changed.wake()

    def _hand_over(self, views: Sequence[memoryview]) -> bool:
        self._check_open()
        connection = self._connection
        if connection is None or len(connection.to_server) >= connection.bound:
            return False
        connection.to_server.append(_Parcel(views))
        connection.server.wake()
        return True

    def _take(self) -> list[_Parcel]:
        self._check_open()
        connection = self._connection
        if connection is None or connection.is_stalled:
            return []
        return [connection.to_client.popleft() for _ in range(min(len(connection.to_client), MESSAGES_PER_CALL))]

    def _check_open(self) -> None:
        if self.is_closed:
            raise ChannelClosed("the channel is closed")


class MemoryServerChannel:
    """ServerChannel in memory."""

    def __init__(self, endpoint: str, max_message_bytes: int) -> None:
        self.is_closed = False
        self._endpoint = endpoint
        self._max_message_bytes = max_message_bytes
        self._connections: dict[PeerId, _Connection] = {}
        self._changed = Waiters()

    @property
    def endpoint(self) -> str:
        """See ServerChannel."""
        return self._endpoint

    @property
    def endpoints(self) -> Sequence[str]:
        """See ServerChannel."""
        return [self._endpoint]

    def key_of(self, peer: PeerId) -> str | None:
        """See ServerChannel."""
        connection = self._connections.get(peer)
        return None if connection is None else connection.client.key

    def cut(self, peer: PeerId) -> bool:
        """See ServerChannel."""
        connection = self._connections.get(peer)
        if connection is None or not connection.is_open:
            return False
        connection.client.cut()
        return True

    def cut_denied(self) -> Sequence[str]:
        """See ServerChannel; here all keys are welcome."""
        return []

    def try_send(self, peer: PeerId, frames: Sequence[Frame]) -> SendOutcome:
        """See ServerChannel."""
        views = checked(frames, self._max_message_bytes)
        self._check_open()
        connection = self._connections.get(peer)
        if connection is None or not connection.is_open:
            return SendOutcome.GONE
        if len(connection.to_client) >= connection.bound:
            return SendOutcome.FULL
        connection.to_client.append(_Parcel(views))
        connection.client.wake()
        return SendOutcome.SENT

    async def receive_many(self) -> list[tuple[PeerId, list[memoryview]]]:
        """See ServerChannel."""
        await asyncio.sleep(0)
        while not (parcels := self._take()):
            await self._changed.wait()
        return [(peer, parcel.open()) for peer, parcel in parcels]

    def close(self, linger_s: float = 1.0) -> None:
        """See ServerChannel; its clients are disconnected, and connect to the next one that is bound here."""
        del linger_s
        for connection in self._connections.values():
            if connection.is_open:
                connection.client.lose()
        self._connections.clear()
        self.is_closed = True
        self.wake()

    # For the clients

    def begin(self, connection: _Connection) -> None:
        """A new connection."""
        self._connections[connection.peer] = connection

    def lose(self, connection: _Connection) -> None:
        """The connection is gone, with what had not been read."""
        del self._connections[connection.peer]

    def wake(self) -> None:
        """Something may be read."""
        self._changed.wake()

    def _take(self) -> list[tuple[PeerId, _Parcel]]:
        """One message of each connection in turn."""
        self._check_open()
        taken: list[tuple[PeerId, _Parcel]] = []
        while ready := [each for each in self._connections.values() if each.to_server and not each.is_stalled]:
            for connection in ready[: MESSAGES_PER_CALL - len(taken)]:
                taken.append((connection.peer, connection.to_server.popleft()))
                connection.client.wake()
            if len(taken) == MESSAGES_PER_CALL:
                break
        self._connections = {peer: each for peer, each in self._connections.items() if each.is_open or each.to_server}
        return taken

    def _check_open(self) -> None:
        if self.is_closed:
            raise ChannelClosed("the channel is closed")
