"""One shard of a table: a ring segment with its sum tree, its lock and its random stream."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from parl_mq.errors import SnapshotError
from parl_mq.replay._rows import Incoming, Part, Rows
from parl_mq.replay._sum_tree import SumTree
from parl_mq.replay.contents import RingContents, check_headers, slot_ranges
from parl_mq.replay.keys import Keys
from parl_mq.replay.layout import HEADER_DTYPE, HEADER_NAME
from parl_mq.replay.mapping import Segment
from parl_mq.replay.refusals import TableEmpty

Values = npt.NDArray[np.float64]
Columns = tuple[npt.NDArray[Any], ...]

MAX_TRIES_BESIDE_INSERTS: Final = 3
"""Gathers of a torn row without the lock; the next one holds it, and no row can be evicted meanwhile."""


class Targets(NamedTuple):
    """The arrays that a draw fills: columns in the order of `draw_columns`, keys and probabilities."""

    columns: Columns
    keys: Keys
    probabilities: Values


class Leaves(NamedTuple):
    """Leaves of rows that come in.

    Attributes:
        values: one for each live row; None: `default` for all.
        default: see there.
        max_magnitude: the largest magnitude among them that somebody gave, for the running maximum.
    """

    values: Values | None
    default: float
    max_magnitude: float


@dataclass(slots=True)
class RingCounts:
    """What happened in a ring since it was made, in rows."""

    inserted: int = 0
    evicted: int = 0
    drawn: int = 0
    updated: int = 0
    stale: int = 0
    torn: int = 0


class Ring:
    """Rows of one shard in the order in which they came, and a leaf for each.

    An insert goes: reserve positions; under the lock set the victims' leaves to 0 and move the tail past them; copy the
    rows; under the lock write their leaves and commit. Rows being copied have leaves of 0 and cannot be drawn, and no
    draw or update waits for a copy. A draw finds its rows under the lock and copies them without it; a row that was
    overwritten meanwhile lies in front of the tail by then, and is drawn again.

    Eviction is first in, first out, by whole fragments: when live rows would exceed `capacity`, or room runs short.

    Attributes:
        lock: held to find rows and to change leaves, briefly.
        writer: held by an insert from its beginning to its end.
        capacity: live rows at most.
        prefix: the key of position 0.
        counts: what happened here.
        max_magnitude: the largest magnitude that was ever applied; 0 at first.
    """

    def __init__(
        self, segment: Segment, rows: Rows, tree: SumTree, *, capacity: int, prefix: int, rng: np.random.Generator
    ) -> None:
        self.lock = Lock()
        self.writer = Lock()
        self.rows = rows
        self.tree = tree
        self.capacity = capacity
        self.prefix = prefix
        self.counts = RingCounts()
        self.max_magnitude = 0.0
        self._segment = segment
        self._rng = rng
        rows.restart(segment.first_position, segment.first_position, 0)

    @property
    def stream(self) -> dict[str, Any]:
        """State of the random stream, in JSON values."""
        return dict(self._rng.bit_generator.state)

    @stream.setter
    def stream(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state

    def total(self) -> float:
        """Sum of all leaves."""
        with self.lock:
            return self.tree.total

    def close(self, *, remove: bool) -> None:
        """Gives the memory back; nothing may be called after it."""
        del self.rows, self.tree
        self._segment.close(remove=remove)

    def insert(self, incoming: Incoming, leaves: Leaves) -> Keys:
        """Stores fragments, and waits for other inserts into this ring while they last.

        A batch larger than the ring is stored in parts, each of which evicts the one before.

        Args:
            incoming: fragments that this ring's rows have checked.
            leaves: what their live rows get.

        Returns:
            Keys of the live rows, in order.
        """
        keys = np.empty(incoming.num_live, np.uint64)
        with self.writer:
            if (left_over := self.rows.unfinished()) is not None:
                self._bury(left_over)
            part = self._store(incoming, None, leaves, keys)
            while part.stop < incoming.num_fragments:
                part = self._store(incoming, part, leaves, keys)
        return keys

    def _store(self, incoming: Incoming, after: Part | None, leaves: Leaves, keys: Keys) -> Part:
        part = self.rows.reserve(incoming, after, self.capacity)
        with self.lock:
            self._evict(part)
        row_of_leaves = np.empty(part.num_rows)
        self.rows.scatter(incoming, part, leaves.values, leaves.default, row_of_leaves, keys)
        with self.lock:
            self._write_leaves(part, row_of_leaves)
            self._commit(part, leaves.max_magnitude)
        return part

    def _bury(self, left_over: Part) -> None:
        """Makes rows dead whose insert was interrupted between its reservation and its commit."""
        with self.lock:
            self._evict(left_over)
            self._zero(left_over.start, left_over.end)
            self.rows.bury(left_over)
            self._commit(left_over, 0.0)

    def _evict(self, part: Part) -> None:
        if part.tail > part.old_tail:
            self._zero(part.old_tail, part.tail)
            self.counts.evicted += part.num_evicted
            self.rows.evict(part)

    def _zero(self, start: int, stop: int) -> None:
        for slots in slot_ranges(start, stop, self.rows.num_rows):
            self.tree.fill(slots.start, slots.stop, 0.0)

    def _write_leaves(self, part: Part, leaves: Values) -> None:
        start = part.start % self.rows.num_rows
        if part.before_wrap == part.num_rows:
            self.tree.write(start, leaves)
            return
        if part.before_wrap:
            self.tree.write(start, leaves[: part.before_wrap])
        self.tree.write(0, leaves[part.before_wrap :])

    def _commit(self, part: Part, max_magnitude: float) -> None:
        """Makes a part count: everything that must outlive the process is written here, in this order."""
        if max_magnitude > self.max_magnitude:
            self._raise_maximum(max_magnitude)
        self.counts.inserted += part.num_live
        self.rows.commit(part)

    def _raise_maximum(self, max_magnitude: float) -> None:
        self.max_magnitude = max_magnitude
        self._segment.max_magnitude[0] = max_magnitude

    def draw(self, targets: Targets, start: int, stop: int, chance: float) -> float | None:
        """Draws rows and copies their windows into the rows [start, stop) of the targets.

        Args:
            targets: the batch.
            start: see above.
            stop: see above.
            chance: of this ring among those of its table: probabilities become chance x p_i / total.

        Returns:
            The total at the draw, or None where no row is live: nothing was drawn then. A total of 0 stands for a
            uniform draw.
        """
        keys, probabilities = targets.keys[start:stop], targets.probabilities[start:stop]
        with self.lock:
            total = self._choose(keys, probabilities)
            if total is None:
                return None
            self.counts.drawn += stop - start
        torn = self.rows.gather(keys, targets.columns, start)
        if torn is not None:
            self._draw_again(torn, keys, probabilities, targets.columns, start)
        if chance != 1.0:
            probabilities *= chance
        return total

    def draw_keys(self, keys: Keys, probabilities: Values, chance: float) -> float | None:
        """Draws rows and copies nothing; otherwise as `draw`, for the whole of both arrays."""
        with self.lock:
            total = self._choose(keys, probabilities)
            if total is None:
                return None
            self.counts.drawn += len(keys)
        if chance != 1.0:
            probabilities *= chance
        return total

    def _choose(self, keys: Keys, probabilities: Values) -> float | None:
        """Fills in keys and p_i / total; the caller holds the lock."""
        total = self.tree.total
        if total > 0.0:
            self._rng.random(out=probabilities)
            self.tree.draw(probabilities, keys.view(np.int64), probabilities)
            self.rows.locate(keys)
            probabilities /= total
        elif self.rows.num_live > 0:
            self._choose_uniformly(keys)
            probabilities[:] = 1.0 / self.rows.num_live
        else:
            return None
        return total

    def _choose_uniformly(self, keys: Keys) -> None:
        num_chosen = 0
        oldest, end = self.prefix + self.rows.tail, self.prefix + self.rows.committed
        while num_chosen < len(keys):
            candidates = self._rng.integers(oldest, end, len(keys) - num_chosen, np.uint64)
            live = candidates[self.rows.are_live(candidates)]
            keys[num_chosen : num_chosen + len(live)] = live
            num_chosen += len(live)

    def _draw_again(self, torn: list[int], keys: Keys, probabilities: Values, columns: Columns, start: int) -> None:
        self.counts.torn += len(torn)
        for i in torn:
            key, probability = keys[i : i + 1], probabilities[i : i + 1]
            for _ in range(MAX_TRIES_BESIDE_INSERTS):
                if self._choose_one(key, probability) and self.rows.gather(key, columns, start + i) is None:
                    break
            else:
                self._draw_alone(key, probability, columns, start + i)

    def _choose_one(self, key: Keys, probability: Values) -> bool:
        with self.lock:
            return self._choose(key, probability) is not None

    def _draw_alone(self, key: Keys, probability: Values, columns: Columns, row: int) -> None:
        """Draws with inserts held back: one under way may have evicted all rows, and not committed its own yet."""
        with self.writer, self.lock:
            if self._choose(key, probability) is None:
                raise TableEmpty("an insert was interrupted after it had evicted the last rows")
            self.rows.gather(key, columns, row)

    def find(self, keys: Keys) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Slots of the keys that are still valid, and their indices; the caller holds the lock.

        Raises:
            KeysRefused: a key was never given to a live row of this shard.
        """
        slots, indices = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
        num_found = self.rows.find(keys, slots, indices)
        return slots[:num_found], indices[:num_found]

    def set_leaves(self, slots: npt.NDArray[np.int64], values: Values, num_stale: int, max_magnitude: float) -> None:
        """Writes leaves, the last of equal slots winning; the caller holds the lock."""
        self.tree.set(slots, values)
        self.counts.updated += len(slots)
        self.counts.stale += num_stale
        if max_magnitude > self.max_magnitude:
            self._raise_maximum(max_magnitude)

    def contents(self) -> RingContents:
        """All rows, as views; the caller holds `writer` while it uses them, and `lock` if updates may come."""
        ranges = slot_ranges(self.rows.tail, self.rows.committed, self.rows.num_rows)
        records = self._segment.records()
        headers, columns = _fields(records)
        return RingContents(
            self.rows.tail,
            {name: [array[slots] for slots in ranges] for name, array in headers.items()},
            {name: [array[slots] for slots in ranges] for name, array in columns.items()},
            [self.tree.leaves[slots] for slots in ranges],
        )

    def restore(self, contents: RingContents, max_magnitude: float) -> None:
        """Puts rows back where they were; the ring is new.

        Raises:
            SnapshotError: they are not the rows of such a ring. The ring is not to be used then.
        """
        (leaves,) = contents.leaves
        num_rows = self.rows.num_rows
        committed = contents.tail + len(leaves)
        if contents.tail < 0 or len(leaves) > num_rows:
            raise SnapshotError(f"{len(leaves)} rows from position {contents.tail} on do not fit into {num_rows}")
        records = self._segment.records()
        headers, columns = _fields(records)
        slots = np.arange(contents.tail, committed) % num_rows
        for targets, given in ((headers, contents.headers), (columns, contents.columns)):
            if targets.keys() != given.keys():
                raise SnapshotError(f"its columns are {sorted(given)}: they must be {sorted(targets)}")
            for name, (column,) in given.items():
                if column.dtype != targets[name].dtype or column.shape[1:] != targets[name].shape[1:]:
                    raise SnapshotError(f"its column {name!r} is {column.dtype} {column.shape}")
                targets[name][slots] = column
        num_live = check_headers(records[HEADER_NAME][slots], leaves, contents.tail, num_rows)
        self._write_restored(contents.tail, leaves)
        self.rows.restart(contents.tail, committed, num_live)
        self._raise_maximum(max_magnitude)

    def _write_restored(self, tail: int, leaves: Values) -> None:
        done = 0
        for slots in slot_ranges(tail, tail + len(leaves), self.rows.num_rows):
            size = slots.stop - slots.start
            try:
                self.tree.write(slots.start, leaves[done : done + size])
            except ValueError as exc:
                raise SnapshotError(f"its priorities are damaged: {exc}") from exc
            done += size


def _fields(records: npt.NDArray[np.void]) -> tuple[dict[str, npt.NDArray[Any]], dict[str, npt.NDArray[Any]]]:
    """Views of the fields of headers, and of the columns, by name."""
    headers = records[HEADER_NAME]
    return (
        {name: headers[name] for name in HEADER_DTYPE.names or ()},
        {name: records[name] for name in records.dtype.names or () if name != HEADER_NAME},
    )
