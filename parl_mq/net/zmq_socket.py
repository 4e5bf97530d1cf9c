"""One ZeroMQ socket in an event loop: its options, waiting for it, and its monitor.

The loop watches the socket's file descriptor itself; messages are then read and written without waiting. A socket of
zmq.asyncio would not do: it does not see what is sent or read beside it, and the descriptor is edge-triggered, so that
any such call may consume the sign that a waiting task needs.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Sequence
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from parl_mq.errors import ChannelClosed
from parl_mq.net.channel import LinkEvent
from parl_mq.net.frames import MAX_EVENTS, MESSAGES_PER_CALL
from parl_mq.net.waiters import Waiters

COPY_BELOW_BYTES: Final = 64 * 1024
"""Smaller frames are copied: that is cheaper than sharing their memory with the transport."""
MAX_FRAMES_READ: Final = 8
"""Of a message with more frames the rest is dropped: nobody sends that many, and the decoder refuses it."""
LOOK_AGAIN_S: Final = 1.0
"""A net: tasks that wait look again after this time, should a sign ever be lost."""

_NOBLOCK: Final = int(zmq.NOBLOCK)  # arithmetic on pyzmq's enumerations costs as much as a call of zmq
_MORE_FOLLOWS: Final = int(zmq.NOBLOCK | zmq.SNDMORE)

_HANDSHAKES: Final = {
    zmq.EVENT_HANDSHAKE_SUCCEEDED: LinkEvent.CONNECTED,
    zmq.EVENT_DISCONNECTED: LinkEvent.DISCONNECTED,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: LinkEvent.REFUSED,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: LinkEvent.REFUSED,
}
"""A handshake that failed without detail is none: the peer died or timed out in the middle of it."""
HUNG_UP_TIMES: Final = 3
"""A server that does not have the key that it is to prove cannot say so; it hangs up in the middle of the handshake. So
may one that dies, but not so often in a row."""
HANDSHAKE_MS: Final = 3000
"""The transport's own limit would hold a half-open stranger for 30 s."""
HUNG_UP_WITHIN_S: Final = HANDSHAKE_MS / 2000
"""So soon a server hangs up that lacks the key. One that does not know yet whom it may let in says nothing, and the
connection ends with the handshake's time."""


def set_options(socket: zmq.Socket[bytes], *, max_message_bytes: int, queue_messages: int) -> None:
    """All options of all sockets. They hold for what is bound or connected afterwards."""
    options = {
        zmq.LINGER: 1000,
        zmq.SNDHWM: queue_messages,
        zmq.RCVHWM: queue_messages,
        zmq.MAXMSGSIZE: max_message_bytes,
        zmq.HANDSHAKE_IVL: HANDSHAKE_MS,
        zmq.HEARTBEAT_IVL: 2000,
        zmq.HEARTBEAT_TIMEOUT: 6000,
        zmq.HEARTBEAT_TTL: 6000,
        zmq.TCP_KEEPALIVE: 1,
    }
    if socket.type == zmq.ROUTER:
        options[zmq.ROUTER_MANDATORY] = 1  # else a message for a full or unknown peer vanishes
    else:
        options[zmq.IMMEDIATE] = 1  # else a message for an absent peer is queued
        options[zmq.RECONNECT_IVL] = 200
        options[zmq.RECONNECT_IVL_MAX] = 10_000
    for option, value in options.items():
        socket.setsockopt(option, value)


