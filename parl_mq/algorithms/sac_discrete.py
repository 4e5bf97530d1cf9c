"""Soft actor-critic for Discrete actions (Christodoulou 2019, arXiv 1910.07207).

Critics and policy give a number for each action, so that expectations over actions are sums and nothing is drawn. Both
gradients of an update, the critics' and the policy's, are taken at the same parameters: so one transfer back to the
host says whether all is finite, and an update is made whole or not at all.

Shape letters: B batch, A actions, N critics, M environments, P parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from parl_mq.algorithms.acting import ActingNetwork, acting_weights
from parl_mq.algorithms.averaging import Averaging
from parl_mq.algorithms.base import Compiler, Observation, TrainingBatch, UpdateOutcome
from parl_mq.algorithms.sac_discrete_config import SACDiscreteConfig
from parl_mq.algorithms.soft import SoftNetworks
from parl_mq.algorithms.spaces import DiscreteActions
from parl_mq.algorithms.staging import Program, StagedBatch, Staging
from parl_mq.algorithms.state import copied
from parl_mq.algorithms.targets import n_step_target
from parl_mq.model.encoder import ObservationEncoder
from parl_mq.model.networks import MlpLayout
from parl_mq.spec import TableSpec


class SACDiscrete:
    """The algorithm's entry."""

    @staticmethod
    def make_trainer(config: SACDiscreteConfig, spec: TableSpec, seed: int, device: torch.device) -> SACDiscreteTrainer:
        """See parl_mq.algorithms.base.Algorithm."""
        return SACDiscreteTrainer(config, spec, seed, device)

    @staticmethod
    def make_policy(config: SACDiscreteConfig, spec: TableSpec, ladder: npt.NDArray[np.float64]) -> SACDiscretePolicy:
        """See parl_mq.algorithms.base.Algorithm."""
        return SACDiscretePolicy(config, spec, len(ladder))


