"""Replay for one process: a table with the interface of a plain replay buffer, without network, torch or zmq."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from parl_mq.errors import SnapshotError
from parl_mq.fragments import FragmentBatch
from parl_mq.replay._rows import Incoming
from parl_mq.replay.draws import importance_weights, split_frames
from parl_mq.replay.keys import Keys
from parl_mq.replay.settings import TableSettings, real_number, whole_number
from parl_mq.replay.staging import FragmentStaging, Staging, single_steps
from parl_mq.replay.table import Table, TableCounts, UpdateCounts
from parl_mq.replay.values import StepValues, Value, grouped, length_of, magnitudes_of
from parl_mq.replay.windows import FoldedStep, StepWindow
from parl_mq.spec import TableSpec

_NO_STACKS: Final = "the two rows of a single transition have no room for a frame stack; use add_fragment"
_NO_VERSION: Final = np.zeros((1, 2), np.uint32)

Array = npt.NDArray[Any]
Spec = TableSpec | Mapping[str, tuple[tuple[int, ...], npt.DTypeLike]]


@dataclass(frozen=True, slots=True)
class ReplayBatch:
    """B transitions.

    Attributes:
        obs: [B, ...], or with frame stacks [B, stack, ...]; a dict by key where the observation has several columns.
        action: [B, ...], or a dict.
        reward: [B] float32, the n-step sum.
        next_obs: as `obs`, at the end of the window.
        discount: [B] float32, gamma^k of the window's k steps, or 0 where it ended in termination.
        terminated: [B] bool, of the window's last step.
        truncated: [B] bool, likewise.
        weight: [B] float32 importance weights in (0, 1].
        key: [B] uint64, for update_priorities.
        extras: [B, ...] by name.
    """

    obs: Array | dict[str, Array]
    action: Array | dict[str, Array]
    reward: npt.NDArray[np.float32]
    next_obs: Array | dict[str, Array]
    discount: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    weight: npt.NDArray[np.float32]
    key: Keys
    extras: dict[str, Array]


@dataclass(frozen=True, slots=True)
class ReplayStats:
    """State of a replay.

    Attributes:
        num_live: transitions that may be drawn.
        capacity: of them at most.
        num_rows: physical rows.
        num_bytes: memory taken.
        total_priority: sum of all priorities.
        max_magnitude: what a transition without a magnitude of its own gets.
        counts: what happened so far.
    """

    num_live: int
    capacity: int
    num_rows: int
    num_bytes: int
    total_priority: float
    max_magnitude: float
    counts: TableCounts


class Replay:
    """Common to both replays, which differ in nothing but their settings; see PrioritizedReplay.

    Threads: one at a time may add; any may sample and update meanwhile.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._values = StepValues(table.spec)
        self._is_stacking = table.settings.frame_stack > 1
        self._is_folding = table.settings.n_step > 1
        self._windows: dict[int, StepWindow] = {}
        self._one = self._stage(1)
        self._batch = self._one
        self._fragment = (0, FragmentStaging(table.spec, self._values, 0))

    def __len__(self) -> int:
        return self._table.num_live

    @property
    def total_priority(self) -> float:
        """Sum of all (magnitude + eps)^alpha."""
        return self._table.total_priority

    def stats(self) -> ReplayStats:
        """What is in it, and what happened so far."""
        table = self._table
        return ReplayStats(
            num_live=table.num_live,
            capacity=table.settings.capacity,
            num_rows=table.num_rows,
            num_bytes=table.num_bytes,
            total_priority=table.total_priority,
            max_magnitude=table.max_magnitude,
            counts=table.counts,
        )

    def close(self) -> None:
        """Gives the memory back; nothing may be called after it."""
        self._table.close()

    def add(
        self,
        *,
        obs: Value,
        action: Value,
        reward: Value,
        next_obs: Value,
        terminated: Value,
        truncated: Value = False,
        priority: float | None = None,
        stream: int = 0,
        **extras: Value,
    ) -> Keys:
        """Adds one transition.

        With n_step > 1 the steps of a stream are folded into one row as they come: a row is stored when its window of n
        steps is complete, and those of all windows still open at an episode's end.

        Args:
            obs: observation before the step.
            action: taken; where the spec names its space (as that of `spec_of` does), it must lie in it.
            reward: of the step, finite.
            next_obs: observation after the step, the real last one at an episode's end.
            terminated: the episode ended in a terminal state.
            truncated: the episode was cut off.
            priority: magnitude, finite and >= 0; None: the largest one so far.
            stream: which environment it comes from; needed with n_step > 1.
            **extras: the spec's other columns.

        Returns:
            Keys of the rows that were stored: one with n_step = 1, else none to n.

        Raises:
            ValueError: a value is missing, out of range, or of another shape or dtype than its column. Nothing was
                stored.
        """
        if self._is_stacking:
            raise ValueError(_NO_STACKS)
        staging, incoming = self._one
        values = self._values
        staging.put(
            values.observation(obs),
            values.step(action, reward, terminated, truncated, extras),
            values.observation(next_obs),
        )
        magnitudes = None if priority is None else magnitudes_of("priority", [priority])
        if self._is_folding:
            return self._store_folded(staging, magnitudes, [stream])
        return self._table.store(incoming, magnitudes)

    def add_batch(
        self,
        *,
        obs: Value,
        action: Value,
        reward: Value,
        next_obs: Value,
        terminated: Value,
        truncated: Value = None,
        priority: npt.ArrayLike | None = None,
        **extras: Value,
    ) -> Keys:
        """Adds one transition of each of the streams 0 to N - 1; see `add`.

        Args:
            obs: [N, ...].
            action: [N, ...].
            reward: [N].
            next_obs: [N, ...].
            terminated: [N].
            truncated: [N]; None: nowhere.
            priority: [N] magnitudes, or None.
            **extras: [N, ...].

        Returns:
            Keys of the rows that were stored, by stream.

        Raises:
            ValueError: as `add`.
        """
        if self._is_stacking:
            raise ValueError(_NO_STACKS)
        size = length_of("reward", reward)
        if size != self._batch.incoming.num_fragments:
            self._batch = self._stage(size)
        staging, incoming = self._batch
        values = self._values
        flags = np.zeros(size, np.bool_) if truncated is None else truncated
        staging.put_all(
            values.observation(obs),
            values.step(action, reward, terminated, flags, extras),
            values.observation(next_obs),
        )
        magnitudes = None if priority is None else magnitudes_of("priority", priority)
        if self._is_folding:
            return self._store_folded(staging, magnitudes, list(range(size)))
        return self._table.store(incoming, magnitudes)

    def add_fragment(
        self,
        *,
        obs: Value,
        action: Value,
        reward: Value,
        terminated: Value,
        truncated: Value = False,
        starts_episode: bool = True,
        num_context: int = 0,
        num_overlap: int = 0,
        priorities: npt.ArrayLike | None = None,
        **extras: Value,
    ) -> Keys:
        """Adds consecutive steps of one environment, whose observations are stored once.

        T = num_context + L + num_overlap steps; a transition starts at each of the L in the middle. n-step windows are
        made when they are drawn, and reach into the overlap.

        Args:
            obs: [T + 1, ...], the one after the last step included.
            action: [T, ...].
            reward: [T].
            terminated: of the last step, or [T]; no other step may end an episode.
            truncated: likewise.
            starts_episode: the first observation is the first of its episode, and repeats to fill a frame stack.
            num_context: steps in front, for frame stacks: at least frame_stack - 1 unless it starts an episode.
            num_overlap: steps behind, for n-step windows.
            priorities: [L] magnitudes, or None.
            **extras: [T, ...].

        Returns:
            [L] keys.

        Raises:
            ValueError: an array does not fit. Nothing was stored.
        """
        num_steps = length_of("reward", reward)
        num_context = whole_number("num_context", num_context, 0, num_steps)
        num_overlap = whole_number("num_overlap", num_overlap, 0, num_steps)
        if not isinstance(starts_episode, bool | np.bool_):
            raise ValueError(f"starts_episode is {starts_episode!r}: it must be a bool")
        if num_steps != self._fragment[0]:
            self._fragment = num_steps, FragmentStaging(self._table.spec, self._values, num_steps)
        staging, values = self._fragment[1], self._values
        ends = _of_last_step(terminated, staging), _of_last_step(truncated, staging)
        staging.put(values.observation(obs), values.step(action, reward, *ends, extras))
        fragment = FragmentBatch(
            columns=staging.columns,
            lengths=np.array([num_steps - num_context - num_overlap], np.int32),
            num_context=np.array([num_context], np.int32),
            num_overlap=np.array([num_overlap], np.int32),
            starts_episode=np.array([starts_episode], np.bool_),
            priorities=None if priorities is None else magnitudes_of("priorities", priorities),
            versions=_NO_VERSION,
        )
        return self._table.insert(fragment)

    def sample(self, batch_size: int, beta: float = 0.4) -> ReplayBatch:
        """Draws transitions independently of each other, in proportion to their priorities.

        Args:
            batch_size: B; may exceed `len`.
            beta: exponent of the importance weights, in [0, 1]; 0 gives weights of 1, 1 corrects in full.

        Raises:
            ValueError: there is nothing to draw, or an argument is out of range. Nothing was drawn.
        """
        if type(beta) is not float or not 0.0 <= beta <= 1.0:
            beta = real_number("beta", beta, 0, 1)
        draw = self._table.draw(batch_size)
        columns, values = draw.columns, self._values
        obs, next_obs = self._observations(columns)
        return ReplayBatch(
            obs=obs,
            action=grouped(columns, "action", values.action_names),
            reward=columns["reward"],
            next_obs=next_obs,
            discount=columns["discount"],
            terminated=columns["terminated"],
            truncated=columns["truncated"],
            weight=importance_weights(draw.probabilities, beta),
            key=draw.keys,
            extras={name: columns[name] for name in values.extra_names},
        )

    def _observations(self, columns: Mapping[str, Array]) -> tuple[Array | dict[str, Array], Array | dict[str, Array]]:
        names = self._values.observation_names
        stack = self._table.settings.frame_stack
        if stack == 1:
            return grouped(columns, "obs", names), grouped(columns, "next_obs", self._values.next_names)
        obs, next_obs = {}, {}
        for name in names:
            frames = columns[name.replace("obs", "frames", 1)]
            obs[name], next_obs[name] = split_frames(frames, columns["num_steps"], stack)
        return grouped(obs, "obs", names), grouped(next_obs, "obs", names)

    def update_priorities(self, keys: Keys, magnitudes: npt.ArrayLike) -> UpdateCounts:
        """Gives transitions new priorities; those that have gone are left out and counted.

        A key holds the shard of its row and a position there, and not which replay it came from: keys of another replay
        are refused where this one has no such shard, no row ever had the position or no transition starts there, and
        mean this one's rows else.

        Args:
            keys: [U] uint64, from `sample` or one of the adders; the last of equal ones counts.
            magnitudes: [U] |TD errors|, finite and >= 0, without importance weights.

        Raises:
            ValueError: a magnitude or a key is none. Nothing was applied.
        """
        return self._table.update_priorities(keys, magnitudes_of("magnitudes", magnitudes))

    def save(self, path: Path | str) -> None:
        """Writes everything into one file, at once or not at all; steps waiting in n-step windows are left out."""
        self._table.save(Path(path), {"kind": type(self).__name__})

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """The replay that `save` wrote; it draws and keeps keys as that one would have.

        Raises:
            SnapshotError: the file is missing or damaged, or another kind of replay wrote it.
            MemoryRefused: it would not fit in memory.
        """
        table, metadata = Table.load(Path(path))
        if metadata.get("kind") != cls.__name__:
            table.close()
            raise SnapshotError(f"{path}: it holds a {metadata.get('kind')}, not a {cls.__name__}")
        replay = cls.__new__(cls)
        Replay.__init__(replay, table)
        return replay

    def _stage(self, size: int) -> _Staged:
        staging = Staging(self._table.spec, self._values, size)
        return _Staged(staging, self._table.take(staging.fragments))

    def _store_folded(self, staging: Staging, magnitudes: Array | None, streams: list[int]) -> Keys:
        settings = self._table.settings
        if magnitudes is not None:
            self._table.check_magnitudes(magnitudes, len(streams))
        rows: list[tuple[FoldedStep, int]] = []
        for index, stream in enumerate(streams):
            window = self._windows.setdefault(stream, StepWindow(settings.n_step, settings.gamma))
            first, reward, is_end = staging.step(index)
            magnitude = None if magnitudes is None else float(magnitudes[index])
            rows += [(folded, index) for folded in window.add(first, reward, magnitude, is_end)]
        if not rows:
            return np.empty(0, np.uint64)
        columns, spans = staging.folded(rows)
        return self._table.insert(single_steps(columns, self._magnitudes_of(rows)), spans)

    def _magnitudes_of(self, rows: list[tuple[FoldedStep, int]]) -> npt.NDArray[np.float64] | None:
        if all(folded.magnitude is None for folded, _ in rows):
            return None
        default = self._table.max_magnitude
        return np.array([default if folded.magnitude is None else folded.magnitude for folded, _ in rows])


