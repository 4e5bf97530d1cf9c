from __future__ import annotations

import threading

import numpy as np

from parl_mq.replay.recycling import LEAST_BYTES, MOST_BYTES, Kind, Recycler


def kinds_of(num_bytes: int) -> list[Kind]:
    return [("a", (num_bytes // 2,), np.dtype(np.uint8)), ("b", (num_bytes // 4, 2), np.dtype(np.uint8))]


def addresses(arrays: list[np.ndarray]) -> list[int]:
    return [array.ctypes.data for array in arrays]


def test_arrays_that_nobody_holds_are_given_out_again() -> None:
    recycler, kinds = Recycler(), kinds_of(LEAST_BYTES)
    first = recycler.take(kinds, LEAST_BYTES)
    where = addresses(first)
    second = recycler.take(kinds, LEAST_BYTES)
    assert not set(addresses(second)) & set(where)
    del first
    assert addresses(recycler.take(kinds, LEAST_BYTES)) == where


def test_one_array_a_view_or_a_view_of_a_view_holds_them_all() -> None:
    for hold in (lambda a: a[0], lambda a: a[1][:1], lambda a: a[1].T[:, 2:], lambda a: memoryview(a[0])):
        recycler, kinds = Recycler(), kinds_of(LEAST_BYTES)
        arrays = recycler.take(kinds, LEAST_BYTES)
        where, held = addresses(arrays), hold(arrays)
        del arrays
        again = recycler.take(kinds, LEAST_BYTES)
        assert not set(addresses(again)) & set(where)
        del held, again
        assert {addresses(recycler.take(kinds, LEAST_BYTES))[0] for _ in range(2)} & set(where)


def test_small_batches_and_those_of_another_kind_are_not_kept() -> None:
    recycler, small, large = Recycler(), kinds_of(1024), kinds_of(LEAST_BYTES)
    recycler.take(small, 1024)
    assert len(recycler._batches) == 0
    recycler.take(large, LEAST_BYTES)
    other = kinds_of(2 * LEAST_BYTES)
    assert [array.shape for array in recycler.take(other, 2 * LEAST_BYTES)] == [shape for _, shape, _ in other]
    assert [batch[0] for batch in recycler._batches] == [other]


def test_no_more_is_kept_than_the_limit() -> None:
    recycler, kinds = Recycler(), kinds_of(MOST_BYTES // 3)
    held = [recycler.take(kinds, MOST_BYTES // 3) for _ in range(5)]
    assert len(recycler._batches) == 3
    assert len({address for arrays in held for address in addresses(arrays)}) == 10
    recycler.take(kinds_of(2 * MOST_BYTES), 2 * MOST_BYTES)
    assert len(recycler._batches) == 0


def test_threads_never_hold_the_same_arrays() -> None:
    recycler, kinds = Recycler(), kinds_of(LEAST_BYTES)
    failures = []

    def work(mark: int) -> None:
        for _ in range(300):
            arrays = recycler.take(kinds, LEAST_BYTES)
            arrays[0][:] = mark
            arrays[1][:] = mark
            if not ((arrays[0] == mark).all() and (arrays[1] == mark).all()):
                failures.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(recycler._batches) < 120  # of 1,200: a batch that one looks at is missing for another at that moment
