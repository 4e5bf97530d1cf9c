"""How peers behave: how much they send, how often they break the rules, and how often that is said; pure."""

from __future__ import annotations

from collections.abc import Callable
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


LINES: Final = Pace(per_s=1 / 60, burst=30)
"""What is said of one peer: whatever it does, it fills no log, and hides nothing of what the others do."""
FIRST_PAUSE_S: Final = 60.0
LONGEST_PAUSE_S: Final = 3600.0
MAX_TOLD: Final = 1_000
"""Things said that are remembered; what is forgotten is said at once when it comes again."""


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


@dataclass(slots=True)
class _Told:
    """What was said already: when it may be said again, and how often it has happened since."""

    at: float
    pause_s: float = FIRST_PAUSE_S
    num_untold: int = 0


class Telling:
    """Decides when what happens again and again is said: at once, and then ever less often."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begins with nothing said.

        Args:
            clock: monotonic, s.
        """
        self._clock = clock
        self._told: dict[tuple[str, str], _Told] = {}
        self._lines: Budget[str] = Budget(LINES)

    def due(self, who: str, what: str) -> int | None:
        """How often it has happened since it was last said; None where it is not to be said now.

        Args:
            who: the peer, or other source; each has lines of its own.
            what: it did; something else is said at once.
        """
        now = self._clock()
        told = self._told.setdefault((who, what), _Told(now))
        while len(self._told) > MAX_TOLD:
            del self._told[next(iter(self._told))]
        if now < told.at or not self._lines.spend(who, 1, now):
            told.num_untold += 1
            return None
        num_untold, told.num_untold = told.num_untold, 0
        told.at, told.pause_s = now + told.pause_s, min(2 * told.pause_s, LONGEST_PAUSE_S)
        return num_untold