class PrioritizedReplay(Replay):
    """Prioritized replay (Schaul et al. 2016): P(i) = p_i / sum p, with p = (magnitude + eps)^alpha.

    The class inherits, against this package's habit: the two replays are one with two sets of settings, and both names
    are what callers look for.
    """

    def __init__(
        self,
        capacity: int,
        spec: Spec,
        *,
        alpha: float = 0.6,
        eps: float = 1e-6,
        n_step: int = 1,
        gamma: float = 0.99,
        frame_stack: int = 1,
        fragment_length: int = 1,
        num_shards: int = 1,
        seed: int = 0,
    ) -> None:
        """An empty replay.

        Args:
            capacity: transitions that it holds; the oldest go first.
            spec: columns, as name -> (shape, dtype), or from `spec_of`. `obs` and `action` (or `obs/KEY`, `action/KEY`)
                are needed, `reward`, `terminated` and `truncated` come by themselves, others are kept along.
            alpha: exponent of priorities.
            eps: added to magnitudes.
            n_step: steps of a return.
            gamma: discount of one step.
            frame_stack: frames of one observation, of which `spec` then describes one; for `add_fragment`.
            fragment_length: steps of a usual fragment, 1 if single transitions are added. It only decides how much
                memory is taken; shorter fragments need more, so that rows go before `capacity` is reached.
            num_shards: rings among which threads divide.
            seed: of the draws.

        Raises:
            MemoryRefused: it would not fit in memory.
            ValueError: a setting is out of range.
        """
        settings = TableSettings(
            name="replay",
            capacity=capacity,
            alpha=alpha,
            eps=eps,
            n_step=n_step,
            gamma=gamma,
            frame_stack=frame_stack,
            fragment_length=fragment_length,
            num_shards=num_shards,
            row_overhead=_row_overhead(fragment_length, frame_stack),
        )
        super().__init__(_in_process_table(settings, spec, seed))


