"""A table in plain Python: eager, one shard, and obviously right; what the real one must agree with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parl_mq.fragments import FragmentBatch
from parl_mq.replay.table import TableSettings
from parl_mq.spec import TableSpec


@dataclass
class StoredFragment:
    """One fragment, or a gap at the segment's end, which has no columns."""

    start: int
    num_rows: int
    columns: dict[str, Any] = field(default_factory=dict)
    live: range = range(0)
    starts_episode: bool = False
    leaves: dict[int, float] = field(default_factory=dict)


class ReferenceTable:
    """Rows by position, evicted in whole fragments from the front."""

    def __init__(self, settings: TableSettings, spec: TableSpec) -> None:
        self.settings = settings
        self.capacity = settings.shard_capacity(0)
        self.num_rows = settings.segment_shape(0, spec).num_rows
        self.fragments: list[StoredFragment] = []
        self.end = 0
        self.num_stale = 0
        self.max_magnitude = 1.0

    def leaf(self, magnitude: float) -> float:
        if self.settings.kind == "uniform":
            return 1.0
        shifted = magnitude + self.settings.eps
        return float((np.array([shifted]) ** self.settings.alpha)[0]) if shifted > 0 else 0.0

    @property
    def leaves(self) -> dict[int, float]:
        return {position: value for one in self.fragments for position, value in one.leaves.items()}

    def insert(self, batch: FragmentBatch) -> list[int]:
        """Stores a batch that fits in one go; returns positions of its live rows."""
        new = self._place(batch)
        num_new = sum(len(one.live) for one in new)
        while self.fragments and (
            self.end - self.fragments[0].start > self.num_rows or len(self.leaves) + num_new > self.capacity
        ):
            self.fragments.pop(0)
        default = self.leaf(self.max_magnitude)
        given = iter([] if batch.priorities is None else batch.priorities)
        positions = []
        for one in new:
            for row in one.live:
                one.leaves[one.start + row] = default if batch.priorities is None else self.leaf(next(given))
                positions.append(one.start + row)
        if batch.priorities is not None:
            self.max_magnitude = max(self.max_magnitude, *batch.priorities)
        self.fragments += new
        return positions

    def _place(self, batch: FragmentBatch) -> list[StoredFragment]:
        new = []
        row = 0
        for f, length in enumerate(batch.lengths):
            context = int(batch.num_context[f])
            size = context + int(length) + int(batch.num_overlap[f]) + 1
            if self.end % self.num_rows + size > self.num_rows:
                gap = self.num_rows - self.end % self.num_rows
                new.append(StoredFragment(self.end, gap))
                self.end += gap
            columns = {name: column[row : row + size] for name, column in batch.columns.items()}
            live = range(context, context + int(length))
            new.append(StoredFragment(self.end, size, columns, live, bool(batch.starts_episode[f])))
            self.end += size
            row += size
        return new

    def update(self, position: int, magnitude: float) -> None:
        for one in self.fragments:
            if position in one.leaves:
                one.leaves[position] = self.leaf(magnitude)
                self.max_magnitude = max(self.max_magnitude, magnitude)
                return
        self.num_stale += 1

    def window(self, position: int) -> dict[str, Any]:
        """What a draw of the row must give."""
        fragment = next(one for one in self.fragments if position in one.leaves)
        settings, columns = self.settings, fragment.columns
        row = position - fragment.start
        k = min(settings.n_step, fragment.num_rows - 1 - row)
        last = row + k - 1
        reward = sum(settings.gamma**j * float(columns["reward"][row + j]) for j in range(k))
        return {
            "obs": self._stack(fragment, row),
            "next_obs": self._stack(fragment, row + k),
            "action": columns["action"][row],
            "reward": np.float32(reward),
            "discount": np.float32(0.0 if columns["terminated"][last] else settings.gamma**k),
            "terminated": columns["terminated"][last],
            "truncated": columns["truncated"][last],
            "num_steps": k,
        }

    def _stack(self, fragment: StoredFragment, row: int) -> Any:
        obs = fragment.columns["obs"]
        stack = self.settings.frame_stack
        return obs[row] if stack == 1 else np.stack([obs[max(row - back, 0)] for back in range(stack - 1, -1, -1)])
