"""Settings of several learners, and of runs in lock step."""

from __future__ import annotations

import pytest

from parl_mq.config import load_config
from parl_mq.errors import UsageError


def test_learners_share_a_batch_evenly_or_draw_a_whole_one_each() -> None:
    split = load_config("cartpole-dqn", overrides=["learner.num_learners=2", "algorithm.batch_size=64"], environ={})
    assert split.learner_batch_size == 32
    assert split.smallest_error_band >= 32 * 2 * split.learner.prefetch
    each = load_config(
        "cartpole-dqn", overrides=["learner.num_learners=3", 'learner.batches="each"', "algorithm.batch_size=64"]
    )
    assert each.learner_batch_size == 64
    assert each.smallest_error_band >= 64 * 3 * each.learner.prefetch
    with pytest.raises(UsageError, match=r"3 learners cannot share algorithm\.batch_size = 64 evenly"):
        load_config("cartpole-dqn", overrides=["learner.num_learners=3", "algorithm.batch_size=64"], environ={})


@pytest.mark.parametrize("setting", ["learner.num_learners=2", "replay.nodes=2"])
def test_only_one_learner_and_one_replay_node_go_in_lock_step(setting: str) -> None:
    with pytest.raises(UsageError, match="only one goes in lock step, not 2"):
        load_config("cartpole-dqn", overrides=["deterministic=true", setting], environ={})


def test_a_run_in_lock_step_needs_the_number_of_updates_up_to_which_it_repeats() -> None:
    with pytest.raises(UsageError, match=r"stop\.max_updates: a run in lock step repeats up to a number of updates"):
        load_config("cartpole-dqn", overrides=["deterministic=true"], environ={})


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_run_in_lock_step_computes_on_the_cpu(device: str) -> None:
    overrides = ["deterministic=true", "stop.max_updates=9", f"node.device={device}"]
    with pytest.raises(UsageError, match=rf"node\.device: {device} does not compute the same to the bit each time"):
        load_config("cartpole-dqn", overrides=overrides, environ={})


@pytest.mark.parametrize("cpu", [["node.device=cpu"], ["deterministic=true", "stop.max_updates=9"]])
def test_kernels_are_recorded_on_a_gpu_alone(cpu: list[str]) -> None:
    with pytest.raises(UsageError, match=r"learner\.cuda_graphs: only a GPU records its kernels"):
        load_config("cartpole-dqn", overrides=["learner.cuda_graphs=true", *cpu], environ={})
    assert load_config("cartpole-dqn", overrides=["learner.cuda_graphs=true"], environ={}).learner.cuda_graphs
