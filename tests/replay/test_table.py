from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from parl_mq.fragments import FragmentBatch
from parl_mq.replay.draws import KEYS, PROBABILITIES, importance_weights
from parl_mq.replay.keys import positions_of, shards_of, tables_of
from parl_mq.replay.refusals import FragmentsRefused, KeysRefused, PrioritiesRefused, TableEmpty
from parl_mq.replay.senders import SenderMark
from parl_mq.replay.table import Table, TableSettings
from parl_mq.spec import TableSpec

from .fragments import SPEC, counter_fragment, joined

ONE_SHARD_DEFAULTS: dict[str, Any] = {"name": "test", "alpha": 1.0, "eps": 0.0, "gamma": 0.9}


def make_table(
    capacity: int, *, directory: Path | None = None, spec: TableSpec = SPEC, fresh: bool = False, **settings: Any
) -> Table:
    chosen = TableSettings(capacity=capacity, **{**ONE_SHARD_DEFAULTS, **settings})
    return Table(chosen, spec, directory=directory, rng=np.random.default_rng(0), fresh=fresh)


def insert_single(table: Table, *numbers: float, priority: float | None = 1.0) -> npt.NDArray[np.uint64]:
    """Single transitions in one message; their observation shows their number."""
    priorities = None if priority is None else [priority]
    return table.insert(joined(*(counter_fragment(number, 1, priorities=priorities) for number in numbers)))


def shares(table: Table, num_draws: int) -> dict[int, float]:
    numbers = table.draw(num_draws).columns["obs"][:, 0].astype(int)
    return {
        int(number): count / num_draws for number, count in zip(*np.unique(numbers, return_counts=True), strict=True)
    }


