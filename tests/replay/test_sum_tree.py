"""The sum tree against NumPy and exact sums, on every kernel that this processor has."""

import math
import threading
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parl_mq.replay._sum_tree import LARGEST_VALUE, SumTree, available_kernels, padded_size

ARITIES = (2, 4, 8, 16, 32, 64)
EDGE_CAPACITIES = sorted({1, 2, 15, 16, 17, 256, 4096, 4097, 1009} | {7, 8, 9, 63, 64, 65, 511, 512, 513})
SUBNORMAL = 5e-324
BATCH_WITHOUT_GIL = 5000  # above the 2,048 from which the GIL is released


def tree_of(values, **options):
    tree = SumTree(len(values), **options)
    tree.write(0, np.array(values, np.float64))
    return tree


def awkward_values(rng, size):
    """Values over the whole range of float64, a third of them zero."""
    values = rng.random(size) * 10.0 ** rng.integers(-320, 280, size)
    values[rng.random(size) < 0.3] = 0.0
    values[rng.integers(size)] = rng.choice([SUBNORMAL, 1.0, LARGEST_VALUE])
    return values


def pairwise_sum(group):
    """The documented association: pairs within every 8 siblings, then one 8 after the other."""
    chunks = group.reshape(-1, min(len(group), 8))
    while chunks.shape[1] > 1:
        chunks = chunks[:, ::2] + chunks[:, 1::2]
    total = chunks[0, 0]
    for chunk in chunks[1:, 0]:
        total = total + chunk
    return total


def assert_every_parent_is_the_sum_of_its_children(tree):
    for children, row in pairwise(tree._rows()):
        for node, parent in enumerate(row):
            group = children[node * tree.arity : (node + 1) * tree.arity]
            assert parent == (pairwise_sum(group) if len(group) else 0.0)


# Layout


@pytest.mark.parametrize("arity", ARITIES)
@pytest.mark.parametrize("capacity", [1, 8, 9, 1000, 4097])
def test_every_group_is_aligned_to_a_cache_line_or_lies_within_one(arity, capacity):
    for row in SumTree(capacity, arity=arity)._rows():
        addresses = row.ctypes.data + np.arange(0, row.nbytes, 8 * arity)
        assert np.all(addresses % min(64, 8 * arity) == 0)


