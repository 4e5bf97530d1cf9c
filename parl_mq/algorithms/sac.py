"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905) for Box actions.

Both gradients of an update, the critics' and the policy's, are taken at the same parameters: so one transfer back to
the host says whether all is finite, and an update is made whole or not at all.

Shape letters: B batch, A elements of an action, F features, N critics, M environments, P parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from parl_mq.algorithms.acting import ActingNetwork, acting_weights
from parl_mq.algorithms.averaging import Averaging
from parl_mq.algorithms.base import Compiler, Observation, TrainingBatch, UpdateOutcome
from parl_mq.algorithms.sac_config import SACConfig
from parl_mq.algorithms.soft import SoftNetworks
from parl_mq.algorithms.spaces import BoxActions
from parl_mq.algorithms.staging import Program, StagedBatch, Staging
from parl_mq.algorithms.state import copied, generator_in
from parl_mq.algorithms.targets import n_step_target
from parl_mq.model.encoder import ObservationEncoder
from parl_mq.model.gaussian import LOG_STD_MAX, LOG_STD_MIN, SquashedSample, squashed_gradient, squashed_sample
from parl_mq.model.networks import MlpLayout
from parl_mq.spec import TableSpec


class SAC:
    """The algorithm's entry."""

    @staticmethod
    def make_trainer(config: SACConfig, spec: TableSpec, seed: int, device: torch.device) -> SACTrainer:
        """See parl_mq.algorithms.base.Algorithm."""
        return SACTrainer(config, spec, seed, device)

    @staticmethod
    def make_policy(config: SACConfig, spec: TableSpec, ladder: npt.NDArray[np.float64]) -> SACPolicy:
        """See parl_mq.algorithms.base.Algorithm."""
        return SACPolicy(config, spec, len(ladder))


class SACTrainer:
    """The learner's half."""

    def __init__(self, config: SACConfig, spec: TableSpec, seed: int, device: torch.device) -> None:
        encoder = ObservationEncoder(spec)
        self._actions = BoxActions.of(spec, algorithm="sac")
        self._staging = Staging(
            encoder, device, action_size=self._actions.size, action_dtype=torch.float32, num_noises=2
        )
        self._num_features = encoder.num_features
        critic_sizes = (encoder.num_features + self._actions.size, *config.hidden_sizes, 1)
        actor_seed, critic_seed, noise_seed = np.random.SeedSequence(seed).generate_state(3).tolist()
        self._networks = SoftNetworks(
            config,
            _actor_layout(config, encoder, self._actions),
            MlpLayout(critic_sizes, config.num_critics),
            seeds=(actor_seed, critic_seed),
            target_entropy=-self._actions.size if config.target_entropy is None else config.target_entropy,
            device=device,
        )
        self._noise = np.random.default_rng(noise_seed)
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
            ValueError: an action or observation has another shape. Nothing is changed then.
        """
        staged = self._staging.stage(batch, self._actions.to_units(batch.action), self._draw_noise)
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
        values = {**self._networks.counts(), "noise": self._noise.bit_generator.state}
        return copied(self._networks.tensors()), values

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> None:
        """Takes back what `state` gave.

        Raises:
            SnapshotError: a tensor or value is missing, unknown or of another kind. Nothing is changed then.
        """
        what = "SAC's state"
        noise = generator_in(values, "noise", what=what)
        self._networks.load(tensors, values, what=what)
        self._noise = noise

    def _draw_noise(self, batch_size: int) -> npt.NDArray[np.float32]:
        """[2B, A], for the policy's actions in both halves of a batch."""
        return self._networks.shared.noise(self._noise, 2, batch_size, self._actions.size)

    def _backward(self, staged: StagedBatch) -> torch.Tensor:
        """Leaves both gradients and their losses in place.

        Returns:
            [N * B + 3 * B]: TD errors of each critic; Q of the actions taken, log densities of the policy's actions and
            their smallest Q.
        """
        batch_size, networks = staged.batch_size, self._networks
        reward_B, discount_B, weight_B = staged.scalars
        scale_B = weight_B / batch_size
        activations = networks.actor.activations(staged.features)  # of both halves: s and s'
        sample = squashed_sample(activations[-1], staged.noise)

        next_q_B = networks.targets(self._inputs(staged, sample, slice(batch_size, None))).squeeze(2).amin(0)
        value_B = next_q_B.addcmul_(networks.entropy_weight, sample.log_prob[batch_size:], value=-1)
        target_B = n_step_target(reward_B, discount_B, value_B)
        critic_activations = networks.critics.activations(torch.cat((staged.features[:batch_size], staged.action), 1))
        q_NB = critic_activations[-1].squeeze(2)
        error_NB = q_NB - target_B
        networks.critics.backward(critic_activations, (error_NB * scale_B).unsqueeze(2), into=networks.critic_gradient)

        q_policy_B = self._actor_backward(staged, activations, sample, scale_B)
        log_prob_B = sample.log_prob[:batch_size]
        networks.leave_losses(error_NB, -log_prob_B, weight_B)
        return torch.cat((error_NB.flatten(), q_NB.mean(0), log_prob_B, q_policy_B))

    def _actor_backward(
        self, staged: StagedBatch, activations: list[torch.Tensor], sample: SquashedSample, scale_B: torch.Tensor
    ) -> torch.Tensor:
        """Leaves the gradient of the mean of temperature * log density - min Q in place; [B] that min Q."""
        batch_size, networks = staged.batch_size, self._networks
        now = SquashedSample(
            *(part[:batch_size] for part in (sample.action, sample.log_prob, sample.spread, sample.is_bounded))
        )
        critic_activations = networks.critics.activations(self._inputs(staged, sample, slice(batch_size)))
        q_NB = critic_activations[-1].squeeze(2)
        q_B, smallest_B = q_NB.min(0)
        by_q_NB = torch.zeros_like(q_NB).scatter_(0, smallest_B.unsqueeze(0), -scale_B.unsqueeze(0))
        by_action_BA = networks.critics.input_gradient(
            critic_activations, by_q_NB.unsqueeze(2), first_column=self._num_features
        )
        by_head = squashed_gradient(now, by_action_BA=by_action_BA, by_log_prob_B=scale_B * networks.entropy_weight)
        networks.actor.backward([part[:batch_size] for part in activations], by_head, into=networks.actor_gradient)
        return q_B

    @staticmethod
    def _inputs(staged: StagedBatch, sample: SquashedSample, rows: slice) -> torch.Tensor:
        """[B, F + A] observations beside the policy's actions."""
        return torch.cat((staged.features[rows], sample.action[rows]), 1)

    def _finish(self, report: npt.NDArray[np.float64], weight_B: npt.NDArray[np.float32]) -> UpdateOutcome:
        batch_size = len(weight_B)
        q_B, log_prob_B, q_policy_B = report[-3 * batch_size - 4 : -4].reshape(3, batch_size)
        return self._networks.finish(
            error_NB=report[: -3 * batch_size - 4].reshape(-1, batch_size),
            q_B=q_B,
            entropy_B=-log_prob_B,
            value_B=q_policy_B - self.temperature * log_prob_B,
            means=report[-4:],
            weight_B=weight_B,
        )


