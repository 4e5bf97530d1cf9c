"""DQN (Mnih et al. 2015) with double targets, n-step returns, importance weights and the ladder of Ape-X.

By option with dueling streams (Wang et al. 2016), and with quantiles in the place of means (Dabney et al. 2018).

Shape letters: B batch, A actions, K values of each action (quantiles, or 1), M environments, P parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from parl_mq.algorithms.averaging import Averaging, SharedGradients
from parl_mq.algorithms.base import Compiler, Observation, TrainingBatch, UpdateOutcome
from parl_mq.algorithms.dqn_config import DQNConfig
from parl_mq.algorithms.exploration import ladder_epsilons
from parl_mq.algorithms.spaces import DiscreteActions
from parl_mq.algorithms.staging import Program, StagedBatch, Staging
from parl_mq.algorithms.state import copied, count_in, named_parts, put_back
from parl_mq.algorithms.targets import (
    clip_norm,
    huber,
    n_step_target,
    of_largest_mean,
    quantile_huber,
    update_target,
)
from parl_mq.model.acting import NumpyMlp
from parl_mq.model.adam import Adam
from parl_mq.model.encoder import ObservationEncoder
from parl_mq.model.heads import QHead
from parl_mq.model.networks import Mlp
from parl_mq.model.weights import check_shapes
from parl_mq.spec import TableSpec


class DQN:
    """The algorithm's entry."""

    @staticmethod
    def make_trainer(config: DQNConfig, spec: TableSpec, seed: int, device: torch.device) -> DQNTrainer:
        """See parl_mq.algorithms.base.Algorithm."""
        return DQNTrainer(config, spec, seed, device)

    @staticmethod
    def make_policy(config: DQNConfig, spec: TableSpec, ladder: npt.NDArray[np.float64]) -> DQNPolicy:
        """See parl_mq.algorithms.base.Algorithm."""
        return DQNPolicy(config, spec, ladder)