@pytest.mark.parametrize("arity", ARITIES)
def test_rows_are_trimmed_to_whole_groups(arity):
    rows = SumTree(4097, arity=arity)._rows()
    nodes = 4097
    for row in rows:
        assert row.size == padded_size(nodes, arity) < nodes + max(arity, 8)
        nodes = -(-nodes // arity)
    assert nodes == 1


@pytest.mark.parametrize(("capacity", "arity"), [(0, 8), (-1, 8), (2**32 + 1, 8), (8, 1), (8, 3), (8, 128)])
def test_an_impossible_shape_is_refused(capacity, arity):
    with pytest.raises(ValueError, match=r"capacity is|arity is"):
        SumTree(capacity, arity=arity)
    with pytest.raises(ValueError, match=r"capacity is|arity is"):
        padded_size(capacity, arity)


def test_the_portable_kernel_is_always_there_and_the_fastest_is_the_default():
    assert available_kernels()[-1] == "portable"
    assert SumTree(8).kernel == available_kernels()[0]
    with pytest.raises(ValueError, match="kernel is 'sse'"):
        SumTree(8, kernel="sse")


# Sums and searches against references


@pytest.mark.parametrize("kernel", available_kernels())
@pytest.mark.parametrize("arity", ARITIES)
@pytest.mark.parametrize("capacity", EDGE_CAPACITIES)
def test_find_agrees_with_searchsorted_where_sums_are_exact(kernel, arity, capacity):
    rng = np.random.default_rng([arity, capacity])
    values = rng.integers(0, 4, capacity).astype(np.float64)
    values[rng.integers(capacity)] = 3.0
    tree = tree_of(values, arity=arity, kernel=kernel)
    targets = np.concatenate([np.arange(values.sum()), rng.uniform(0, values.sum(), 300)])
    expected = np.searchsorted(np.cumsum(values), targets, side="right")
    assert tree.total == values.sum()
    np.testing.assert_array_equal(tree.find(targets), expected)


@pytest.mark.parametrize("arity", ARITIES)
def test_kernels_agree_to_the_bit_and_parents_are_pairwise_sums(arity):
    rng = np.random.default_rng(arity)
    for capacity in (1, arity - 1, arity, arity + 1, arity**2, 1009):
        values, uniforms = awkward_values(rng, capacity), rng.random(500)
        trees = [tree_of(values, arity=arity, kernel=kernel) for kernel in available_kernels()]
        draws = [tree.draw(uniforms) for tree in trees]
        for tree, (slots, drawn) in zip(trees, draws, strict=True):
            assert tree.total == trees[0].total
            np.testing.assert_array_equal(slots, draws[0][0])
            np.testing.assert_array_equal(drawn, values[slots])
            assert_every_parent_is_the_sum_of_its_children(tree)


operations = st.one_of(
    st.tuples(st.just("set"), st.integers(0, 40)),
    st.tuples(st.just("fill"), st.floats(0, 1e6)),
    st.tuples(st.just("write"), st.integers(0, 40)),
    st.tuples(st.just("refresh"), st.none()),
    st.tuples(st.just("draw"), st.integers(1, 20)),
)


def apply(tree, reference, name, argument, rng):
    """Does one operation to a tree and to a plain array, and checks what a draw gives."""
    capacity = len(reference)
    start = int(rng.integers(capacity + 1))
    match name:
        case "set":
            slots, values = rng.integers(0, capacity, argument), rng.exponential(size=argument).round(2)
            tree.set(slots, values)
            for slot, value in zip(slots, values, strict=True):
                reference[slot] = value
        case "fill":
            stop = int(rng.integers(start, capacity + 1))
            tree.fill(start, stop, argument)
            reference[start:stop] = argument
        case "write":
            values = rng.exponential(size=min(argument, capacity - start))
            tree.write(start, values)
            reference[start : start + len(values)] = values
        case "refresh":
            tree.refresh()
        case "draw" if reference.any():
            slots, values = tree.draw(rng.random(argument))
            np.testing.assert_array_equal(values, reference[slots])
            assert np.all(values > 0)


@given(
    capacity=st.integers(1, 700),
    arity=st.sampled_from(ARITIES),
    kernel=st.sampled_from(available_kernels()),
    steps=st.lists(operations, max_size=30),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=150, deadline=None)
def test_any_sequence_of_operations_agrees_with_a_plain_array(capacity, arity, kernel, steps, seed):
    rng = np.random.default_rng(seed)
    tree, reference = SumTree(capacity, arity=arity, kernel=kernel), np.zeros(capacity)
    for name, argument in steps:
        apply(tree, reference, name, argument, rng)
    np.testing.assert_array_equal(tree.leaves, reference)
    assert tree.total == pytest.approx(math.fsum(reference), rel=1e-13)
    assert_every_parent_is_the_sum_of_its_children(tree)


@pytest.mark.parametrize("arity", ARITIES)
def test_found_slots_cover_their_targets_up_to_rounding(arity):
    rng = np.random.default_rng(arity)
    values = rng.pareto(1.0, 777) * (rng.random(777) < 0.8)
    tree = tree_of(values, arity=arity)
    exact = [Fraction(0)]
    for value in values:
        exact.append(exact[-1] + Fraction(value))
    targets = rng.uniform(0, tree.total, 500)
    slack = Fraction(tree.total) / 10**13
    for target, slot in zip(targets, tree.find(targets), strict=True):
        assert exact[slot] - slack <= Fraction(target) <= exact[slot + 1] + slack


def test_a_million_draws_follow_the_values_and_never_hit_a_zero():
    rng = np.random.default_rng(11)
    values = rng.exponential(size=1000) * (rng.random(1000) < 0.9)
    tree = tree_of(values)
    counts = np.bincount(tree.draw(rng.random(1_000_000))[0], minlength=1000)
    assert not np.any(counts[values == 0])
    expected = 1e6 * values[values > 0] / values.sum()
    chi_square = np.sum((counts[values > 0] - expected) ** 2 / expected)
    freedom = len(expected) - 1
    assert abs(chi_square - freedom) < 4 * math.sqrt(2 * freedom)


def test_two_million_updates_leave_no_drift():
    rng = np.random.default_rng(12)
    tree = SumTree(5003)
    for _ in range(200):
        tree.set(rng.integers(0, 5003, 10_000), rng.random(10_000) * 10.0 ** rng.integers(-8, 8, 10_000))
        tree.refresh()
    assert tree.total == pytest.approx(math.fsum(tree.leaves), rel=1e-9)
    assert tree.total == tree_of(tree.leaves).total


# Edges


@pytest.mark.parametrize("arity", ARITIES)
@pytest.mark.parametrize("capacity", EDGE_CAPACITIES)
def test_both_ends_of_every_fill_level_are_found(arity, capacity):
    tree = SumTree(capacity, arity=arity)
    for fill in sorted({1, capacity - 1, capacity} - {0}):
        tree.fill(0, fill, 0.5)
        assert tree.total == 0.5 * fill
        ends = np.array([0.0, np.nextafter(tree.total, 0)])
        np.testing.assert_array_equal(tree.find(ends), [0, fill - 1])
        slots, _ = tree.draw((np.arange(fill) + 0.5) / fill)
        np.testing.assert_array_equal(slots, np.arange(fill))
        for outside in (tree.total, np.nextafter(tree.total, np.inf), -SUBNORMAL, np.nan, np.inf):
            with pytest.raises(ValueError, match=r"targets\[1\] is"):
                tree.find(np.array([0.0, outside]))


@pytest.mark.parametrize("arity", ARITIES)
@pytest.mark.parametrize("value", [SUBNORMAL, 1e-310, 1.0, LARGEST_VALUE])
def test_the_only_positive_value_is_always_drawn(arity, value):
    uniforms = np.array([0.0, SUBNORMAL, 0.3, np.nextafter(1.0, 0.0)])
    for slot in (0, 1, arity - 1, arity, 499):
        tree = SumTree(500, arity=arity)
        tree.set(np.array([slot]), np.array([value]))
        slots, values = tree.draw(uniforms)
        assert tree.total == value
        assert set(slots) == {slot}
        assert set(values) == {value}


@pytest.mark.parametrize("kernel", available_kernels())
@pytest.mark.parametrize("arity", ARITIES)
def test_no_rounding_leads_to_a_zero_or_outside(kernel, arity):
    rng = np.random.default_rng(arity)
    for _ in range(30):
        tree = tree_of(awkward_values(rng, 300), arity=arity, kernel=kernel)
        edges = np.concatenate([np.cumsum(tree.leaves), tree.total * (1 - 2.0 ** -np.arange(1, 54))])
        near = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, np.inf), [0.0, SUBNORMAL]])
        slots = tree.find(near[near < tree.total])
        assert np.all((slots >= 0) & (slots < 300))
        assert np.all(tree.leaves[slots] > 0)


