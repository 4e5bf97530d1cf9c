"""Holds the ratio of rows drawn to rows inserted within a band, by gating both sides; pure.

Like Reverb's SampleToInsertRatio, but inserts are gated through credit that is given out ahead of them.
"""

from __future__ import annotations


class RatioLimiter:
    """Counts since the first draw: D rows drawn, I live rows accepted; ahead = I samples_per_insert - D.

    A batch may leave while ahead stays at or above -error_band. Credit is given out while ahead is at most half the
    band; the A actors share the other half, so that ahead never passes the band, however much is under way.

    Before the first draw `min_live` rows must be there, and inserts beyond them count as those after it would.

    Args:
        samples_per_insert: rows drawn for each live row inserted.
        error_band: rows that draws may be ahead or behind.
        min_live: live rows before the first draw.
    """

    def __init__(self, samples_per_insert: float, error_band: float, min_live: int) -> None:
        if not (samples_per_insert > 0 and error_band > 0 and min_live >= 0):
            raise ValueError(
                f"samples_per_insert = {samples_per_insert} and error_band = {error_band} must be positive, "
                f"min_live = {min_live} must not be negative"
            )
        self._ratio = samples_per_insert
        self._band = error_band
        self._min_live = min_live
        self._num_inserted = -min_live
        self._num_drawn = 0
        self._has_drawn = False

    @property
    def num_inserted(self) -> int:
        """Live rows accepted since the first draw."""
        return self._num_inserted if self._has_drawn else 0

    @property
    def num_drawn(self) -> int:
        """Rows drawn."""
        return self._num_drawn

    @property
    def ratio(self) -> float | None:
        """Rows drawn for each row inserted since the first draw, or None while there are none."""
        return self._num_drawn / self._num_inserted if self._has_drawn and self._num_inserted > 0 else None

    @property
    def ahead(self) -> float:
        """Rows that the inserts allow to be drawn and that were not drawn yet; negative where draws are ahead."""
        return self._num_inserted * self._ratio - self._num_drawn

    def note_inserted(self, rows: int) -> None:
        """Live rows were accepted."""
        self._num_inserted += rows

    def note_drawn(self, rows: int) -> None:
        """Rows were drawn."""
        if not self._has_drawn:
            self._has_drawn = True
            self._num_inserted = 0
        self._num_drawn += rows

    def may_draw(self, batch_size: int, num_live: int) -> bool:
        """Whether a batch may leave now."""
        if not self._has_drawn:
            return num_live >= max(self._min_live, 1)
        return num_live > 0 and self.ahead - batch_size >= -self._band

    def credit_share(self, num_actors: int, largest_insert: int) -> int:
        """Live rows that each actor may have under way from now on; 0: no new credit.

        Never less than one largest insert, even where half the band has no room for one of each actor.
        """
        if self.ahead > self._band / 2:
            return 0
        return max(largest_insert, int(self._band / 2 / self._ratio / num_actors))

    def waiting(self, num_live: int) -> str:
        """Who waits for whom."""
        if not self._has_drawn and num_live < self._min_live:
            return f"replay {num_live}/{self._min_live} rows"
        if self.ahead < 0:
            return "the learner waits for the actors: samples per insert at its upper bound"
        return "the actors wait for the learner: samples per insert at its lower bound"
