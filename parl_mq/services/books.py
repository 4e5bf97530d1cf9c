"""What became of the actors' rows: two ends report each stream, and here the reports are laid side by side; pure.

A stream is what one actor process, a (name, epoch), sends. The actor counts rows sent, acknowledged and given up; the
replay nodes count rows stored. At the end of a run sent = acknowledged + abandoned and acknowledged = stored + lost,
where rows that a vanished ring had acknowledged are lost. A process that was killed says no last word: then the replay
nodes' counts are what is known of its stream, and what it had sent beyond them was abandoned with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from parl_mq.replay.senders import digest_of

StreamKey = tuple[str, int]
"""Name and epoch of an actor's process."""

MAX_STREAMS: Final = 4096
"""Streams kept apart; of more, the oldest that have ended become one sum."""
ACTOR_COUNTERS: Final = ("sent_rows_total", "acknowledged_rows_total", "abandoned_rows_total", "lost_rows_total")


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Live rows.

    Attributes:
        sent: by the actors.
        acknowledged: of them, those that can be, or could be, sampled.
        abandoned: of them, those given up.
        stored: in rings that are there.
        lost: acknowledged, and gone with their ring.
    """

    sent: int = 0
    acknowledged: int = 0
    abandoned: int = 0
    stored: int = 0
    lost: int = 0

    @property
    def under_way(self) -> int:
        """Sent, and neither acknowledged nor abandoned."""
        return self.sent - self.acknowledged - self.abandoned

    @property
    def is_balanced(self) -> bool:
        """Whether nothing is under way, and both ends agree."""
        return self.under_way == 0 and self.acknowledged == self.stored + self.lost

    def __add__(self, other: RowCounts) -> RowCounts:
        return RowCounts(
            self.sent + other.sent,
            self.acknowledged + other.acknowledged,
            self.abandoned + other.abandoned,
            self.stored + other.stored,
            self.lost + other.lost,
        )

    def to_json(self) -> dict[str, int]:
        """The counts by name, `under_way` among them."""
        return {
            "sent": self.sent,
            "acknowledged": self.acknowledged,
            "abandoned": self.abandoned,
            "under_way": max(self.under_way, 0),
            "stored": self.stored,
            "lost": self.lost,
        }


@dataclass(slots=True)
class _Stream:
    """One actor process; `stored` by the replay node's name. It is open, has ended in order, or was cut off."""

    sent: int = 0
    acknowledged: int = 0
    abandoned: int = 0
    lost: int = 0
    stored: dict[str, int] = field(default_factory=dict)
    end: str = "open"

    def counts(self, *, is_final: bool = False) -> RowCounts:
        """What is known.

        Args:
            is_final: no account will come any more of rows that a replay node acknowledged and does not have.
        """
        stored = sum(self.stored.values())
        if self.end == "open" and not is_final:
            return RowCounts(self.sent, self.acknowledged, self.abandoned, stored, self.lost)
        # Rows whose acknowledgement did not arrive any more are stored all the same.
        acknowledged = max(self.acknowledged, min(stored + self.lost, self.sent))
        if self.end == "ended" and not is_final:
            return RowCounts(self.sent, acknowledged, self.sent - acknowledged, stored, self.lost)
        acknowledged = max(self.acknowledged, stored + self.lost)
        sent = max(self.sent, acknowledged)
        return RowCounts(sent, acknowledged, sent - acknowledged, stored, acknowledged - stored)