class TestWindows:
    @pytest.mark.parametrize("ending", ["terminated", "truncated"])
    def test_n_step_windows_end_with_the_episode(self, ending: str) -> None:
        table = make_table(100, n_step=3, fragment_length=5)
        for episode in range(2):
            table.insert(counter_fragment(1000 * episode, 5, **{ending: True}))
        columns = table.draw(2000).columns
        obs, next_obs = columns["obs"][:, 0], columns["next_obs"][:, 0]
        first = (obs % 1000).astype(int)
        assert set(obs) == {0, 1, 2, 3, 4, 1000, 1001, 1002, 1003, 1004}
        np.testing.assert_allclose(columns["reward"], np.array([5.23, 7.94, 10.65, 8.5, 5])[first], rtol=1e-6)
        np.testing.assert_array_equal(next_obs, obs - first + np.array([3, 4, 5, 5, 5])[first])
        discounts = {"terminated": [0.729, 0.729, 0, 0, 0], "truncated": [0.729, 0.729, 0.729, 0.81, 0.9]}[ending]
        np.testing.assert_allclose(columns["discount"], np.array(discounts)[first], rtol=1e-6)
        np.testing.assert_array_equal(columns[ending], first >= 2)

    def test_a_window_cut_by_a_fragments_end_has_the_discount_of_its_steps(self) -> None:
        table = make_table(100, n_step=3, fragment_length=2)
        table.insert(counter_fragment(0, 2))
        columns = table.draw(100).columns
        expected = np.where(columns["obs"][:, 0] == 0, 0.81, 0.9).astype(np.float32)
        np.testing.assert_array_equal(columns["discount"], expected)

    def test_overlap_rows_make_the_last_windows_whole_and_are_never_drawn(self) -> None:
        table = make_table(100, n_step=3, fragment_length=2)
        table.insert(counter_fragment(0, 2, num_overlap=2))
        columns = table.draw(500).columns
        assert set(columns["obs"][:, 0]) == {0, 1}
        np.testing.assert_array_equal(columns["next_obs"][:, 0], columns["obs"][:, 0] + 3)
        assert set(columns["num_steps"]) == {3}

    def test_the_discount_is_gamma_to_the_sum_of_spans(self) -> None:
        table = make_table(100, n_step=2, fragment_length=2)
        table.insert(counter_fragment(0, 2), spans=np.array([3, 2, 1], np.uint8))
        columns = table.draw(100).columns
        is_first = columns["obs"][:, 0] == 0
        np.testing.assert_allclose(columns["discount"], np.where(is_first, 0.9**5, 0.9**2), rtol=1e-6)
        np.testing.assert_allclose(columns["reward"], np.where(is_first, 1 + 0.9**3 * 2, 2), rtol=1e-6)

    def test_windows_stay_within_their_episode_after_many_wraps(self) -> None:
        table = make_table(23, n_step=3, fragment_length=7)
        for episode in range(100):
            table.insert(counter_fragment(1000 * episode, 1 + episode % 7, truncated=True))
            columns = table.draw(50).columns
            np.testing.assert_array_equal(columns["obs"][:, 0] // 1000, columns["next_obs"][:, 0] // 1000)
            np.testing.assert_array_equal(
                columns["next_obs"][:, 0] - columns["obs"][:, 0], columns["num_steps"].astype(np.float32)
            )


class TestEviction:
    def test_a_late_update_of_an_overwritten_row_is_dropped_and_counted(self) -> None:
        table = make_table(8)
        keys = insert_single(table, *range(8))
        drawn = table.draw(200)
        handle = drawn.keys[drawn.columns["obs"][:, 0] == 3][:1]
        assert handle[0] == keys[3]
        insert_single(table, *range(8, 16))
        assert table.update_priorities(handle, np.array([1000.0])) == (0, 1)
        assert table.total_priority == 8.0
        assert table.counts.stale == 1
        assert table.max_magnitude == 1.0
        found = shares(table, 100_000)
        assert set(found) == set(range(8, 16))
        assert all(abs(share - 1 / 8) < 0.0042 for share in found.values())

    def test_lazy_updates_keep_their_order_and_the_last_of_equal_keys_wins(self) -> None:
        table = make_table(4)
        a, b, c, _ = insert_single(table, 0, 1, 2, 3)
        table.update_priorities(np.array([a]), np.array([9.0]))
        insert_single(table, 4, priority=2.0)
        table.update_priorities(np.array([a]), np.array([7.0]))
        assert table.total_priority == 5.0
        assert table.counts.stale == 1
        table.update_priorities(np.array([b]), np.array([3.0]))
        table.update_priorities(np.array([b]), np.array([5.0]))
        table.update_priorities(np.array([c, c]), np.array([4.0, 6.0]))
        assert table.total_priority == 14.0

    def test_the_oldest_fragments_go_whole_when_live_rows_exceed_the_capacity(self) -> None:
        table = make_table(10, fragment_length=4)
        for number in range(3):
            table.insert(counter_fragment(100 * number, 4))
        assert table.num_live == 8
        assert set(table.draw(500).columns["obs"][:, 0] // 100) == {1, 2}
        assert table.counts.evicted == 4

    def test_physical_room_evicts_before_the_capacity_does(self) -> None:
        table = make_table(100, fragment_length=10)
        for number in range(200):
            insert_single(table, number)
        assert 50 < table.num_live < 100

    @pytest.mark.parametrize("capacity", [1, 2, 7, 8, 9, 64, 65, 512])
    def test_every_fill_level_draws_exactly_the_rows_that_are_there(self, capacity: int) -> None:
        table = make_table(capacity)
        for number in range(3 * capacity):
            insert_single(table, number, priority=0.5)
            if number + 1 in (1, capacity - 1, capacity, 3 * capacity):
                expected = set(range(max(0, number + 1 - capacity), number + 1))
                assert table.num_live == len(expected)
                assert set(table.draw(60 * capacity).columns["obs"][:, 0]) == expected

    def test_a_batch_larger_than_the_table_leaves_its_newest_rows(self) -> None:
        table = make_table(8)
        keys = insert_single(table, *range(100))
        assert len(np.unique(keys)) == 100
        assert set(table.draw(500).columns["obs"][:, 0]) == set(range(92, 100))
        assert table.update_priorities(keys, np.ones(100)) == (8, 92)

    def test_storage_and_tree_agree(self) -> None:
        table = make_table(50, fragment_length=5, n_step=3)
        for number in range(60):
            table.insert(counter_fragment(100 * number, 1 + number % 5, num_overlap=number % 3))
            (ring,) = table._rings
            valid = np.arange(ring.rows.tail, ring.rows.committed).astype(np.uint64)
            is_live = ring.rows.are_live(valid)
            assert is_live.sum() == (ring.tree.leaves > 0).sum() == table.num_live
            np.testing.assert_array_equal(ring.tree.leaves[valid.astype(int) % ring.rows.num_rows] > 0, is_live)


class TestPriorities:
    def test_a_row_without_a_magnitude_gets_the_largest_one_so_far(self) -> None:
        table = make_table(8)
        insert_single(table, 0, priority=None)
        assert table.total_priority == 1.0
        (key,) = insert_single(table, 1, priority=4.0)
        insert_single(table, 2, priority=None)
        assert table.total_priority == 9.0
        table.update_priorities(np.array([key]), np.array([0.5]))
        insert_single(table, 3, priority=None)
        assert table.total_priority == 9.5

    def test_an_insert_and_an_update_leave_the_same_leaf(self) -> None:
        table = make_table(8, alpha=0.6, eps=0.01)
        (key,) = insert_single(table, 0, priority=3.0)
        before = table.total_priority
        table.update_priorities(np.array([key]), np.array([3.0]))
        assert table.total_priority == before == pytest.approx(3.01**0.6, rel=1e-15)
        insert_single(table, 1, priority=None)
        assert table.total_priority == 2 * before

    def test_nan_infinite_and_negative_magnitudes_are_refused_whole_and_counted(self) -> None:
        table = make_table(66)
        keys = insert_single(table, *range(64))
        with pytest.raises(PrioritiesRefused, match="magnitude nan at index 1"):
            table.update_priorities(keys[:5], np.array([0.5, np.nan, np.inf, -1, 2.0]))
        for bad in (np.nan, -3.0):
            with pytest.raises(PrioritiesRefused, match=f"magnitude {bad}"):
                insert_single(table, 64, priority=bad)
        assert table.counts.refused == 5
        assert table.total_priority == 64.0
        assert table.num_live == 64
        for _ in range(1000):
            assert np.isfinite(table.draw(8).probabilities).all()

    @pytest.mark.parametrize("alpha", [0.6, 0.0])
    @pytest.mark.parametrize("eps", [0.0, 1e-6])
    def test_priorities_of_zero_mean_a_uniform_draw(
        self, alpha: float, eps: float, caplog: pytest.LogCaptureFixture
    ) -> None:
        table = make_table(16, alpha=alpha, eps=eps)
        keys = insert_single(table, *range(16))
        table.update_priorities(keys, np.zeros(16))
        with caplog.at_level(logging.WARNING):
            draw = table.draw(100_000)
            table.draw(10)
        numbers, counts = np.unique(draw.columns["obs"][:, 0], return_counts=True)
        assert len(numbers) == 16
        assert (abs(counts / 100_000 - 1 / 16) < 0.0031).all()
        assert (importance_weights(draw.probabilities, 1.0) == 1.0).all()
        assert len(caplog.records) == (1 if eps == 0 else 0)

    @pytest.mark.parametrize("alpha", [0.6, 0.0])
    def test_a_priority_of_zero_is_not_drawn_beside_others(self, alpha: float) -> None:
        table = make_table(16, alpha=alpha, eps=0.0)
        keys = insert_single(table, *range(16))
        table.update_priorities(keys, np.where(np.arange(16) == 5, 1.0, 0.0))
        assert shares(table, 10_000) == {5: 1.0}

    @pytest.mark.parametrize("alpha", [0.6, 0.0])
    def test_eps_keeps_zeros_drawable(self, alpha: float) -> None:
        eps = 0.01
        table = make_table(16, alpha=alpha, eps=eps)
        keys = insert_single(table, *range(16))
        table.update_priorities(keys, np.where(np.arange(16) == 5, 1.0, 0.0))
        expected = (1 + eps) ** alpha / ((1 + eps) ** alpha + 15 * eps**alpha)
        tolerance = 4 * np.sqrt(expected * (1 - expected) / 100_000)
        assert abs(shares(table, 100_000)[5] - expected) < tolerance

    def test_a_uniform_table_ignores_magnitudes(self) -> None:
        table = make_table(4, kind="uniform")
        keys = insert_single(table, 0, 1, 2, 3, priority=7.0)
        table.update_priorities(keys, np.array([0.0, 1.0, 2.0, 1e9]))
        assert table.total_priority == 4.0
        np.testing.assert_array_equal(table.draw(10).probabilities, np.full(10, 0.25))

    def test_huge_and_tiny_magnitudes_keep_the_total_finite(self) -> None:
        table = make_table(4)
        insert_single(table, 0, priority=1e308)
        insert_single(table, 1, priority=5e-324)
        assert np.isfinite(table.total_priority)
        assert table.draw(10).probabilities.max() == 1.0


class TestKeys:
    def test_a_key_holds_table_shard_and_position(self) -> None:
        table = make_table(20, table_index=7, num_shards=2)
        first, second = insert_single(table, 0), insert_single(table, 1)
        keys = np.concatenate([first, second])
        assert list(tables_of(keys)) == [7, 7]
        assert list(shards_of(keys) & np.uint64(255)) == [0, 1]
        assert list(positions_of(keys)) == [0, 0]

    @pytest.mark.parametrize("num_shards", [1, 2])
    def test_keys_that_no_live_row_ever_had_are_refused_whole(self, num_shards: int) -> None:
        table = make_table(20, table_index=1, num_shards=num_shards)
        (key,) = insert_single(table, 0)
        closing, future = key + np.uint64(1), key + np.uint64(2)
        other_table, other_shard = key + np.uint64(1 << 56), key + np.uint64(5 << 48)
        for bad in (closing, future, other_table, other_shard, np.uint64(0)):
            with pytest.raises(KeysRefused, match=rf"keys\[1\] is {bad}"):
                table.update_priorities(np.array([key, bad]), np.array([5.0, 5.0]))
        assert table.total_priority == 1.0

    def test_more_or_fewer_magnitudes_than_keys_are_refused(self) -> None:
        table = make_table(4)
        keys = insert_single(table, 0, 1)
        with pytest.raises(PrioritiesRefused, match=r"\(1,\): they must be float64 \(2,\)"):
            table.update_priorities(keys, np.array([1.0]))
        with pytest.raises(KeysRefused, match="int64"):
            table.update_priorities(keys.astype(np.int64), np.array([1.0, 1.0]))

    def test_no_update_at_all_is_fine(self) -> None:
        table = make_table(4)
        assert table.update_priorities(np.empty(0, np.uint64), np.empty(0)) == (0, 0)


class TestRefusals:
    def check(self, message: str, **changes: Any) -> None:
        table = make_table(100, fragment_length=4, n_step=2, frame_stack=2)
        good = joined(counter_fragment(0, 4, num_overlap=1), counter_fragment(10, 3))
        table.insert(good)
        with pytest.raises(FragmentsRefused, match=message):
            table.insert(dataclasses.replace(good, **changes))
        assert table.num_live == 7
        assert table.counts.inserted == 7

    def columns(self, **changes: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        return {**joined(counter_fragment(0, 4, num_overlap=1), counter_fragment(10, 3)).columns, **changes}

    def test_a_column_of_another_dtype_is_named(self) -> None:
        self.check(
            r"'obs' is float64 \(10, 3\): it must be float32 \(10, 3\)", columns=self.columns(obs=np.zeros((10, 3)))
        )

    def test_a_column_of_another_shape_is_named(self) -> None:
        self.check(r"'obs' is float32 \(10, 4\)", columns=self.columns(obs=np.zeros((10, 4), np.float32)))

    def test_a_column_that_is_not_contiguous_is_named(self) -> None:
        self.check("'obs' is not contiguous", columns=self.columns(obs=np.zeros((3, 10), np.float32).T))

    def test_missing_and_unknown_columns_are_named(self) -> None:
        self.check("'more'", columns=self.columns(more=np.zeros(10)))
        self.check("they must be", columns={"reward": np.zeros(10, np.float32)})

    def test_lengths_must_add_up(self) -> None:
        self.check("add up to 9", lengths=np.array([4, 2], np.int32))
        self.check("ends at row 11", lengths=np.array([4, 4], np.int32))
        self.check("there must be at least 1", lengths=np.array([0, 7], np.int32))
        self.check("there must be at least 1", num_context=np.array([-1, 1], np.int32))
        self.check("'num_overlap' is int32", num_overlap=np.array([1], np.int32))
        self.check("'lengths' is int64", lengths=np.array([4, 3]))
        self.check("at most", lengths=np.array([2**31 - 1, 3], np.int32))

    def test_no_fragments_are_refused(self) -> None:
        self.check("no fragments", lengths=np.empty(0, np.int32))

    def test_only_the_last_step_may_end_an_episode(self) -> None:
        ends = np.zeros(10, np.bool_)
        ends[3] = True
        self.check(
            "row 3 of fragment 0 ends an episode: only its last step, row 4", columns=self.columns(terminated=ends)
        )
        self.check("row 3 of fragment 0", columns=self.columns(truncated=ends))

    def test_a_truth_value_beside_0_and_1_is_refused(self) -> None:
        ends = np.zeros(10, np.uint8)
        ends[4] = 2
        self.check("must be 0 or 1", columns=self.columns(terminated=ends.view(np.bool_)))

    def test_a_mid_episode_fragment_without_context_for_the_stack_is_refused(self) -> None:
        self.check("fragment 1 has 0 context rows", starts_episode=np.array([True, False]))

    def test_the_number_of_magnitudes_must_be_that_of_the_live_rows(self) -> None:
        table = make_table(100, fragment_length=4)
        with pytest.raises(PrioritiesRefused, match=r"\(4,\)"):
            table.insert(counter_fragment(0, 4, priorities=[1.0]))
        assert table.num_live == 0

    def test_settings_out_of_range_are_named(self) -> None:
        for name, bad in {"alpha": 1.5, "n_step": 0, "num_shards": 257, "gamma": -0.1, "frame_stack": 17}.items():
            with pytest.raises(ValueError, match=f"{name} is {bad}"):
                make_table(100_000, **{name: bad})
        with pytest.raises(ValueError, match="capacity is 7: 2 shards of fragments of 4"):
            make_table(7, num_shards=2, fragment_length=4)

    def test_an_extra_column_may_not_take_the_name_of_a_draws_own(self) -> None:
        spec = TableSpec.of({"obs": ((), "float32"), "action": ((), "int64"), "discount": ((), "float32")})
        with pytest.raises(ValueError, match="discount"):
            make_table(4, spec=spec)


class TestDraws:
    def test_an_empty_table_says_so(self) -> None:
        with pytest.raises(TableEmpty, match="table test has no rows"):
            make_table(4).draw(1)
        with pytest.raises(TableEmpty, match="table test has no rows"):
            make_table(4, num_shards=2).draw(1)

    def test_a_batch_may_be_larger_than_the_table(self) -> None:
        table = make_table(16)
        insert_single(table, *range(10))
        assert len(table.draw(64).keys) == 64

    def test_a_batch_of_none_is_refused(self) -> None:
        table = make_table(16)
        insert_single(table, 0)
        with pytest.raises(ValueError, match="batch_size is 0"):
            table.draw(0)

    def test_a_draw_fills_given_arrays(self) -> None:
        table = make_table(16)
        insert_single(table, *range(10))
        out = {column.name: np.zeros(column.shape, column.dtype) for column in table.draw_columns(32)}
        draw = table.draw(32, out)
        assert draw.keys is out[KEYS]
        assert draw.probabilities is out[PROBABILITIES]
        assert draw.arrays().keys() == out.keys()
        assert all(draw.columns[name] is out[name] for name in draw.columns)
        np.testing.assert_array_equal(out["obs"][:, 0], positions_of(out[KEYS]) // 2)

    def test_given_arrays_must_fit(self) -> None:
        table = make_table(16)
        insert_single(table, 0)
        out = {column.name: np.zeros(column.shape, column.dtype) for column in table.draw_columns(32)}
        with pytest.raises(ValueError, match="out has no array 'reward'"):
            table.draw(32, {name: array for name, array in out.items() if name != "reward"})
        with pytest.raises(ValueError, match=r"out\['obs'\] is float64"):
            table.draw(32, {**out, "obs": np.zeros((32, 3))})
        with pytest.raises(ValueError, match=r"out\['action'\] is int64 \(31,\)"):
            table.draw(32, {**out, "action": out["action"][1:]})

    def test_rows_are_drawn_in_proportion_to_their_priorities(self) -> None:
        table = make_table(8)
        for number in range(4):
            insert_single(table, number, priority=number + 1)
        draw = table.draw(100_000)
        found = np.bincount(draw.columns["obs"][:, 0].astype(int)) / 100_000
        expected = np.arange(1, 5) / 10
        assert (abs(found - expected) < 4 * np.sqrt(expected * (1 - expected) / 100_000)).all()
        np.testing.assert_allclose(draw.probabilities, (draw.columns["obs"][:, 0] + 1) / 10)
        assert draw.total == 10.0
        assert draw.num_live == 4

    def test_draws_follow_from_the_seed(self) -> None:
        first, second = make_table(50, num_shards=3), make_table(50, num_shards=3)
        for table in (first, second):
            for number in range(40):
                insert_single(table, number, priority=number + 1)
        for _ in range(3):
            np.testing.assert_array_equal(first.draw(64).keys, second.draw(64).keys)

    def test_extra_columns_come_along(self) -> None:
        spec = SPEC.extended(
            TableSpec.of({"obs": ((), "bool"), "action": ((), "bool"), "h": ((2,), "float16")}).columns[-1:]
        )
        table = make_table(8, spec=spec, fragment_length=3)
        one = counter_fragment(0, 3)
        numbered = np.repeat(one.columns["action"][:, None], 2, 1).astype(np.float16)
        table.insert(dataclasses.replace(one, columns={**one.columns, "h": numbered}))
        columns = table.draw(50).columns
        np.testing.assert_array_equal(columns["h"][:, 0], columns["obs"][:, 0])

    def test_observations_of_several_columns_keep_their_names(self) -> None:
        spec = TableSpec.of({"obs/a": ((2,), "uint8"), "obs/b": ((), "int32"), "action": ((), "int64")})
        table = make_table(8, spec=spec, fragment_length=3)
        step = counter_fragment(0, 3)
        columns = {name: step.columns[name] for name in ("action", "reward", "terminated", "truncated")}
        numbers = np.arange(4)
        columns |= {"obs/a": np.repeat(numbers[:, None], 2, 1).astype(np.uint8), "obs/b": 10 * numbers.astype(np.int32)}
        table.insert(dataclasses.replace(step, columns=columns))
        drawn = table.draw(50).columns
        np.testing.assert_array_equal(drawn["next_obs/a"], drawn["obs/a"] + 1)
        np.testing.assert_array_equal(drawn["next_obs/b"], 10 * (drawn["action"] + 1))


class TestShards:
    def test_two_shards_draw_as_one_table_would(self) -> None:
        table = make_table(40, num_shards=3)
        for number in range(10):
            insert_single(table, number, priority=number)
        draw = table.draw(100_000)
        expected = np.arange(10) / 45
        found = np.bincount(draw.columns["obs"][:, 0].astype(int), minlength=10) / 100_000
        assert (abs(found - expected) <= 4 * np.sqrt(expected * (1 - expected) / 100_000)).all()
        np.testing.assert_allclose(draw.probabilities, draw.columns["obs"][:, 0] / 45)
        assert draw.total == pytest.approx(45)
        assert draw.num_live == 10

    @pytest.mark.parametrize("with_rows", [True, False])
    def test_batches_cut_from_one_draw_hold_each_shard_in_its_proportion(self, with_rows: bool) -> None:
        table = make_table(40, num_shards=2)
        of_keys = {int(insert_single(table, number)[0]): number for number in range(10)}
        draw = (table.draw if with_rows else table.draw_keys)(8 * 1024, is_shared_out=True)
        for shards in shards_of(draw.keys).reshape(8, 1024):
            assert abs((shards == shards_of(draw.keys).min()).mean() - 0.5) < 4 * np.sqrt(0.25 / 1024)
        for obs, key in zip(draw.columns["obs"][:, 0] if with_rows else (), draw.keys.tolist(), strict=with_rows):
            assert obs == of_keys[key]

    def test_a_shard_without_priority_is_not_drawn_beside_others(self) -> None:
        table = make_table(40, num_shards=2)
        insert_single(table, 0, 1, 2, priority=0.0)
        insert_single(table, 3, priority=1.0)
        assert shares(table, 1000) == {3: 1.0}

    def test_without_any_priority_shards_are_drawn_by_their_live_rows(self) -> None:
        table = make_table(40, num_shards=2)
        insert_single(table, 0, 1, 2, priority=0.0)
        insert_single(table, 3, priority=0.0)
        draw = table.draw(100_000)
        np.testing.assert_allclose(draw.probabilities, 0.25)
        assert all(abs(share - 0.25) < 0.006 for share in shares(table, 100_000).values())

    def test_updates_reach_their_shard_and_stay_in_order(self) -> None:
        table = make_table(40, num_shards=2)
        first, second = insert_single(table, 0, 1), insert_single(table, 2, 3)
        keys = np.concatenate([second, first, second])
        assert table.update_priorities(keys, np.array([1.0, 1, 5, 6, 20, 30])) == (6, 0)
        assert table.total_priority == 61.0

    def test_nothing_is_applied_to_one_shard_when_a_key_of_another_is_wrong(self) -> None:
        table = make_table(40, num_shards=2)
        first, second = insert_single(table, 0), insert_single(table, 1)
        with pytest.raises(KeysRefused):
            table.update_priorities(np.concatenate([first, second + np.uint64(1)]), np.array([9.0, 9.0]))
        assert table.total_priority == 2.0

    def test_each_shard_holds_its_share_of_the_capacity(self) -> None:
        table = make_table(10, num_shards=4)
        for number in range(200):
            insert_single(table, number)
        assert table.num_live == 10


class TestInterruptedInsert:
    def test_rows_reserved_and_never_committed_stay_dead(self) -> None:
        table = make_table(6)
        insert_single(table, *range(6))
        (ring,) = table._rings
        for number in range(6, 30):
            interrupted = table.take(counter_fragment(1000 + number, 1))
            part = ring.rows.plan(interrupted, None, ring.capacity)
            ring._log.reserve(part.end, part.tail)
            if number % 3 == 1:
                ring._zero(part.old_tail, part.tail)
            elif number % 3 == 2:
                ring._evict(part)
                keys = np.empty(1, np.uint64)
                ring.rows.scatter(interrupted, part, None, 1.0, keys)
                ring.tree.write(part.start % ring.rows.num_rows, np.ones(part.num_rows))
            insert_single(table, number)
            drawn = set(table.draw(200).columns["obs"][:, 0])
            assert number in drawn
            assert max(drawn) < 1000
            assert len(drawn) == table.num_live == (ring.tree.leaves > 0).sum()


class TestFiles:
    def test_rows_lie_in_files_that_go_with_the_table(self, tmp_path: Path) -> None:
        table = make_table(100, directory=tmp_path / "rings", num_shards=2)
        files = sorted((tmp_path / "rings").iterdir())
        assert [file.name for file in files] == ["test.000.ring", "test.001.ring", "test.json"]
        assert all(file.stat().st_blocks * 512 >= file.stat().st_size for file in files)
        assert os.stat(tmp_path / "rings").st_mode & 0o777 == 0o700
        insert_single(table, *range(10))
        assert len(table.draw(5).keys) == 5
        table.close()
        assert list((tmp_path / "rings").iterdir()) == []

    def test_a_fresh_ring_replaces_the_one_that_is_there_whose_keys_are_stale(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        old = make_table(100, directory=tmp_path, num_shards=2)
        old_keys = insert_single(old, *range(10))
        old.close(remove=False)
        with caplog.at_level(logging.WARNING):
            new = make_table(100, directory=tmp_path, fresh=True)
        assert "replaced by an empty ring" in caplog.text
        assert not new.is_reopened
        assert new.ring_id != old.ring_id
        assert new.num_live == 0
        new_keys = insert_single(new, *range(10))
        assert not set(old_keys) & set(new_keys)
        assert new.update_priorities(old_keys, np.ones(10)) == (0, 10)
        assert set(new.draw(200).columns["obs"][:, 0]) == set(range(10))
        new.close()
        assert list(tmp_path.iterdir()) == []

    def test_a_file_that_is_no_ring_is_replaced_too(self, tmp_path: Path) -> None:
        (tmp_path / "test.000.ring").write_bytes(b"something else")
        table = make_table(100, directory=tmp_path)
        assert positions_of(insert_single(table, 0))[0] == 0
        table.close()


def test_a_copied_batch_may_be_changed_afterwards() -> None:
    table = make_table(8, fragment_length=3)
    batch: FragmentBatch = counter_fragment(0, 3)
    table.insert(batch)
    batch.columns["obs"][:] = -1
    assert table.draw(50).columns["obs"].min() == 0


@pytest.mark.parametrize(
    ("mark", "words"),
    [
        (SenderMark(5, 1, 1, 1, 1), "name of the sender is 5"),  # type: ignore[arg-type]
        (SenderMark(b"short", 1, 1, 1, 1), "a digest of 16 bytes"),
        (SenderMark("actor", 2**63, 1, 1, 1), "epoch of the sender"),
        (SenderMark("actor", 1, -1, 1, 1), "sequence of the sender is -1"),
        (SenderMark("actor", 1, 1, 1.5, 1), "rows of the sender is 1.5"),  # type: ignore[arg-type]
        (SenderMark("actor", 1, 1, 1, None), "num_bytes of the sender is None"),  # type: ignore[arg-type]
        (("actor", 1), "sender is"),
    ],
)
def test_rows_of_a_sender_whose_mark_cannot_be_stored_are_refused_whole(mark: SenderMark, words: str) -> None:
    table = make_table(8)
    insert_single(table, 1)
    with pytest.raises(ValueError, match=words):
        table.insert(counter_fragment(2, 1, priorities=[100.0]), sender=mark)
    with pytest.raises(ValueError, match=words):
        table.remember(mark)
    assert (table.num_live, table.total_priority, table.max_magnitude) == (1, 1.0, 1.0)
    assert set(table.draw(50).columns["obs"][:, 0]) == {1}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("kind", "other"),
        ("name", ""),
        ("name", "a/b"),
        ("name", 5),
        ("row_overhead", float("nan")),
        ("row_overhead", float("inf")),
        ("row_overhead", 0),
        ("row_overhead", "2"),
    ],
)
def test_a_setting_that_is_none_is_refused_by_its_name(setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{setting} is"):
        TableSettings(**{"name": "test", "capacity": 8, setting: value})


def test_numbers_of_any_float_type_go_into_the_files(tmp_path: Path) -> None:
    given = {"alpha": np.float32(0.5), "gamma": np.float64(0.25), "eps": 1, "row_overhead": np.float32(2)}
    make_table(8, directory=tmp_path, **given).close(remove=False)
    table = make_table(8, directory=tmp_path, alpha=0.5, gamma=0.25, eps=1.0, row_overhead=2.0)
    assert table.is_reopened
    table.close()


@pytest.mark.parametrize("batch_size", [None, "2", 2.0, True, 0, 2**40])
def test_keys_are_drawn_by_whole_numbers(batch_size: Any) -> None:
    table = make_table(8)
    insert_single(table, 1)
    with pytest.raises(ValueError, match="batch_size is"):
        table.draw_keys(batch_size)


def test_what_is_no_array_cannot_be_filled() -> None:
    table = make_table(8)
    insert_single(table, 1)
    with pytest.raises(ValueError, match="out has no array 'reward'"):
        table.draw(2, {**table.draw(2).arrays(), "reward": [0.0, 0.0]})  # type: ignore[dict-item]


def test_a_table_whose_name_holds_signs_of_a_pattern_finds_its_own_files_alone(tmp_path: Path) -> None:
    make_table(8, directory=tmp_path, name="ab").close(remove=False)
    make_table(8, directory=tmp_path, name="a*").close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ab.000.ring", "ab.json"]
