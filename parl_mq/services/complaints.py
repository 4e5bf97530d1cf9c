"""Bad messages: all of them counted, each peer's first one logged."""

from __future__ import annotations

import logging
from typing import Final

from parl_mq.errors import WireError
from parl_mq.net.channel import PeerId

MAX_PEERS_LOGGED: Final = 1_000
"""A stranger who connects anew for each bad message fills no log either."""

log = logging.getLogger("parl_mq")


class Complaints:
    """What came to one socket and was dropped.

    Attributes:
        num_dropped: messages.
    """

    def __init__(self, socket: str) -> None:
        """Begins without any.

        Args:
            socket: the socket's name, for the log.
        """
        self.num_dropped = 0
        self._socket = socket
        self._logged: set[PeerId] = set()

    def note(self, peer: PeerId, error: WireError) -> None:
        """A message of this peer was dropped."""
        self.num_dropped += 1
        if peer not in self._logged and len(self._logged) < MAX_PEERS_LOGGED:
            self._logged.add(peer)
            log.warning("dropped a message on the %s socket, and will drop others like it: %s", self._socket, error)
