"""Bad messages: all of them counted, the first one of each peer and kind logged."""

from __future__ import annotations

import logging
from typing import Final

from parl_mq.errors import WireError
from parl_mq.net.channel import PeerId

MAX_LOGGED: Final = 1_000
"""A stranger who connects anew for each bad message fills no log either."""

log = logging.getLogger("parl_mq")


class Complaints:
    """What came to one socket and was dropped.

    Attributes:
        num_dropped: messages.
        num_cut: connections that were closed because of them.
    """

    def __init__(self, socket: str) -> None:
        """Begins without any.

        Args:
            socket: the socket's name, for the log.
        """
        self.num_dropped = 0
        self.num_cut = 0
        self._socket = socket
        self._logged: set[tuple[PeerId | str, str]] = set()

    def note(self, peer: PeerId | str, error: WireError, kind: str = "unreadable") -> None:
        """A message of this peer was dropped.

        Args:
            peer: its name where it has one, else its route.
            error: what was wrong.
            kind: of the message.
        """
        self.num_dropped += 1
        if self._is_new(peer, kind):
            who = peer if isinstance(peer, str) else "somebody without a key"
            log.warning(
                "dropped a message of %s on the %s socket, and will drop others like it: %s", who, self._socket, error
            )

    def note_cut(self, peer: PeerId | str) -> None:
        """The connection of this peer was closed because it had sent too many bad messages."""
        self.num_cut += 1
        if self._is_new(peer, "cut"):
            who = peer if isinstance(peer, str) else "somebody without a key"
            log.warning("closed the connection of %s to the %s socket: too many such messages", who, self._socket)

    def note_refused(self, peer: PeerId | str, reason: str) -> None:
        """A node was told that it may not take part."""
        if self._is_new(peer, reason):
            log.warning("refused on the %s socket: %s", self._socket, reason)

    def _is_new(self, peer: PeerId | str, kind: str) -> bool:
        if (peer, kind) in self._logged or len(self._logged) >= MAX_LOGGED:
            return False
        self._logged.add((peer, kind))
        return True