class LoopSocket:
    """A socket and the tasks that wait for it.

    I1: whoever waits has found the socket empty, or full, by a call on it; and after every later call that may have
    changed that, and taken the descriptor's sign of it, the state is looked at.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        """Takes over a socket; needs a running loop."""
        self.socket = socket
        self._loop = asyncio.get_running_loop()
        self._readable, self._writable = Waiters(), Waiters()
        self._is_closed = False
        self._owes_turn = False
        self._will_look = False
        self._fd = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self._look)
        self._net = self._loop.call_later(LOOK_AGAIN_S, self._look_again)

    async def receive_many(self) -> list[list[zmq.Frame]]:
        """Waits for messages and returns those that are ready."""
        if self._owes_turn:  # the last call did not wait: without this, a flood would starve every other task
            self._owes_turn = False
            await asyncio.sleep(0)
        while not (messages := self._read()):
            await self._readable.wait()
        self._owes_turn = True
        return messages

    async def writable(self) -> None:
        """Waits, after a message was not taken, until one may be; that it will be is not sure."""
        self.check_open()
        await self._writable.wait()

    def send(self, frames: Sequence[memoryview]) -> None:
        """Sends without waiting.

        Raises:
            zmq.Again: the queue is full; nothing was sent. The same where a connection breaks between two frames, as
                long as the second is the last.
            zmq.ZMQError: EHOSTUNREACH: there is no such peer; nothing was sent.
        """
        self.check_open()
        last = len(frames) - 1
        try:
            for index, frame in enumerate(frames):
                flags = _MORE_FOLLOWS if index < last else _NOBLOCK
                self.socket.send(frame, flags, copy=frame.nbytes < COPY_BELOW_BYTES)
        finally:
            self._look_soon()

    def close(self, linger_s: float) -> None:
        """Closes the socket; whoever waits gets ChannelClosed."""
        if self._is_closed:
            return
        self._is_closed = True
        self._net.cancel()
        self._loop.remove_reader(self._fd)
        self.socket.close(round(linger_s * 1000))
        self._readable.wake()
        self._writable.wake()

    def check_open(self) -> None:
        """Raises ChannelClosed where it is closed."""
        if self._is_closed:
            raise ChannelClosed("the channel is closed")

    def _read(self) -> list[list[zmq.Frame]]:
        self.check_open()
        messages: list[list[zmq.Frame]] = []
        try:
            while len(messages) < MESSAGES_PER_CALL:
                messages.append(self._read_one())
        except zmq.Again:
            pass
        self._look_if_awaited()
        return messages

    def _read_one(self) -> list[zmq.Frame]:
        frames = [self.socket.recv(_NOBLOCK, copy=False)]
        has_more = frames[0].more
        while has_more:
            frame = self.socket.recv(_NOBLOCK, copy=False)  # messages arrive whole: it is there
            has_more = frame.more
            if len(frames) < MAX_FRAMES_READ:
                frames.append(frame)
        return frames

    def _look(self) -> None:
        """Wakes those who wait for the state that the socket is in."""
        events = int(self.socket.getsockopt(zmq.EVENTS))
        if events & zmq.POLLIN:
            self._readable.wake()
        if events & zmq.POLLOUT:
            self._writable.wake()

    def _look_soon(self) -> None:
        """Looks once for all messages that a task sends before it waits: a look costs as much as sending one."""
        if not self._will_look and (self._readable or self._writable):
            self._will_look = True
            self._loop.call_soon(self._look_after_sending)

    def _look_after_sending(self) -> None:
        self._will_look = False
        if not self._is_closed:
            self._look_if_awaited()

    def _look_if_awaited(self) -> None:
        if self._readable or self._writable:
            self._look()

    def _look_again(self) -> None:
        self._look_if_awaited()
        self._net = self._loop.call_later(LOOK_AGAIN_S, self._look_again)


class Monitor:
    """What happens to the connection of a connecting socket; made before it connects."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._watched = socket
        self._is_guarded = socket.getsockopt(zmq.MECHANISM) == zmq.CURVE
        self._num_hung_up, self._met_at = 0, 0.0
        self._loop = asyncio.get_running_loop()
        events = sum(_HANDSHAKES) | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_CONNECTED
        self._socket: zmq.Socket[bytes] = socket.get_monitor_socket(events)
        self._fd = int(self._socket.getsockopt(zmq.FD))
        self._events: deque[LinkEvent] = deque(maxlen=MAX_EVENTS)
        self._arrived = Waiters()
        self._is_connected = False
        self._is_closed = False
        self._loop.add_reader(self._fd, self._read)
        self._read()  # until a socket has been found empty, it does not signal

    async def next_event(self) -> LinkEvent:
        """Waits for an event, or ChannelClosed."""
        while not self._events:
            if self._is_closed:
                raise ChannelClosed("the channel is closed")
            await self._arrived.wait()
        return self._events.popleft()

    def close(self) -> None:
        """Stops watching; to be called before the watched socket is closed."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._fd)
        self._watched.disable_monitor()
        self._socket.close(0)
        self._arrived.wake()

    def _read(self) -> None:
        """Takes events out whether somebody wants them or not: a full monitor would stop the transport."""
        while int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            happened = parse_monitor_message(self._socket.recv_multipart(zmq.NOBLOCK))
            if (event := _HANDSHAKES.get(zmq.Event(happened["event"]))) is not None:
                self._note(event)
            elif happened["event"] == zmq.EVENT_CONNECTED:
                self._met_at = self._loop.time()
            elif self._is_guarded and happened["value"] == errno.EPIPE:
                self._note_hung_up()

    def _note_hung_up(self) -> None:
        if self._loop.time() - self._met_at > HUNG_UP_WITHIN_S:
            self._num_hung_up = 0
            return
        self._num_hung_up += 1
        if self._num_hung_up == HUNG_UP_TIMES:
            self._note(LinkEvent.REFUSED)

    def _note(self, event: LinkEvent) -> None:
        if event is LinkEvent.CONNECTED:
            self._num_hung_up = 0
        if event is LinkEvent.DISCONNECTED and not self._is_connected:
            return  # the end of an attempt that never became a connection
        self._is_connected = event is LinkEvent.CONNECTED
        self._events.append(event)
        self._arrived.wake()
