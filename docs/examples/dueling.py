"""An algorithm of one's own: double Q-learning with a dueling network (Wang et al. 2016) and Boltzmann exploration.

Shape letters: B batch, M environments, F features, A actions, P parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from dueling_config import DuelingConfig
from torch import nn
from torch.nn.functional import smooth_l1_loss
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from parl_mq.algorithms.averaging import Averaging, SharedGradients
from parl_mq.algorithms.base import Observation, TrainingBatch, UpdateOutcome
from parl_mq.algorithms.targets import double_values, n_step_target, update_target
from parl_mq.model.adam import Adam
from parl_mq.model.encoder import ObservationEncoder
from parl_mq.model.weights import check_shapes
from parl_mq.spec import TableSpec


class Dueling:
    """The algorithm's entry: makes the learner's half and the actors' half."""

    @staticmethod
    def make_trainer(config: DuelingConfig, spec: TableSpec, seed: int, device: torch.device) -> DuelingTrainer:
        """For the learner."""
        return DuelingTrainer(config, spec, seed, device)

    @staticmethod
    def make_policy(config: DuelingConfig, spec: TableSpec, ladder: npt.NDArray[np.float64]) -> DuelingPolicy:
        """For an actor or the evaluator."""
        return DuelingPolicy(config, spec, ladder)


class DuelingNetwork(nn.Module):
    """Q(s, a) as a state's value and the advantage of each action over their mean (Wang et al. 2016, eq. 9)."""

    def __init__(self, num_features: int, num_units: int, num_actions: int) -> None:
        super().__init__()
        self.body = nn.Linear(num_features, num_units)
        self.value = nn.Linear(num_units, 1)
        self.advantage = nn.Linear(num_units, num_actions)

    def forward(self, features_BF: torch.Tensor) -> torch.Tensor:
        """[B, A]."""
        hidden = self.body(features_BF).relu()
        advantage_BA = self.advantage(hidden)
        return self.value(hidden) + advantage_BA - advantage_BA.mean(1, keepdim=True)


class DuelingTrainer:
    """The learner's half: online and target network and the optimizer.

    Attributes:
        num_updates: gradient steps taken, without the skipped ones.
    """

    def __init__(self, config: DuelingConfig, spec: TableSpec, seed: int, device: torch.device) -> None:
        self.num_updates = 0
        self._config = config
        self._device = device
        self._encoder = ObservationEncoder(spec)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._online = _network(config, spec).to(device)
        self._target = _network(config, spec).to(device)
        self._online_P = _flattened(self._online)
        self._target_P = _flattened(self._target)
        update_target(self._target_P, self._online_P, tau=1.0)
        self._adam = Adam(self._online_P, config.learning_rate)
        self._shared = SharedGradients(len(self._online_P), num_scalars=1, device=device)

    def update(self, batch: TrainingBatch) -> UpdateOutcome:
        """One gradient step; one whose loss is not finite changes nothing."""
        q_B, goal_B = self._values(batch)
        loss = (self._tensor(batch.weight) * smooth_l1_loss(q_B, goal_B, reduction="none")).mean()
        magnitudes = (q_B - goal_B).detach().abs().cpu().numpy().astype(np.float64)
        gradient_P, self._shared.scalars[0] = self._shared.parts[0], loss.detach()
        gradient_P.copy_(parameters_to_vector(torch.autograd.grad(loss, list(self._online.parameters()))))
        self._shared.average(batch.weight_peak)
        mean_loss = self._shared.scalars[0].item()
        if not isfinite(mean_loss):
            return UpdateOutcome(np.nan_to_num(magnitudes, nan=0.0, posinf=0.0), {}, was_skipped=True)
        self._adam.step(gradient_P)
        update_target(self._target_P, self._online_P, self._config.tau)
        self.num_updates += 1
        return UpdateOutcome(magnitudes, {"loss": mean_loss, "q_mean": q_B.mean().item()})

    def join(self, group: Averaging) -> None:
        """One of several learners from now on."""
        self._shared.averaging = group

    def policy_weights(self) -> dict[str, torch.Tensor]:
        """The online network's parameters by name."""
        return {name: tensor.to("cpu", copy=True) for name, tensor in self._online.state_dict().items()}

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """What a checkpoint holds."""
        tensors = {name: tensor.to("cpu", copy=True) for name, tensor in self._vectors().items()}
        return tensors, {"num_updates": self.num_updates}

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint."""
        check_shapes(self._vectors(), tensors, what="the dueling trainer's state")
        for name, vector in self._vectors().items():
            vector.copy_(tensors[name])
        self.num_updates = self._adam.num_steps = int(values["num_updates"])

    def _values(self, batch: TrainingBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """[B] Q of the actions that were taken, and [B] what it should have been."""
        obs_BF, next_obs_BF = (self._tensor(self._encoder.encode(obs)) for obs in (batch.obs, batch.next_obs))
        index_B = self._tensor(batch.action.astype(np.int64))
        with torch.no_grad():
            next_value_B = double_values(self._online(next_obs_BF), self._target(next_obs_BF))
            goal_B = n_step_target(self._tensor(batch.reward), self._tensor(batch.discount), next_value_B)
        return self._online(obs_BF).gather(1, index_B.unsqueeze(1)).squeeze(1), goal_B

    def _tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.tensor(array, device=self._device)  # a copy: a batch's arrays may be read-only

    def _vectors(self) -> dict[str, torch.Tensor]:
        return {
            "online": self._online_P,
            "target": self._target_P,
            "adam_mean": self._adam.mean_P,
            "adam_square": self._adam.square_P,
        }


class DuelingPolicy:
    """The actors' half: actions with probabilities in proportion to exp(Q / temperature)."""

    def __init__(self, config: DuelingConfig, spec: TableSpec, ladder: npt.NDArray[np.float64]) -> None:
        self._encoder = ObservationEncoder(spec)
        self._network = _network(config, spec)
        self._dtype = spec["action"].dtype
        self._temperature_M = config.temperature * config.cooling**ladder

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Acts with these from now on."""
        check_shapes(self._network.state_dict(), weights, what="the dueling policy's weights")
        self._network.load_state_dict(weights)

    def act(self, obs: Observation, rng: np.random.Generator) -> npt.NDArray[np.generic]:
        """[M] actions. The largest of Q / temperature + Gumbel noise is one of the Boltzmann distribution."""
        q_MA = self._q(obs)
        noise_MA = self._temperature_M[:, None] * rng.gumbel(size=q_MA.shape)
        return (q_MA + noise_MA).argmax(1).astype(self._dtype)

    def act_greedily(self, obs: Observation) -> npt.NDArray[np.generic]:
        """[M] actions of the largest Q."""
        return self._q(obs).argmax(1).astype(self._dtype)

    @torch.no_grad()
    def _q(self, obs: Observation) -> npt.NDArray[np.float32]:
        return self._network(torch.tensor(self._encoder.encode(obs))).numpy()


def _network(config: DuelingConfig, spec: TableSpec) -> DuelingNetwork:
    num_actions = spec.spaces[spec.action_names[0]].num_values
    return DuelingNetwork(ObservationEncoder(spec).num_features, config.num_units, num_actions)


def _flattened(network: nn.Module) -> torch.Tensor:
    """One vector that the network's parameters are views of, so that a step or an update is one operation."""
    flat_P = parameters_to_vector(network.parameters()).detach().clone()
    vector_to_parameters(flat_P, network.parameters())
    return flat_P
