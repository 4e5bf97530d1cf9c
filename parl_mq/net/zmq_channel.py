"""Channels over ZeroMQ: DEALER connects, ROUTER binds.

Readiness comes from the socket's own file descriptor, watched by the loop; messages are then read and written without
waiting. The descriptor is edge-triggered and any call may consume its edge, so the socket's state is looked at again
after each call on which somebody might be waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import time
from collections.abc import Sequence
from typing import Any, Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from parl_mq.errors import ChannelClosed, ConfigError
from parl_mq.net.channel import Frame, LinkEvent, PeerId, SendOutcome

MESSAGES_PER_CALL: Final = 64
COPY_BELOW_BYTES: Final = 64 * 1024
"""Smaller frames are copied: that is cheaper than sharing their memory with the transport."""
MAX_MESSAGE_BYTES: Final = 256 * 1024 * 1024
MAX_IPC_PATH_BYTES: Final = 107
MAX_FRAMES: Final = 8
"""A message of more frames is dropped while it is read; no message of ours has more than three with its peer."""
NET_S: Final = 1.0
"""A wait looks again after this time, should the transport ever lose a signal."""
BIND_FOR_S: Final = 3.0
MAX_EVENTS: Final = 256

_EVENTS: Final = {
    zmq.EVENT_HANDSHAKE_SUCCEEDED: LinkEvent.CONNECTED,
    zmq.EVENT_DISCONNECTED: LinkEvent.DISCONNECTED,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: LinkEvent.REFUSED,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: LinkEvent.REFUSED,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: LinkEvent.REFUSED,
}


class Network:
    """Makes the channels of one process and closes them all. Belongs to the loop that is running when it is made."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._channels: list[_ZmqChannel] = []

    def connect(self, endpoint: str, max_message_bytes: int = MAX_MESSAGE_BYTES) -> ZmqClientChannel:
        """A client channel. The peer need not be there yet.

        Raises:
            ConfigError: the endpoint cannot be an address.
        """
        _check(endpoint)
        channel = ZmqClientChannel(self._socket(zmq.DEALER, max_message_bytes))
        channel.connect(endpoint)
        self._channels.append(channel)
        return channel

    def bind(self, endpoint: str, max_message_bytes: int = MAX_MESSAGE_BYTES) -> ZmqServerChannel:
        """A server channel; port 0 takes any free one. An address in use is tried again for BIND_FOR_S.

        Raises:
            ConfigError: the address is not on this machine, in use, not loopback, or too long.
        """
        _check(endpoint)
        _check_local(endpoint)
        socket = self._socket(zmq.ROUTER, max_message_bytes)
        _bind(socket, endpoint)
        channel = ZmqServerChannel(socket)
        self._channels.append(channel)
        return channel

    def close(self, linger_s: float = 0.5) -> None:
        """Closes every channel; what is unsent gets `linger_s` to leave."""
        for channel in self._channels:
            channel.close(linger_s)
        self._context.term()

    def _socket(self, kind: int, max_message_bytes: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        _set_options(socket, max_message_bytes)
        return socket


def _set_options(socket: zmq.Socket[bytes], max_message_bytes: int) -> None:
    """All options of all sockets; they hold for connections made afterwards."""
    socket.setsockopt(zmq.LINGER, 1000)
    socket.setsockopt(zmq.MAXMSGSIZE, max_message_bytes)
    socket.setsockopt(zmq.HANDSHAKE_IVL, 3000)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 2000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 6000)
    socket.setsockopt(zmq.HEARTBEAT_TTL, 6000)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    if socket.type == zmq.ROUTER:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # else a message for a full or unknown peer vanishes
    else:
        socket.setsockopt(zmq.IMMEDIATE, 1)  # else a message for an absent peer is queued
        socket.setsockopt(zmq.RECONNECT_IVL, 200)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 10_000)


