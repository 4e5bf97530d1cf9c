"""Bad messages: all of them counted, and logged ever less often."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from parl_mq.errors import WireError
from parl_mq.net.channel import PeerId
from parl_mq.net.conduct import Telling

log = logging.getLogger("parl_mq")


class Complaints:
    """What came to one socket and was dropped.

    Attributes:
        num_dropped: messages.
        num_cut: connections that were closed because of them.
    """

    def __init__(self, socket: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins without any.

        Args:
            socket: the socket's name, for the log.
            clock: monotonic, s.
        """
        self.num_dropped = 0
        self.num_cut = 0
        self._socket = socket
        self._telling = Telling(clock)

    def note(self, peer: PeerId | str, error: WireError, kind: str = "unreadable") -> None:
        """A message of this peer was dropped.

        Args:
            peer: its name where it has one, else its route.
            error: what was wrong.
            kind: of the message.
        """
        self.num_dropped += 1
        self._tell(
            peer, kind, "dropped a message of {who} on the {socket} socket, and will drop others like it: {what}", error
        )

    def note_cut(self, peer: PeerId | str, why: str) -> None:
        """The connection of this peer was closed, and why."""
        self.num_cut += 1
        self._tell(peer, why, "closed the connection of {who} to the {socket} socket: {what}", why)

    def note_refused(self, peer: PeerId | str, reason: str) -> None:
        """A node was told that it may not take part."""
        self._tell(peer, reason, "refused on the {socket} socket: {what}", reason)

    def note_failed(self, peer: PeerId | str, error: str) -> None:
        """A node has ended with an error."""
        self._tell(peer, error, "a node has failed: {what}", error, level=logging.ERROR)

    def _tell(self, peer: PeerId | str, kind: str, text: str, what: object, *, level: int = logging.WARNING) -> None:
        who = peer if isinstance(peer, str) else "somebody without a key"
        if (num_untold := self._telling.due(who, kind)) is not None:
            again = f" ({num_untold} times more since this was last said)" if num_untold else ""
            log.log(level, "%s%s", text.format(who=who, socket=self._socket, what=what), again)
