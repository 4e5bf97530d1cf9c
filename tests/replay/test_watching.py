"""Figures of a table in use, beside what inspecting all of it finds."""

import numpy as np
import pytest

from parl_mq.replay.table import Table, TableSettings
from parl_mq.replay.watching import TableWatch, priority_figures
from tests.services.builders import SPEC, fragments


def _table(num_rows, *, num_shards=1, capacity=50_000):
    settings = TableSettings(name="main", capacity=capacity, fragment_length=50, num_shards=num_shards)
    table = Table(settings, SPEC, directory=None, rng=np.random.default_rng(1))
    keys = np.concatenate([table.insert(fragments(50)) for _ in range(num_rows // 50)])
    return table, keys


def test_the_histogram_counts_rows_up_to_each_edge_and_all():
    figures = priority_figures(np.array([0.001, 0.05, 0.05, 1000.0]), 2.0)
    counted = {key: value for key, value in figures.items() if key.startswith("replay_priority_rows")}
    assert counted['replay_priority_rows{le="0.001"}'] == 2.0
    assert counted['replay_priority_rows{le="0.0316"}'] == 2.0
    assert counted['replay_priority_rows{le="0.1"}'] == 6.0
    assert counted['replay_priority_rows{le="100"}'] == 6.0
    assert counted['replay_priority_rows{le="+Inf"}'] == 8.0
    assert len(counted) == 12


def test_without_rows_all_figures_are_0():
    assert set(priority_figures(np.zeros(0), 1.0).values()) == {0.0}


@pytest.mark.parametrize("num_rows", [1_000, 30_000])
def test_effective_rows_are_those_of_the_whole_table_but_for_the_sample(num_rows):
    table, keys = _table(num_rows)
    magnitudes = np.random.default_rng(2).lognormal(0.0, 1.0, len(keys))
    table.update_priorities(keys, magnitudes)
    priorities = (magnitudes + table.settings.eps) ** table.settings.alpha
    watch = TableWatch(table)
    watch.look()
    expected = priorities.sum() ** 2 / (priorities @ priorities)
    assert watch.figures["replay_effective_rows"] == pytest.approx(expected, rel=0.1)
    assert watch.figures['replay_priority_rows{le="+Inf"}'] == pytest.approx(num_rows, rel=0.1)


@pytest.mark.parametrize("num_shards", [1, 3])
def test_ages_are_the_live_rows_that_came_later_about(num_shards):
    table, keys = _table(3_000, num_shards=num_shards)
    expected = np.arange(len(keys))[::-1]
    assert np.abs(table.ages(keys) - expected).max() <= 60 * num_shards
    watch = TableWatch(table)
    assert watch.wants_draw
    watch.note_draw(keys[:100])
    assert not watch.wants_draw
    assert watch.figures["sampled_age_rows"] == pytest.approx(2_950, abs=60 * num_shards)
    assert watch.figures["sampled_age_rows_max"] <= 3_000


def test_a_row_that_has_gone_counts_as_the_oldest():
    table, keys = _table(500, capacity=500)
    for _ in range(20):
        table.insert(fragments(50))
    assert table.ages(keys[:1]).tolist() == [table.num_live]


def test_looking_changes_no_draw():
    draws = []
    for is_watched in (False, True):
        table, _ = _table(1_000)
        watch = TableWatch(table)
        if is_watched:
            watch.look()
        draws.append(table.draw(32).keys.tolist())
    assert draws[0] == draws[1]
