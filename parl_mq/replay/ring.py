"""One shard of a table: a ring segment with its sum tree, its lock and its random stream."""

from __future__ import annotations

from threading import Lock
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from parl_mq.errors import SnapshotError
from parl_mq.replay._commits import CommitLog, check_rows
from parl_mq.replay._rows import Incoming, Part, Rows
from parl_mq.replay._shard import Shard
from parl_mq.replay._sum_tree import SumTree
from parl_mq.replay.contents import RingAccount, RingContents, StoredContents, contents_of, marks_of, slot_ranges
from parl_mq.replay.keys import Keys
from parl_mq.replay.mapping import NUM_LIVE, TAIL, Segment
from parl_mq.replay.refusals import TableEmpty
from parl_mq.replay.senders import SenderMark

Values = npt.NDArray[np.float64]
Columns = tuple[npt.NDArray[Any], ...]

MAX_TRIES_BESIDE_INSERTS: Final = 3
"""Draws in place of a torn row beside inserts; the next one holds them back, and no row can go meanwhile."""


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


class Ring:
    """Rows of one shard in the order in which they came, and a leaf for each.

    An insert goes: reserve positions; under the lock set the victims' leaves to 0 and move the tail past them; copy the
    rows; under the lock write their leaves and commit. Rows being copied have leaves of 0 and cannot be drawn, and no
    draw or update waits for a copy. A draw finds its rows under the lock and copies them without it; a row that was
    overwritten meanwhile lies in front of the tail by then, and is drawn again.

    A process may be killed between any two stores of this: what an insert has committed then stays, with the mark of
    its sender, and what it has not is dead in the ring that is opened next.

    Eviction is first in, first out, by whole fragments: when live rows would exceed `capacity`, or room runs short.

    Attributes:
        shard: rows and tree behind one lock.
        lock: held to find rows and to change leaves, briefly.
        writer: held by an insert from its beginning to its end.
        capacity: live rows at most.
        prefix: the key of position 0.
        counts: what happened here.
    """

    def __init__(
        self, segment: Segment, rows: Rows, tree: SumTree, *, capacity: int, prefix: int, rng: np.random.Generator
    ) -> None:
        self.shard = Shard(rows, tree, rng, segment.max_magnitude, segment.max_magnitude_again)
        self.lock = self.shard.lock
        self.writer = Lock()
        self.rows = rows
        self.tree = tree
        self.capacity = capacity
        self.prefix = prefix
        self.counts = self.shard.counts
        self._segment = segment
        self._rng = rng
        self._log = CommitLog(segment.head)
        if self._log.number == 0:
            self._begin()
        else:
            self._go_on()

    def _begin(self) -> None:
        """Makes an empty ring of a new segment, whose counters say where it starts."""
        start = self.rows.tail
        self._restart(start, start, 0)
        self._log.begin(0, 0.0)

    def _go_on(self) -> None:
        """Takes over what an earlier process has left, after a repair."""
        counts = self.counts
        counts.drawn, counts.updated, counts.stale, counts.torn = self._segment.counts.tolist()
        counts.inserted = self._log.num_inserted
        counts.evicted = counts.inserted - self.rows.num_live
        self._finish_left_over()

    def _restart(self, tail: int, committed: int, num_live: int) -> None:
        self._log.reserve(committed, tail)
        self.rows.restart(tail, committed, num_live)

    @property
    def stream(self) -> dict[str, Any]:
        """State of the random stream, in JSON values."""
        return dict(self._rng.bit_generator.state)

    @stream.setter
    def stream(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state

    @property
    def max_magnitude(self) -> float:
        """The largest magnitude that was ever applied; 0 at first."""
        return self.shard.max_magnitude

    def some_priorities(self, number: int, rng: np.random.Generator) -> Values:
        """Priorities of so many of the rows that count, drawn evenly; of all, in order, where there are no more."""
        tail, committed = self.rows.tail, self.rows.committed
        is_all = number >= committed - tail
        positions = np.arange(tail, committed) if is_all else rng.integers(tail, committed, number)
        return self._segment.leaves[positions % self.rows.num_rows]

    def ages(self, keys: Keys) -> Values:
        """How far from the newest row each lies, in shares of all rows that count: 0 to 1."""
        committed, tail = self.rows.committed, self.rows.tail
        behind = committed - 1 - (keys - np.uint64(self.prefix)).astype(np.int64)
        return np.clip(behind / max(1, committed - tail), 0.0, 1.0)

    def total(self) -> float:
        """Sum of all leaves."""
        return self.shard.total()

    def close(self, *, remove: bool) -> None:
        """Gives the memory back, or writes it to the disk where it lies on one; nothing may be called after it.

        Args:
            remove: the files will go. What is left of them after a kill then counts as a ring while its description is
                there, and as nothing without it.
        """
        if remove:
            self._segment.counters[NUM_LIVE] = 0
        else:
            with self.writer, self.lock:
                self._finish_left_over_alone()
                self._commit_nothing(None)
            self._segment.flush()
        del self.shard, self.rows, self.tree, self._log
        self._segment.close(remove=False)

    def sender(self, name: str | bytes) -> SenderMark | None:
        """How far a sender's stream is stored here."""
        with self.lock:
            found = self._log.sender(name)
        return None if found is None else SenderMark(name, *found)

    def remember(self, sender: SenderMark) -> None:
        """Keeps a sender's mark without any rows."""
        with self.writer, self.lock:
            self._commit_nothing(sender)

    def insert(self, incoming: Incoming, leaves: Leaves, sender: SenderMark | None = None) -> Keys:
        """Stores fragments, and waits for other inserts into this ring while they last.

        A batch larger than the ring is stored in parts, each of which evicts the one before.

        Args:
            incoming: fragments that this ring's rows have checked.
            leaves: what their live rows get.
            sender: its mark with these rows, which is kept if and only if all of them are.

        Returns:
            Keys of the live rows, in order.
        """
        keys = np.empty(incoming.num_live, np.uint64)
        with self.writer:
            if not self._log.is_settled:
                self._finish_left_over()
            part = self._store(incoming, None, leaves, keys, sender)
            while part.stop < incoming.num_fragments:
                part = self._store(incoming, part, leaves, keys, sender)
        return keys

    def _store(
        self, incoming: Incoming, after: Part | None, leaves: Leaves, keys: Keys, sender: SenderMark | None
    ) -> Part:
        values, default, max_magnitude = leaves
        return self.shard.store(self._log, incoming, after, self.capacity, values, default, max_magnitude, keys, sender)

    def _finish_left_over(self) -> None:
        """Ends what an insert that was interrupted has begun; the caller holds `writer`, or is alone."""
        with self.lock:
            self._finish_left_over_alone()

    def _finish_left_over_alone(self) -> None:
        if (tail := self._log.planned_tail) > self.rows.tail:
            self._evict_up_to(tail)
        if (left_over := self.rows.unfinished()) is not None:
            self._bury(left_over)

    def _evict_up_to(self, tail: int) -> None:
        """Ends an eviction that may have set leaves to 0 already; no row was overwritten yet."""
        old_tail, segment = self.rows.tail, self._segment
        num_evicted, _ = check_rows(segment.rows, segment.shape.layout.stride, segment.leaves, old_tail, tail)
        self._zero(old_tail, tail)
        self.counts.evicted += num_evicted
        segment.counters[NUM_LIVE] -= num_evicted
        segment.counters[TAIL] = tail

    def _bury(self, left_over: Part) -> None:
        """Makes rows dead whose insert was interrupted between its reservation and its commit."""
        self._log.reserve(left_over.end, left_over.tail)
        self._evict(left_over)
        self._zero(left_over.start, left_over.end)
        self.rows.bury(left_over)
        self._commit(left_over, None)

    def _evict(self, part: Part) -> None:
        if part.tail > part.old_tail:
            self._zero(part.old_tail, part.tail)
            self.counts.evicted += part.num_evicted
            self.rows.evict(part)

    def _zero(self, start: int, stop: int) -> None:
        self.shard.zero(start, stop)

    def _commit(self, part: Part, sender: SenderMark | None) -> None:
        """Makes a part count, with all in front of it, for good; the caller holds the lock."""
        self.counts.inserted = self._log.commit(part.end, part.num_live, self.shard.max_magnitude, sender, self.counts)

    def _commit_nothing(self, sender: SenderMark | None) -> None:
        self._log.commit(self.rows.committed, 0, self.shard.max_magnitude, sender, self.counts)

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
        total, torn = self.shard.draw(targets.keys, targets.probabilities, targets.columns, start, stop, chance)
        if total == 0.0:
            chosen = self.choose(targets.keys, targets.probabilities, start, stop, chance)
            if chosen is None:
                return None
            total = chosen
            torn = self.rows.gather(targets.keys, targets.columns, start, stop)
        if torn is not None:
            self._draw_again(torn, targets, chance)
        return total

    def choose(
        self, keys: Keys, probabilities: Values, start: int, stop: int, chance: float, *, is_again: bool = False
    ) -> float | None:
        """Draws keys alone, into [start, stop) of the arrays, and their probabilities.

        Args:
            keys: [B], C-contiguous.
            probabilities: [B], likewise.
            start: see above.
            stop: see above.
            chance: see `draw`.
            is_again: not to be counted as drawn.

        Returns:
            As `draw`. The rows may go at any time, as they would after a `draw`.
        """
        total = self.shard.choose(keys, probabilities, start, stop, chance, is_again)
        if total > 0.0:
            return total
        with self.lock:
            if self.rows.num_live == 0:
                return None
            self._choose_uniformly(keys[start:stop])
            probabilities[start:stop] = chance / self.rows.num_live
            self.counts.drawn += 0 if is_again else stop - start
        return 0.0

    def _choose_uniformly(self, keys: Keys) -> None:
        num_chosen = 0
        oldest, end = self.prefix + self.rows.tail, self.prefix + self.rows.committed
        while num_chosen < len(keys):
            candidates = self._rng.integers(oldest, end, len(keys) - num_chosen, np.uint64)
            live = candidates[self.rows.are_live(candidates)]
            keys[num_chosen : num_chosen + len(live)] = live
            num_chosen += len(live)

    def _draw_again(self, torn: list[int], targets: Targets, chance: float) -> None:
        with self.lock:
            self.counts.torn += len(torn)
        for row in torn:
            for _ in range(MAX_TRIES_BESIDE_INSERTS):
                if self._draw_one(row, targets, chance):
                    break
            else:
                self._draw_alone(row, targets, chance)

    def _draw_one(self, row: int, targets: Targets, chance: float) -> bool:
        """Draws into one row of the targets; tells whether it is whole."""
        total = self.choose(targets.keys, targets.probabilities, row, row + 1, chance, is_again=True)
        return total is not None and self.rows.gather(targets.keys, targets.columns, row, row + 1) is None

    def _draw_alone(self, row: int, targets: Targets, chance: float) -> None:
        """Draws with inserts held back: one under way may have evicted all rows, and not committed its own yet."""
        with self.writer:
            if not self._draw_one(row, targets, chance):
                raise TableEmpty("an insert was interrupted after it had evicted the last rows")

    def contents(self) -> RingContents:
        """All rows, as views; the caller holds `writer` while it uses them, and `lock` if updates may come."""
        return contents_of(self._segment, self.rows.tail, self.rows.committed)

    def account(self) -> RingAccount:
        """What goes with the contents; the caller holds `lock`."""
        return RingAccount(self._log.num_inserted, self.max_magnitude, marks_of(self._segment.senders))

    def restore(self, contents: StoredContents, account: RingAccount) -> None:
        """Puts rows back where they were; the ring is new.

        Raises:
            SnapshotError: they are not the rows of such a ring. The ring is not to be used then.
        """
        segment = self._segment
        contents.check(segment)
        contents.write(segment)
        stride = segment.shape.layout.stride
        num_live, reached = check_rows(segment.rows, stride, segment.leaves, contents.tail, contents.end)
        if reached < contents.end:
            raise SnapshotError(f"its rows from position {reached} on are no whole fragment")
        if account.num_inserted < num_live or not 0.0 <= account.max_magnitude < np.inf:
            raise SnapshotError(f"its account is damaged: {account.num_inserted} rows, {account.max_magnitude}")
        try:
            for slots in slot_ranges(contents.tail, contents.end, self.rows.num_rows):
                self.tree.write(slots.start, segment.leaves[slots].copy())  # through the tree, which checks and marks
        except ValueError as exc:
            raise SnapshotError(f"its priorities are damaged: {exc}") from exc
        self._restart(contents.tail, contents.end, num_live)
        self.shard.raise_maximum(account.max_magnitude)
        self._log.begin(account.num_inserted, account.max_magnitude)
        for mark in account.senders:
            self._commit_nothing(mark)
        self.counts.inserted, self.counts.evicted = account.num_inserted, account.num_inserted - num_live
