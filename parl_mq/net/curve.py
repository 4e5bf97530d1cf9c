"""CURVE: key pairs, who may connect, and whose key each connection has.

Keys are Z85 text of 40 characters. The transport encrypts and proves the keys; whether a key is welcome it asks over
ZAP, a socket within the process. pyzmq brings a handler for that, but one that lives in a task of its own on sockets of
zmq.asyncio, which do not go with `LoopSocket`; and it can only say yes or no. This one answers in the loop's reader.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import hashlib
import logging
import os
import socket
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from parl_mq.errors import ConfigError
from parl_mq.net.channel import PeerId
from parl_mq.net.conduct import Telling

KEY_CHARACTERS: Final = 40
ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
ZAP_DOMAIN: Final = b"parl_mq"
MAX_ROUTES: Final = 10_000
"""Connections that are remembered; one that is forgotten is learnt again from its next message."""
_ZAP_FRAMES: Final = 9
"""Route, delimiter, version, request id, domain, address, routing id, mechanism, key: of a CURVE request."""

log = logging.getLogger("parl_mq")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair. The secret half is never shown.

    Attributes:
        public: known to the other end, and this end's identity.
        secret: proves that the public one is this end's.
    """

    public: str
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        """Raises ConfigError where these are no keys, or do not belong together."""
        check_key(self.public)
        check_key(self.secret)
        if zmq.curve_public(self.secret.encode()).decode() != self.public:
            raise ConfigError(f"the secret key does not belong to the public key {self.public}")


def new_key_pair() -> KeyPair:
    """A new pair, from the system's source of chance."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def check_key(key: str) -> None:
    """Raises ConfigError where the text can be no key; it does not say the text, which may be a secret."""
    try:
        is_key = len(key) == KEY_CHARACTERS and len(z85.decode(key.encode("ascii"))) == 32
    except (ValueError, KeyError, UnicodeEncodeError):
        is_key = False
    if not is_key:
        raise ConfigError(f"a key has {KEY_CHARACTERS} characters of the Z85 alphabet; this text is none")


def fingerprint(key: str) -> str:
    """Sixteen hexadecimal digits of a public key, for people to compare."""
    digits = hashlib.sha256(key.encode()).hexdigest()[:16]
    return "-".join(digits[start : start + 4] for start in range(0, 16, 4))


class Verdict(enum.Enum):
    """What becomes of a key that asks to connect."""

    WELCOME = b"200"
    LATER = b"300"  # it is not known yet, but may be soon: the peer tries again by itself, 3 s later
    DENIED = b"400"  # the peer is told, and does not try again


Admit = Callable[[str], Verdict]


@dataclass(frozen=True, slots=True)
class Guard:
    """What a process needs in order to bind guarded sockets.

    Attributes:
        pair: the server's own.
        admit: asked at each handshake and for each message, so it must be quick.
    """

    pair: KeyPair
    admit: Admit


class ZapHandler:
    """Answers the transport's question who may connect, for all sockets of one context."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], admit: Admit) -> None:
        """Begins to answer; needs a running loop, and must be there before the first handshake."""
        self._admit = admit
        self._telling = Telling(time.monotonic)
        self._socket: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        self._socket.bind(ZAP_ENDPOINT)
        self._loop = asyncio.get_running_loop()
        self._fd = int(self._socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self._answer)
        self._answer()  # until a socket has been found empty, it does not signal

    def close(self) -> None:
        """Stops; later handshakes fail."""
        self._loop.remove_reader(self._fd)
        self._socket.close(0)

    def _answer(self) -> None:
        while int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._socket.send_multipart(self._judged(self._socket.recv_multipart(zmq.NOBLOCK)), zmq.NOBLOCK)

    def _judged(self, request: Sequence[bytes]) -> list[bytes]:
        route, _, version, request_id, _, address = request[:6]
        is_curve = len(request) == _ZAP_FRAMES and request[7] == b"CURVE"
        key = z85.encode(request[8]).decode() if is_curve else ""
        verdict = self._admit(key) if is_curve else Verdict.DENIED
        if verdict is Verdict.DENIED:
            self._tell(key, address.decode(errors="replace"))
        user = key.encode() if verdict is Verdict.WELCOME else b""
        return [route, b"", version, request_id, verdict.value, verdict.name.encode(), user, b""]

    def _tell(self, key: str, address: str) -> None:
        if self._telling.due(address, key) is not None:
            log.warning(
                "refused a connection from %s: its key %s (fingerprint %s) is not allowed here; `parl-mq keys list` "
                "shows which are",
                address,
                key,
                fingerprint(key),
            )


@dataclass(frozen=True, slots=True)
class _Route:
    """A connection: whose key it has, and which socket of the system it is."""

    key: str | None
    fd: int
    inode: int


