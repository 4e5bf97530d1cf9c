"""What tables refuse; each is a ValueError that names the item, and nothing of the call was applied."""

from __future__ import annotations


class FragmentsRefused(ValueError):
    """Fragments do not fit the table: a column, a length or a flag is wrong."""


class PrioritiesRefused(ValueError):
    """A magnitude is NaN, infinite or negative, or there are more or fewer of them than rows.

    Attributes:
        num_refused: magnitudes that are none.
    """

    def __init__(self, message: str, num_refused: int = 0) -> None:
        super().__init__(message)
        self.num_refused = num_refused


class KeysRefused(ValueError):
    """A key belongs to another table, or was never given to a live row."""


class TableEmpty(ValueError):
    """A draw from a table without live rows."""


class NotMapped(ValueError):
    """A ring of another process cannot be read here; the message says why."""