class RowBooks:
    """The books of a run over all its actor processes and rings."""

    def __init__(self, before: Mapping[str, Any] | None = None) -> None:
        """Begins the books, or goes on with what `to_json` gave."""
        self._streams: dict[StreamKey, _Stream] = {}
        self._rings: dict[str, str] = {}
        self._earlier = RowCounts()
        self._summed_up: dict[str, int] = {}  # name -> newest epoch of its that is part of `_earlier`
        self._ended: deque[StreamKey] = deque()
        if before:
            self._earlier = RowCounts(*before["earlier"])
            self._rings = dict(before["rings"])
            self._summed_up = dict(before["summed_up"])
            for name, epoch, sent, acknowledged, abandoned, lost, stored, end in before["streams"]:
                self._streams[name, epoch] = _Stream(sent, acknowledged, abandoned, lost, dict(stored), end)
                if end != "open":
                    self._ended.append((name, epoch))

    def to_json(self) -> dict[str, Any]:
        """All of it, as plain values."""
        streams = [
            [name, epoch, each.sent, each.acknowledged, each.abandoned, each.lost, each.stored, each.end]
            for (name, epoch), each in self._streams.items()
        ]
        earlier = self._earlier
        sums = [earlier.sent, earlier.acknowledged, earlier.abandoned, earlier.stored, earlier.lost]
        return {"earlier": sums, "summed_up": self._summed_up, "rings": self._rings, "streams": streams}

    def note_actor(self, key: StreamKey, counters: Mapping[str, float]) -> None:
        """An actor process tells how far its stream is."""
        if ACTOR_COUNTERS[0] not in counters:
            return
        stream = self._streams.setdefault(key, _Stream())
        sent, acknowledged, abandoned, lost = (int(counters.get(name, 0)) for name in ACTOR_COUNTERS)
        if lost > stream.lost and len(stream.stored) == 1:
            stream.stored.clear()  # it has found a new ring: what the old one had stored is part of what is lost
        stream.sent, stream.acknowledged, stream.abandoned, stream.lost = sent, acknowledged, abandoned, lost

    def note_accounts(
        self,
        replay: str,
        ring_id: str,
        accounts: Iterable[tuple[str, int, int]],
        found: Sequence[tuple[str, int, int]] = (),
    ) -> int:
        """A replay node tells what it has stored of each stream.

        Args:
            replay: its name.
            ring_id: of its ring.
            accounts: name and epoch of each stream, and the rows of it that are stored.
            found: the same of streams in a ring that it has found, under the digests of their names. Streams that
                nobody has told of are left out.

        Returns:
            Rows of streams that have ended that are lost because the node has another ring than before. Of streams that
            go on their actors find that out.
        """
        names = {digest_of(name).hex(): name for name, _ in self._streams} if found else {}
        known = [(names[digest], epoch, rows) for digest, epoch, rows in found if digest in names]
        told = [*accounts, *(each for each in known if each[:2] in self._streams)]
        lost = 0
        if self._rings.get(replay, ring_id) != ring_id:
            lost = self._lose(replay, {(name, epoch): rows for name, epoch, rows in told})
        self._rings[replay] = ring_id
        for name, epoch, rows in told:
            if epoch > self._summed_up.get(name, -1):
                stored = self._streams.setdefault((name, epoch), _Stream()).stored
                stored[replay] = max(rows, stored.get(replay, 0))  # what a ring has found may be told once more, late
        return lost

    def end(self, key: StreamKey, *, in_order: bool) -> None:
        """An actor process is gone; in order, or without a last word of its own that counts."""
        name, epoch = key
        if epoch <= self._summed_up.get(name, -1):
            return
        stream = self._streams.setdefault(key, _Stream())
        if stream.end != "open":
            return
        stream.end = "ended" if in_order else "cut"
        self._ended.append(key)
        while len(self._streams) > MAX_STREAMS and self._ended:
            oldest = self._ended.popleft()
            self._earlier += self._streams.pop(oldest).counts(is_final=True)
            self._summed_up[oldest[0]] = oldest[1]

    def counts(self, *, is_final: bool = False) -> RowCounts:
        """The sums over all streams.

        Args:
            is_final: every process is gone, and a replay node without its last account: see `_Stream.counts`.
        """
        total = self._earlier
        for stream in self._streams.values():
            total += stream.counts(is_final=is_final)
        return total

    def cut_all(self) -> None:
        """Whoever is still open has been cut off."""
        for key in [key for key, stream in self._streams.items() if stream.end == "open"]:
            self.end(key, in_order=False)

    def _lose(self, replay: str, kept: Mapping[StreamKey, int]) -> int:
        """A node has another ring: one that holds so many rows of each stream, if it was restored."""
        lost = 0
        for key, stream in self._streams.items():
            rows = max(0, stream.stored.pop(replay, 0) - kept.get(key, 0))
            if stream.end != "open":
                stream.lost += rows
                lost += rows
        return lost
