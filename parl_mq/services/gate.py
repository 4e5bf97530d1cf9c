"""What stands between a server socket and the service behind it: everything that comes is checked here first."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from parl_mq.errors import EXIT_CONFIG, EXIT_NOT_ALLOWED, WireError
from parl_mq.net.channel import Frame, PeerId, ServerChannel
from parl_mq.net.conduct import FAULTS, MESSAGES, Budget
from parl_mq.services.complaints import Complaints
from parl_mq.services.permits import Permits
from parl_mq.wire.codec import Arrays, Decoder, encode, unpacked
from parl_mq.wire.messages import (
    PROTOCOL_VERSION,
    Attach,
    AttachRefused,
    Goodbye,
    Hello,
    HelloRefused,
    Message,
    ProbeRequest,
    StatusRequest,
    WeightsWanted,
)

COSTS: Final[Mapping[type[Message], int]] = {
    Hello: 30,
    Attach: 30,
    Goodbye: 100,
    StatusRequest: 30,
    ProbeRequest: 30,
    WeightsWanted: 10,
}
"""Messages that take as much time as so many others: they are written down, or are about all nodes."""
NOBODY: Final = Permits(lambda key: None)
"""Permits of a socket that is not guarded: nobody there has a key."""


class Gate:
    """Reads, checks and counts what comes to one socket.

    A message goes on only if it is whole and of a kind for this socket (Decoder), if its sender's key is good for it
    (Permits), and if the sender keeps its pace (Budget). All others are dropped and counted; who sends many of them is
    cut. The service says so too where a message is found wrong later: `refuse`.
    """

    def __init__(
        self,
        channel: ServerChannel,
        union: Any,
        *,
        socket: str,
        permits: Permits = NOBODY,
        max_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Makes a gate.

        Args:
            channel: the socket.
            union: of the messages that are for it.
            socket: its name, for the log.
            permits: what the keys are good for.
            max_bytes: of a whole message; None leaves that to the transport.
            clock: monotonic, s.
        """
        self._channel = channel
        self._decode = Decoder(union, max_bytes=max_bytes)
        self._permits = permits
        self._clock = clock
        self._complaints = Complaints(socket, clock)
        self._messages: Budget[bytes] = Budget(MESSAGES)
        self._faults: Budget[bytes] = Budget(FAULTS)

    @property
    def num_dropped(self) -> int:
        """Messages that were dropped."""
        return self._complaints.num_dropped

    @property
    def num_cut(self) -> int:
        """Connections that were closed because of their messages."""
        return self._complaints.num_cut

    def admit(self, peer: PeerId, frames: Sequence[Frame]) -> tuple[Message, Arrays] | None:
        """The message in these frames; None where it must not go on."""
        key = self._channel.key_of(peer)
        if not self._keeps_pace(peer, 1):
            return None
        try:
            message, arrays = self._decode(frames)
        except WireError as error:
            if not self._answer_other_version(peer, frames):
                self._note(peer, error, "unreadable")
            return None
        if not self._keeps_pace(peer, COSTS.get(type(message), 0)):
            return None
        reason = self._permits.why_not(key, message)
        if reason is None:
            return message, arrays
        self._turn_away(peer, message, reason)
        return None

    def _keeps_pace(self, peer: PeerId, cost: int) -> bool:
        if self._messages.spend(_who(peer, self._channel.key_of(peer)), cost, self._clock()):
            return True
        self._complaints.note(self._name(peer), WireError("more messages a second than any node sends"), "too many")
        self._cut(peer)
        return False

    def refuse(self, peer: PeerId, message: Message, error: WireError) -> None:
        """A message that had been admitted was wrong in what it says, and nothing has come of it."""
        self._note(peer, error, type(message).__name__)

    def told(self, peer: PeerId, answer: Message) -> None:
        """An answer of the service; a refusal is logged at this end too."""
        if isinstance(answer, HelloRefused | AttachRefused):
            self._complaints.note_refused(self._name(peer), answer.reason)

    def told_failure(self, peer: PeerId, error: str) -> None:
        """A node has ended, and says why."""
        self._complaints.note_failed(self._name(peer), error)

    def cut_unread(self, peer: PeerId) -> None:
        """Closes the connection of a peer that does not read what it is sent."""
        self._cut(peer, "it does not read what it asks for")

    def _turn_away(self, peer: PeerId, message: Message, reason: str) -> None:
        match message:
            case Hello():
                self._say(peer, HelloRefused(reason=reason, exit_code=EXIT_NOT_ALLOWED))
            case Attach():
                self._say(peer, AttachRefused(reason=reason, exit_code=EXIT_NOT_ALLOWED))
            case _:
                self._note(peer, WireError(reason), type(message).__name__)

    def _answer_other_version(self, peer: PeerId, frames: Sequence[Frame]) -> bool:
        """Tells a node that speaks another protocol so; its first message need not have the form that it has here."""
        try:
            header = unpacked(frames[0]) if len(frames) == 1 else {}
        except WireError:
            return False
        kind, protocol, name = header.get("kind"), header.get("protocol"), header.get("name")
        if kind not in ("hello", "attach") or not isinstance(protocol, int) or protocol == PROTOCOL_VERSION:
            return False
        reason = f"{name!s:.64} speaks protocol {protocol}, this run speaks {PROTOCOL_VERSION}"
        refused = HelloRefused if kind == "hello" else AttachRefused
        self._say(peer, refused(reason=f"{reason}; install the same version on both", exit_code=EXIT_CONFIG))
        return True

    def _say(self, peer: PeerId, refusal: HelloRefused | AttachRefused) -> None:
        self._complaints.note_refused(self._name(peer), refusal.reason)
        self._channel.try_send(peer, encode(refusal))
        if not self._faults.spend(_who(peer, self._channel.key_of(peer)), 1, self._clock()):
            self._cut(peer)

    def _note(self, peer: PeerId, error: WireError, kind: str) -> None:
        self._complaints.note(self._name(peer), error, kind)
        if not self._faults.spend(_who(peer, self._channel.key_of(peer)), 1, self._clock()):
            self._cut(peer)

    def _cut(self, peer: PeerId, why: str = "too many such messages") -> None:
        name = self._name(peer)
        if self._channel.cut(peer):
            self._complaints.note_cut(name, why)

    def _name(self, peer: PeerId) -> PeerId | str:
        return self._permits.name_of(self._channel.key_of(peer)) or peer


def _who(peer: PeerId, key: str | None) -> bytes:
    """Whose account a message goes to: its key's, which stays the same in the next connection, else its route's."""
    return peer if key is None else key.encode()