def test_the_sum_of_the_largest_values_is_finite():
    tree = tree_of(np.full(4097, LARGEST_VALUE))
    assert math.isfinite(tree.total)
    assert tree.draw(np.array([np.nextafter(1.0, 0.0)]))[0] == 4096


def test_a_total_of_zero_gives_no_slot():
    for values in ([0.0, 0.0, 0.0], [-0.0, -0.0, -0.0]):
        tree = tree_of(values)
        assert tree.total == 0.0
        with pytest.raises(ValueError, match="total is 0"):
            tree.draw(np.array([0.5]))
        with pytest.raises(ValueError, match="total is 0"):
            tree.find(np.array([0.0]))


def test_draw_is_find_of_the_scaled_uniforms():
    rng = np.random.default_rng(3)
    tree, uniforms = tree_of(rng.random(1000)), rng.random(BATCH_WITHOUT_GIL)
    np.testing.assert_array_equal(tree.draw(uniforms)[0], tree.find(uniforms * tree.total))


def test_large_batches_equal_small_ones():
    rng = np.random.default_rng(4)
    slots, values = rng.integers(0, 100_000, BATCH_WITHOUT_GIL), rng.random(BATCH_WITHOUT_GIL)
    whole, parts = SumTree(100_000), SumTree(100_000)
    whole.set(slots, values)
    for start in range(0, BATCH_WITHOUT_GIL, 100):
        parts.set(slots[start : start + 100].copy(), values[start : start + 100].copy())
        parts.refresh()
    uniforms = rng.random(BATCH_WITHOUT_GIL)
    np.testing.assert_array_equal(whole.leaves, parts.leaves)
    assert whole.total == parts.total
    expected = [parts.draw(uniforms[start : start + 100])[0] for start in range(0, BATCH_WITHOUT_GIL, 100)]
    np.testing.assert_array_equal(whole.draw(uniforms)[0], np.concatenate(expected))


