"""TD3's update, and DDPG's, are the published ones; their policies explore as they are told."""

from typing import Any

import numpy as np
import pytest
import torch

from parl_mq.algorithms.base import TrainingBatch
from parl_mq.algorithms.ddpg import DDPG
from parl_mq.algorithms.ddpg_config import DDPGConfig
from parl_mq.algorithms.td3 import TD3, TD3Trainer
from parl_mq.algorithms.td3_config import TD3Config
from tests.algorithms.batches import (
    CPU,
    HIGH,
    LOW,
    NUM_FEATURES,
    assert_close,
    box_batches,
    box_spec,
    network,
    outputs,
    tensors_of,
    under,
)

SETTINGS = {"hidden_sizes": (8, 6), "learning_rate": 0.003, "tau": 0.1}


class _Reference:
    """TD3 with autograd and Adam, in float64."""

    def __init__(self, trainer: TD3Trainer, config: TD3Config) -> None:
        tensors, values = trainer.state()
        self.config = config
        self.actor, self.critics = under(tensors, "actor"), under(tensors, "critics")
        self.target_actor = {name: tensor.detach().clone() for name, tensor in self.actor.items()}
        self.target_critics = {name: tensor.detach().clone() for name, tensor in self.critics.items()}
        self.noise = np.random.default_rng()
        self.noise.bit_generator.state = values["noise"]
        self.critic_adam = torch.optim.Adam(self.critics.values(), lr=config.learning_rate)
        self.actor_adam = torch.optim.Adam(self.actor.values(), lr=config.actor_learning_rate or config.learning_rate)
        self.num_updates = 0

    def q(self, critics: dict[str, torch.Tensor], obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return torch.stack(
            [outputs(network(index, critics), obs, action).squeeze(1) for index in range(self.config.num_critics)]
        )

    def target(self, batch: TrainingBatch) -> torch.Tensor:
        _, action, reward, next_obs, discount, _ = tensors_of(batch)
        next_action = outputs(self.target_actor, next_obs).tanh()
        if self.config.target_noise:
            noise = torch.from_numpy(self.noise.standard_normal(action.shape, np.float32)).double()
            clip = self.config.target_noise_clip
            next_action = (next_action + (noise * self.config.target_noise).clamp(-clip, clip)).clamp(-1, 1)
        return reward + discount * self.q(self.target_critics, next_obs, next_action).amin(0)

    def update(self, batch: TrainingBatch) -> tuple[np.ndarray, dict[str, float]]:
        self.num_updates += 1
        obs, action, _, _, _, weight = tensors_of(batch)
        with torch.no_grad():
            target = self.target(batch)
        q = self.q(self.critics, obs, action)
        critic_loss = ((q - target).square().sum(0) / 2 * weight).mean()
        frozen = network(0, {name: tensor.detach().clone() for name, tensor in self.critics.items()})
        actor_loss = -(outputs(frozen, obs, outputs(self.actor, obs).tanh()).squeeze(1) * weight).mean()
        self.critic_adam.zero_grad()
        critic_loss.backward()
        norm = torch.nn.utils.get_total_norm([tensor.grad for tensor in self.critics.values()])
        self.critic_adam.step()
        magnitudes = (q - target).detach().abs().mean(0).numpy()
        figures = {
            "loss": critic_loss,
            "grad_norm": norm,
            "q_mean": q.mean(),
            "q_max": q.mean(0).max(),
            "td_mean": magnitudes.mean(),
        }
        if self.num_updates % self.config.policy_delay == 0:
            figures["actor_loss"] = actor_loss
            self.actor_adam.zero_grad()
            actor_loss.backward()
            self.actor_adam.step()
            with torch.no_grad():
                for name, tensor in self.target_critics.items():
                    tensor.lerp_(self.critics[name], self.config.tau)
                for name, tensor in self.target_actor.items():
                    tensor.lerp_(self.actor[name], self.config.tau)
        return magnitudes, {name: torch.as_tensor(figure).item() for name, figure in figures.items()}


@pytest.mark.parametrize(
    ("algorithm", "config"),
    [
        (TD3, TD3Config(**SETTINGS)),
        (TD3, TD3Config(**SETTINGS, policy_delay=3, num_critics=3, actor_learning_rate=0.01)),
        (TD3, TD3Config(**SETTINGS, target_noise=1.0, target_noise_clip=0.3)),
        (DDPG, DDPGConfig(**SETTINGS)),
        (DDPG, DDPGConfig(**{**SETTINGS, "tau": 1.0}, actor_learning_rate=0.001)),
    ],
)
def test_updates_are_those_of_the_reference(algorithm: Any, config: Any) -> None:
    trainer = algorithm.make_trainer(config, box_spec(), 0, CPU)
    reference = _Reference(trainer, config.as_td3() if isinstance(config, DDPGConfig) else config)
    for batch, _ in zip(box_batches(), range(20), strict=False):
        outcome = trainer.update(batch)
        magnitudes, figures = reference.update(batch)
        np.testing.assert_allclose(outcome.magnitudes, magnitudes, rtol=1e-3, atol=1e-4)
        assert outcome.figures == pytest.approx(figures, rel=1e-3, abs=1e-4)
    tensors, _ = trainer.state()
    for name, expected in {
        "actor": reference.actor,
        "critics": reference.critics,
        "target_actor": reference.target_actor,
        "target_critics": reference.target_critics,
    }.items():
        assert_close(under(tensors, name), expected)


def test_ddpg_is_td3_with_one_critic_that_is_neither_delayed_nor_smoothed() -> None:
    settings = DDPGConfig(**SETTINGS, gamma=0.9, exploration_noise=0.3, random_until_updates=7).as_td3()
    assert (settings.name, settings.num_critics, settings.policy_delay, settings.target_noise) == ("ddpg", 1, 1, 0)
    assert (settings.gamma, settings.exploration_noise, settings.random_until_updates) == (0.9, 0.3, 7)


def test_policy_and_targets_wait_for_their_turn() -> None:
    trainer = TD3.make_trainer(TD3Config(**SETTINGS, policy_delay=3), box_spec(), 0, CPU)
    batches = box_batches()
    moved = []
    for _ in range(7):
        before, _ = trainer.state()
        trainer.update(next(batches))
        after, _ = trainer.state()
        moved.append({name.partition(".")[0] for name in before if not torch.equal(before[name], after[name])})
    critics = {"critics", "critics_mean", "critics_square"}
    everything = critics | {"target_critics", "actor", "target_actor", "actor_mean", "actor_square"}
    assert moved == [critics, critics, everything, critics, critics, everything, critics]


@pytest.mark.parametrize(("settings", "expected"), [({}, [0.3] * 3), ({"exploration_noise_end": 0.1}, [0.3, 0.2, 0.1])])
def test_each_environment_has_its_own_noise(settings: dict[str, float], expected: list[float]) -> None:
    config = TD3Config(**SETTINGS, exploration_noise=0.3, random_until_updates=0, **settings)
    policy = TD3.make_policy(config, box_spec(), np.array([0.0, 0.5, 1.0]))
    policy.load_weights(TD3.make_trainer(config, box_spec(), 0, CPU).policy_weights())
    np.testing.assert_allclose(policy.noise, expected)
    obs, rng = np.zeros((3, NUM_FEATURES), np.float32), np.random.default_rng(0)
    actions = np.stack([policy.act(obs, rng) for _ in range(4_000)])
    units = (actions - policy.act_greedily(obs)) / ((HIGH - LOW) / 2)
    inner = np.abs(actions - (HIGH + LOW) / 2) < (HIGH - LOW) / 2  # where nothing was cut
    assert inner.mean() > 0.95
    np.testing.assert_allclose(units.std(0).mean(1), expected, rtol=0.05)
