"""Replies that wait for room in their peers' queues."""

from __future__ import annotations

from collections.abc import Iterable

from parl_mq.net.channel import Frame, PeerId, SendOutcome, ServerChannel


class Backlog:
    """Replies that a peer's full queue could not take yet; bounded by what the peer may ask for at once."""

    def __init__(self, channel: ServerChannel) -> None:
        self._channel = channel
        self._waiting: dict[PeerId, list[list[Frame]]] = {}

    def send(self, replies: Iterable[tuple[PeerId, list[Frame]]]) -> None:
        """Sends now what can be sent now, in order for each peer."""
        for peer, frames in replies:
            self._waiting.setdefault(peer, []).append(frames)
        self.flush()

    def flush(self) -> None:
        """Tries again; what belongs to a peer that is gone is dropped."""
        for peer in list(self._waiting):
            queue = self._waiting.pop(peer)
            while queue:
                outcome = self._channel.try_send(peer, queue[0])
                if outcome is SendOutcome.FULL:
                    self._waiting[peer] = queue
                    break
                queue = [] if outcome is SendOutcome.GONE else queue[1:]