class DQNTrainer:
    """The learner's half: the online and the target network and the optimizer.

    Attributes:
        num_updates: gradient steps taken, without the skipped ones.
    """

    def __init__(self, config: DQNConfig, spec: TableSpec, seed: int, device: torch.device) -> None:
        encoder = ObservationEncoder(spec)
        self._config = config
        self._actions = DiscreteActions.of(spec, algorithm="dqn")
        self._staging = Staging(encoder, device)
        self._head = _head(config, self._actions)
        self._layout = self._head.layout(encoder.num_features, config.hidden_sizes)
        online_P = self._layout.initial(seed).to(device)
        self._head.cut_streams(self._layout, online_P)
        self._online = Mlp(self._layout, online_P)
        self._target = Mlp(self._layout, online_P.clone())
        self._shared = SharedGradients(len(online_P), num_scalars=1, device=device)
        self._gradient = Mlp(self._layout, self._shared.parts[0])
        self._adam = Adam(online_P, config.learning_rate)
        self._compute: Program = self._backward
        self.num_updates = 0

    def update(self, batch: TrainingBatch) -> UpdateOutcome:
        """One gradient step.

        Raises:
            ValueError: an action lies outside its space, or an observation has another shape. Nothing is changed then.
        """
        staged = self._staging.stage(batch, self._actions.to_indices(batch.action))
        with torch.inference_mode():
            # One transfer brings back all that the host needs; the step behind it is not waited for.
            error_and_q = self._compute(staged)
            report = torch.cat((error_and_q, self._shared.average(batch.weight_peak)))
            outcome = self._outcome(report.cpu().numpy().astype(np.float64))
            if not outcome.was_skipped:
                self._step(outcome.figures["grad_norm"])
        return outcome

    def join(self, group: Averaging) -> None:
        """See parl_mq.algorithms.base.ParallelTrainer."""
        self._shared.averaging = group

    def compile_with(self, compiler: Compiler) -> None:
        """See parl_mq.algorithms.base.CompilableTrainer."""
        self._compute = compiler(self._compute)

    def policy_weights(self) -> dict[str, torch.Tensor]:
        """The online network's parameters on the CPU; later updates do not touch them."""
        return self._layout.named(self._online.flat_P.to("cpu", copy=True))

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Everything needed to go on exactly, on the CPU; later updates do not touch it."""
        return copied(self._state_tensors()), {"num_updates": self.num_updates, "num_adam_steps": self._adam.num_steps}

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> None:
        """Takes back what `state` gave.

        Raises:
            SnapshotError: a tensor or value is missing, unknown or of another kind. Nothing is changed then.
        """
        own = self._state_tensors()
        check_shapes(own, tensors, what="DQN's state")
        counts = [count_in(values, name, what="DQN's state") for name in ("num_updates", "num_adam_steps")]
        put_back(own, tensors)
        self.num_updates, self._adam.num_steps = counts

    def _backward(self, staged: StagedBatch) -> torch.Tensor:
        """Leaves the gradient and the loss in place; [2B] TD errors and Q of the actions taken."""
        reward_B, discount_B, weight_B = staged.scalars
        activations, values_BAK, next_BK = self._values_and_next(staged)
        action_B1K = staged.action.unsqueeze(2).expand(-1, 1, values_BAK.shape[2])
        value_BK = values_BAK.gather(1, action_B1K).squeeze(1)
        target_BK = n_step_target(reward_B.unsqueeze(1), discount_B.unsqueeze(1), next_BK)
        q_B = value_BK.mean(1)
        error_B = q_B - target_BK.mean(1)
        if self._config.num_quantiles is None:
            loss_B, slope_BK = huber(value_BK - target_BK, self._config.huber_delta)
        else:
            loss_B, slope_BK = quantile_huber(value_BK, target_BK, self._config.huber_delta)
        slope_BK.mul_((weight_B / staged.batch_size).unsqueeze(1))
        gradient_BAK = torch.zeros_like(values_BAK).scatter_(1, action_B1K, slope_BK.unsqueeze(1))
        self._online.backward(activations, self._head.backward(gradient_BAK), into=self._gradient)
        self._head.cut_streams(self._layout, self._gradient.flat_P)
        torch.dot(weight_B, loss_B, out=self._shared.scalars[0]).div_(staged.batch_size)
        return torch.cat((error_B, q_B))

    def _values_and_next(self, staged: StagedBatch) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
        """The online network's activations and [B, A, K] for the observations, and the next ones' [B, K]."""
        batch_size = staged.batch_size
        next_BAK = self._head.values(self._target(staged.features[batch_size:]))
        if self._config.double:
            both = self._online.activations(staged.features)
            values = self._head.values(both[-1])
            activations, values_BAK = [part[:batch_size] for part in both], values[:batch_size]
            return activations, values_BAK, of_largest_mean(next_BAK, chosen_by=values[batch_size:])
        activations = self._online.activations(staged.features[:batch_size])
        return activations, self._head.values(activations[-1]), of_largest_mean(next_BAK, chosen_by=next_BAK)

    @staticmethod
    def _outcome(report: npt.NDArray[np.float64]) -> UpdateOutcome:
        error_B, q_B = report[:-2].reshape(2, -1)
        loss, grad_norm = report[-2:].tolist()
        magnitude_B = np.abs(error_B)
        if not (isfinite(loss) and isfinite(grad_norm)):
            return UpdateOutcome.skipped(magnitude_B)
        q_mean, td_mean = float(q_B.mean()), float(magnitude_B.mean())
        figures = {
            "loss": loss,
            "grad_norm": grad_norm,
            "q_mean": q_mean,
            "q_max": float(q_B.max()),
            "td_mean": td_mean,
        }
        return UpdateOutcome(magnitude_B, figures)

    def _step(self, grad_norm: float) -> None:
        config = self._config
        clip_norm(self._gradient.flat_P, grad_norm, config.max_grad_norm)
        self._adam.step(self._gradient.flat_P)
        self.num_updates += 1
        if self.num_updates % config.target_update_interval == 0:
            update_target(self._target.flat_P, self._online.flat_P, config.tau)

    def _state_tensors(self) -> dict[str, torch.Tensor]:
        vectors = {
            "online": self._online.flat_P,
            "target": self._target.flat_P,
            "adam_mean": self._adam.mean_P,
            "adam_square": self._adam.square_P,
        }
        return named_parts(self._layout, vectors)


class DQNPolicy:
    """The actor's and the evaluator's half: epsilon-greedy with one epsilon for each of M environments.

    Attributes:
        epsilons: [M] share of random actions.
    """

    def __init__(self, config: DQNConfig, spec: TableSpec, ladder: npt.NDArray[np.float64]) -> None:
        self.epsilons = ladder_epsilons(ladder, epsilon=config.epsilon, alpha=config.epsilon_alpha)
        self._encoder = ObservationEncoder(spec)
        self._actions = DiscreteActions.of(spec, algorithm="dqn")
        self._head = _head(config, self._actions)
        layout = self._head.layout(self._encoder.num_features, config.hidden_sizes)
        self._expected = layout.named(torch.empty(layout.num_parameters))
        self._q: NumpyMlp | None = None

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Acts with a copy of these from now on.

        Raises:
            SnapshotError: they belong to another network. The policy keeps the ones it has.
        """
        check_shapes(self._expected, weights, what="DQN's weights")
        self._q = NumpyMlp(weights)

    def act(self, obs: Observation, rng: np.random.Generator) -> npt.NDArray[np.generic]:
        """[M] actions, each random with its environment's epsilon.

        Raises:
            ValueError: no weights have been loaded, or `obs` is not M rows of the spec.
        """
        indices = self._best(obs)
        explores = rng.random(len(self.epsilons)) < self.epsilons
        random = rng.integers(self._actions.num_actions, size=len(self.epsilons))
        return self._actions.from_indices(np.where(explores, random, indices))

    def act_greedily(self, obs: Observation) -> npt.NDArray[np.generic]:
        """[M] actions of the largest Q; the first of equal ones.

        Raises:
            ValueError: as `act`.
        """
        return self._actions.from_indices(self._best(obs))

    def _best(self, obs: Observation) -> npt.NDArray[np.int64]:
        if self._q is None:
            raise ValueError("the policy has no weights yet: call load_weights first")
        return self._head.best(self._q(self._encoder.encode(obs)))


def _head(config: DQNConfig, actions: DiscreteActions) -> QHead:
    return QHead(actions.num_actions, config.num_quantiles or 1, config.dueling)
