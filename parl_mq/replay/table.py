"""Named tables: rows in rings, drawn in proportion to their priorities."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from parl_mq.errors import SnapshotError
from parl_mq.fragments import FragmentBatch
from parl_mq.replay._rows import Incoming, Rows
from parl_mq.replay._sum_tree import LARGEST_VALUE, SumTree
from parl_mq.replay.contents import RingContents
from parl_mq.replay.draws import KEYS, PROBABILITIES, Draw, draw_columns
from parl_mq.replay.keys import POSITION_BITS, Keys, key_prefix, shards_of
from parl_mq.replay.layout import RowLayout
from parl_mq.replay.mapping import Segment
from parl_mq.replay.memory import check_memory
from parl_mq.replay.refusals import KeysRefused, PrioritiesRefused, TableEmpty
from parl_mq.replay.ring import Leaves, Ring, RingCounts, Targets
from parl_mq.replay.settings import FRAGMENTS_PER_SEGMENT
from parl_mq.replay.settings import TableSettings as TableSettings
from parl_mq.replay.snapshot import read_snapshot, write_snapshot
from parl_mq.spec import Column, TableSpec

Magnitudes = npt.NDArray[np.float64]

FIRST_MAGNITUDE: Final = 1.0
"""The running maximum before any magnitude was given."""

log = logging.getLogger("parl_mq")


class UpdateCounts(NamedTuple):
    """What became of the updates of one call."""

    applied: int
    stale: int


@dataclass(frozen=True, slots=True)
class TableCounts:
    """What happened in a table since it was made.

    Attributes:
        inserted: live rows stored.
        evicted: live rows that went.
        drawn: rows drawn.
        updated: priorities applied.
        stale: priorities dropped because their row had gone.
        torn: rows drawn again because they were overwritten while being copied.
        refused: magnitudes that were NaN, infinite or negative.
    """

    inserted: int
    evicted: int
    drawn: int
    updated: int
    stale: int
    torn: int
    refused: int


class Table:
    """A ring of fragments and its sum tree, in S shards.

    Threads: every method may be called from several threads at once. Inserts go to the shards in turn; a shard takes
    one insert at a time, and neither draws nor updates wait while it copies rows.

    Priorities are given as magnitudes, |TD error|; (magnitude + eps)^alpha is computed here and nowhere else. A row
    without one gets the largest magnitude that was ever applied, at least 1; that maximum never falls.
    """

    def __init__(
        self, settings: TableSettings, spec: TableSpec, *, directory: Path | None, rng: np.random.Generator
    ) -> None:
        """An empty table.

        Args:
            settings: how it keeps and draws rows.
            spec: its columns.
            directory: where its ring lies, one file `NAME.SHARD.ring` a shard; a ring found there is replaced. None: in
                anonymous memory.
            rng: source of the shards' random streams.

        Raises:
            MemoryRefused: it would not fit; nothing was allocated or replaced.
            ValueError: the spec cannot be drawn from.
        """
        self.settings = settings
        self.spec = spec
        self.ring_id = secrets.token_hex(8)
        self._need = settings.memory_need(spec)
        names = [column.name for column in self.draw_columns(1)]
        if len(set(names)) != len(names):
            raise ValueError(f"an extra column has the name of one of a draw's own: {names}")
        self._newest_batch: tuple[int, list[tuple[str, tuple[int, ...], np.dtype[Any]]]] = (0, [])
        check_memory(self._need, directory)
        self._rng = rng
        self._turn = 0
        self._num_refused = 0
        self._has_warned = False
        segments = [self._segment(shard, directory) for shard in range(settings.num_shards)]
        self.is_replacement = any(segment.is_replacement for segment in segments)
        self._rings = [self._ring(*item) for item in zip(count(), segments, rng.spawn(len(segments)), strict=False)]
        self._most_rows = min(ring.rows.num_rows for ring in self._rings) // FRAGMENTS_PER_SEGMENT
        self._most_live = min(ring.capacity for ring in self._rings)
        self._newest_default = (-1.0, Leaves(None, 0.0, 0.0))
        if self.is_replacement:
            log.warning("table %s: an old ring in %s was replaced by an empty one", settings.name, directory)

    def _segment(self, shard: int, directory: Path | None) -> Segment:
        path = directory / f"{self.settings.name}.{shard:03d}.ring" if directory is not None else None
        return Segment(self.settings.segment_shape(shard, self.spec), path, self.ring_id)

    def _ring(self, shard: int, segment: Segment, rng: np.random.Generator) -> Ring:
        settings = self.settings
        prefix = key_prefix(settings.table_index, shard)
        rows = Rows(
            segment.rows,
            segment.counters,
            RowLayout(self.spec),
            prefix=prefix,
            frame_stack=settings.frame_stack,
            n_step=settings.n_step,
            gamma=settings.gamma,
        )
        tree = SumTree(rows.num_rows, arity=settings.arity, leaves=segment.leaves)
        return Ring(segment, rows, tree, capacity=settings.shard_capacity(shard), prefix=prefix, rng=rng)

    @property
    def num_live(self) -> int:
        """Rows that may be drawn."""
        return sum([ring.rows.num_live for ring in self._rings])

    @property
    def num_rows(self) -> int:
        """Physical rows, dead and unused ones included."""
        return self._need.num_rows

    @property
    def num_bytes(self) -> int:
        """Memory that the table takes."""
        return self._need.num_bytes

    @property
    def total_priority(self) -> float:
        """Sum of all live rows' (magnitude + eps)^alpha."""
        return sum(ring.total() for ring in self._rings)

    @property
    def max_magnitude(self) -> float:
        """What a row without a magnitude of its own gets."""
        largest = FIRST_MAGNITUDE
        for ring in self._rings:
            if ring.max_magnitude > largest:
                largest = ring.max_magnitude
        return largest

    @property
    def max_priority(self) -> float:
        """The same as a priority, (magnitude + eps)^alpha."""
        return self._default_leaves().default

    def _default_leaves(self) -> Leaves:
        magnitude = self.max_magnitude
        if magnitude != self._newest_default[0]:
            default = float(self._priorities(np.array([magnitude]))[0])
            self._newest_default = magnitude, Leaves(None, default, 0.0)
        return self._newest_default[1]

    @property
    def counts(self) -> TableCounts:
        """What happened since the table was made."""
        each = [ring.counts for ring in self._rings]
        names = [field.name for field in fields(RingCounts)]
        return TableCounts(
            **{name: sum(getattr(one, name) for one in each) for name in names}, refused=self._num_refused
        )

    def close(self, *, remove: bool = True) -> None:
        """Gives the memory back; nothing may be called after it.

        Args:
            remove: the ring's files go too.
        """
        while self._rings:
            self._rings.pop().close(remove=remove)

    def insert(self, fragments: FragmentBatch, spans: npt.NDArray[np.uint8] | None = None) -> Keys:
        """Stores fragments, all in one shard; they can be drawn once this returns.

        Args:
            fragments: at least one; copied.
            spans: [R] steps folded into each row, >= 1; None: 1 each.

        Returns:
            [num_live] uint64 keys of the live rows, in order. Of a batch larger than a shard the first have gone.

        Raises:
            FragmentsRefused: a column, a length or a flag does not fit. Nothing was stored.
            PrioritiesRefused: a magnitude is NaN, infinite or negative, or their number is wrong. Nothing was stored.
        """
        return self.store(self.take(fragments, spans), fragments.priorities)

    def take(self, fragments: FragmentBatch, spans: npt.NDArray[np.uint8] | None = None) -> Incoming:
        """Checks fragments for `store`; the first half of `insert`, for callers that use the same arrays again.

        Raises:
            FragmentsRefused: as `insert`.
        """
        return self._rings[-1].rows.take(fragments, spans, self._most_rows, self._most_live)

    def store(self, incoming: Incoming, magnitudes: Magnitudes | None = None) -> Keys:
        """Stores what `take` has checked, with what its arrays hold now; the other half of `insert`.

        Args:
            incoming: from this table's `take`. No step but a fragment's last may have been made to end an episode.
            magnitudes: of its live rows; None: the running maximum.

        Raises:
            PrioritiesRefused: as `insert`.
        """
        if magnitudes is not None:
            self.check_magnitudes(magnitudes, incoming.num_live)
        ring = self._rings[self._turn % len(self._rings)]
        self._turn += 1  # two threads may now and then take the same turn, which does no harm
        if magnitudes is None:
            return ring.insert(incoming, self._default_leaves())
        return ring.insert(incoming, Leaves(self._priorities(magnitudes), 0.0, magnitudes.max()))

    def check_magnitudes(self, magnitudes: Magnitudes, num_expected: int) -> None:
        """Counts and refuses magnitudes that are none.

        Raises:
            PrioritiesRefused: see `insert`.
        """
        if magnitudes.dtype != np.float64 or magnitudes.shape != (num_expected,):
            raise PrioritiesRefused(
                f"magnitudes are {magnitudes.dtype} {magnitudes.shape}: they must be float64 {(num_expected,)}"
            )
        if num_expected and not (magnitudes.min() >= 0.0 and magnitudes.max() < np.inf):
            bad = np.flatnonzero(~((magnitudes >= 0.0) & (magnitudes < np.inf)))
            self._num_refused += len(bad)
            raise PrioritiesRefused(
                f"magnitude {magnitudes[bad[0]]} at index {bad[0]} is not finite and >= 0; none of the {num_expected} "
                "was applied"
            )

    def _priorities(self, magnitudes: Magnitudes) -> Magnitudes:
        if self.settings.kind == "uniform":
            return np.ones(len(magnitudes))
        shifted = np.minimum(magnitudes, LARGEST_VALUE) + self.settings.eps
        priorities: Magnitudes = shifted**self.settings.alpha
        if self.settings.eps == 0.0:
            priorities[shifted == 0.0] = 0.0  # 0^0 is 1, but what has no priority stays without one at alpha = 0
        return priorities

    def draw_columns(self, batch_size: int) -> list[Column]:
        """The arrays of a draw: names, shapes with the leading B, dtypes."""
        settings = self.settings
        return draw_columns(self.spec, batch_size=batch_size, frame_stack=settings.frame_stack, n_step=settings.n_step)

    def draw(self, batch_size: int, out: Mapping[str, npt.NDArray[Any]] | None = None) -> Draw:
        """Draws rows independently of each other, each with probability p_i / total, and copies their windows.

        Where no row has a priority, all live rows have the same probability, and a warning is logged once.

        Args:
            batch_size: B >= 1; may exceed the live rows.
            out: arrays to fill, as `draw_columns` describes them, C-contiguous; None makes new ones.

        Raises:
            TableEmpty: there is no live row.
            ValueError: `batch_size` is below 1, or an array of `out` is missing or of another shape or dtype.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: it must be at least 1")
        wanted = self._arrays_of(batch_size)
        if out is None:
            arrays = {name: np.empty(shape, dtype) for name, shape, dtype in wanted}
        else:
            arrays = {name: _fitting(out, name, shape, dtype) for name, shape, dtype in wanted}
        *columns, keys, probabilities = arrays.values()
        targets = Targets(tuple(columns), keys, probabilities)
        total = self._fill(batch_size, lambda ring, start, stop, chance: ring.draw(targets, start, stop, chance))
        del arrays[KEYS], arrays[PROBABILITIES]
        return Draw(arrays, keys, probabilities, self.num_live, total)

    def draw_keys(self, batch_size: int, out: Mapping[str, npt.NDArray[Any]] | None = None) -> Draw:
        """Draws rows as `draw` does and copies none: for a reader that has the table mapped (MappedTable).

        Args:
            batch_size: as of `draw`.
            out: `keys` and `probabilities` to fill; None makes new ones.

        Returns:
            A draw without columns. Its rows may be overwritten before they are read.

        Raises:
            TableEmpty, ValueError: as `draw`.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: it must be at least 1")
        if out is None:
            keys, probabilities = np.empty(batch_size, np.uint64), np.empty(batch_size)
        else:
            keys = _fitting(out, KEYS, (batch_size,), np.dtype(np.uint64))
            probabilities = _fitting(out, PROBABILITIES, (batch_size,), np.dtype(np.float64))
        total = self._fill(
            batch_size,
            lambda ring, start, stop, chance: ring.draw_keys(keys[start:stop], probabilities[start:stop], chance),
        )
        return Draw({}, keys, probabilities, self.num_live, total)

    def _arrays_of(self, batch_size: int) -> list[tuple[str, tuple[int, ...], np.dtype[Any]]]:
        if batch_size != self._newest_batch[0]:
            columns = self.draw_columns(batch_size)
            self._newest_batch = (
                batch_size,
                [(column.name, column.shape, np.dtype(column.dtype)) for column in columns],
            )
        return self._newest_batch[1]

    def _fill(self, batch_size: int, draw: Callable[[Ring, int, int, float], float | None]) -> float:
        """Lets each ring draw its share: `draw` takes the ring, the first row, the one behind the last, its chance."""
        num_drawn = 0
        total = 0.0
        while num_drawn < batch_size:
            before = num_drawn
            for ring, size, chance in self._split(batch_size - num_drawn):
                ring_total = draw(ring, num_drawn, num_drawn + size, chance)
                if ring_total is not None:
                    total = max(total, ring_total / chance)
                    num_drawn += size
            if num_drawn == before:
                self._wait_for_rows()
        if total == 0.0 and not self._has_warned:
            self._has_warned = True
            log.warning("table %s: all priorities are 0; rows are drawn uniformly", self.settings.name)
        return total

    def _split(self, size: int) -> list[tuple[Ring, int, float]]:
        """(ring, rows, chance of the ring) of the rings that take part in a draw."""
        if len(self._rings) == 1:
            return [(self._rings[0], size, 1.0)]
        weights = np.array([ring.total() for ring in self._rings])
        if not weights.any():
            weights = np.array([float(ring.rows.num_live) for ring in self._rings])
        if not weights.any():
            return []
        chances = weights / weights.sum()
        sizes = self._rng.multinomial(size, chances)
        return [(self._rings[s], int(sizes[s]), float(chances[s])) for s in np.flatnonzero(sizes)]

    def _wait_for_rows(self) -> None:
        """Waits for inserts under way, which may have evicted the last live rows already.

        Raises:
            TableEmpty: there are no live rows.
        """
        for ring in self._rings:
            with ring.writer:
                pass
        if self.num_live == 0:
            raise TableEmpty(f"table {self.settings.name} has no rows to draw")

    def update_priorities(self, keys: Keys, magnitudes: Magnitudes) -> UpdateCounts:
        """Gives rows new priorities; where a key stands twice, the last one counts.

        Args:
            keys: [U] uint64, from draws or inserts. Rows that have gone are left alone and counted as stale.
            magnitudes: [U] float64, |TD error| without importance weights. A uniform table only checks them.

        Raises:
            PrioritiesRefused: a magnitude is NaN, infinite or negative, or there are not U. None was applied.
            KeysRefused: a key is not of this table, or was never given to a live row. None was applied.
        """
        if keys.dtype != np.uint64 or keys.ndim != 1:
            raise KeysRefused(f"keys are {keys.dtype} {keys.shape}: they must be uint64 [U]")
        self.check_magnitudes(magnitudes, len(keys))
        parts = self._by_ring(np.ascontiguousarray(keys), magnitudes, self._priorities(magnitudes))
        with ExitStack() as locks:
            for part in parts:
                locks.enter_context(part.ring.lock)
            found = [part.ring.find(part.keys) for part in parts]
            num_applied = sum(part.apply(*slots) for part, slots in zip(parts, found, strict=True))
        return UpdateCounts(num_applied, len(keys) - num_applied)

    def _by_ring(self, keys: Keys, magnitudes: Magnitudes, priorities: Magnitudes) -> list[_Update]:
        """The updates of each ring, in the order of the rings; that of the locks, therefore."""
        if len(self._rings) == 1:
            return [_Update(self._rings[0], keys, magnitudes, priorities)]
        shards = shards_of(keys)
        by_shard = {ring.prefix >> POSITION_BITS: ring for ring in self._rings}
        present = [int(shard) for shard in np.unique(shards)]
        if foreign := [shard for shard in present if shard not in by_shard]:
            index = int(np.flatnonzero(shards == foreign[0])[0])
            raise KeysRefused(f"keys[{index}] is {keys[index]}: it is not of table {self.settings.name}")
        masks = [(by_shard[shard], shards == shard) for shard in present]
        return [_Update(ring, keys[mask], magnitudes[mask], priorities[mask]) for ring, mask in masks]

    def save(self, path: Path, metadata: Mapping[str, Any]) -> None:
        """Writes all rows with their keys and priorities, and the random streams, into one file.

        Inserts and updates wait until it is written.

        Args:
            path: replaced if it exists, when all is written.
            metadata: JSON values that `load` gives back.
        """
        with ExitStack() as locks:
            for ring in self._rings:
                locks.enter_context(ring.writer)
            for ring in self._rings:
                locks.enter_context(ring.lock)
            contents = [ring.contents() for ring in self._rings]
            arrays = {
                f"{shard}/{name}": pieces
                for shard, one in enumerate(contents)
                for name, pieces in one.named_arrays().items()
            }
            columns, spaces = self.spec.to_wire()
            own = {
                "settings": asdict(self.settings),
                "columns": columns,
                "spaces": spaces,
                "tails": [one.tail for one in contents],
                "max_magnitudes": [ring.max_magnitude for ring in self._rings],
                "streams": [ring.stream for ring in self._rings],
                "stream": self._rng.bit_generator.state,
                "turn": self._turn,
            }
            write_snapshot(path, {"table": own, "more": dict(metadata)}, arrays)

    @classmethod
    def load(cls, path: Path, *, directory: Path | None = None) -> tuple[Table, dict[str, Any]]:
        """The table that `save` wrote, which goes on exactly as that one, and the metadata.

        Raises:
            SnapshotError: the file is missing, damaged, or of another kind or version.
            MemoryRefused: the table would not fit.
        """
        metadata, arrays = read_snapshot(path)
        try:
            own = metadata["table"]
            settings = TableSettings(**own["settings"])
            table = cls(
                settings,
                TableSpec.from_wire(own["columns"], own["spaces"]),
                directory=directory,
                rng=np.random.default_rng(0),
            )
            try:
                table._restore(own, arrays)
            except BaseException:
                table.close()
                raise
            return table, metadata["more"]
        except SnapshotError as exc:
            raise SnapshotError(f"{path}: {exc}") from exc
        except (ValueError, KeyError, TypeError, IndexError) as exc:
            raise SnapshotError(f"{path}: it does not describe a table: {exc}") from exc

    def _restore(self, own: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        for shard, ring in enumerate(self._rings):
            prefix = f"{shard}/"
            given = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            contents = RingContents.from_named_arrays(own["tails"][shard], given)
            ring.restore(contents, own["max_magnitudes"][shard])
            ring.stream = own["streams"][shard]
        self._rng.bit_generator.state = own["stream"]
        self._turn = own["turn"]


class _Update(NamedTuple):
    """New priorities of one ring's rows, [U] each."""

    ring: Ring
    keys: Keys
    magnitudes: Magnitudes
    priorities: Magnitudes

    def apply(self, slots: npt.NDArray[np.int64], indices: npt.NDArray[np.int64]) -> int:
        """Writes what is still valid, under the ring's lock; returns how many that were."""
        num_stale = len(self.keys) - len(slots)
        magnitudes, priorities = self.magnitudes, self.priorities
        if num_stale:
            magnitudes, priorities = magnitudes[indices], priorities[indices]
        self.ring.set_leaves(slots, priorities, num_stale, float(magnitudes.max(initial=0.0)))
        return len(slots)


def _fitting(
    out: Mapping[str, npt.NDArray[Any]], name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    array = out.get(name)
    if array is None:
        raise ValueError(f"out has no array {name!r}")
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(f"out[{name!r}] is {array.dtype} {array.shape}: it must be {dtype} {shape}")
    return array