class UniformReplay(Replay):
    """Uniform replay: every transition is as likely as any other, and all weights are 1."""

    def __init__(
        self,
        capacity: int,
        spec: Spec,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        frame_stack: int = 1,
        fragment_length: int = 1,
        num_shards: int = 1,
        seed: int = 0,
    ) -> None:
        """An empty replay; see PrioritizedReplay for the arguments."""
        settings = TableSettings(
            name="replay",
            capacity=capacity,
            kind="uniform",
            n_step=n_step,
            gamma=gamma,
            frame_stack=frame_stack,
            fragment_length=fragment_length,
            num_shards=num_shards,
            row_overhead=_row_overhead(fragment_length, frame_stack),
        )
        super().__init__(_in_process_table(settings, spec, seed))


class _Staged(NamedTuple):
    staging: Staging
    incoming: Incoming


def _in_process_table(settings: TableSettings, spec: Spec, seed: int) -> Table:
    if not isinstance(spec, TableSpec | Mapping):
        raise ValueError(f"spec is {spec!r}: it must name columns, as name -> (shape, dtype)")
    table_spec = spec if isinstance(spec, TableSpec) else TableSpec.of(spec)
    return Table(settings, table_spec, directory=None, rng=np.random.default_rng(seed))


def _row_overhead(fragment_length: int, frame_stack: int) -> float | None:
    """Single transitions, folded or not, take two rows and no overlap."""
    return 2.0 if fragment_length == frame_stack == 1 else None


def _of_last_step(value: Value, staging: FragmentStaging) -> Value:
    """A flag of the last step as one of each step."""
    if value is False:
        return staging.no_ends
    if np.ndim(value) > 0:
        return value
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"terminated or truncated is {value!r}: it must be a bool, or an array of them")
    flags = np.zeros_like(staging.no_ends)
    flags[-1:] = value
    return flags