class _ZmqChannel:
    """What both ends share: waiting for the socket, reading many messages, closing."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._is_closed = False
        self._waiters: set[tuple[int, asyncio.Future[None]]] = set()
        self._loop = asyncio.get_running_loop()
        self._fd = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self._wake)

    def close(self, linger_s: float = 1.0) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._fd)
        self._socket.close(int(linger_s * 1000))
        for _, future in self._waiters:
            if not future.done():
                future.set_result(None)

    async def _receive(self) -> list[list[zmq.Frame]]:
        while True:
            messages = self._drain()
            if messages:
                return messages
            await self._wait(zmq.POLLIN)

    def _drain(self) -> list[list[zmq.Frame]]:
        self._check_open()
        messages: list[list[zmq.Frame]] = []
        with contextlib.suppress(zmq.Again):
            while len(messages) < MESSAGES_PER_CALL:
                messages.append(self._receive_one())
        if self._waiters:
            self._wake()
        return messages

    def _receive_one(self) -> list[zmq.Frame]:
        frames = [self._socket.recv(zmq.NOBLOCK, copy=False)]
        while frames[-1].more:
            frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            if len(frames) < MAX_FRAMES or not frame.more:
                frames.append(frame)
            else:
                frames[-1] = frame  # of too many frames none is kept; the count alone tells that it was too many
        return frames

    def _hand_over(self, frames: Sequence[Frame]) -> None:
        """Sends without waiting; after the first frame was taken the others cannot be refused.

        Raises:
            zmq.Again, zmq.ZMQError: nothing was sent.
        """
        self._check_open()
        last = len(frames) - 1
        for index, frame in enumerate(frames):
            flags = zmq.NOBLOCK | (zmq.SNDMORE if index < last else 0)
            self._socket.send(frame, flags, copy=len(frame) < COPY_BELOW_BYTES)
        if self._waiters:
            self._wake()

    async def _wait(self, events: int) -> None:
        """Returns when the socket may be ready, or the channel was closed."""
        future = self._loop.create_future()
        entry = (events, future)
        self._waiters.add(entry)
        try:
            self._wake()
            await asyncio.wait({future}, timeout=NET_S)
        finally:
            self._waiters.discard(entry)
        self._check_open()

    def _wake(self) -> None:
        state = int(self._socket.getsockopt(zmq.EVENTS))
        for events, future in self._waiters:
            if events & state and not future.done():
                future.set_result(None)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ChannelClosed("the channel is closed")


class ZmqClientChannel(_ZmqChannel):
    """ClientChannel over a DEALER socket."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._events: asyncio.Queue[LinkEvent] = asyncio.Queue(MAX_EVENTS)
        self._monitor: zmq.Socket[bytes] = socket.get_monitor_socket(sum(_EVENTS))
        super().__init__(socket)
        self._monitor_fd = int(self._monitor.getsockopt(zmq.FD))
        self._loop.add_reader(self._monitor_fd, self._read_monitor)

    def connect(self, endpoint: str) -> None:
        """Starts connecting, and again whenever the connection is lost."""
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise ConfigError(f"cannot connect to {endpoint!r}: {error.strerror}") from error

    def try_send(self, frames: Sequence[Frame]) -> bool:
        """See ClientChannel."""
        try:
            self._hand_over(frames)
        except zmq.Again:
            return False
        return True

    async def send(self, frames: Sequence[Frame]) -> None:
        """See ClientChannel."""
        while not self.try_send(frames):
            await self._wait(zmq.POLLOUT)

    async def receive_many(self) -> list[list[memoryview]]:
        """See ClientChannel."""
        return [[_view(frame) for frame in frames] for frames in await self._receive()]

    async def next_event(self) -> LinkEvent:
        """See ClientChannel."""
        while self._events.empty():
            self._check_open()
            self._read_monitor()  # a signal may have come before anybody watched
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(self._events.get(), NET_S)
        return self._events.get_nowait()

    def close(self, linger_s: float = 1.0) -> None:
        """See ClientChannel."""
        if not self._is_closed:
            self._loop.remove_reader(self._monitor_fd)
            self._socket.disable_monitor()
            self._monitor.close(0)
        super().close(linger_s)

    def _read_monitor(self) -> None:
        while int(self._monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))["event"]
            if (seen := _EVENTS.get(zmq.Event(event))) is not None:
                if self._events.full():
                    self._events.get_nowait()  # nobody listens: the newest events are the ones that count
                self._events.put_nowait(seen)


class ZmqServerChannel(_ZmqChannel):
    """ServerChannel over a ROUTER socket."""

    @property
    def endpoint(self) -> str:
        """See ServerChannel."""
        bound: Any = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        return str(bound.rstrip(b"\0").decode())

    def try_send(self, peer: PeerId, frames: Sequence[Frame]) -> SendOutcome:
        """See ServerChannel."""
        try:
            self._hand_over([peer, *frames])
        except zmq.Again:
            return SendOutcome.FULL
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return SendOutcome.GONE
            raise
        return SendOutcome.SENT

    async def receive_many(self) -> list[tuple[PeerId, list[memoryview]]]:
        """See ServerChannel."""
        return [(frames[0].bytes, [_view(frame) for frame in frames[1:]]) for frames in await self._receive()]


def _view(frame: zmq.Frame) -> memoryview:
    """The frame's memory; a small one is copied, so that a view on it does not keep a transport buffer alive."""
    return memoryview(frame.bytes) if len(frame) < COPY_BELOW_BYTES else frame.buffer


def _bind(socket: zmq.Socket[bytes], endpoint: str) -> None:
    deadline = time.monotonic() + BIND_FOR_S
    pause_s = 0.05
    while True:
        try:
            socket.bind(endpoint)
            return
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE or time.monotonic() > deadline:
                socket.close(0)
                reason = "it is in use" if error.errno == zmq.EADDRINUSE else str(error.strerror)
                raise ConfigError(f"cannot bind {endpoint!r}: {reason}; name another address with --bind") from error
        time.sleep(pause_s)  # nothing tells when an address becomes free
        pause_s *= 2


def _check(endpoint: str) -> None:
    kind, _, address = endpoint.partition("://")
    if kind not in ("ipc", "tcp") or not address:
        raise ConfigError(f"endpoint {endpoint!r} must be ipc://PATH or tcp://HOST:PORT")
    if kind == "ipc" and len(address.encode()) > MAX_IPC_PATH_BYTES:
        raise ConfigError(
            f"endpoint {endpoint!r}: the path has {len(address.encode())} bytes, the system allows "
            f"{MAX_IPC_PATH_BYTES}; set node.runtime_directory to a shorter one"
        )


def _check_local(endpoint: str) -> None:
    if not endpoint.startswith("tcp://"):
        return
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return
    if host != "localhost":
        raise ConfigError(f"cannot bind {endpoint!r}: without encryption only loopback addresses are bound")