class SACDiscreteTrainer:
    """The learner's half."""

    def __init__(self, config: SACDiscreteConfig, spec: TableSpec, seed: int, device: torch.device) -> None:
        encoder = ObservationEncoder(spec)
        self._actions = DiscreteActions.of(spec, algorithm="sac-discrete")
        self._staging = Staging(encoder, device)
        layout = _layout(config, encoder, self._actions)
        actor_seed, critic_seed = np.random.SeedSequence(seed).generate_state(2).tolist()
        self._networks = SoftNetworks(
            config,
            layout,
            MlpLayout(layout.sizes, config.num_critics),
            seeds=(actor_seed, critic_seed),
            target_entropy=config.target_entropy_scale * log(self._actions.num_actions),
            device=device,
        )
        self._compute: Program = self._backward

    @property
    def num_updates(self) -> int:
        """Gradient steps taken, without the skipped ones."""
        return self._networks.num_updates

    @property
    def temperature(self) -> float:
        """Weight of the entropy beside the reward."""
        return self._networks.temperature

    def update(self, batch: TrainingBatch) -> UpdateOutcome:
        """One gradient step of critics, policy and temperature.

        Raises:
            ValueError: an action lies outside its space, or an observation has another shape. Nothing is changed then.
        """
        staged = self._staging.stage(batch, self._actions.to_indices(batch.action))
        with torch.inference_mode():
            # One transfer brings back all that the host needs; the steps behind it are not waited for.
            of_rows = self._compute(staged)
            report = torch.cat((of_rows, self._networks.shared.average(batch.weight_peak)))
            return self._finish(report.cpu().numpy().astype(np.float64), batch.weight)

    def join(self, group: Averaging) -> None:
        """See parl_mq.algorithms.base.ParallelTrainer."""
        self._networks.shared.averaging = group

    def compile_with(self, compiler: Compiler) -> None:
        """See parl_mq.algorithms.base.CompilableTrainer."""
        self._compute = compiler(self._compute)

    def policy_weights(self) -> dict[str, torch.Tensor]:
        """The policy's parameters on the CPU, and the updates in them; later updates do not touch them."""
        return acting_weights(self._networks.actor, self.num_updates)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Everything needed to go on exactly, on the CPU; later updates do not touch it."""
        return copied(self._networks.tensors()), self._networks.counts()

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> None:
        """Takes back what `state` gave.

        Raises:
            SnapshotError: a tensor or value is missing, unknown or of another kind. Nothing is changed then.
        """
        self._networks.load(tensors, values, what="discrete SAC's state")

    def _backward(self, staged: StagedBatch) -> torch.Tensor:
        """Leaves both gradients and their losses in place.

        Returns:
            [N * B + 3 * B]: TD errors of each critic; Q of the actions taken, the policy's entropies and soft values.
        """
        batch_size, networks = staged.batch_size, self._networks
        reward_B, discount_B, weight_B = staged.scalars
        scale_B = weight_B / batch_size
        actor_activations = networks.actor.activations(staged.features)  # of both halves: s and s'
        log_policy = actor_activations[-1].log_softmax(1)
        policy = log_policy.exp()

        next_q_BA = networks.targets(staged.features[batch_size:]).amin(0)
        next_soft_BA = next_q_BA.addcmul_(networks.entropy_weight, log_policy[batch_size:], value=-1)
        next_value_B = (policy[batch_size:] * next_soft_BA).sum(1)
        activations = networks.critics.activations(staged.features[:batch_size])
        q_NBA = activations[-1]
        taken_NB1 = staged.action.expand(len(q_NBA), -1, -1)
        q_NB = q_NBA.gather(2, taken_NB1).squeeze(2)
        error_NB = q_NB - n_step_target(reward_B, discount_B, next_value_B)

        soft_BA = q_NBA.amin(0).addcmul_(networks.entropy_weight, log_policy[:batch_size], value=-1)
        value_B = (policy[:batch_size] * soft_BA).sum(1)
        # of -value: the terms from the logarithm's own derivative cancel, since probabilities sum to 1
        by_logit_BA = policy[:batch_size] * (value_B.unsqueeze(1) - soft_BA) * scale_B.unsqueeze(1)
        networks.actor.backward(
            [part[:batch_size] for part in actor_activations], by_logit_BA, into=networks.actor_gradient
        )
        by_q_NBA = torch.zeros_like(q_NBA).scatter_(2, taken_NB1, (error_NB * scale_B).unsqueeze(2))
        networks.critics.backward(activations, by_q_NBA, into=networks.critic_gradient)

        entropy_B = -(policy[:batch_size] * log_policy[:batch_size]).sum(1)
        networks.leave_losses(error_NB, entropy_B, weight_B)
        return torch.cat((error_NB.flatten(), q_NB.mean(0), entropy_B, value_B))

    def _finish(self, report: npt.NDArray[np.float64], weight_B: npt.NDArray[np.float32]) -> UpdateOutcome:
        batch_size = len(weight_B)
        q_B, entropy_B, value_B = report[-3 * batch_size - 4 : -4].reshape(3, batch_size)
        return self._networks.finish(
            error_NB=report[: -3 * batch_size - 4].reshape(-1, batch_size),
            q_B=q_B,
            entropy_B=entropy_B,
            value_B=value_B,
            means=report[-4:],
            weight_B=weight_B,
        )


class SACDiscretePolicy:
    """The actor's and the evaluator's half, for M environments."""

    def __init__(self, config: SACDiscreteConfig, spec: TableSpec, num_envs: int) -> None:
        encoder = ObservationEncoder(spec)
        self._num_envs = num_envs
        self._actions = DiscreteActions.of(spec, algorithm="sac-discrete")
        self._network = ActingNetwork(
            _layout(config, encoder, self._actions),
            encoder,
            random_until_updates=config.random_until_updates,
            what="discrete SAC's weights",
        )

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Acts with a copy of these from now on.

        Raises:
            SnapshotError: they belong to another network. The policy keeps the ones it has.
        """
        self._network.load(weights)

    def act(self, obs: Observation, rng: np.random.Generator) -> npt.NDArray[np.generic]:
        """[M] actions drawn from the policy, or uniformly as long as nothing has been learned.

        Raises:
            ValueError: no weights have been loaded, or `obs` is not M rows of the spec.
        """
        logit_MA = self._network(obs)
        if self._network.is_random:
            return self._actions.from_indices(rng.integers(self._actions.num_actions, size=self._num_envs))
        # The largest of logits with Gumbel noise is drawn with the softmax's probabilities.
        return self._actions.from_indices((logit_MA + rng.gumbel(size=logit_MA.shape)).argmax(1))

    def act_greedily(self, obs: Observation) -> npt.NDArray[np.generic]:
        """[M] likeliest actions; the first of equal ones.

        Raises:
            ValueError: as `act`.
        """
        return self._actions.from_indices(self._network(obs).argmax(1))


def _layout(config: SACDiscreteConfig, encoder: ObservationEncoder, actions: DiscreteActions) -> MlpLayout:
    return MlpLayout((encoder.num_features, *config.hidden_sizes, actions.num_actions))
