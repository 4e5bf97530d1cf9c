"""Channels over ZeroMQ: DEALER connects, ROUTER binds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import zmq

from parl_mq.errors import ConfigError
from parl_mq.net.capture import Capture
from parl_mq.net.channel import Frame, LinkEvent, PeerId, SendOutcome
from parl_mq.net.endpoints import check_endpoint, check_may_bind, is_ipv6, is_served
from parl_mq.net.frames import MAX_MESSAGE_BYTES, QUEUE_MESSAGES, checked
from parl_mq.net.zmq_socket import COPY_BELOW_BYTES, LoopSocket, Monitor, set_options

BIND_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Between attempts to bind an address that is in use: a node that restarts may meet its own past."""


class Network:
    """Makes the channels of one process, and closes them all. Belongs to the loop in which they are made."""

    def __init__(self, *, sleep: Callable[[float], None] = time.sleep, capture: Capture | None = None) -> None:
        """Makes a network without a channel.

        Args:
            sleep: waits some seconds between two attempts to bind.
            capture: keeps every message that is sent or received; closed with the network.
        """
        self._context = zmq.Context()
        self._channels: list[ZmqClientChannel | ZmqServerChannel] = []
        self._sleep = sleep
        self._capture = capture

    def connect(
        self, endpoint: str, max_message_bytes: int = MAX_MESSAGE_BYTES, *, queue_messages: int = QUEUE_MESSAGES
    ) -> ZmqClientChannel:
        """A client channel. The peer need not be there yet, and may go and come back.

        Args:
            endpoint: `ipc://PATH` or `tcp://HOST:PORT`.
            max_message_bytes: largest frame; a peer that sends a larger one is cut.
            queue_messages: messages that may wait at this end, in each direction.

        Raises:
            ConfigError: the endpoint cannot be an address.
        """
        check_endpoint(endpoint)
        socket = self._socket(zmq.DEALER, endpoint, max_message_bytes, queue_messages)
        channel = ZmqClientChannel(socket, max_message_bytes, _Recorder(endpoint, self._capture))
        self._channels.append(channel)
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise ConfigError(f"cannot connect to {endpoint!r}: {error.strerror}") from error
        return channel

    def bind(
        self, endpoint: str, max_message_bytes: int = MAX_MESSAGE_BYTES, *, queue_messages: int = QUEUE_MESSAGES
    ) -> ZmqServerChannel:
        """A server channel.

        An address in use is tried again for three seconds, in which this call blocks: it belongs to a node's start.

        Args:
            endpoint: `ipc://PATH`, or `tcp://HOST:PORT` of a loopback host; port 0 takes any free one.
            max_message_bytes: largest frame; a peer that sends a larger one is cut.
            queue_messages: messages that may wait at this end for each peer, in each direction.

        Raises:
            ConfigError: the address is in use, not on this machine, not loopback, or none.
        """
        check_endpoint(endpoint)
        check_may_bind(endpoint)
        socket = self._socket(zmq.ROUTER, endpoint, max_message_bytes, queue_messages)
        try:
            self._bind(socket, endpoint)
        except ConfigError:
            socket.close(0)
            raise
        channel = ZmqServerChannel(socket, max_message_bytes, _Recorder(endpoint, self._capture))
        self._channels.append(channel)
        return channel

    def close(self, linger_s: float = 0.5) -> None:
        """Closes every channel, and blocks until what is unsent has left, `linger_s` at most."""
        for channel in self._channels:
            channel.close(linger_s)
        self._context.term()
        if self._capture is not None:
            self._capture.close()

    def _socket(self, kind: int, endpoint: str, max_message_bytes: int, queue_messages: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        set_options(socket, max_message_bytes=max_message_bytes, queue_messages=queue_messages)
        socket.setsockopt(zmq.IPV6, int(is_ipv6(endpoint)))
        return socket

    def _bind(self, socket: zmq.Socket[bytes], endpoint: str) -> None:
        for pause_s in BIND_PAUSES_S:
            if _try_bind(socket, endpoint):
                return
            self._sleep(pause_s)  # nothing tells when an address becomes free
        if not _try_bind(socket, endpoint):
            raise ConfigError(
                f"cannot bind {endpoint!r}: it has been in use for {sum(BIND_PAUSES_S):.0f} s; "
                "end the process that holds it, or take another address"
            )


@dataclass(frozen=True, slots=True)
class _Recorder:
    """What one channel tells the capture, if there is one."""

    endpoint: str
    capture: Capture | None

    def note(self, frames: Sequence[Frame], *, sent: bool, peer: PeerId = b"") -> None:
        if self.capture is not None:
            self.capture.note(frames, sent=sent, endpoint=self.endpoint, peer=peer)


class ZmqClientChannel:
    """ClientChannel over a DEALER socket."""

    def __init__(self, socket: zmq.Socket[bytes], max_message_bytes: int, recorder: _Recorder) -> None:
        """Takes over a socket that is not connected yet."""
        self._recorder = recorder
        self._monitor = Monitor(socket)
        self._socket = LoopSocket(socket)
        self._max_message_bytes = max_message_bytes
        self._turn = asyncio.Lock()

    def try_send(self, frames: Sequence[Frame]) -> bool:
        """See ClientChannel."""
        views = checked(frames, self._max_message_bytes)
        self._socket.check_open()
        return not self._turn.locked() and self._hand_over(views)

    async def send(self, frames: Sequence[Frame]) -> None:
        """See ClientChannel."""
        views = checked(frames, self._max_message_bytes)
        async with self._turn:
            while not self._hand_over(views):
                await self._socket.writable()

    async def receive_many(self) -> list[list[memoryview]]:
        """See ClientChannel."""
        messages = [[_view(frame) for frame in frames] for frames in await self._socket.receive_many()]
        for frames in messages:
            self._recorder.note(frames, sent=False)
        return messages

    async def next_event(self) -> LinkEvent:
        """See ClientChannel."""
        return await self._monitor.next_event()

    def close(self, linger_s: float = 1.0) -> None:
        """See ClientChannel."""
        self._monitor.close()
        self._socket.close(linger_s)

    def _hand_over(self, views: Sequence[memoryview]) -> bool:
        try:
            self._socket.send(views)
        except zmq.Again:
            return False
        self._recorder.note(views, sent=True)
        return True


class ZmqServerChannel:
    """ServerChannel over a ROUTER socket."""

    def __init__(self, socket: zmq.Socket[bytes], max_message_bytes: int, recorder: _Recorder) -> None:
        """Takes over a bound socket."""
        self._recorder = recorder
        self._socket = LoopSocket(socket)
        self._max_message_bytes = max_message_bytes
        self._endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)

    @property
    def endpoint(self) -> str:
        """See ServerChannel."""
        return self._endpoint

    def try_send(self, peer: PeerId, frames: Sequence[Frame]) -> SendOutcome:
        """See ServerChannel."""
        views = checked(frames, self._max_message_bytes)
        try:
            self._socket.send([memoryview(peer), *views])
        except zmq.Again:
            return SendOutcome.FULL
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return SendOutcome.GONE
            raise
        self._recorder.note(views, sent=True, peer=peer)
        return SendOutcome.SENT

    async def receive_many(self) -> list[tuple[PeerId, list[memoryview]]]:
        """See ServerChannel."""
        received = await self._socket.receive_many()
        messages = [(frames[0].bytes, [_view(frame) for frame in frames[1:]]) for frames in received]
        for peer, frames in messages:
            self._recorder.note(frames, sent=False, peer=peer)
        return messages

    def close(self, linger_s: float = 1.0) -> None:
        """See ServerChannel."""
        self._socket.close(linger_s)


def _view(frame: zmq.Frame) -> memoryview:
    """The frame's memory. A small frame is copied: its memory may be part of a larger buffer, which it would keep."""
    return memoryview(frame.bytes) if len(frame) < COPY_BELOW_BYTES else frame.buffer


def _try_bind(socket: zmq.Socket[bytes], endpoint: str) -> bool:
    """Binds; False where the address is in use."""
    if is_served(endpoint):
        return False
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        if error.errno == zmq.EADDRINUSE:
            return False
        raise ConfigError(f"cannot bind {endpoint!r}: {error.strerror}") from error
    return True
