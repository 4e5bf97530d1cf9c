"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905) for Box actions.

Both gradients of an update, the critics' and the policy's, are taken at the same parameters: so one transfer back to
the host says whether all is finite, and an update is made whole or not at all.

Shape letters: B batch, A elements of an action, F features, N critics, M environments, P parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from parl_mq.algorithms.acting import ActingNetwork, acting_weights
from parl_mq.algorithms.base import Observation, TrainingBatch, UpdateOutcome
from parl_mq.algorithms.sac_config import SACConfig
from parl_mq.algorithms.spaces import BoxActions
from parl_mq.algorithms.staging import StagedBatch, Staging
from parl_mq.algorithms.state import copied, count_in, generator_in, named_parts, put_back
from parl_mq.algorithms.targets import n_step_target, squared_loss, update_target
from parl_mq.algorithms.temperature import Temperature
from parl_mq.model.adam import Adam
from parl_mq.model.encoder import ObservationEncoder
from parl_mq.model.gaussian import LOG_STD_MAX, LOG_STD_MIN, SquashedSample, squashed_gradient, squashed_sample
from parl_mq.model.networks import Mlp, MlpLayout, StackedMlp
from parl_mq.model.weights import check_shapes
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
    """The learner's half: policy, critics and their targets, temperature, and an optimizer for each.

    Attributes:
        num_updates: gradient steps taken, without the skipped ones.
    """

    def __init__(self, config: SACConfig, spec: TableSpec, seed: int, device: torch.device) -> None:
        encoder = ObservationEncoder(spec)
        self._config = config
        self._device = device
        self._actions = BoxActions.of(spec, algorithm="sac")
        self._staging = Staging(encoder, device, action_size=self._actions.size, action_dtype=torch.float32)
        self._num_features = encoder.num_features
        self._actor_layout = _actor_layout(config, encoder, self._actions)
        self._critic_layout = MlpLayout(
            (encoder.num_features + self._actions.size, *config.hidden_sizes, 1), config.num_critics
        )
        actor_seed, critic_seed, noise_seed = np.random.SeedSequence(seed).generate_state(3).tolist()
        actor_P = self._actor_layout.initial(actor_seed).to(device)
        critic_P = self._critic_layout.initial(critic_seed).to(device)
        self._actor = Mlp(self._actor_layout, actor_P)
        self._actor_gradient = Mlp(self._actor_layout, torch.empty_like(actor_P))
        self._critics = StackedMlp(self._critic_layout, critic_P)
        self._targets = StackedMlp(self._critic_layout, critic_P.clone())
        self._critic_gradient = StackedMlp(self._critic_layout, torch.empty_like(critic_P))
        self._actor_adam = Adam(actor_P, config.actor_learning_rate or config.learning_rate)
        self._critic_adam = Adam(critic_P, config.learning_rate)
        self._temperature = Temperature(
            config.temperature,
            (config.temperature_learning_rate or config.learning_rate) if config.learns_temperature else None,
        )
        self._target_entropy = -self._actions.size if config.target_entropy is None else config.target_entropy
        self._noise = np.random.default_rng(noise_seed)
        self.num_updates = 0

    @property
    def temperature(self) -> float:
        """Weight of the entropy beside the reward."""
        return self._temperature.value

    def update(self, batch: TrainingBatch) -> UpdateOutcome:
        """One gradient step of critics, policy and temperature.

        Raises:
            ValueError: an action or observation has another shape. Nothing is changed then.
        """
        staged = self._staging.stage(batch, self._actions.to_units(batch.action))
        noise = self._noise.standard_normal((2 * staged.batch_size, self._actions.size), np.float32)
        with torch.inference_mode():
            # One transfer brings back all that the host needs; the steps behind it are not waited for.
            report = self._gradients_and_report(staged, torch.from_numpy(noise).to(self._device))
            outcome, lack = self._outcome(report.cpu().numpy().astype(np.float64), batch.weight)
            if not outcome.was_skipped:
                self._step(lack)
        return outcome

    def policy_weights(self) -> dict[str, torch.Tensor]:
        """The policy's parameters on the CPU, and the updates in them; later updates do not touch them."""
        return acting_weights(self._actor, self.num_updates)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Everything needed to go on exactly, on the CPU; later updates do not touch it."""
        values = {
            "num_updates": self.num_updates,
            "num_adam_steps": self._critic_adam.num_steps,
            "noise": self._noise.bit_generator.state,
        }
        return copied(self._state_tensors()), values

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> None:
        """Takes back what `state` gave.

        Raises:
            SnapshotError: a tensor or value is missing, unknown or of another kind. Nothing is changed then.
        """
        own, what = self._state_tensors(), "SAC's state"
        check_shapes(own, tensors, what=what)
        num_updates, num_adam_steps = (count_in(values, name, what=what) for name in ("num_updates", "num_adam_steps"))
        self._noise = generator_in(values, "noise", what=what)
        put_back(own, tensors)
        self.num_updates = num_updates
        self._actor_adam.num_steps = self._critic_adam.num_steps = num_adam_steps
        self._temperature.resume(num_adam_steps)

    def _gradients_and_report(self, staged: StagedBatch, noise: torch.Tensor) -> torch.Tensor:
        """Leaves both gradients in place.

        Returns:
            [N * B + 3 * B + 2]: TD errors of each critic; Q of the actions taken, log densities of the policy's
            actions and their smallest Q; norms of the critics' and of the policy's gradient.
        """
        batch_size, temperature = staged.batch_size, self.temperature
        reward_B, discount_B, weight_B = staged.scalars
        scale_B = weight_B / batch_size
        activations = self._actor.activations(staged.features)  # of both halves: s and s'
        sample = squashed_sample(activations[-1], noise)

        next_q_B = self._targets(self._inputs(staged, sample, slice(batch_size, None))).squeeze(2).amin(0)
        value_B = next_q_B.sub_(sample.log_prob[batch_size:], alpha=temperature)
        target_B = n_step_target(reward_B, discount_B, value_B)
        critic_activations = self._critics.activations(torch.cat((staged.features[:batch_size], staged.action), 1))
        q_NB = critic_activations[-1].squeeze(2)
        error_NB = q_NB - target_B
        self._critics.backward(critic_activations, (error_NB * scale_B).unsqueeze(2), into=self._critic_gradient)

        q_policy_B = self._actor_backward(staged, activations, sample, scale_B)
        norms = [torch.linalg.vector_norm(part.flat_P) for part in (self._critic_gradient, self._actor_gradient)]
        return torch.cat(
            (error_NB.flatten(), q_NB.mean(0), sample.log_prob[:batch_size], q_policy_B, torch.stack(norms))
        )

    def _actor_backward(
        self, staged: StagedBatch, activations: list[torch.Tensor], sample: SquashedSample, scale_B: torch.Tensor
    ) -> torch.Tensor:
        """Leaves the gradient of the mean of temperature * log density - min Q in place; [B] that min Q."""
        batch_size = staged.batch_size
        now = SquashedSample(
            *(part[:batch_size] for part in (sample.action, sample.log_prob, sample.spread, sample.is_bounded))
        )
        critic_activations = self._critics.activations(self._inputs(staged, sample, slice(batch_size)))
        q_NB = critic_activations[-1].squeeze(2)
        q_B, smallest_B = q_NB.min(0)
        by_q_NB = torch.zeros_like(q_NB).scatter_(0, smallest_B.unsqueeze(0), -scale_B.unsqueeze(0))
        by_action_BA = self._critics.input_gradient(
            critic_activations, by_q_NB.unsqueeze(2), first_column=self._num_features
        )
        by_head = squashed_gradient(now, by_action_BA=by_action_BA, by_log_prob_B=scale_B * self.temperature)
        self._actor.backward([part[:batch_size] for part in activations], by_head, into=self._actor_gradient)
        return q_B

    @staticmethod
    def _inputs(staged: StagedBatch, sample: SquashedSample, rows: slice) -> torch.Tensor:
        """[B, F + A] observations beside the policy's actions."""
        return torch.cat((staged.features[rows], sample.action[rows]), 1)

    def _outcome(
        self, report: npt.NDArray[np.float64], weight_B: npt.NDArray[np.float32]
    ) -> tuple[UpdateOutcome, float]:
        """The outcome, and by how much the weighted mean of the entropies is below its target."""
        batch_size = len(weight_B)
        error_NB = report[: -3 * batch_size - 2].reshape(-1, batch_size)
        q_B, log_prob_B, q_policy_B = report[-3 * batch_size - 2 : -2].reshape(3, batch_size)
        critic_norm, actor_norm = report[-2:].tolist()
        magnitude_B = np.abs(error_NB).mean(0)
        loss = squared_loss(error_NB, weight_B)
        lack = float(np.dot(log_prob_B + self._target_entropy, weight_B)) / batch_size
        if not all(map(isfinite, (loss, lack, critic_norm, actor_norm))):
            # Rows whose error is not finite are to be drawn as rarely as the table allows.
            return UpdateOutcome(np.where(np.isfinite(magnitude_B), magnitude_B, 0.0), {}, was_skipped=True), 0.0
        temperature = self.temperature
        figures = {
            "loss": loss,
            "grad_norm": critic_norm,
            "q_mean": float(q_B.mean()),
            "q_max": float(q_B.max()),
            "td_mean": float(magnitude_B.mean()),
            "actor_loss": float(np.dot(temperature * log_prob_B - q_policy_B, weight_B)) / batch_size,
            "entropy": -float(log_prob_B.mean()),
            "temperature": temperature,
        }
        return UpdateOutcome(magnitude_B, figures), lack

    def _step(self, lack: float) -> None:
        self._critic_adam.step(self._critic_gradient.flat_P)
        self._actor_adam.step(self._actor_gradient.flat_P)
        self._temperature.step(lack)
        update_target(self._targets.flat_P, self._critics.flat_P, self._config.tau)
        self.num_updates += 1

    def _state_tensors(self) -> dict[str, torch.Tensor]:
        actor, critic = self._actor_adam, self._critic_adam
        actor_vectors = {"actor": self._actor.flat_P, "actor_mean": actor.mean_P, "actor_square": actor.square_P}
        critic_vectors = {
            "critics": self._critics.flat_P,
            "targets": self._targets.flat_P,
            "critics_mean": critic.mean_P,
            "critics_square": critic.square_P,
        }
        return {
            **named_parts(self._actor_layout, actor_vectors),
            **named_parts(self._critic_layout, critic_vectors),
            **self._temperature.tensors(),
        }


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
