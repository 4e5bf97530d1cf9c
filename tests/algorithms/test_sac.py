"""SAC's update is the published one."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from parl_mq.algorithms.base import TrainingBatch
from parl_mq.algorithms.sac import SAC, SACTrainer
from parl_mq.algorithms.sac_config import SACConfig
from tests.algorithms.batches import (
    CPU,
    assert_close,
    box_batches,
    box_spec,
    network,
    outputs,
    tensors_of,
    under,
)

LEARNING_RATE = 0.003


def _config(**settings: Any) -> SACConfig:
    defaults = {"hidden_sizes": (8, 6), "learning_rate": LEARNING_RATE, "tau": 0.1}
    return SACConfig(**{**defaults, **settings})


class _Reference:
    """SAC with autograd, torch's own squashed Gaussian, and Adam, in float64."""

    def __init__(self, trainer: SACTrainer, config: SACConfig) -> None:
        tensors, values = trainer.state()
        self.config = config
        self.actor, self.critics = under(tensors, "actor"), under(tensors, "critics")
        self.targets = {name: tensor.detach().clone() for name, tensor in self.critics.items()}
        self.log_temperature = torch.tensor(np.log(config.temperature)).requires_grad_()
        self.noise = np.random.default_rng()
        self.noise.bit_generator.state = values["noise"]
        self.adam = torch.optim.Adam(
            [
                {"params": [*self.critics.values()], "lr": config.learning_rate},
                {"params": [*self.actor.values()], "lr": config.actor_learning_rate or config.learning_rate},
                {"params": [self.log_temperature], "lr": config.temperature_learning_rate or config.learning_rate},
            ]
        )

    def policy(self, obs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = outputs(self.actor, obs).chunk(2, 1)
        std = log_std.clamp(-20, 2).exp()
        gaussian = Independent(Normal(mean, std), 1)
        raw = mean + std * noise
        squashed = TransformedDistribution(gaussian, TanhTransform(cache_size=1))
        action = squashed.transforms[0](raw)
        return action, squashed.log_prob(action)

    def q(self, critics: dict[str, torch.Tensor], obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return torch.stack(
            [outputs(network(index, critics), obs, action).squeeze(1) for index in range(self.config.num_critics)]
        )

    def update(self, batch: TrainingBatch) -> tuple[np.ndarray, dict[str, float]]:
        obs, action, reward, next_obs, discount, weight = tensors_of(batch)
        noise = torch.from_numpy(self.noise.standard_normal((2 * len(obs), 2), np.float32)).double()
        temperature = self.log_temperature.exp().detach()
        with torch.no_grad():
            next_action, next_log_prob = self.policy(next_obs, noise[len(obs) :])
            next_value = self.q(self.targets, next_obs, next_action).amin(0) - temperature * next_log_prob
            target = reward + discount * next_value
        q = self.q(self.critics, obs, action)
        critic_loss = ((q - target).square().sum(0) / 2 * weight).mean()
        own_action, log_prob = self.policy(obs, noise[: len(obs)])
        frozen = {name: tensor.detach() for name, tensor in self.critics.items()}
        actor_loss = ((temperature * log_prob - self.q(frozen, obs, own_action).amin(0)) * weight).mean()
        target_entropy = -2 if self.config.target_entropy is None else self.config.target_entropy
        temperature_loss = -(self.log_temperature * (log_prob.detach() + target_entropy) * weight).mean()
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
            "entropy": -log_prob.mean(),
            "temperature": temperature,
        }
        return magnitudes, {name: float(torch.as_tensor(figure).detach()) for name, figure in figures.items()}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_critics": 1},
        {"num_critics": 3, "hidden_sizes": (5,)},
        {"learns_temperature": False, "temperature": 0.2},
        {"target_entropy": 0.5, "temperature": 3.0},
        {"actor_learning_rate": 0.01, "temperature_learning_rate": 0.03},
    ],
)
def test_updates_are_those_of_the_reference(settings: dict[str, Any]) -> None:
    config = _config(**settings)
    trainer = SAC.make_trainer(config, box_spec(), 0, CPU)
    reference = _Reference(trainer, config)
    for batch, _ in zip(box_batches(), range(20), strict=False):
        outcome = trainer.update(batch)
        magnitudes, figures = reference.update(batch)
        np.testing.assert_allclose(outcome.magnitudes, magnitudes, rtol=1e-3, atol=1e-4)
        assert outcome.figures == pytest.approx(figures, rel=1e-3, abs=1e-4)
    tensors, _ = trainer.state()
    assert_close(under(tensors, "actor"), reference.actor)
    assert_close(under(tensors, "critics"), reference.critics)
    assert_close(under(tensors, "targets"), reference.targets)
    assert trainer.temperature == pytest.approx(reference.log_temperature.exp().item(), rel=1e-4)


@pytest.mark.parametrize(("target_entropy", "grows"), [(5.0, True), (-20.0, False)])
def test_temperature_grows_while_the_entropy_is_too_small_and_falls_while_it_is_too_large(
    target_entropy: float, grows: bool
) -> None:
    trainer = SAC.make_trainer(_config(target_entropy=target_entropy), box_spec(), 0, CPU)
    trainer.update(next(box_batches()))
    assert (trainer.temperature > 1) == grows
    assert trainer.temperature == pytest.approx(np.exp(LEARNING_RATE if grows else -LEARNING_RATE), rel=1e-4)


def test_critics_begin_unlike_each_other() -> None:
    critics = under(SAC.make_trainer(_config(), box_spec(), 0, CPU).state()[0], "critics")
    assert all(not torch.equal(tensor[0], tensor[1]) for tensor in critics.values())


def test_entropy_of_the_greatest_temperature_is_that_of_the_uniform_box() -> None:
    # Without rewards, and the temperature held, the policy is to become uniform: log 2 nats an element.
    trainer = SAC.make_trainer(_config(learns_temperature=False, learning_rate=0.02), box_spec(), 0, CPU)
    for batch, _ in zip(box_batches(size=64), range(500), strict=False):
        batch.reward[:], batch.discount[:], batch.weight[:] = 0, 0, 1
        entropy = trainer.update(batch).figures["entropy"]
    assert entropy == pytest.approx(2 * np.log(2), abs=0.15)
