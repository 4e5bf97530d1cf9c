"""What is in a ring, in figures: fill, ages, priorities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from parl_mq.replay.keys import key_prefix
from parl_mq.replay.layout import LIVE
from parl_mq.replay.ring_view import RingView, ShardView
from parl_mq.replay.watching import effective_rows

NUM_BINS: Final = 12
"""Of the histogram, between the least and the largest priority, of equal ratios."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TopRow:
    """One row of those with the largest priorities.

    Attributes:
        key: of the row.
        priority: (magnitude + eps)^alpha.
        probability: of a draw.
        age: live rows of its shard that came after it.
        reward: of its step.
    """

    key: int
    priority: float
    probability: float
    age: int
    reward: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """Rows by their priority.

    Attributes:
        edges: of the bins, one more than bins; none where no row has a priority.
        counts: rows in each.
        num_zero: rows without a priority.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    num_zero: int


@dataclass(frozen=True, slots=True)
class RingFigures:
    """What `inspect_ring` found. Ages are live rows of the same shard that came after a row.

    Attributes:
        capacity: live rows that fit.
        num_live: live rows.
        num_rows: physical rows.
        num_bytes: of the files.
        num_inserted: live rows ever stored.
        num_evicted: of them, those that went.
        num_drawn: rows drawn, as of the newest insert; likewise the next three.
        num_updated: priorities applied.
        num_stale: priorities whose rows had gone.
        num_torn: rows drawn again because they were overwritten while being copied.
        num_senders: senders that are known.
        max_magnitude: the running maximum.
        total_priority: sum of the priorities.
        effective_rows: (sum p)^2 / sum p^2: as many rows of equal priority would be drawn as evenly.
        oldest: age of the oldest row.
        mean_age: of all rows.
        mean_drawn_age: of a row as it is drawn.
        histogram: of the priorities.
        top: the rows with the largest priorities, the largest first.
    """

    capacity: int
    num_live: int
    num_rows: int
    num_bytes: int
    num_inserted: int
    num_evicted: int
    num_drawn: int
    num_updated: int
    num_stale: int
    num_torn: int
    num_senders: int
    max_magnitude: float
    total_priority: float
    effective_rows: float
    oldest: int
    mean_age: float
    mean_drawn_age: float
    histogram: Histogram
    top: tuple[TopRow, ...]

    @property
    def fill(self) -> float:
        """Share of the capacity that is used."""
        return self.num_live / self.capacity


@dataclass(frozen=True, slots=True)
class _LiveRows:
    """The live rows of one shard, oldest first."""

    keys: npt.NDArray[np.uint64]
    priorities: Floats
    rewards: npt.NDArray[np.float32]
    ages: Ints


def inspect_ring(view: RingView, *, num_top: int = 10) -> RingFigures:
    """Reads priorities and flags of all rows; the ring's owner goes on meanwhile.

    Raises:
        RingRefused: what the ring says of itself is damaged.
    """
    settings = view.description.settings
    shards = view.shards()
    live = [_live_rows(shard, key_prefix(settings.table_index, shard.shard)) for shard in shards]
    need = settings.memory_need(view.description.spec)
    priorities = np.concatenate([rows.priorities for rows in live])
    ages = np.concatenate([rows.ages for rows in live])
    total, num_inserted = float(priorities.sum()), sum(shard.account.num_inserted for shard in shards)
    drawn, updated, stale, torn = (sum(column) for column in zip(*(shard.counts for shard in shards), strict=True))
    weights = priorities if total > 0.0 else np.ones(len(priorities))
    return RingFigures(
        capacity=settings.capacity,
        num_live=len(priorities),
        num_rows=need.num_rows,
        num_bytes=sum(settings.segment_shape(i, view.description.spec).num_bytes for i in range(len(shards))),
        num_inserted=num_inserted,
        num_evicted=num_inserted - len(priorities),
        num_drawn=drawn,
        num_updated=updated,
        num_stale=stale,
        num_torn=torn,
        num_senders=len({mark.name for shard in shards for mark in shard.account.senders}),
        max_magnitude=max(shard.account.max_magnitude for shard in shards),
        total_priority=total,
        effective_rows=effective_rows(weights),
        oldest=int(ages.max(initial=0)),
        mean_age=float(ages.mean()) if len(ages) else 0.0,
        mean_drawn_age=float(ages @ weights / weights.sum()) if len(ages) else 0.0,
        histogram=_histogram(priorities),
        top=_top(live, total, num_top),
    )


def _live_rows(shard: ShardView, prefix: int) -> _LiveRows:
    contents = shard.contents
    flags, rewards = _joined(contents.headers["flags"]), _joined(contents.columns["reward"])
    leaves = _joined(contents.leaves)
    first = shard.oldest - contents.tail  # what lies in front of it was overwritten while the above was read
    live = first + np.flatnonzero(flags[first:] & LIVE)
    keys = np.uint64(prefix + contents.tail) + live.astype(np.uint64)
    return _LiveRows(keys, leaves[live], rewards[live], np.arange(len(live))[::-1])


def _joined(pieces: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate(pieces)


def _histogram(priorities: Floats) -> Histogram:
    positive = priorities[priorities > 0.0]
    num_zero = len(priorities) - len(positive)
    if len(positive) == 0:
        return Histogram((), (), num_zero)
    low, high = float(positive.min()), float(positive.max())
    if low == high:
        return Histogram((low, high), (len(positive),), num_zero)
    edges = np.geomspace(low, high, NUM_BINS + 1)
    edges[0], edges[-1] = low, high  # to the bit, so that no row falls out
    counts, _ = np.histogram(positive, edges)
    return Histogram(tuple(edges.tolist()), tuple(counts.tolist()), num_zero)


def _top(live: list[_LiveRows], total: float, num_top: int) -> tuple[TopRow, ...]:
    found = []
    for rows in live:
        largest = np.argsort(rows.priorities)[::-1][:num_top]
        for index in largest:
            priority = float(rows.priorities[index])
            probability = priority / total if total > 0.0 else 0.0
            row = TopRow(
                int(rows.keys[index]), priority, probability, int(rows.ages[index]), float(rows.rewards[index])
            )
            found.append(row)
    return tuple(sorted(found, key=lambda row: (-row.priority, row.age))[:num_top])
