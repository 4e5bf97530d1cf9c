"""A ring as anybody may look at it through its files: read-only, whether or not a process is using it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np

from parl_mq.errors import RingRefused
from parl_mq.replay.contents import RingAccount, RingContents, contents_of, marks_of
from parl_mq.replay.mapping import TAIL, Segment, open_segment, refusal
from parl_mq.replay.recovery import Structured, is_whole, largest_magnitude, read_commit
from parl_mq.replay.ring_files import RingDescription, description_path
from parl_mq.replay.snapshot import write_snapshot

_MOST_TRIES: Final = 1000
"""Readings of a table of senders, or of plans, that are being written to."""


@dataclass(frozen=True, slots=True)
class ShardView:
    """One shard at a moment; R rows.

    What is read of it may change while it is read: priorities by updates, and the oldest rows by inserts. Those in
    front of `oldest`, asked for afterwards, were overwritten.

    Attributes:
        shard: index.
        num_live: live rows at the newest commit.
        contents: the rows that had been committed, as views.
        account: what went with them.
        counts: rows drawn, updated, stale and torn at the newest commit.
    """

    shard: int
    num_live: int
    contents: RingContents
    account: RingAccount
    counts: tuple[int, ...]
    segment: Segment

    @property
    def oldest(self) -> int:
        """Position of the first row that can still be relied on; the end of the contents where none can.

        Raises:
            RingRefused: what the segment says of itself is damaged.
        """
        return min(max(_tail(self.segment), self.contents.tail), self.contents.end)


class RingView:
    """The files of a table's ring, mapped read-only.

    The marks of senders are read before the rows: of a ring in use they may be a little older than these.
    """

    def __init__(self, directory: Path, table: str) -> None:
        """Maps a ring.

        Raises:
            RingRefused: there is none, or its files are not what they should be.
        """
        self.directory = directory
        path = description_path(directory, table)
        if not path.exists():
            raise RingRefused(f"no ring of table {table} lies in {directory}")
        self.description = RingDescription.read(path)
        self._segments: list[Segment] = []
        try:
            for shard, found in enumerate(self.description.segment_paths(directory)):
                self._segments.append(open_segment(self.description.identity(shard), found, read_only=True))
            self._check_heads(path)
        except RingRefused:
            self.close()
            raise

    def _check_heads(self, path: Path) -> None:
        """Of a ring that is closed; one that was opened meanwhile is changing."""
        try:
            self.description.check_heads(self.directory)
        except RingRefused:
            if RingDescription.read(path) == self.description:
                raise

    def __enter__(self) -> RingView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets the files go."""
        while self._segments:
            self._segments.pop().close(remove=False)

    def shards(self) -> list[ShardView]:
        """All shards as they are now.

        Raises:
            RingRefused: what a segment says of itself is damaged.
        """
        return [_view(shard, segment) for shard, segment in enumerate(self._segments)]

    def save(self, path: Path, metadata: Mapping[str, Any]) -> int:
        """Writes a snapshot that `Table.load` reads, without making the ring's owner wait.

        Rows that are overwritten before they are copied are left out: where inserts turn the ring over faster than it
        is copied, all of them.

        Args:
            path: replaced if it exists, when all is written.
            metadata: JSON values that `load` gives back.

        Returns:
            Physical rows that were left out.

        Raises:
            RingRefused: as `shards`.
            OSError: the file cannot be written.
        """
        shards = self.shards()
        arrays = {
            f"{view.shard}/{name}": pieces for view in shards for name, pieces in view.contents.named_arrays().items()
        }
        own = {
            "settings": asdict(self.description.settings),
            "columns": self.description.columns,
            "spaces": self.description.spaces,
            "starts": [view.contents.tail for view in shards],
            "accounts": [view.account.to_json() for view in shards],
            "words": self._segments[0].words.tolist(),
            "turn": 0,
        }

        tails: list[int] = []

        def tell() -> dict[str, Any]:
            tails[:] = [view.oldest for view in shards]
            return {"table": {**own, "tails": tails}, "more": dict(metadata)}

        write_snapshot(path, tell, arrays)
        return sum(tail - view.contents.tail for tail, view in zip(tails, shards, strict=True))


def _view(shard: int, segment: Segment) -> ShardView:
    senders, commit = _senders(segment)
    committed = int(commit["committed"])
    account = RingAccount(int(commit["num_inserted"]), largest_magnitude(segment, commit), marks_of(senders))
    contents = contents_of(segment, min(_tail(segment), committed), committed)
    return ShardView(shard, int(commit["num_live"]), contents, account, tuple(segment.counts.tolist()), segment)


def _senders(segment: Segment) -> tuple[Structured, Structured]:
    """The table of senders, and a commit that is not older than any entry in it."""
    for _ in range(_MOST_TRIES):
        entries = segment.senders.copy()
        commit = read_commit(segment)
        if (own := int(commit["slot"])) >= 0:
            entries[own] = commit["sender"]
        is_used = entries["number"] > 0
        is_used[own if own >= 0 else 0] &= own < 0  # its checksum is that of the record
        if all(is_whole(entries[slot]) for slot in np.flatnonzero(is_used)):
            return entries, commit
    raise refusal(segment.path, "its table of senders is damaged")


def _tail(segment: Segment) -> int:
    """Behind everything that an insert has given up, or is about to: a plan says so before the counter moves.

    Raises:
        RingRefused: the counter has moved without a plan.
    """
    for _ in range(_MOST_TRIES):  # both plans may have been written anew while they were copied
        tail = int(segment.counters[TAIL])
        planned = max((int(plan["tail"]) for plan in segment.plans.copy() if is_whole(plan)), default=-1)
        if planned >= tail:
            return planned
    raise refusal(segment.path, f"field 'tail' of its head is {tail}, which nothing has planned")