class SACPolicy:
    """The actor's and the evaluator's half, for M environments."""

    def __init__(self, config: SACConfig, spec: TableSpec, num_envs: int) -> None:
        encoder = ObservationEncoder(spec)
        self._num_envs = num_envs
        self._actions = BoxActions.of(spec, algorithm="sac")
        self._network = ActingNetwork(
            _actor_layout(config, encoder, self._actions),
            encoder,
            random_until_updates=config.random_until_updates,
            what="SAC's weights",
        )

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Acts with a copy of these from now on.

        Raises:
            SnapshotError: they belong to another network. The policy keeps the ones it has.
        """
        self._network.load(weights)

    def act(self, obs: Observation, rng: np.random.Generator) -> npt.NDArray[np.generic]:
        """[M, ...] actions drawn from the policy, or from the whole Box as long as nothing has been learned.

        Raises:
            ValueError: no weights have been loaded, or `obs` is not M rows of the spec.
        """
        mean_MA, log_std_MA = np.split(self._network(obs), 2, axis=1)
        if self._network.is_random:
            return self._actions.from_units(self._actions.random_units(self._num_envs, rng))
        std_MA = np.exp(np.clip(log_std_MA, LOG_STD_MIN, LOG_STD_MAX))
        return self._actions.from_units(np.tanh(mean_MA + std_MA * rng.standard_normal(std_MA.shape, np.float32)))

    def act_greedily(self, obs: Observation) -> npt.NDArray[np.generic]:
        """[M, ...] actions of the Gaussian's mean.

        Raises:
            ValueError: as `act`.
        """
        return self._actions.from_units(np.tanh(self._network(obs)[:, : self._actions.size]))


def _actor_layout(config: SACConfig, encoder: ObservationEncoder, actions: BoxActions) -> MlpLayout:
    return MlpLayout((encoder.num_features, *config.hidden_sizes, 2 * actions.size))
