"""Turns the steps of a vector environment into fragments.

M is the number of environments, L a fragment's length, n the steps of a return, S the depth of a frame stack.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parl_mq.fragments import FragmentBatch
from parl_mq.rollout.stepper import Leaves, VectorStep
from parl_mq.spec import Column, TableSpec, WeightsVersion

Rows = npt.NDArray[np.uint8]
Columns = dict[str, npt.NDArray[np.generic]]
Cut = tuple[bytes, int, int, int, bool, int, int]
"""A fragment that waits to be sent: its packed rows, live rows, context rows, overlap rows, whether it starts its
episode, and the weights' generation and counter. A plain tuple is made in a quarter of a named one's time."""


@dataclass(frozen=True, slots=True)
class FragmentShape:
    """How fragments are cut.

    Attributes:
        length: L, live rows at most.
        n_step: n; n - 1 overlap rows keep the windows of the last live rows whole.
        frame_stack: S; S - 1 context rows in front fill the stack of the first live row.
    """

    length: int
    n_step: int = 1
    frame_stack: int = 1


class FragmentAssembler:
    """Keeps the newest rows of each environment and cuts fragments out of them.

    A row is one packed record of all columns, so that cutting a fragment is one copy, however many columns there are.
    The rows lie as [M, time, record]. All environments share the time axis: row t holds the observation before step
    t and what the step did. When the axis is full, the rows that are still needed move to its front.

    I1: of environment i, the rows [first_pending[i], now) are steps of its running episode that no fragment has as
    live rows yet; fewer than L + n - 1 of them after each step.
    I2: the S - 1 rows before first_pending[i] still stand in the buffer, as far as they belong to the episode.

    A fragment is cut
    - when an episode ends: all its pending steps, in pieces of L live rows at most;
    - in mid-episode at L + n - 1 pending steps: L live rows, n - 1 as overlap, which are live in the next fragment;
    - at `flush`: as in mid-episode, but with fewer live rows; the last n - 1 steps stay pending;
    - at `drain`: everything, so that the last windows are cut short.
    """

    def __init__(self, spec: TableSpec, num_envs: int, shape: FragmentShape) -> None:
        if min(shape.length, shape.n_step, shape.frame_stack, num_envs) < 1:
            raise ValueError(f"{shape} and {num_envs} environments: all must be at least 1")
        self.spec = spec
        self._num_envs = num_envs
        self._length = shape.length
        self._overlap = shape.n_step - 1
        self._context = shape.frame_stack - 1
        # Twice what must be kept, so that each row moves at most once, and one row for the newest observation.
        self._capacity = 2 * (self._context + self._length + self._overlap) + 1
        self._fields, row_bytes = _fields(spec.columns)
        self._rows: Rows = np.zeros((num_envs, self._capacity, row_bytes), np.uint8)
        columns = _columns(self._rows, self._fields)
        self._obs = tuple(columns[name] for name in spec.observation_names)
        self._action = columns[spec.action_names[0]]
        self._reward, self._terminated, self._truncated = (
            columns[name] for name in ("reward", "terminated", "truncated")
        )
        step_names = {*spec.observation_names, *spec.action_names, "reward", "terminated", "truncated"}
        self._extras = {name: column for name, column in columns.items() if name not in step_names}
        self._versions = [WeightsVersion(0, 0)] * self._capacity
        self._queue: deque[Cut] = deque()
        self._num_queued = 0
        self._now = 0
        self._first_pending = [0] * num_envs
        self._episode_start = [0] * num_envs
        self._next_cut = 0
        self._restart()

    @property
    def num_queued(self) -> int:
        """Live rows of the fragments that are cut and not taken."""
        return self._num_queued

    @property
    def next_rows(self) -> int:
        """Live rows of the next fragment: what `take` must be given at least; 0 if none is cut."""
        return self._queue[0][1] if self._queue else 0

    @property
    def num_pending(self) -> int:
        """Steps that are not live in any fragment yet."""
        return self._num_envs * self._now - sum(self._first_pending)

    def begin(self, obs: Leaves) -> None:
        """Starts episodes in all environments; pending steps are cut as by `drain`.

        Args:
            obs: [M, ...] each, the first observations; copied.
        """
        self.drain()
        self._restart()
        for column, leaf in zip(self._obs, obs, strict=True):
            column[:, 0] = leaf

    def add(
        self,
        action: npt.NDArray[np.generic],
        step: VectorStep,
        version: WeightsVersion,
        extras: Mapping[str, npt.NDArray[np.generic]] | None = None,
    ) -> None:
        """Takes in one step. Everything is copied.

        Args:
            action: [M, ...], what was done.
            step: what came of it.
            version: of the weights that chose the action.
            extras: name -> [M, ...] of the spec's extra columns, all of them.

        Raises:
            ValueError: the extras are not those of the spec.
        """
        if (extras or {}).keys() != self._extras.keys():
            raise ValueError(f"extra columns {sorted(extras or {})}, the table has {sorted(self._extras)}")
        if self._now + 1 == self._capacity:
            self._move_to_front()
        now = self._now
        self._action[:, now] = action
        self._reward[:, now] = step.reward
        self._terminated[:, now] = step.terminated
        self._truncated[:, now] = step.truncated
        for name, column in self._extras.items():
            column[:, now] = extras[name]  # type: ignore[index]  # the keys were compared
        self._versions[now] = version
        self._now = now = now + 1
        for column, leaf in zip(self._obs, step.obs, strict=True):
            column[:, now] = leaf
        for env, last in step.ended.items():
            if last is None:
                self._cut_all(env)
            else:
                self._cut_with(env, last, step.obs)
        for env in step.began:
            self._first_pending[env] = self._episode_start[env] = now
        if now >= self._next_cut:
            self._cut_long()

    def flush(self) -> None:
        """Cuts what can be sent without cutting an n-step window short."""
        for env in range(self._num_envs):
            num_live = self._now - self._first_pending[env] - self._overlap
            if num_live > 0:
                self._cut(env, num_live, self._overlap)

    def drain(self) -> None:
        """Cuts all pending steps; the fragments are neither terminated nor truncated at their ends."""
        for env in range(self._num_envs):
            self._cut_all(env)

    def take(self, max_rows: int) -> FragmentBatch | None:
        """The oldest fragments, with at most `max_rows` live rows in all; None if not even one fits.

        The arrays are the caller's.
        """
        cuts: list[Cut] = []
        room = max_rows
        while self._queue and self.next_rows <= room:
            room -= self.next_rows
            cuts.append(self._queue.popleft())
        self._num_queued -= max_rows - room
        return self._batch(cuts) if cuts else None

    def _restart(self) -> None:
        self._now = 0
        self._first_pending = [0] * self._num_envs
        self._episode_start = [0] * self._num_envs
        self._next_cut = self._length + self._overlap

    def _cut_with(self, env: int, last: Leaves, following: Leaves) -> None:
        """Cuts what is pending, with `last` in the closing row, where another episode's first observation stands."""
        for column, leaf in zip(self._obs, last, strict=True):
            column[env, self._now] = leaf
        self._cut_all(env)
        for column, leaf in zip(self._obs, following, strict=True):
            column[env, self._now] = leaf[env]

    def _cut_all(self, env: int) -> None:
        while num_pending := self._now - self._first_pending[env]:
            num_live = min(self._length, num_pending)
            self._cut(env, num_live, min(self._overlap, num_pending - num_live))

    def _cut_long(self) -> None:
        """Cuts in each environment that has enough pending steps, and finds when the next one will."""
        window = self._length + self._overlap
        for env, first in enumerate(self._first_pending):
            if self._now - first >= window:
                self._cut(env, self._length, self._overlap)
        self._next_cut = min(self._first_pending) + window

    def _cut(self, env: int, num_live: int, num_overlap: int) -> None:
        first_live, episode_start = self._first_pending[env], self._episode_start[env]
        first = max(first_live - self._context, episode_start)
        after = first_live + num_live
        rows = self._rows[env, first : after + num_overlap + 1].tobytes()
        starts_episode = first == episode_start
        generation, counter = self._versions[after - 1]
        self._queue.append((rows, num_live, first_live - first, num_overlap, starts_episode, generation, counter))
        self._first_pending[env] = after
        self._num_queued += num_live

    def _move_to_front(self) -> None:
        shift = min(self._first_pending) - self._context
        kept = self._now + 1 - shift
        self._rows[:, :kept] = self._rows[:, shift : self._now + 1]
        self._versions[:kept] = self._versions[shift : self._now + 1]
        self._first_pending = [first - shift for first in self._first_pending]
        self._episode_start = [start - shift for start in self._episode_start]
        self._next_cut -= shift
        self._now -= shift

    def _batch(self, cuts: list[Cut]) -> FragmentBatch:
        shape = (-1, self._rows.shape[-1])
        rows = np.frombuffer(b"".join([cut[0] for cut in cuts]), np.uint8).reshape(shape)
        columns = {name: np.array(view, order="C") for name, view in _columns(rows, self._fields).items()}
        figures = np.array([cut[1:] for cut in cuts], np.int64)
        lengths, num_context, num_overlap = figures[:, :3].T.astype(np.int32, order="C")
        closing = np.cumsum(figures[:, :3].sum(axis=1) + 1) - 1
        for name, column in columns.items():
            if name not in self.spec.observation_names:
                column[closing] = 0
        return FragmentBatch(
            columns=columns,
            lengths=lengths,
            num_context=num_context,
            num_overlap=num_overlap,
            starts_episode=figures[:, 3].astype(np.bool_),
            priorities=None,
            versions=figures[:, 4:].astype(np.uint32),
        )


def _fields(columns: tuple[Column, ...]) -> tuple[dict[str, tuple[int, Column]], int]:
    """Where each column lies in a packed record, aligned to its items, and the record's bytes."""
    fields, offset = {}, 0
    for column in columns:
        offset += -offset % np.dtype(column.dtype).itemsize
        fields[column.name] = (offset, column)
        offset += column.num_bytes
    return fields, offset + -offset % 8


def _columns(rows: Rows, fields: dict[str, tuple[int, Column]]) -> Columns:
    """Views [..., *shape] of each column in packed records [..., bytes]."""
    views: Columns = {}
    for name, (offset, column) in fields.items():
        flat = rows[..., offset : offset + column.num_bytes].view(column.dtype)
        views[name] = flat.reshape(*rows.shape[:-1], *column.shape)
    return views
