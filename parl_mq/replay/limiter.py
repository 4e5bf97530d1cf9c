"""Holds the ratio of rows drawn to rows inserted within a band, on both sides."""

from __future__ import annotations

import logging
import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

NUM_WORDS: Final = 5
"""int64 words in which a limiter keeps its counts."""
_INSERTED, _DRAWN, _BEFORE, _RATIO, _SUM = range(NUM_WORDS)
"""The last is the sum of the first three, by which damage is told."""

log = logging.getLogger("parl_mq")


class Counts(NamedTuple):
    """How far a table, or several, have come.

    Attributes:
        before: live rows inserted before the run's first draw.
        inserted: those since.
        drawn: rows drawn.
    """

    before: int = 0
    inserted: int = 0
    drawn: int = 0

    @property
    def arrived(self) -> int:
        """All live rows that were inserted."""
        return self.before + self.inserted

    def plus(self, other: Counts) -> Counts:
        """The sums."""
        return Counts(self.before + other.before, self.inserted + other.inserted, self.drawn + other.drawn)


class RatioLimiter:
    """Decides when a batch may be drawn, and how many rows an actor may have under way.

    With I live rows inserted and D rows drawn since the first draw, the balance is B = I x samples_per_insert - D. It
    stays within the error band on both sides:

    - A batch may be drawn while B does not fall below -band by it.
    - An actor gets new credit while B <= band / 2, and all of them together never have more under way than the other
      half of the band pays for; so B <= band even if all of it arrives at once.

    Neither side can wait for the other at the same time: draws stop at B < batch - band, credit stops at B > band / 2,
    and a band of at least one batch keeps these apart.

    Before the first draw there is no balance. Rows flow in until `min_live` of them were inserted and half a band more,
    so that actors need not stop while the learner gets ready. Rows count as they are inserted, whether or not they have
    been evicted since: a table too small for `min_live` live rows at once starts all the same.

    The counts may lie in memory that outlives the process: a limiter that finds some there goes on with them, or, where
    it holds another ratio, keeps of them only how many rows there were. Counts that are damaged begin at 0, and
    `catch_up` brings the rows that there are.

    A run's rows may be spread over several tables. Then I and D are those of all of them: a limiter has its own table's
    counts, and is told those of the others by `note_elsewhere`. What came since it was told is taken to come everywhere
    as it does here, so that all of them together admit no more than one would.

    Attributes:
        samples_per_insert: the ratio to hold.
        error_band: rows that D may be ahead or behind.
        min_live: rows before the first draw.
        elsewhere: counts of the run's other tables, as far as they are known.
    """

    def __init__(
        self,
        samples_per_insert: float,
        error_band: float,
        min_live: int,
        *,
        words: npt.NDArray[np.int64] | None = None,
        num_tables: int = 1,
    ) -> None:
        """A limiter.

        Args:
            samples_per_insert: the ratio to hold.
            error_band: rows that D may be ahead or behind.
            min_live: rows before the first draw.
            words: [NUM_WORDS] where the counts are kept; zeros at first. None: in memory of its own.
            num_tables: of the run.

        Raises:
            ValueError: an argument is out of range.
        """
        for name, value in (("samples_per_insert", samples_per_insert), ("error_band", error_band)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}: it must be positive and finite")
        if min_live < 1:
            raise ValueError(f"min_live is {min_live}: it must be at least 1")
        self.samples_per_insert = samples_per_insert
        self.error_band = error_band
        self.min_live = min_live
        self.elsewhere = Counts()
        self._num_others = num_tables - 1
        self._arrived_when_told: int | None = None
        self._words = np.zeros(NUM_WORDS, np.int64) if words is None else words
        if self._words[:_RATIO].sum() != self._words[_SUM]:
            log.warning("rows inserted and drawn are counted anew: their counts are damaged, or were being written")
            self._words[:] = 0
        ratio = self._words[_RATIO:_SUM].view(np.float64)
        if ratio[0] != samples_per_insert:
            if ratio[0]:
                log.info("samples_per_insert was %s and is %s: its balance begins anew", ratio[0], samples_per_insert)
            self._begin_anew()
            ratio[0] = samples_per_insert

    @property
    def num_inserted(self) -> int:
        """This table's part of I."""
        return int(self._words[_INSERTED])

    @property
    def num_drawn(self) -> int:
        """This table's part of D."""
        return int(self._words[_DRAWN])

    @property
    def counts(self) -> Counts:
        """This table's."""
        return Counts(int(self._words[_BEFORE]), self.num_inserted, self.num_drawn)

    @property
    def _run(self) -> Counts:
        return self.counts.plus(self.elsewhere) if self._num_others else self.counts

    def note_elsewhere(self, elsewhere: Counts, *, arrived_here: int) -> None:
        """Takes the counts of the run's other tables.

        Args:
            elsewhere: their sums.
            arrived_here: rows of this table that had arrived when these sums were made, as far as their maker knew.
        """
        self.elsewhere = elsewhere
        self._arrived_when_told = min(arrived_here, self.counts.arrived)

    def _begin_anew(self) -> None:
        self._words[_BEFORE] += self._words[_INSERTED]
        self._words[[_INSERTED, _DRAWN]] = 0
        self._words[_SUM] = self._words[_BEFORE]

    def catch_up(self, num_inserted: int) -> None:
        """Counts rows that were stored and not noted, as the process was killed in between.

        Args:
            num_inserted: all rows that were ever stored.
        """
        self.note_inserted(max(0, num_inserted - self.counts.arrived))

    @property
    def ratio(self) -> float | None:
        """D / I; None while there is none."""
        run = self._run
        return run.drawn / run.inserted if run.inserted else None

    @property
    def _balance(self) -> float:
        run = self._run
        return run.inserted * self.samples_per_insert - run.drawn

    def may_draw(self, batch_size: int, num_live: int) -> bool:
        """Whether a batch is due.

        Args:
            batch_size: of the batch.
            num_live: live rows of the table; those restored from an earlier process count towards `min_live`.
        """
        return num_live > 0 and self._is_filled(num_live) and self._balance - batch_size >= -self.error_band

    def note_inserted(self, num_rows: int) -> None:
        """Counts live rows that were stored."""
        has_begun = self.num_drawn or self.elsewhere.drawn
        self._count(_INSERTED if has_begun else _BEFORE, num_rows)

    def note_drawn(self, num_rows: int) -> None:
        """Counts rows that were drawn."""
        self._count(_DRAWN, num_rows)

    def _count(self, word: int, num_rows: int) -> None:
        self._words[word] += num_rows
        self._words[_SUM] += num_rows

    def rows_allowed(self) -> int:
        """Live rows that may arrive until no more credit is given; 0: none is given now.

        Where the table has been drawn from, and nobody has said yet what the others have, that cannot be told.
        """
        run, own = self._run, self.counts
        if self._num_others and self._arrived_when_told is None and own.drawn:
            return 0
        untold = self._num_others * (own.arrived - (self._arrived_when_told or 0))
        if run.drawn:
            room = (self.error_band / 2 - self._balance) / self.samples_per_insert
        else:
            room = self.min_live + self._half_band_rows - run.before
        return max(0, math.floor(room) + 1 - untold)

    def credit_share(self, num_actors: int, largest_insert: int) -> int:
        """Live rows beyond what was stored of its messages that one of the actors may have sent; 0: nothing new now.

        Args:
            num_actors: that share half the band.
            largest_insert: live rows of an actor's largest message; a share is never less, as it could never be sent.
        """
        if self.rows_allowed() == 0:
            return 0
        return max(largest_insert, math.floor(self._half_band_rows / num_actors))

    def has_room_for(self, num_actors: int, largest_insert: int) -> bool:
        """Whether one largest insert of each actor fits into half the band; if not, the band may be exceeded."""
        return num_actors * largest_insert <= self._half_band_rows

    def retune(self, samples_per_insert: float, error_band: float) -> None:
        """Holds another ratio from now on; the counts start anew, as those of the old ratio say nothing about it."""
        fresh = RatioLimiter(samples_per_insert, error_band, self.min_live)
        self.samples_per_insert, self.error_band = fresh.samples_per_insert, fresh.error_band
        self._begin_anew()
        self._words[_RATIO:_SUM].view(np.float64)[0] = samples_per_insert

    def waiting(self, num_live: int) -> str:
        """What is waited for when somebody waits, such that "NODE waits for" may stand in front of it."""
        run = self._run
        if not self._is_filled(num_live):
            return f"the actors to fill the replay: {max(num_live, run.before):,} of {self.min_live:,} rows"
        if run.drawn == 0:
            return f"the learner's first draw: {num_live:,} rows are here"
        whom = "the learner to draw" if self._balance > 0 else "new rows from the actors"
        return (
            f"{whom}: {run.drawn:,} rows drawn for {run.inserted:,} inserted, {abs(self._balance):,.0f} "
            f"{'behind' if self._balance > 0 else 'ahead of'} {self.samples_per_insert:g} each"
        )

    def _is_filled(self, num_live: int) -> bool:
        return max(num_live, self._run.before) >= self.min_live

    @property
    def _half_band_rows(self) -> float:
        return self.error_band / 2 / self.samples_per_insert
