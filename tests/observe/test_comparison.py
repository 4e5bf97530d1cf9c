"""Runs that differ in their seed alone: grouped, and compared."""

from pathlib import Path

import numpy as np
import pytest

from parl_mq.observe.comparison import compare, group_runs
from parl_mq.observe.runs import Run, find_runs, read_run
from tests.observe.recorded import RISING, record, record_ended, written_at

LOW = [(1_000, 1.0, [5.0, 15.0])]
NOW = 2e9


def _runs(folder: Path) -> list[Run]:
    return [read_run(path, NOW) for path in find_runs(folder)]


def test_runs_that_differ_in_their_seed_alone_are_one_group(tmp_path: Path) -> None:
    for seed in (3, 1, 2):
        record_ended(tmp_path / f"run{seed}", RISING, f"seed={seed}", f"node.threads={seed}")
    (group,) = group_runs(_runs(tmp_path))
    assert group.label == "cartpole-dqn"
    assert [run.seed for run in group.runs] == [1, 2, 3]


def test_groups_of_one_preset_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    record_ended(tmp_path / "a", RISING, "replay.alpha=0.5")
    record_ended(tmp_path / "b", RISING, "replay.alpha=0.6", "seed=2")
    record_ended(tmp_path / "c", RISING, "preset=other")
    labels = {group.label for group in group_runs(_runs(tmp_path))}
    assert labels == {"cartpole-dqn (alpha=0.5)", "cartpole-dqn (alpha=0.6)", "other"}


def test_comparison_is_over_the_runs_that_ended(tmp_path: Path) -> None:
    record_ended(tmp_path / "a", RISING, "seed=1")
    record_ended(tmp_path / "b", [(2_000, 2.5, [480.0])], "seed=2")
    record_ended(tmp_path / "c", LOW, "seed=3")
    going = record(tmp_path / "d", RISING, "seed=4", ends=False)
    (group,) = group_runs([read_run(path, written_at(going)) for path in find_runs(tmp_path)])
    found = compare(group, np.random.default_rng(0))
    assert (found.num_runs, found.num_reached) == (3, 2)
    assert found.iqm_return == pytest.approx((490 + 480 + 10) / 3)
    assert found.median_time_to_target_s == 3.5
    assert found.low is not None
    assert found.high is not None
    assert 10 <= found.low < found.iqm_return < found.high <= 490


def test_runs_that_did_not_reach_the_target_take_for_ever(tmp_path: Path) -> None:
    record_ended(tmp_path / "a", RISING, "seed=1")
    record_ended(tmp_path / "b", LOW, "seed=2")
    (group,) = group_runs(_runs(tmp_path))
    assert compare(group, np.random.default_rng(0)).median_time_to_target_s is None


def test_single_run_has_no_band(tmp_path: Path) -> None:
    record_ended(tmp_path / "a")
    (group,) = group_runs(_runs(tmp_path))
    found = compare(group, np.random.default_rng(0))
    assert (found.iqm_return, found.low, found.high) == (490.0, None, None)