# Writes


def test_last_of_equal_slots_wins():
    tree = SumTree(100)
    tree.set(np.array([7, 3, 7, 7, 3]), np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert tree.leaves[7] == 4.0
    assert tree.leaves[3] == 5.0
    assert tree.total == 9.0


def test_writes_between_two_draws_count_once_each():
    tree = SumTree(64)
    tree.fill(0, 64, 1.0)
    tree.set(np.array([5, 6]), np.array([2.0, 3.0]))
    tree.write(6, np.array([0.0, 7.0]))
    tree.fill(5, 6, 0.25)
    assert tree.total == 61 + 0.25 + 0.0 + 7.0


def test_a_hundred_writes_under_one_parent_wait_for_one_sum():
    tree = SumTree(1000)
    tree.refresh()
    for _ in range(100):
        tree.set(np.array([16, 23, 17]), np.array([1.0, 2.0, 3.0]))
    assert tree._num_marked == 1
    tree.fill(0, 1000, 1.0)
    assert tree._num_marked == 125
    assert tree.total == 1000.0
    assert tree._num_marked == 0


@pytest.mark.parametrize("kernel", available_kernels())
@pytest.mark.parametrize("arity", ARITIES)
def test_a_few_writes_to_a_large_tree_leave_every_parent_exact(kernel, arity):
    rng = np.random.default_rng(arity)
    values = awkward_values(rng, 10_007)
    tree = tree_of(values, arity=arity, kernel=kernel)
    tree.refresh()
    for size in (1, 7, 8, 9, 40):
        slots, new = rng.integers(0, len(values), size), awkward_values(rng, size)
        tree.set(slots, new)
        values[slots] = new
        tree.refresh()
    assert_every_parent_is_the_sum_of_its_children(tree)
    assert tree.total == tree_of(values, arity=arity).total


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1.0, -SUBNORMAL, 2 * LARGEST_VALUE])
def test_a_bad_value_is_named_and_nothing_is_written(bad):
    tree = tree_of([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"values\[1\] is"):
        tree.set(np.array([0, 1, 2]), np.array([9.0, bad, 9.0]))
    with pytest.raises(ValueError, match=r"values\[1\] is"):
        tree.write(0, np.array([9.0, bad, 9.0]))
    with pytest.raises(ValueError, match="value is"):
        tree.fill(0, 3, bad)
    np.testing.assert_array_equal(tree.leaves, [1.0, 2.0, 3.0])
    assert tree.total == 6.0


@pytest.mark.parametrize("slot", [-1, 3, 2**62, -(2**63)])
def test_a_slot_outside_is_named_and_nothing_is_written(slot):
    tree = tree_of([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=rf"slots\[2\] is {slot}"):
        tree.set(np.array([0, 1, slot]), np.array([9.0, 9.0, 9.0]))
    np.testing.assert_array_equal(tree.leaves, [1.0, 2.0, 3.0])


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 4), (2, 1), (4, 4), (-(2**63), 2**63 - 1)])
def test_a_range_outside_is_refused(start, stop):
    tree = tree_of([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="are not a range"):
        tree.fill(start, stop, 9.0)
    np.testing.assert_array_equal(tree.leaves, [1.0, 2.0, 3.0])


@pytest.mark.parametrize("start", [-1, 2, 2**63 - 1])
def test_values_past_the_end_are_refused(start):
    tree = tree_of([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=f"start is {start}"):
        tree.write(start, np.array([9.0, 9.0]))
    np.testing.assert_array_equal(tree.leaves, [1.0, 2.0, 3.0])


def test_empty_batches_change_nothing():
    tree = tree_of([1.0, 2.0, 3.0])
    tree.set(np.array([], np.int64), np.array([]))
    tree.write(3, np.array([]))
    tree.fill(3, 3, 1.0)
    assert tree.total == 6.0
    assert tree.find(np.array([])).size == 0
    assert tree.draw(np.array([]))[0].size == 0


def test_lengths_must_agree():
    tree = tree_of([1.0, 2.0])
    with pytest.raises(ValueError, match="values has 1 items instead of 2"):
        tree.set(np.array([0, 1]), np.array([9.0]))
    with pytest.raises(ValueError, match="out_slots has 3 items instead of 1"):
        tree.draw(np.array([0.5]), np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="out_values has 3 items instead of 1"):
        tree.draw(np.array([0.5]), None, np.zeros(3))
    assert tree.total == 3.0


@pytest.mark.parametrize(
    "slots", [np.zeros(2, np.int32), np.zeros(2, np.uint64), np.zeros(2), np.zeros((2, 1), np.int64)]
)
def test_slots_must_be_a_row_of_int64(slots):
    with pytest.raises(ValueError, match="slots must be one-dimensional int64"):
        SumTree(2).set(slots, np.ones(2))


@pytest.mark.parametrize("values", [np.zeros(2, np.float32), np.zeros(2, np.int64), np.zeros(2, ">f8"), np.array(1.0)])
def test_values_must_be_a_row_of_float64(values):
    with pytest.raises(ValueError, match="values must be one-dimensional float64"):
        SumTree(2).write(0, values)


def test_arrays_must_be_contiguous_arrays():
    tree = tree_of([1.0, 2.0])
    with pytest.raises(ValueError, match="contiguous"):
        tree.write(0, np.zeros(4)[::2])
    for other in (None, [0.5], 0.5, memoryview(np.array([0.5]))):
        with pytest.raises(TypeError, match="must be a NumPy array"):
            tree.draw(other)
    with pytest.raises(ValueError, match="read-only"):
        tree.draw(np.array([0.5]), None, tree.leaves)


@pytest.mark.parametrize("uniform", [1.0, -0.1, np.nan, np.inf])
def test_a_uniform_outside_is_named_and_nothing_is_written(uniform):
    slots, values = np.full(2, -1), np.full(2, -1.0)
    with pytest.raises(ValueError, match=r"uniforms\[1\] is"):
        tree_of([1.0, 2.0]).draw(np.array([0.5, uniform]), slots, values)
    np.testing.assert_array_equal(slots, -1)
    np.testing.assert_array_equal(values, -1.0)


def test_draws_fill_the_arrays_given_even_the_uniforms_themselves():
    rng = np.random.default_rng(5)
    tree, uniforms = tree_of(rng.random(1000)), rng.random(300)
    expected_slots, expected_values = tree.draw(uniforms)
    out_slots = np.empty(300, np.int64)
    slots, values = tree.draw(uniforms, out_slots, uniforms)
    assert slots is out_slots
    assert values is uniforms
    np.testing.assert_array_equal(slots, expected_slots)
    np.testing.assert_array_equal(values, expected_values)


# Leaves in memory from outside


def aligned(size, fill=0.0):
    memory = np.full(size + 8, fill)
    start = -memory.ctypes.data % 64 // 8
    return memory[start : start + size]


@pytest.mark.parametrize("arity", ARITIES)
def test_values_found_in_given_memory_are_kept_and_summed(arity):
    rng = np.random.default_rng(arity)
    memory = aligned(padded_size(1009, arity) + 5, fill=123.0)
    memory[:1009] = rng.random(1009)
    before, behind = memory[:1009].copy(), memory[padded_size(1009, arity) :].copy()
    tree = SumTree(1009, arity=arity, leaves=memory)
    np.testing.assert_array_equal(tree.leaves, before)
    assert tree.total == tree_of(before, arity=arity).total
    np.testing.assert_array_equal(memory[padded_size(1009, arity) :], behind)


def test_writes_go_to_given_memory_and_survive_a_restart():
    memory = aligned(padded_size(100, 8))
    tree = SumTree(100, leaves=memory)
    tree.set(np.array([3, 99]), np.array([0.25, 4.0]))
    assert memory[3] == 0.25
    again = SumTree(100, leaves=memory)
    assert again.total == 4.25
    np.testing.assert_array_equal(again.find(np.array([0.0, 0.25])), [3, 99])


def test_leaves_are_a_read_only_view_that_shows_writes():
    tree = SumTree(10)
    leaves = tree.leaves
    tree.fill(2, 4, 1.5)
    assert leaves.shape == (10,)
    assert leaves[3] == 1.5
    with pytest.raises(ValueError, match="read-only"):
        leaves[0] = 1.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_a_bad_value_in_given_memory_is_named(bad):
    memory = aligned(16)
    memory[9] = bad
    with pytest.raises(ValueError, match=r"leaves\[9\] is"):
        SumTree(10, leaves=memory)


def test_unsuitable_memory_is_refused():
    read_only = aligned(16)
    read_only.flags.writeable = False
    for leaves in (aligned(8), aligned(24)[1:17], aligned(32)[::2], read_only):
        with pytest.raises(ValueError, match="leaves"):
            SumTree(10, leaves=leaves)
    for leaves in ([0.0] * 16, np.zeros(16, np.float32), np.zeros((2, 8))):
        with pytest.raises(TypeError, match="leaves"):
            SumTree(10, leaves=leaves)


# Threads


def in_thread(function):
    """What `function` returns in a thread of its own."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def test_different_trees_may_be_used_at_the_same_time():
    def work(seed):
        rng = np.random.default_rng(seed)
        tree, totals = SumTree(50_000), []
        for _ in range(20):
            tree.set(rng.integers(0, 50_000, BATCH_WITHOUT_GIL), rng.random(BATCH_WITHOUT_GIL))
            slots, values = tree.draw(rng.random(BATCH_WITHOUT_GIL))
            totals.append((tree.total, values.sum(), slots.sum()))
        return totals

    expected = [work(seed) for seed in range(3)]
    results = {}
    threads = [threading.Thread(target=lambda seed=seed: results.update({seed: work(seed)})) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[seed] for seed in range(3)] == expected


@pytest.mark.parametrize("kernel", available_kernels())
def test_a_thread_that_flushes_subnormals_finds_the_same_slots(kernel):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(6)
    values = 1e-310 * rng.random(100)
    values[50:52] = [1e-300, 1e-308]
    tree, uniforms = tree_of(values, kernel=kernel), rng.random(1000)
    expected_slots, expected_values = tree.draw(uniforms)

    def flushing():
        assert torch.set_flush_denormal(True)
        again = tree_of(values, kernel=kernel)
        with pytest.raises(ValueError, match="value is"):
            again.fill(0, 1, -SUBNORMAL)
        return again.total, tree.draw(uniforms), again.draw(uniforms)

    total, *draws = in_thread(flushing)
    assert total == tree.total
    for slots, drawn in draws:
        np.testing.assert_array_equal(slots, expected_slots)
        np.testing.assert_array_equal(drawn, expected_values)
