"""Replies that wait for room in their peers' queues."""

from __future__ import annotations

from collections.abc import Iterable

from parl_mq.net.channel import Frame, PeerId, SendOutcome, ServerChannel


class Backlog:
    """Replies that a peer's full queue could not take yet; bounded by what the peer may ask for at once."""

    def __init__(self, channel: ServerChannel) -> None:
        self._channel = channel
        self._waiting: dict[PeerId, list[list[Frame]]] = {}

    def send(self, replies: Iterable[tuple[PeerId, list[Frame]]]) -> list[PeerId]:
        """Sends now what can be sent now, in order for each peer.

        Returns:
            Peers that turned out to be gone; what was for them is dropped.
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
            if outcome is SendOutcome.FULL:
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
