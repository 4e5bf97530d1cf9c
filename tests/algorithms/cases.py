"""Every built-in algorithm with the options that change what an update computes, and batches for it."""

from dataclasses import replace
from typing import Any

import numpy as np

from parl_mq.algorithms.base import ParallelTrainer, TrainingBatch
from parl_mq.algorithms.registry import load_algorithm, settings_model
from parl_mq.spec import TableSpec
from tests.algorithms.batches import CPU, box_batches, box_spec, discrete_batches, discrete_spec

CASES = {
    "dqn": ("dqn", {"max_grad_norm": 0.5, "target_update_interval": 3}),
    "dqn single soft": ("dqn", {"double": False, "tau": 0.1, "target_update_interval": 1}),
    "dqn dueling": ("dqn", {"dueling": True, "target_update_interval": 3}),
    "dqn quantiles": ("dqn", {"num_quantiles": 5, "target_update_interval": 3}),
    "dqn dueling quantiles": ("dqn", {"dueling": True, "num_quantiles": 5, "target_update_interval": 3}),
    "sac": ("sac", {}),
    "sac one critic": ("sac", {"num_critics": 1}),
    "sac-discrete": ("sac-discrete", {}),
    "td3": ("td3", {}),
    "td3 every update": ("td3", {"policy_delay": 1}),
    "ddpg": ("ddpg", {}),
}
BATCH = 24


def settings_of(case: str) -> tuple[str, Any, TableSpec]:
    """The algorithm's name, its settings, and a table that it can learn from."""
    name, settings = CASES[case]
    config = settings_model(name)(**{"name": name, "hidden_sizes": (8, 6), **settings})
    return name, config, box_spec() if name in ("sac", "td3", "ddpg") else discrete_spec()


def trainer_of(case: str, *, seed: int = 3) -> ParallelTrainer:
    name, config, spec = settings_of(case)
    trainer: Any = load_algorithm(name).make_trainer(config, spec, seed, CPU)
    assert isinstance(trainer, ParallelTrainer)
    return trainer


def batches_of(case: str, num_batches: int = 7, *, size: int = BATCH) -> list[TrainingBatch]:
    makes = box_batches if CASES[case][0] in ("sac", "td3", "ddpg") else discrete_batches
    return [_exactly_weighted(batch) for batch, _ in zip(makes(5, size), range(num_batches), strict=False)]


def _exactly_weighted(batch: TrainingBatch) -> TrainingBatch:
    """With weights in float64 whose largest is 1, as if (N P)^-beta had been divided by its largest."""
    weight: Any = batch.weight.astype(np.float64)
    return replace(batch, weight=weight / weight.max())