class Routes:
    """The connections of one server socket.

    The peer chooses its routing id if it wants to, so only the key in a message says who sent it: a message under the
    routing id of another key's connection is nobody's.
    """

    def __init__(self, admit: Admit | None) -> None:
        """Begins without any.

        Args:
            admit: which keys are welcome; None: the socket is not guarded, and nobody has a key.
        """
        self._admit = admit
        self._routes: dict[PeerId, _Route] = {}

    def takes(self, peer: PeerId, frame: zmq.Frame) -> bool:
        """Whether a message may be read; the sender of one that may not is cut."""
        key = None if self._admit is None else _key_of(frame)
        route = self._routes.get(peer)
        if route is None or route.key != key:
            if route is not None and _is_open(route):
                return False
            route = self._routes[peer] = _route_of(key, frame)
            while len(self._routes) > MAX_ROUTES:
                del self._routes[next(iter(self._routes))]
        if key is None or self._admit is None or self._admit(key) is Verdict.WELCOME:
            return True
        self.cut(peer)
        return False

    def key_of(self, peer: PeerId) -> str | None:
        """The key of whoever sent the last message by this route; None for a peer of this machine without a key.

        Empty, which is no key and welcome nowhere, for a guarded socket's route that was cut or is not known.
        """
        route = self._routes.get(peer)
        if route is None:
            return None if self._admit is None else ""
        return route.key

    def cut(self, peer: PeerId) -> bool:
        """Closes a connection. The transport has no word for that, so the system's socket is shut down under it.

        Returns:
            False where it has ended already.
        """
        if (route := self._routes.pop(peer, None)) is None or not _is_open(route):
            return False
        try:
            with socket.socket(fileno=os.dup(route.fd)) as connection:
                connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other end was quicker
            return False
        return True

    def cut_denied(self, ports: Collection[int]) -> list[str]:
        """Closes the connections of keys that are not welcome any more; returns these keys.

        Whose a connection is that has said nothing yet, nobody knows: those to these ports are closed, too, and those
        who may come back.
        """
        admit = self._admit
        if admit is None:
            return []
        denied = [
            (peer, route.key)
            for peer, route in self._routes.items()
            if route.key is not None and admit(route.key) is not Verdict.WELCOME
        ]
        for peer, _ in denied:
            self.cut(peer)
        known = {route.inode for route in self._routes.values()}
        for inode, connection in _connections_to(ports):
            if inode not in known:
                with contextlib.suppress(OSError):  # the other end was quicker
                    connection.shutdown(socket.SHUT_RDWR)
        return [key for _, key in denied]


class RefusalMonitor:
    """Tells the log of handshakes that failed before any key was known."""

    def __init__(self, watched: zmq.Socket[bytes], endpoint: str) -> None:
        """Begins to watch a server socket; needs a running loop."""
        self._watched = watched
        self._endpoint = endpoint
        self._telling = Telling(time.monotonic)
        self._loop = asyncio.get_running_loop()
        self._socket: zmq.Socket[bytes] = watched.get_monitor_socket(sum(_FAILED))
        self._fd = int(self._socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self._read)
        self._read()

    def close(self) -> None:
        """Stops watching; to be called before the watched socket is closed."""
        self._loop.remove_reader(self._fd)
        self._watched.disable_monitor()
        self._socket.close(0)

    def _read(self) -> None:
        while int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            happened = parse_monitor_message(self._socket.recv_multipart(zmq.NOBLOCK))
            what = _what_failed(zmq.Event(happened["event"]), int(happened["value"]))
            if self._telling.due(self._endpoint, what) is not None:
                log.warning("no connection to %s: whoever it was %s", self._endpoint, what)


def _what_failed(event: zmq.Event, value: int) -> str:
    if event is zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:  # of two ends that do not go together the other may see it first
        return "hung up in the midst of the handshake; if a node is missing, it may have no key: give it a join file"
    return _FAILURES.get(value, f"does not speak the protocol (error {value:#x})")


_FAILED: Final = (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
_FAILURES: Final[dict[int, str]] = {
    zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH: "has no key, or another way to prove it; give it a join file",
    zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC: "expects another server key than this one's; its join file is another run's",
}


def _key_of(frame: zmq.Frame) -> str | None:
    try:
        return str(frame.get("User-Id")) or None
    except zmq.ZMQError:  # a socket that is private to this machine asks for no key
        return None


def _route_of(key: str | None, frame: zmq.Frame) -> _Route:
    try:
        fd = int(frame.get(zmq.SRCFD))
        status = os.fstat(fd)
        if stat.S_ISSOCK(status.st_mode):
            return _Route(key, fd, status.st_ino)
    except (zmq.ZMQError, OSError):
        pass
    return _Route(key, -1, 0)  # the connection has ended, and the number may be another file's; what it sent is read


def _connections_to(ports: Collection[int]) -> Iterator[tuple[int, socket.socket]]:
    """This process's connections that came to its tcp ports, with their inodes; each is open for the caller's turn."""
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # it is not connected, or gone since it was listed
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as found:
                is_tcp = found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM
                if is_tcp and found.getsockname()[1] in ports and found.getpeername():
                    yield os.fstat(number).st_ino, found


def _is_open(route: _Route) -> bool:
    """Whether the system's socket is still the connection's: numbers are given out again, inodes are not so soon."""
    try:
        return route.fd >= 0 and os.fstat(route.fd).st_ino == route.inode
    except OSError:
        return False
