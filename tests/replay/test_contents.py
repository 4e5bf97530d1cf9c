from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from parl_mq.replay._commits import check_rows
from parl_mq.replay.contents import slot_ranges
from parl_mq.replay.layout import HEADER_DTYPE, LIVE, STARTS_EPISODE

NUM_ROWS = 8
STRIDE = 40


def two_fragments() -> tuple[npt.NDArray[np.void], npt.NDArray[np.float64]]:
    """A context row, two live ones and the closing one; then one live row and its closing one."""
    headers = np.zeros(6, HEADER_DTYPE)
    headers["rows_left"] = [3, 2, 1, 0, 1, 0]
    headers["rows_before"] = [0, 1, 2, 3, 0, 1]
    headers["num_live"] = [2, 2, 2, 2, 1, 1]
    headers["flags"] = np.array([0, LIVE, LIVE, 0, LIVE, 0])
    headers["span"] = 1
    return headers, np.array([0, 1.0, 2.0, 0, 0.0, 0])


def checked(headers: npt.NDArray[np.void], leaves: npt.NDArray[np.float64], tail: int) -> tuple[int, int]:
    """What `check_rows` says of these rows where they lie in a ring from a position on."""
    rows, all_leaves = np.full((NUM_ROWS, STRIDE), 255, np.uint8), np.full(NUM_ROWS, 9.0)
    slots = np.arange(tail, tail + len(headers)) % NUM_ROWS
    rows[slots, :16] = headers.view(np.uint8).reshape(-1, 16)
    all_leaves[slots] = leaves
    return check_rows(rows.reshape(-1), STRIDE, all_leaves, tail, tail + len(headers))


@pytest.mark.parametrize("tail", [0, 2, 4, 12])
def test_whole_fragments_are_accepted_and_counted(tail: int) -> None:
    assert checked(*two_fragments(), tail) == (3, tail + 6)


def test_no_rows_are_fine() -> None:
    assert checked(np.zeros(0, HEADER_DTYPE), np.zeros(0), 5) == (0, 5)


@pytest.mark.parametrize(("tail", "committed"), [(-1, 2), (3, 2), (0, NUM_ROWS + 1)])
def test_positions_that_no_ring_can_have_are_refused(tail: int, committed: int) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        check_rows(np.zeros(NUM_ROWS * STRIDE, np.uint8), STRIDE, np.zeros(NUM_ROWS), tail, committed)


def wrong(field: str, index: int, value: int) -> Callable[[Any, Any], None]:
    def change(headers: npt.NDArray[np.void], leaves: npt.NDArray[np.float64]) -> None:
        headers[field][index] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        wrong("rows_left", 0, 4),
        wrong("rows_left", 5, 1),
        wrong("rows_left", 3, 2**31),
        wrong("rows_before", 0, 1),
        wrong("rows_before", 4, 4),
        wrong("num_live", 0, 3),
        wrong("num_live", 4, 0),
        wrong("flags", 3, LIVE),
        wrong("flags", 1, 0),
        wrong("flags", 0, 4),
        wrong("flags", 2, LIVE | STARTS_EPISODE),
        wrong("span", 1, 0),
        wrong("unused", 0, 1),
    ],
)
def test_whatever_a_draw_or_an_eviction_relies_on_is_checked(change: Callable[[Any, Any], None]) -> None:
    headers, leaves = two_fragments()
    change(headers, leaves)
    assert checked(headers, leaves, 0)[1] in (0, 4)


def test_a_dead_row_may_have_no_priority() -> None:
    headers, leaves = two_fragments()
    leaves[3] = 1.0
    assert checked(headers, leaves, 0) == (0, 0)


def test_a_fragment_may_not_wrap() -> None:
    assert checked(*two_fragments(), 6) == (0, 6)


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [(3, 3, []), (0, 8, [*range(8)]), (3, 11, [3, 4, 5, 6, 7, 0, 1, 2]), (14, 18, [6, 7, 0, 1]), (8, 16, [*range(8)])],
)
def test_slot_ranges_are_those_of_the_positions(start: int, stop: int, expected: list[int]) -> None:
    slots = [slot for one in slot_ranges(start, stop, NUM_ROWS) for slot in range(one.start, one.stop)]
    assert slots == expected
