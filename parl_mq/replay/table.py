"""Named tables: rows in rings, drawn in proportion to their priorities."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from parl_mq.errors import RingRefused, SnapshotError
from parl_mq.fragments import FragmentBatch
from parl_mq.replay._priorities import Priorities
from parl_mq.replay._rows import Incoming, Rows
from parl_mq.replay._shard import largest_magnitude, totals, update
from parl_mq.replay._sum_tree import SumTree
from parl_mq.replay.contents import RingAccount, StoredContents
from parl_mq.replay.draws import KEYS, PROBABILITIES, Draw, draw_columns
from parl_mq.replay.keys import POSITION_BITS, Keys, key_prefix
from parl_mq.replay.layout import RowLayout
from parl_mq.replay.mapping import COMMITTED, RESERVED, TAIL, Segment, SegmentIdentity, new_segment
from parl_mq.replay.memory import check_memory
from parl_mq.replay.recovery import find_repair
from parl_mq.replay.recycling import Kind, Recycler
from parl_mq.replay.refusals import PrioritiesRefused, TableEmpty
from parl_mq.replay.ring import Leaves, Ring, Targets
from parl_mq.replay.ring_files import RingFiles
from parl_mq.replay.senders import SenderMark, check_mark, newest
from parl_mq.replay.settings import FRAGMENTS_PER_SEGMENT, whole_number
from parl_mq.replay.settings import TableSettings as TableSettings
from parl_mq.replay.snapshot import Snapshot, open_snapshot, write_snapshot
from parl_mq.spec import Column, TableSpec

Magnitudes = npt.NDArray[np.float64]
Values = npt.NDArray[np.float64]

FIRST_MAGNITUDE: Final = 1.0
"""The running maximum before any magnitude was given."""

_MOST_DRAWN: Final = 2**31

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
        self,
        settings: TableSettings,
        spec: TableSpec,
        *,
        directory: Path | None,
        rng: np.random.Generator,
        fresh: bool = False,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """A table that goes on with the rows of the ring in `directory`, or an empty one.

        Args:
            settings: how it keeps and draws rows.
            spec: its columns.
            directory: of its ring alone, one file `NAME.SHARD.ring` a shard; made if it is not there. A ring found in
                it must be of a table with the same columns and settings. None: in anonymous memory.
            rng: source of the shards' random streams.
            fresh: a ring found is replaced by an empty one, whatever it is.
            labels: what the owner calls a ring that is made, to be read beside it.

        Raises:
            MemoryRefused: it would not fit; nothing was allocated or replaced.
            RingRefused: the ring found is damaged, foreign, or in use; it is left as it is.
            ValueError: the spec cannot be drawn from.
        """
        self.settings = settings
        self.spec = spec
        self._need = settings.memory_need(spec)
        names = [column.name for column in self.draw_columns(1)]
        self._drawn_names = names[:-2]  # keys and probabilities stand behind them
        if len(set(names)) != len(names):
            raise ValueError(f"an extra column has the name of one of a draw's own: {names}")
        self._newest_batch: tuple[int, list[Kind], int] = (0, [], 0)
        self._rng = rng
        self._turn = 0
        self._draws = 0
        self._recycler = Recycler()
        self._num_refused = 0
        self._has_warned = False
        self.ring_id = secrets.token_hex(8)
        self.is_reopened = False
        self._files = None if directory is None else RingFiles(directory, settings.name)
        try:
            segments = self._segments(fresh=fresh, labels=labels or {})
            self._rings = [self._ring(*item) for item in zip(count(), segments, rng.spawn(len(segments)), strict=False)]
            if self._files is not None and not self.is_reopened:
                self._files.note_open()
        except BaseException:
            if self._files is not None:
                self._files.abandon()
            raise
        self.words = segments[0].words
        self._shards = [ring.shard for ring in self._rings]
        self._priorities = Priorities(alpha=settings.alpha, eps=settings.eps, is_uniform=settings.kind == "uniform")
        self._most_rows = min(ring.rows.num_rows for ring in self._rings) // FRAGMENTS_PER_SEGMENT
        self._most_live = min(ring.capacity for ring in self._rings)
        self._newest_default = (-1.0, Leaves(None, 0.0, 0.0))

    def _segments(self, *, fresh: bool, labels: Mapping[str, str]) -> list[Segment]:
        files = self._files
        if files is None:
            check_memory(self._need, None)
            shapes = [self.settings.segment_shape(shard, self.spec) for shard in range(self.settings.num_shards)]
            return [new_segment(SegmentIdentity(shape, self.ring_id, i), None) for i, shape in enumerate(shapes)]
        is_found = not fresh and files.has_ring()
        check_memory(self._need, files.directory, reused=files.num_bytes_found)
        return self._reopen(files) if is_found else self._create(files, labels)

    def _reopen(self, files: RingFiles) -> list[Segment]:
        segments = files.reopen(self.settings, self.spec)
        repairs = [find_repair(segment) for segment in segments]
        files.note_open()
        for repair in repairs:
            repair.apply()
        self.ring_id, self.is_reopened = files.ring_id, True
        return segments

    def _create(self, files: RingFiles, labels: Mapping[str, str]) -> list[Segment]:
        if files.found_files:
            log.warning("table %s: what lay in %s is replaced by an empty ring", self.settings.name, files.directory)
        made = files.create(self.settings, self.spec, self.ring_id, labels)
        for segment, first_position in made:
            segment.counters[[TAIL, RESERVED, COMMITTED]] = first_position
        return [segment for segment, _ in made]

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
        return float(totals(self._shards, is_exact=True).sum())

    @property
    def max_magnitude(self) -> float:
        """What a row without a magnitude of its own gets."""
        return largest_magnitude(self._shards, FIRST_MAGNITUDE)

    @property
    def max_priority(self) -> float:
        """The same as a priority, (magnitude + eps)^alpha."""
        return self._default_leaves().default

    def _default_leaves(self) -> Leaves:
        magnitude = largest_magnitude(self._shards, FIRST_MAGNITUDE)
        if magnitude != self._newest_default[0]:
            default = float(self._priorities.of(np.array([magnitude]))[0])
            self._newest_default = magnitude, Leaves(None, default, 0.0)
        return self._newest_default[1]

    @property
    def counts(self) -> TableCounts:
        """What happened since the table was made."""
        names = [field.name for field in fields(TableCounts) if field.name != "refused"]
        sums = {name: sum(getattr(ring.counts, name) for ring in self._rings) for name in names}
        return TableCounts(**sums, refused=self._num_refused)

    def close(self, *, remove: bool = True) -> None:
        """Gives the memory back; nothing may be called after it.

        Args:
            remove: the ring's files go too; else all of them are on the disk when this returns.
        """
        files, self._files = self._files, None
        self._shards.clear()
        self.words = self.words.copy()  # a view of it would keep the memory
        while self._rings:
            self._rings.pop().close(remove=remove)
        if files is not None:
            files.close(remove=remove)

    def sender(self, name: str | bytes) -> SenderMark | None:
        """How far a sender's stream is stored; None: the table knows nothing of it.

        Of each shard the 1,024 senders are known that sent last.
        """
        return newest([mark for ring in self._rings if (mark := ring.sender(name)) is not None])

    def senders(self) -> list[SenderMark]:
        """The marks of all senders that it knows, under the digests of their names."""
        marks: dict[bytes, SenderMark] = {}
        for ring in self._rings:
            for mark in ring.account().senders:
                marks[mark.digest] = max(mark, marks.get(mark.digest, mark), key=lambda each: each[1:])
        return list(marks.values())

    def remember(self, sender: SenderMark) -> None:
        """Keeps a mark without rows: of a message that was refused for good.

        Raises:
            ValueError: the mark cannot be stored.
        """
        check_mark(sender)
        self._rings[self._turn % len(self._rings)].remember(sender)

    def insert(
        self,
        fragments: FragmentBatch,
        spans: npt.NDArray[np.uint8] | None = None,
        *,
        sender: SenderMark | None = None,
    ) -> Keys:
        """Stores fragments, all in one shard; they can be drawn once this returns.

        With a ring in a directory they are there again after this process was killed, unless they were evicted.

        Args:
            fragments: at least one; copied.
            spans: [R] steps folded into each row, >= 1; None: 1 each.
            sender: kept with them, so that a sender need send again only what is not stored.

        Returns:
            [num_live] uint64 keys of the live rows, in order. Of a batch larger than a shard the first have gone.

        Raises:
            FragmentsRefused: a column, a length or a flag does not fit. Nothing was stored.
            PrioritiesRefused: a magnitude is NaN, infinite or negative, or their number is wrong. Nothing was stored.
            ValueError: the sender's mark cannot be stored. Nothing was.
        """
        return self.store(self.take(fragments, spans), fragments.priorities, sender=sender)

    def take(self, fragments: FragmentBatch, spans: npt.NDArray[np.uint8] | None = None) -> Incoming:
        """Checks fragments for `store`; the first half of `insert`, for callers that use the same arrays again.

        Raises:
            FragmentsRefused: as `insert`.
        """
        return self._rings[-1].rows.take(fragments, spans, self._most_rows, self._most_live)

    def store(
        self, incoming: Incoming, magnitudes: Magnitudes | None = None, *, sender: SenderMark | None = None
    ) -> Keys:
        """Stores what `take` has checked, with what its arrays hold now; the other half of `insert`.

        Args:
            incoming: from this table's `take`. No step but a fragment's last may have been made to end an episode.
            magnitudes: of its live rows; None: the running maximum.
            sender: as `insert`.

        Raises:
            PrioritiesRefused: as `insert`.
            ValueError: likewise.
        """
        if sender is not None:
            check_mark(sender)
        if magnitudes is not None:
            self.check_magnitudes(magnitudes, incoming.num_live)
        ring = self._rings[self._turn % len(self._rings)]
        self._turn += 1  # two threads may now and then take the same turn, which does no harm
        if magnitudes is None:
            return ring.insert(incoming, self._default_leaves(), sender)
        return ring.insert(incoming, Leaves(self._priorities.of(magnitudes), 0.0, float(magnitudes.max())), sender)

    def check_magnitudes(self, magnitudes: Magnitudes, num_expected: int) -> None:
        """Counts and refuses magnitudes that are none.

        Raises:
            PrioritiesRefused: see `insert`.
        """
        try:
            self._priorities.check(magnitudes, num_expected)
        except PrioritiesRefused as refused:
            self._num_refused += refused.num_refused
            raise

    def draw_columns(self, batch_size: int) -> list[Column]:
        """The arrays of a draw: names, shapes with the leading B, dtypes."""
        settings = self.settings
        return draw_columns(self.spec, batch_size=batch_size, frame_stack=settings.frame_stack, n_step=settings.n_step)

    def draw(
        self, batch_size: int, out: Mapping[str, npt.NDArray[Any]] | None = None, *, is_shared_out: bool = False
    ) -> Draw:
        """Draws rows independently of each other, each with probability p_i / total, and copies their windows.

        Where no row has a priority, all live rows have the same probability, and a warning is logged once.

        Args:
            batch_size: B >= 1; may exceed the live rows.
            out: arrays to fill, as `draw_columns` describes them, C-contiguous; None takes new ones, or those of an
                earlier draw that nobody holds any more.
            is_shared_out: several batches are made of these rows, which then stand in random order; else they stand
                shard by shard.

        Raises:
            TableEmpty: there is no live row.
            ValueError: `batch_size` is no whole number of at least 1, or an array of `out` is missing or of another
                shape or dtype.
        """
        batch_size = _checked_size(batch_size)
        wanted, num_bytes = self._arrays_of(batch_size)
        if out is None:
            arrays = self._recycler.take(wanted, num_bytes)
        else:
            arrays = [_fitting(out, name, shape, dtype) for name, shape, dtype in wanted]
        *columns, keys, probabilities = arrays
        targets = Targets(tuple(columns), keys, probabilities)
        total = self._fill(batch_size, lambda ring, start, stop, chance: ring.draw(targets, start, stop, chance))
        if is_shared_out:
            self._shuffle(arrays)
        return Draw(dict(zip(self._drawn_names, columns, strict=True)), keys, probabilities, self.num_live, total)

    def draw_keys(
        self, batch_size: int, out: Mapping[str, npt.NDArray[Any]] | None = None, *, is_shared_out: bool = False
    ) -> Draw:
        """Draws rows as `draw` does and copies none: for a reader that has the table mapped (MappedTable).

        Args:
            batch_size: as of `draw`.
            out: `keys` and `probabilities` to fill; None makes new ones.
            is_shared_out: as of `draw`.

        Returns:
            A draw without columns. Its rows may be overwritten before they are read.

        Raises:
            TableEmpty: as `draw`.
            ValueError: likewise.
        """
        batch_size = _checked_size(batch_size)
        if out is None:
            keys, probabilities = np.empty(batch_size, np.uint64), np.empty(batch_size)
        else:
            keys = _fitting(out, KEYS, (batch_size,), np.dtype(np.uint64))
            probabilities = _fitting(out, PROBABILITIES, (batch_size,), np.dtype(np.float64))
        total = self._fill(
            batch_size, lambda ring, start, stop, chance: ring.choose(keys, probabilities, start, stop, chance)
        )
        if is_shared_out:
            self._shuffle((keys, probabilities))
        return Draw({}, keys, probabilities, self.num_live, total)

    def _shuffle(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Puts drawn rows that stand shard by shard into random order, in place and in all arrays alike."""
        if len(self._rings) > 1:  # one shard draws in random order
            order = self._rng.permutation(len(arrays[0]))
            for array in arrays:
                array[...] = array[order]

    def _arrays_of(self, batch_size: int) -> tuple[list[Kind], int]:
        """Name, shape and dtype of a draw's arrays, and their bytes."""
        size, kinds, num_bytes = self._newest_batch  # read once: another thread may draw batches of another size
        if size != batch_size:
            columns = self.draw_columns(batch_size)
            kinds = [(column.name, column.shape, np.dtype(column.dtype)) for column in columns]
            num_bytes = sum(column.num_bytes for column in columns)
            self._newest_batch = batch_size, kinds, num_bytes
        return kinds, num_bytes

    def _fill(self, batch_size: int, draw: Callable[[Ring, int, int, float], float | None]) -> float:
        """Lets each ring draw its share: `draw` takes the ring, the rows [start, stop), and the ring's chance."""
        total = 0.0
        missing = [(0, batch_size)]
        while missing:
            open_ranges, missing = missing, []
            for first, last in open_ranges:
                parts = self._split(first, last)
                for ring, start, stop, chance in parts:
                    ring_total = draw(ring, start, stop, chance)
                    if ring_total is None:
                        missing.append((start, stop))
                    else:
                        total = max(total, ring_total / chance)
                if not parts:
                    missing.append((first, last))
            if missing == open_ranges:
                self._wait_for_rows()
        if total == 0.0 and not self._has_warned:
            self._has_warned = True
            log.warning("table %s: all priorities are 0; rows are drawn uniformly", self.settings.name)
        return total

    def _split(self, start: int, stop: int) -> list[tuple[Ring, int, int, float]]:
        """(ring, start, stop, chance of the ring) of the rings that take part in a draw of the rows [start, stop)."""
        if len(self._rings) == 1:
            return [(self._rings[0], start, stop, 1.0)]
        weights = totals(self._shards)
        if not weights.any():
            weights = np.array([float(ring.rows.num_live) for ring in self._rings])
        if not weights.any():
            return []
        chances = weights / weights.sum()
        ends: list[int] = (start + self._rng.multinomial(stop - start, chances).cumsum()).tolist()
        ranges = zip(self._rings, [start, *ends[:-1]], ends, chances.tolist(), strict=True)
        parts = [(ring, first, last, float(chance)) for ring, first, last, chance in ranges if first < last]
        self._draws += 1
        turn = self._draws % len(parts)  # two threads then seldom want the same ring at once
        return parts[turn:] + parts[:turn]

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

    def ages(self, keys: Keys) -> Values:
        """Live rows that came after each of these, about: those of a shard lie evenly among its dead ones.

        Args:
            keys: [B] of live rows.

        Returns:
            [B], 0 for the newest; a row that has gone meanwhile counts as the oldest.
        """
        ages = np.zeros(len(keys))
        for ring in self._rings:
            is_here = (keys >> POSITION_BITS) == (ring.prefix >> POSITION_BITS)
            ages[is_here] = ring.ages(keys[is_here])
        return ages * self.num_live

    def some_priorities(self, most: int, rng: np.random.Generator) -> tuple[Values, float]:
        """Priorities of some rows, those of 0 left out, while others go on; and how many rows each stands for.

        Args:
            most: rows that are looked at; where there are fewer, all are.
            rng: which.
        """
        num_rows = [ring.rows.committed - ring.rows.tail for ring in self._rings]
        share = min(1.0, most / max(1, sum(num_rows)))
        some = np.concatenate(
            [ring.some_priorities(round(n * share), rng) for ring, n in zip(self._rings, num_rows, strict=True)]
        )
        return some[some > 0.0], sum(num_rows) / max(1, len(some))

    def update_priorities(self, keys: Keys, magnitudes: Magnitudes) -> UpdateCounts:
        """Gives rows new priorities; where a key stands twice, the last one counts.

        Args:
            keys: [U] uint64, from draws or inserts. Rows that have gone are left alone and counted as stale.
            magnitudes: [U] float64, |TD error| without importance weights. A uniform table only checks them.

        Raises:
            PrioritiesRefused: a magnitude is NaN, infinite or negative, or there are not U. None was applied.
            KeysRefused: a key is not of this table, or was never given to a live row. None was applied.
        """
        try:
            num_applied = update(self._shards, self._priorities, keys, magnitudes)
        except PrioritiesRefused as refused:
            self._num_refused += refused.num_refused
            raise
        return UpdateCounts(num_applied, len(keys) - num_applied)

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
                "starts": [one.tail for one in contents],
                "tails": [one.tail for one in contents],
                "accounts": [ring.account().to_json() for ring in self._rings],
                "words": self.words.tolist(),
                "streams": [ring.stream for ring in self._rings],
                "stream": self._rng.bit_generator.state,
                "turn": self._turn,
            }
            write_snapshot(path, {"table": own, "more": dict(metadata)}, arrays)

    @classmethod
    def load(
        cls, path: Path, *, directory: Path | None = None, fresh: bool = False, labels: Mapping[str, str] | None = None
    ) -> tuple[Table, dict[str, Any]]:
        """The table that `save` wrote, which goes on exactly as that one, and the metadata.

        Args:
            path: of the file.
            directory: as of a new table.
            fresh: a ring found there is replaced.
            labels: as of a new table.

        Raises:
            SnapshotError: the file is missing, damaged, or of another kind or version.
            MemoryRefused: the table would not fit.
            RingRefused: there is a ring in the directory, or in use; it is left as it is.
        """
        snapshot = open_snapshot(path)
        if fresh:
            snapshot.verify()  # before anything goes for it
        try:
            own = snapshot.metadata["table"]
            settings = TableSettings(**own["settings"])
            table = cls(
                settings,
                TableSpec.from_wire(own["columns"], own["spaces"]),
                directory=directory,
                rng=np.random.default_rng(0),
                fresh=fresh,
                labels=labels,
            )
            if table.is_reopened:
                table.close(remove=False)
                raise RingRefused(f"{directory} holds a ring; give --fresh to replace it by {path}")
            try:
                table._restore(own, snapshot)
            except BaseException:
                table.close()
                raise
            return table, snapshot.metadata["more"]
        except SnapshotError as exc:
            raise SnapshotError(f"{path}: {exc}") from exc
        except (ValueError, KeyError, TypeError, IndexError) as exc:
            raise SnapshotError(f"{path}: it does not describe a table: {exc}") from exc

    def _restore(self, own: Mapping[str, Any], snapshot: Snapshot) -> None:
        for shard, ring in enumerate(self._rings):
            prefix = f"{shard}/"
            given = {name.removeprefix(prefix): one for name, one in snapshot.arrays.items() if name.startswith(prefix)}
            contents = StoredContents(own["starts"][shard], own["tails"][shard], given)
            ring.restore(contents, RingAccount.from_json(own["accounts"][shard]))
            if "streams" in own:
                ring.stream = own["streams"][shard]
        if "stream" in own:
            self._rng.bit_generator.state = own["stream"]
        self.words[:] = own["words"]
        self._turn = own["turn"]


def _checked_size(batch_size: int) -> int:
    is_plain = type(batch_size) is int and 0 < batch_size <= _MOST_DRAWN  # most are; a call less for each draw
    return batch_size if is_plain else whole_number("batch_size", batch_size, 1, _MOST_DRAWN)


def _fitting(
    out: Mapping[str, npt.NDArray[Any]], name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    array = out.get(name)
    if not isinstance(array, np.ndarray):
        raise ValueError(f"out has no array {name!r}")
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(f"out[{name!r}] is {array.dtype} {array.shape}: it must be {dtype} {shape}")
    return array
