from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from parl_mq.algorithms.registry import load_algorithm
from parl_mq.config.models import RunConfig
from parl_mq.rollout.building import build_collector, build_evaluator, table_spec
from parl_mq.spec import TableSpec, WeightsVersion


def run_config(**environment: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "environment": {"id": "CartPole-v1", **environment},
            "algorithm": {"name": "dqn", "n_step": 3, "batch_size": 8},
            "replay": {"fragment_length": 16, "fragment_wait_s": 3600.0},
            "actor": {"num_actors": 2, "num_envs": 4},
            "evaluation": {"num_episodes": 3},
        }
    )


def weights_for(config: RunConfig, spec: TableSpec) -> dict[str, torch.Tensor]:
    stacked = spec.stacked(config.environment.frame_stack)
    trainer = load_algorithm("dqn").make_trainer(config.algorithm, stacked, 0, torch.device("cpu"))
    return trainer.policy_weights()


def test_a_collector_fills_the_runs_table() -> None:
    config = run_config()
    collector = build_collector(config, 1, clock=lambda: 0.0)
    assert collector.spec == table_spec(config)
    collector.load_weights(weights_for(config, collector.spec), WeightsVersion(1, 0))
    batch = collector.collect(config.largest_insert).fragments
    assert batch is not None
    assert batch.num_live >= config.largest_insert // 4
    assert {name: (column.shape[1:], column.dtype.name) for name, column in batch.columns.items()} == {
        column.name: (column.shape, column.dtype) for column in table_spec(config).columns
    }


def test_collectors_with_the_same_seed_repeat_each_other_and_other_actors_do_not() -> None:
    config = run_config()

    def observations(index: int, attempt: int = 0) -> np.ndarray:
        collector = build_collector(config, index, clock=lambda: 0.0, attempt=attempt)
        collector.load_weights(weights_for(config, collector.spec), WeightsVersion(1, 0))
        batch = collector.collect(1000).fragments
        assert batch is not None
        return batch.columns["obs"][:16]

    np.testing.assert_array_equal(observations(0), observations(0))
    assert not (observations(0) == observations(1)).any()
    assert not (observations(0) == observations(0, attempt=1)).any()


def test_frame_stacks_reach_the_policy() -> None:
    config = run_config(frame_stack=2)
    collector = build_collector(config, 0, clock=lambda: 0.0)
    collector.load_weights(weights_for(config, collector.spec), WeightsVersion(1, 0))
    assert collector.collect(1000).fragments is not None


def test_an_evaluator_comes_with_a_policy_that_it_can_play() -> None:
    config = run_config()
    evaluator, policy = build_evaluator(config)
    policy.load_weights(weights_for(config, evaluator.spec))
    evaluation = evaluator.evaluate(policy)
    assert evaluation is not None
    assert len(evaluation.returns) == 3
    np.testing.assert_array_equal(evaluation.returns, evaluation.lengths)


@pytest.mark.parametrize("fault", ["close", "broken close"])
def test_a_table_needs_no_environment_that_closes_well(fault: str) -> None:
    spec = table_spec(run_config(id="tests.environments:Careless-v0", kwargs={"fault": fault}))
    assert spec.observation_names == ("obs",)
