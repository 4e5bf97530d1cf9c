"""Replies that wait for room in their peers' queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from parl_mq.net.channel import Frame, PeerId, SendOutcome, ServerChannel

MAX_WAITING: Final = 1_000
"""Replies to one peer, behind as many in the transport: one that reads nothing for so long takes no more memory."""


class Backlog:
    """Replies that a peer's full queue could not take yet. A peer that lets too many of them wait is cut."""

    def __init__(
        self, channel: ServerChannel, cut: Callable[[PeerId], object], *, max_waiting: int = MAX_WAITING
    ) -> None:
        """Begins without any.

        Args:
            channel: the socket.
            cut: closes a peer's connection.
            max_waiting: replies to one peer.
        """
        self._channel = channel
        self._cut = cut
        self._max_waiting = max_waiting
        self._waiting: dict[PeerId, list[list[Frame]]] = {}

    def send(self, replies: Iterable[tuple[PeerId, list[Frame]]]) -> list[PeerId]:
        """Sends now what can be sent now, in order for each peer.

        Returns:
            Peers that turned out to be gone, or were cut; what was for them is dropped.
        """
        for peer, frames in replies:
            self._waiting.setdefault(peer, []).append(frames)
        return self.flush()

    def flush(self) -> list[PeerId]:
        """Tries again, as `send` without replies."""
        gone = []
        for peer in list(self._waiting):
            queue = self._waiting.pop(peer)
            num_sent, outcome = self._send_to(peer, queue)
            if outcome is SendOutcome.FULL and len(queue) - num_sent > self._max_waiting:
                self._cut(peer)
                gone.append(peer)
            elif outcome is SendOutcome.FULL:
                self._waiting[peer] = queue[num_sent:]
            elif outcome is SendOutcome.GONE:
                gone.append(peer)
        return gone

    def _send_to(self, peer: PeerId, queue: list[list[Frame]]) -> tuple[int, SendOutcome]:
        """Sends while the channel takes it; how many messages it took, and what became of the last one."""
        for num_sent, frames in enumerate(queue):
            if (outcome := self._channel.try_send(peer, frames)) is not SendOutcome.SENT:
                return num_sent, outcome
        return len(queue), SendOutcome.SENT
