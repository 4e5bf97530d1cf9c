"""Discrete SAC's update is the published one."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from parl_mq.algorithms.base import TrainingBatch
from parl_mq.algorithms.sac_discrete import SACDiscrete, SACDiscreteTrainer
from parl_mq.algorithms.sac_discrete_config import SACDiscreteConfig
from tests.algorithms.batches import (
    CPU,
    NUM_ACTIONS,
    NUM_FEATURES,
    assert_close,
    discrete_batches,
    discrete_spec,
    network,
    outputs,
    under,
)


def _config(**settings: Any) -> SACDiscreteConfig:
    return SACDiscreteConfig(**{"hidden_sizes": (8, 6), "learning_rate": 0.003, "tau": 0.1, **settings})


class _Reference:
    """Discrete SAC with autograd, torch's Categorical and Adam, in float64."""

    def __init__(self, trainer: SACDiscreteTrainer, config: SACDiscreteConfig) -> None:
        tensors, _ = trainer.state()
        self.config = config
        self.actor, self.critics = under(tensors, "actor"), under(tensors, "critics")
        self.targets = {name: tensor.detach().clone() for name, tensor in self.critics.items()}
        self.log_temperature = torch.tensor(np.log(config.temperature)).requires_grad_()
        parameters = [*self.critics.values(), *self.actor.values(), self.log_temperature]
        self.adam = torch.optim.Adam(parameters, lr=config.learning_rate)

    def q(self, critics: dict[str, torch.Tensor], obs: torch.Tensor) -> torch.Tensor:
        return torch.stack([outputs(network(index, critics), obs) for index in range(self.config.num_critics)])

    def update(self, batch: TrainingBatch) -> tuple[np.ndarray, dict[str, float]]:
        obs, reward, next_obs, discount, weight = (
            torch.from_numpy(array).double()
            for array in (batch.obs, batch.reward, batch.next_obs, batch.discount, batch.weight)
        )
        rows = np.arange(len(obs))
        temperature = self.log_temperature.exp().detach()
        with torch.no_grad():
            policy = Categorical(logits=outputs(self.actor, next_obs))
            next_value = (policy.probs * self.q(self.targets, next_obs).amin(0)).sum(1)
            target = reward + discount * (next_value + temperature * policy.entropy())
        q = self.q(self.critics, obs)[:, rows, batch.action]
        critic_loss = ((q - target).square().sum(0) / 2 * weight).mean()
        policy = Categorical(logits=outputs(self.actor, obs))
        smallest = self.q(self.critics, obs).amin(0).detach()
        actor_loss = -(((policy.probs * smallest).sum(1) + temperature * policy.entropy()) * weight).mean()
        target_entropy = self.config.target_entropy_scale * np.log(NUM_ACTIONS)
        temperature_loss = (self.log_temperature * (policy.entropy().detach() - target_entropy) * weight).mean()
        self.adam.zero_grad()
        critic_loss.backward()
        actor_loss.backward()
        norm = torch.nn.utils.get_total_norm([tensor.grad for tensor in self.critics.values()])
        if self.config.learns_temperature:
            temperature_loss.backward()
        self.adam.step()
        with torch.no_grad():
            for name, tensor in self.targets.items():
                tensor.lerp_(self.critics[name], self.config.tau)
        magnitudes = (q - target).detach().abs().mean(0).numpy()
        figures = {
            "loss": critic_loss,
            "grad_norm": norm,
            "q_mean": q.mean(),
            "q_max": q.mean(0).max(),
            "td_mean": magnitudes.mean(),
            "actor_loss": actor_loss,
            "entropy": policy.entropy().mean(),
            "temperature": temperature,
        }
        return magnitudes, {name: torch.as_tensor(figure).item() for name, figure in figures.items()}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_critics": 1},
        {"num_critics": 3, "hidden_sizes": (5,)},
        {"learns_temperature": False, "temperature": 0.2},
        {"target_entropy_scale": 0.2, "temperature": 3.0},
    ],
)
def test_updates_are_those_of_the_reference(settings: dict[str, Any]) -> None:
    config = _config(**settings)
    trainer = SACDiscrete.make_trainer(config, discrete_spec(), 0, CPU)
    reference = _Reference(trainer, config)
    for batch, _ in zip(discrete_batches(), range(20), strict=False):
        outcome = trainer.update(batch)
        magnitudes, figures = reference.update(batch)
        np.testing.assert_allclose(outcome.magnitudes, magnitudes, rtol=1e-3, atol=1e-4)
        assert outcome.figures == pytest.approx(figures, rel=1e-3, abs=1e-4)
    tensors, _ = trainer.state()
    assert_close(under(tensors, "actor"), reference.actor)
    assert_close(under(tensors, "critics"), reference.critics)
    assert_close(under(tensors, "targets"), reference.targets)
    assert trainer.temperature == pytest.approx(reference.log_temperature.exp().item(), rel=1e-4)


def test_actions_are_drawn_with_the_softmaxs_probabilities() -> None:
    config, num_draws = _config(random_until_updates=0), 40_000
    weights = SACDiscrete.make_trainer(config, discrete_spec(), 0, CPU).policy_weights()
    policy = SACDiscrete.make_policy(config, discrete_spec(), np.zeros(num_draws))
    policy.load_weights(weights)
    obs = np.full((num_draws, NUM_FEATURES), 3, np.float32)
    del weights["num_updates"]
    probabilities = outputs(
        {name: tensor.double() for name, tensor in weights.items()}, torch.full((1, 3), 3.0).double()
    )
    expected = probabilities.softmax(1)[0].numpy()
    shares = np.bincount(policy.act(obs, np.random.default_rng(0)), minlength=NUM_ACTIONS) / num_draws
    np.testing.assert_array_less(np.abs(shares - expected), 4 * np.sqrt(expected * (1 - expected) / num_draws))
    assert set(policy.act_greedily(obs).tolist()) == {int(expected.argmax())}
