"""How peers behave: how much they send, and how often they break the rules; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

MAX_PEERS: Final = 10_000
"""Peers that are remembered; of more, those go that were first heard of longest ago."""

Peer = TypeVar("Peer", bytes, str)


@dataclass(frozen=True, slots=True)
class Pace:
    """What a peer may do.

    Attributes:
        per_s: in the long run.
        burst: at once, after a time of quiet.
    """

    per_s: float
    burst: float


MESSAGES: Final = Pace(per_s=10_000, burst=50_000)
"""A client that does nothing else sends some thousand messages a second; a loop that was held up finds more waiting."""
FAULTS: Final = Pace(per_s=0.2, burst=20)
"""Messages that break a rule: a few may come of an accident, more are none."""


@dataclass(slots=True)
class _Account:
    """How much of its pace a peer has left, at the time when that was last reckoned."""

    left: float
    at: float


class Budget(Generic[Peer]):
    """One pace, kept by each of many peers."""

    def __init__(self, pace: Pace) -> None:
        """Begins; every peer has its whole burst."""
        self._pace = pace
        self._accounts: dict[Peer, _Account] = {}

    def spend(self, peer: Peer, amount: float, now: float) -> bool:
        """Takes from what a peer has left; False, and nothing is taken, where that is not enough.

        Args:
            peer: any.
            amount: as the pace counts.
            now: monotonic, s.
        """
        account = self._accounts.get(peer)
        if account is None:
            account = self._accounts[peer] = _Account(self._pace.burst, now)
            while len(self._accounts) > MAX_PEERS:
                del self._accounts[next(iter(self._accounts))]
        account.left = min(self._pace.burst, account.left + (now - account.at) * self._pace.per_s)
        account.at = now
        if account.left < amount:
            return False
        account.left -= amount
        return True
