"""Draws and updates in one call against their steps in NumPy, and threads that want the same lock."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from parl_mq.replay._shard import totals, update
from parl_mq.replay.keys import POSITION_BITS, positions_of
from parl_mq.replay.refusals import KeysRefused, PrioritiesRefused
from parl_mq.replay.ring import Ring
from parl_mq.replay.table import Table, TableSettings

from .fragments import SPEC, counter_fragment, joined

SMALL, LARGE = 50, 3000
"""Items with and without the GIL, which is given up from 512 on."""
DEADLINE_S = 20


def make_table(capacity: int = 400, **settings: Any) -> Table:
    chosen = TableSettings("test", capacity, **{"alpha": 0.6, "eps": 0.01, **settings})
    return Table(chosen, SPEC, directory=None, rng=np.random.default_rng(0))


def fill(table: Table, num_rows: int) -> npt.NDArray[np.uint64]:
    priorities = np.random.default_rng(1).exponential(size=num_rows)
    pieces = [counter_fragment(number, 1, priorities=[priorities[number]]) for number in range(num_rows)]
    return np.concatenate([table.insert(joined(*pieces[start : start + 10])) for start in range(0, num_rows, 10)])


def in_steps(ring: Ring, rng: np.random.Generator, size: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float64]]:
    """A draw as it reads: uniforms, their slots, the keys of these, their shares."""
    slots, values = ring.tree.draw(rng.random(size))
    tail, num_rows = ring.rows.tail, ring.rows.num_rows
    positions = slots + (tail - slots + num_rows - 1) // num_rows * num_rows
    return positions.astype(np.uint64) + np.uint64(ring.prefix), values / ring.tree.total


@pytest.mark.parametrize("size", [1, SMALL, LARGE])
def test_a_draw_is_its_steps_with_the_same_random_numbers(size: int) -> None:
    table = make_table(100)
    (ring,) = table._rings
    for round_ in range(3):
        fill(table, 70)  # the ring wraps
        rng = np.random.default_rng()
        rng.bit_generator.state = ring.stream
        expected_keys, shares = in_steps(ring, rng, size)
        keys, probabilities = np.zeros(size + 2, np.uint64), np.zeros(size + 2)
        assert ring.choose(keys, probabilities, 1, size + 1, 0.25) == ring.tree.total
        np.testing.assert_array_equal(keys, [0, *expected_keys, 0])
        np.testing.assert_array_equal(probabilities, [0, *(0.25 * shares), 0])
        assert ring.stream == rng.bit_generator.state
        assert ring.counts.drawn == (round_ + 1) * size


def test_a_draw_again_is_not_counted() -> None:
    table = make_table()
    fill(table, 10)
    (ring,) = table._rings
    ring.choose(np.zeros(5, np.uint64), np.zeros(5), 0, 5, 1.0, is_again=True)
    assert ring.counts.drawn == 0


def test_arrays_that_are_too_short_or_not_writeable_are_refused() -> None:
    table = make_table()
    fill(table, 10)
    (ring,) = table._rings
    fixed = np.zeros(5, np.uint64)
    fixed.flags.writeable = False
    for keys, probabilities in ((np.zeros(4, np.uint64), np.zeros(5)), (np.zeros(5, np.uint64), np.zeros(4))):
        with pytest.raises(ValueError, match="bytes instead of"):
            ring.choose(keys, probabilities, 0, 5, 1.0)
    with pytest.raises(ValueError, match="read-only"):
        ring.choose(fixed, np.zeros(5), 0, 5, 1.0)
    assert ring.counts.drawn == 0


@pytest.mark.parametrize("num_shards", [1, 2, 5])
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_an_update_is_one_write_after_the_other(num_shards: int, size: int) -> None:
    table = make_table(num_shards=num_shards)
    keys = fill(table, 600)  # some have gone
    rng = np.random.default_rng(2)
    chosen = keys[rng.integers(0, len(keys), size)]
    magnitudes = rng.exponential(size=size)
    expected = [ring.tree.leaves.copy() for ring in table._rings]
    tails = [ring.rows.tail for ring in table._rings]
    priorities = table._priorities.of(magnitudes)
    num_stale, largest = 0, [ring.max_magnitude for ring in table._rings]
    for key, magnitude, priority in zip(chosen, magnitudes, priorities, strict=True):
        shard, position = int(key) >> POSITION_BITS, int(positions_of(np.array([key]))[0])
        if position < tails[shard]:
            num_stale += 1
        else:
            expected[shard][position % len(expected[shard])] = priority
            largest[shard] = max(largest[shard], magnitude)
    assert table.update_priorities(chosen, magnitudes) == (size - num_stale, num_stale)
    assert num_stale > 0
    for ring, leaves, magnitude in zip(table._rings, expected, largest, strict=True):
        np.testing.assert_array_equal(ring.tree.leaves, leaves)
        assert ring.max_magnitude == magnitude
    assert (table.counts.updated, table.counts.stale) == (size - num_stale, num_stale)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_nothing_of_an_update_is_applied_when_its_last_item_is_wrong(size: int) -> None:
    table = make_table(num_shards=3)
    keys = np.resize(fill(table, 60), size)
    before = [ring.tree.leaves.copy() for ring in table._rings]
    unknown = keys.copy()
    unknown[-1] += np.uint64(1 << 40)
    with pytest.raises(KeysRefused, match=rf"keys\[{size - 1}\] is {unknown[-1]}: no row of its shard ever had it"):
        table.update_priorities(unknown, np.ones(size))
    foreign = keys.copy()
    foreign[-1] += np.uint64(3 << POSITION_BITS)
    with pytest.raises(KeysRefused, match="it belongs to another table or shard"):
        table.update_priorities(foreign, np.ones(size))
    closing = keys.copy()
    closing[-1] += np.uint64(1)
    with pytest.raises(KeysRefused, match="no transition starts at that row"):
        table.update_priorities(closing, np.ones(size))
    magnitudes = np.ones(size)
    magnitudes[-1] = np.nan
    with pytest.raises(PrioritiesRefused, match=f"magnitude nan at index {size - 1}"):
        table.update_priorities(keys, magnitudes)
    for ring, leaves in zip(table._rings, before, strict=True):
        np.testing.assert_array_equal(ring.tree.leaves, leaves)
    assert table.counts.updated == table.counts.stale == 0
    assert table.counts.refused == 1


def test_keys_may_have_gaps_between_them_in_memory() -> None:
    table = make_table()
    keys = fill(table, 20)
    assert table.update_priorities(keys[::2], np.ones(20)[::2]) == (10, 0)


def run_together(*works: Any) -> None:
    """Runs functions in threads of their own; a failure or a thread that does not end fails."""
    failures: list[BaseException] = []

    def guarded(work: Any) -> None:
        try:
            work()
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"
    if failures:
        raise failures[0]


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_lock_held_by_python_and_wanted_by_kernels_comes_free(size: int) -> None:
    """The holder needs the GIL to go on; who waits for it must not keep the GIL."""
    table = make_table(num_shards=2)
    keys = np.resize(fill(table, 100), size)
    end = threading.Event()

    def hold() -> None:
        while not end.is_set():
            for ring in table._rings:
                with ring.lock:
                    sum(range(200))

    def use() -> None:
        for _ in range(200):
            table.draw(size)
            table.update_priorities(keys, np.ones(size))
            assert table.total_priority > 0.0

    def use_and_end() -> None:
        try:
            use()
        finally:
            end.set()

    run_together(hold, use_and_end, use)


def test_totals_do_not_wait_for_a_shard_in_use() -> None:
    table = make_table(num_shards=2)
    keys = fill(table, 20)
    first, second = table._shards
    before = totals(table._shards)
    with first.lock:
        run_together(lambda: np.testing.assert_array_equal(totals(table._shards), before))
    table.update_priorities(keys, np.full(20, 100.0))
    after = totals(table._shards)
    assert after.tolist() == [first.total(), second.total()]
    assert (after > before).all()


def test_an_update_takes_shards_that_are_free_first() -> None:
    table = make_table(num_shards=2)
    keys = fill(table, 20)
    first, second = table._rings
    with first.lock:
        writer = threading.Thread(target=lambda: table.update_priorities(keys, np.full(20, 50.0)))
        writer.start()
        while second.max_magnitude < 50.0 and writer.is_alive():
            writer.join(0.001)
        assert first.max_magnitude < 50.0
    writer.join(DEADLINE_S)
    assert first.max_magnitude == second.max_magnitude == 50.0


def test_a_table_has_1_to_256_shards() -> None:
    table = make_table()
    for shards in ([], table._shards * 257):
        with pytest.raises(ValueError, match="shards are given"):
            update(shards, table._priorities, np.zeros(1, np.uint64), np.ones(1))
