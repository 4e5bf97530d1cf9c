"""Channels over ZeroMQ: DEALER connects, ROUTER binds."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import zmq

from parl_mq.errors import ConfigError
from parl_mq.net.capture import Capture
from parl_mq.net.channel import Frame, LinkEvent, PeerId, SendOutcome
from parl_mq.net.curve import ZAP_DOMAIN, Guard, KeyPair, RefusalMonitor, Routes, ZapHandler
from parl_mq.net.endpoints import check_endpoint, is_ipv6, is_private, is_served, port_of
from parl_mq.net.frames import MAX_MESSAGE_BYTES, QUEUE_MESSAGES, checked
from parl_mq.net.zmq_socket import COPY_BELOW_BYTES, LoopSocket, Monitor, set_options

BIND_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Between attempts to bind an address that is in use: a node that restarts may meet its own past."""


log = logging.getLogger("parl_mq")


def _make_routing_ids_hard_to_guess() -> None:
    """Begins the ids that libzmq gives to peers elsewhere than at a first `rand()`, which nobody seeds.

    A peer that chose the next one as its own would end this process by an assertion of libzmq.
    """
    ctypes.CDLL(None).srand(int.from_bytes(os.urandom(4), "little"))


class Network:
    """Makes the channels of one process, and closes them all. Belongs to the loop in which they are made.

    `ipc://` is private to this machine and has no keys. `tcp://` is encrypted where this process has them: as a client
    with its own pair and the server's key, as a server with a guard.
    """

    def __init__(
        self,
        *,
        sleep: Callable[[float], None] = time.sleep,
        capture: Capture | None = None,
        pair: KeyPair | None = None,
        guard: Guard | None = None,
        is_insecure: bool = False,
    ) -> None:
        """Makes a network without a channel.

        Args:
            sleep: waits some seconds between two attempts to bind.
            capture: keeps every message that is sent or received; closed with the network.
            pair: with which it connects; then it connects over tcp to servers alone whose keys it was told.
            guard: of the tcp endpoints that it binds; without it they are not encrypted.
            is_insecure: such endpoints may be reachable by other machines all the same.
        """
        _make_routing_ids_hard_to_guess()
        self._context = zmq.Context(1 if guard is None else 2)  # one thread for the transport encrypts 1 GB/s
        self._channels: list[ZmqClientChannel | ZmqServerChannel] = []
        self._sleep = sleep
        self._capture = capture
        self._pair = pair
        self._server_keys: dict[str, str] = {}
        self._guard = guard
        self._zap: ZapHandler | None = None
        self._is_insecure = is_insecure

    def trust(self, server_keys: Mapping[str, str]) -> None:
        """Takes the keys of servers, endpoint -> public key, for later connections."""
        self._server_keys.update(server_keys)

    def connect(
        self, endpoint: str, max_message_bytes: int = MAX_MESSAGE_BYTES, *, queue_messages: int = QUEUE_MESSAGES
    ) -> ZmqClientChannel:
        """A client channel. The peer need not be there yet, and may go and come back.

        Args:
            endpoint: `ipc://PATH` or `tcp://HOST:PORT`.
            max_message_bytes: largest frame; a peer that sends a larger one is cut.
            queue_messages: messages that may wait at this end, in each direction.

        Raises:
            ConfigError: the endpoint cannot be an address, or its server's key is not known.
        """
        check_endpoint(endpoint)
        server_key = self._server_key(endpoint)
        socket = self._socket(zmq.DEALER, endpoint, max_message_bytes, queue_messages)
        if self._pair is not None and server_key is not None:
            socket.curve_publickey, socket.curve_secretkey = self._pair.public.encode(), self._pair.secret.encode()
            socket.curve_serverkey = server_key.encode()
        channel = ZmqClientChannel(socket, max_message_bytes, _Recorder(endpoint, self._capture))
        self._channels.append(channel)
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise ConfigError(f"cannot connect to {endpoint!r}: {error.strerror}") from error
        return channel

    def bind(
        self,
        endpoint: str,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        *,
        queue_messages: int = QUEUE_MESSAGES,
        also: Sequence[str] = (),
    ) -> ZmqServerChannel:
        """A server channel.

        An address in use is tried again for three seconds, in which this call blocks: it belongs to a node's start.

        Args:
            endpoint: `ipc://PATH` or `tcp://HOST:PORT`; port 0 takes any free one.
            max_message_bytes: largest frame; a peer that sends a larger one is cut.
            queue_messages: messages that may wait at this end for each peer, in each direction.
            also: further addresses of the same channel.

        Raises:
            ConfigError: an address is in use, not on this machine, none, or others could reach it without a key.
        """
        wanted = (endpoint, *also)
        for each in wanted:
            check_endpoint(each)
            self._check_may_bind(each)
        socket = self._socket(zmq.ROUTER, endpoint, max_message_bytes, queue_messages)
        try:
            bound = {each: self._bound(socket, each) for each in sorted(wanted)}  # those without keys come first
        except ConfigError:
            socket.close(0)
            raise
        is_guarded = self._guard is not None and any(each.startswith("tcp://") for each in wanted)
        channel = ZmqServerChannel(
            socket,
            max_message_bytes,
            _Recorder(endpoint, self._capture),
            endpoints=[bound[each] for each in wanted],
            routes=Routes(self._guard.admit if is_guarded and self._guard is not None else None),
            monitor=RefusalMonitor(socket, bound[wanted[-1]]) if is_guarded else None,
        )
        self._channels.append(channel)
        return channel

    def close(self, linger_s: float = 0.5) -> None:
        """Closes every channel, and blocks until what is unsent has left, `linger_s` at most."""
        for channel in self._channels:
            channel.close(linger_s)
        if self._zap is not None:
            self._zap.close()
            self._zap = None
        self._context.term()
        if self._capture is not None:
            self._capture.close()

    def _socket(self, kind: int, endpoint: str, max_message_bytes: int, queue_messages: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        set_options(socket, max_message_bytes=max_message_bytes, queue_messages=queue_messages)
        socket.setsockopt(zmq.IPV6, int(is_ipv6(endpoint)))
        return socket

    def _server_key(self, endpoint: str) -> str | None:
        """The key that the server of a tcp endpoint must prove; None: none is asked for."""
        if self._pair is not None and endpoint.startswith("tcp://"):
            if endpoint not in self._server_keys:
                raise ConfigError(f"the key of the server at {endpoint} is not known, so no connection is made")
            return self._server_keys[endpoint]
        if not is_private(endpoint):
            log.warning("the connection to %s is neither encrypted nor does it prove who is there", endpoint)
        return None

    def _check_may_bind(self, endpoint: str) -> None:
        if is_private(endpoint) or self._guard is not None:
            return
        if not self._is_insecure:
            raise ConfigError(
                f"cannot bind {endpoint!r}: other machines could reach it, and without keys anyone there could take "
                "part; use keys (docs/attach.md), a loopback address, or --insecure in a network that you trust whole"
            )
        log.warning("--insecure: whoever reaches %s may take part in this run, read it and change it", endpoint)

    def _bound(self, socket: zmq.Socket[bytes], endpoint: str) -> str:
        """Binds one address; returns it with its real port."""
        socket.setsockopt(zmq.IPV6, int(is_ipv6(endpoint)))
        if self._guard is not None and endpoint.startswith("tcp://"):
            self._ask_for_keys(socket, self._guard)
        self._bind(socket, endpoint)
        return socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def _ask_for_keys(self, socket: zmq.Socket[bytes], guard: Guard) -> None:
        """Holds for what is bound afterwards."""
        if self._zap is None:
            self._zap = ZapHandler(self._context, guard.admit)
        socket.curve_server = 1
        socket.curve_publickey, socket.curve_secretkey = guard.pair.public.encode(), guard.pair.secret.encode()
        socket.zap_domain = ZAP_DOMAIN

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

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        max_message_bytes: int,
        recorder: _Recorder,
        *,
        endpoints: Sequence[str],
        routes: Routes,
        monitor: RefusalMonitor | None,
    ) -> None:
        """Takes over a bound socket."""
        self._recorder = recorder
        self._socket = LoopSocket(socket)
        self._max_message_bytes = max_message_bytes
        self._endpoints = endpoints
        self._routes = routes
        self._monitor = monitor

    @property
    def endpoint(self) -> str:
        """See ServerChannel."""
        return self._endpoints[0]

    @property
    def endpoints(self) -> Sequence[str]:
        """See ServerChannel."""
        return self._endpoints

    def key_of(self, peer: PeerId) -> str | None:
        """See ServerChannel."""
        return self._routes.key_of(peer)

    def cut(self, peer: PeerId) -> bool:
        """See ServerChannel."""
        return self._routes.cut(peer)

    def cut_denied(self) -> Sequence[str]:
        """See ServerChannel."""
        return self._routes.cut_denied({port_of(each) for each in self._endpoints if each.startswith("tcp://")})

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
        messages: list[tuple[PeerId, list[memoryview]]] = []
        while not messages:
            for received in await self._socket.receive_many():
                peer = received[0].bytes
                if self._routes.takes(peer, received[-1]):
                    messages.append((peer, [_view(frame) for frame in received[1:]]))
        for peer, frames in messages:
            self._recorder.note(frames, sent=False, peer=peer)
        return messages

    def close(self, linger_s: float = 1.0) -> None:
        """See ServerChannel."""
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None
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
