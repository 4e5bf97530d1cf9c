"""One scale of actions from the policy through the environment and the table to the critic's input."""

from typing import Any

import numpy as np
import pytest
import torch

from parl_mq.algorithms.registry import load_algorithm
from parl_mq.config.models import RunConfig
from parl_mq.learn.learner import DrawnRows, training_batch
from parl_mq.model.networks import StackedMlp
from parl_mq.replay.table import Table
from parl_mq.rollout.building import build_collector
from parl_mq.services.tables import table_settings
from parl_mq.spec import WeightsVersion

LOW, HIGH = np.array([-2, 0], np.float32), np.array([6, 0.25], np.float32)


def _config(name: str, random_until_updates: int) -> RunConfig:
    return RunConfig.model_validate(
        {
            "environment": {"id": "tests.environments:Echo-v0"},  # which refuses actions outside its Box
            "algorithm": {
                "name": name,
                "batch_size": 64,
                "hidden_sizes": (8,),
                "random_until_updates": random_until_updates,
            },
            "replay": {"kind": "uniform", "buffer_size": 4_000, "learning_starts": 100, "fragment_length": 8},
            "actor": {"num_envs": 4},
        }
    )


@pytest.mark.parametrize("random_until_updates", [0, 1])
@pytest.mark.parametrize("name", ["sac", "td3", "ddpg"])
def test_what_the_environment_gets_is_what_is_stored_and_the_critic_sees_its_units(
    name: str, random_until_updates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config(name, random_until_updates)
    collector = build_collector(config, 0, clock=lambda: 0.0)
    trainer = load_algorithm(name).make_trainer(config.algorithm, collector.spec, 0, torch.device("cpu"))
    collector.load_weights(trainer.policy_weights(), WeightsVersion(1, 0))
    table = Table(table_settings(config), collector.spec, directory=None, rng=np.random.default_rng(0))
    while table.num_live < 1_000:
        if (fragments := collector.collect(1_000).fragments) is not None:
            table.insert(fragments)
    draw = table.draw(64)
    batch = training_batch(DrawnRows(draw.arrays(), draw.probabilities, draw.num_live), collector.spec, beta=0.4)
    stored, received = batch.action, batch.next_obs  # the environment shows what it received
    np.testing.assert_array_equal(stored, received)
    if random_until_updates:
        assert np.all(stored.min(0) < LOW + 0.15 * (HIGH - LOW))  # type: ignore[operator]
        assert np.all(stored.max(0) > HIGH - 0.15 * (HIGH - LOW))  # type: ignore[operator]

    seen: list[np.ndarray] = []
    activations = StackedMlp.activations

    def spy(self: StackedMlp, inputs: torch.Tensor) -> Any:
        seen.append(inputs.numpy().copy())
        return activations(self, inputs)

    monkeypatch.setattr(StackedMlp, "activations", spy)
    trainer.update(batch)
    units = 2 * (stored.astype(np.float64) - LOW) / (HIGH - LOW) - 1  # type: ignore[union-attr]
    assert any(np.allclose(inputs, np.concatenate([batch.obs, units], 1), atol=1e-6) for inputs in seen)
    assert all(np.abs(inputs[:, 2:]).max() <= 1 + 1e-6 for inputs in seen)
    table.close()
    collector.close()
