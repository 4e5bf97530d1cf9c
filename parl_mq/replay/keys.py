"""Keys of rows: table (8 bits), shard (8 bits) and position (48 bits) in one uint64."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]

POSITION_BITS: Final = 48
MAX_TABLES: Final = 256
MAX_SHARDS: Final = 256
_POSITION_MASK: Final = (1 << POSITION_BITS) - 1


def key_prefix(table_index: int, shard: int) -> int:
    """The key of position 0 of a shard; the key of another position is this plus the position.

    Raises:
        ValueError: an index does not fit its 8 bits.
    """
    if not 0 <= table_index < MAX_TABLES or not 0 <= shard < MAX_SHARDS:
        raise ValueError(f"table {table_index} and shard {shard} must both lie in [0, 256)")
    return table_index << 56 | shard << POSITION_BITS


def tables_of(keys: Keys) -> Keys:
    """Table index of each key."""
    return keys >> np.uint64(56)


def shards_of(keys: Keys) -> Keys:
    """Shard of each key, table bits included: `key_prefix >> POSITION_BITS`."""
    return keys >> np.uint64(POSITION_BITS)


def positions_of(keys: Keys) -> Positions:
    """Position of each key in its shard."""
    return (keys & np.uint64(_POSITION_MASK)).view(np.int64)
