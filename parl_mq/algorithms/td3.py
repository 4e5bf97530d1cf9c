"""TD3 (Fujimoto et al. 2018, arXiv 1802.09477): twin critics, a delayed policy, and smoothed targets.

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
from parl_mq.algorithms.averaging import Averaging, SharedGradients
from parl_mq.algorithms.base import Compiler, Observation, TrainingBatch, UpdateOutcome
from parl_mq.algorithms.exploration import ladder_between
from parl_mq.algorithms.spaces import BoxActions
from parl_mq.algorithms.staging import Program, StagedBatch, Staging
from parl_mq.algorithms.state import copied, count_in, generator_in, named_parts, put_back
from parl_mq.algorithms.targets import n_step_target, squared_losses, update_target
from parl_mq.algorithms.td3_config import TD3Config
from parl_mq.model.adam import Adam
from parl_mq.model.encoder import ObservationEncoder
from parl_mq.model.networks import Mlp, MlpLayout, StackedMlp
from parl_mq.model.weights import check_shapes
from parl_mq.spec import TableSpec


class TD3:
    """The algorithm's entry."""

    @staticmethod
    def make_trainer(config: TD3Config, spec: TableSpec, seed: int, device: torch.device) -> TD3Trainer:
        """See parl_mq.algorithms.base.Algorithm."""
        return TD3Trainer(config, spec, seed, device)

    @staticmethod
    def make_policy(config: TD3Config, spec: TableSpec, ladder: npt.NDArray[np.float64]) -> TD3Policy:
        """See parl_mq.algorithms.base.Algorithm."""
        return TD3Policy(config, spec, ladder)


class TD3Trainer:
    """The learner's half: policy and critics, their targets, and an optimizer for each.

    Attributes:
        num_updates: gradient steps of the critics, without the skipped ones.
    """

    def __init__(self, config: TD3Config, spec: TableSpec, seed: int, device: torch.device) -> None:
        encoder = ObservationEncoder(spec)
        self._config = config
        self._actions = BoxActions.of(spec, algorithm=config.name)
        self._smooths_targets = config.target_noise > 0
        self._staging = Staging(
            encoder,
            device,
            action_size=self._actions.size,
            action_dtype=torch.float32,
            num_noises=int(self._smooths_targets),
        )
        self._num_features = encoder.num_features
        self._actor_layout = _actor_layout(config, encoder, self._actions)
        self._critic_layout = MlpLayout(
            (encoder.num_features + self._actions.size, *config.hidden_sizes, 1), config.num_critics
        )
        actor_seed, critic_seed, noise_seed = np.random.SeedSequence(seed).generate_state(3).tolist()
        actor_P = self._actor_layout.initial(actor_seed).to(device)
        critic_P = self._critic_layout.initial(critic_seed).to(device)
        self._actor = Mlp(self._actor_layout, actor_P)
        self._target_actor = Mlp(self._actor_layout, actor_P.clone())
        self._shared = SharedGradients(len(critic_P), len(actor_P), num_scalars=1, device=device)
        self._actor_gradient = Mlp(self._actor_layout, self._shared.parts[1])
        self._critics = StackedMlp(self._critic_layout, critic_P)
        self._first_critic = self._critics.first()
        self._target_critics = StackedMlp(self._critic_layout, critic_P.clone())
        self._critic_gradient = StackedMlp(self._critic_layout, self._shared.parts[0])
        self._actor_adam = Adam(actor_P, config.actor_learning_rate or config.learning_rate)
        self._critic_adam = Adam(critic_P, config.learning_rate)
        self._noise = np.random.default_rng(noise_seed)
        self._compute_critics: Program = self._critic_backward
        self._compute_actor: Program = self._actor_backward
        self.num_updates = 0

    def update(self, batch: TrainingBatch) -> UpdateOutcome:
        """One gradient step of the critics, and of the policy where its turn has come.

        Raises:
            ValueError: an action or observation has another shape. Nothing is changed then.
        """
        smoothing = self._smoothing if self._smooths_targets else None
        staged = self._staging.stage(batch, self._actions.to_units(batch.action), smoothing)
        moves_policy = (self.num_updates + 1) % self._config.policy_delay == 0
        with torch.inference_mode():
            # One transfer brings back all that the host needs; the steps behind it are not waited for.
            of_rows = [self._compute_critics(staged)]
            if moves_policy:
                of_rows.append(self._compute_actor(staged))
            means = self._shared.average(batch.weight_peak, num_parts=len(of_rows))
            report = torch.cat((*of_rows, means)).cpu().numpy().astype(np.float64)
            outcome = self._outcome(report, batch.weight, moves_policy=moves_policy)
            if not outcome.was_skipped:
                self._step(moves_policy=moves_policy)
        return outcome

    def join(self, group: Averaging) -> None:
        """See parl_mq.algorithms.base.ParallelTrainer."""
        self._shared.averaging = group

    def compile_with(self, compiler: Compiler) -> None:
        """See parl_mq.algorithms.base.CompilableTrainer."""
        self._compute_critics, self._compute_actor = compiler(self._compute_critics), compiler(self._compute_actor)

    def policy_weights(self) -> dict[str, torch.Tensor]:
        """The policy's parameters on the CPU, and the updates in them; later updates do not touch them."""
        return acting_weights(self._actor, self.num_updates)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Everything needed to go on exactly, on the CPU; later updates do not touch it."""
        values = {
            "num_updates": self.num_updates,
            "num_actor_steps": self._actor_adam.num_steps,
            "num_critic_steps": self._critic_adam.num_steps,
            "noise": self._noise.bit_generator.state,
        }
        return copied(self._state_tensors()), values

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> None:
        """Takes back what `state` gave.

        Raises:
            SnapshotError: a tensor or value is missing, unknown or of another kind. Nothing is changed then.
        """
        own, what = self._state_tensors(), f"{self._config.name}'s state"
        check_shapes(own, tensors, what=what)
        counts = [count_in(values, name, what=what) for name in ("num_updates", "num_actor_steps", "num_critic_steps")]
        self._noise = generator_in(values, "noise", what=what)
        put_back(own, tensors)
        self.num_updates, self._actor_adam.num_steps, self._critic_adam.num_steps = counts

    def _critic_backward(self, staged: StagedBatch) -> torch.Tensor:
        """Leaves the critics' gradient and loss in place; [N * B + B] TD errors, and Q of the actions taken."""
        batch_size = staged.batch_size
        reward_B, discount_B, weight_B = staged.scalars
        features, next_features = staged.features[:batch_size], staged.features[batch_size:]
        next_action_BA = self._target_actor(next_features).tanh_()
        if self._smooths_targets:
            next_action_BA = next_action_BA.add_(staged.noise).clamp_(-1, 1)
        next_q_B = self._target_critics(torch.cat((next_features, next_action_BA), 1)).squeeze(2).amin(0)
        target_B = n_step_target(reward_B, discount_B, next_q_B)
        activations = self._critics.activations(torch.cat((features, staged.action), 1))
        q_NB = activations[-1].squeeze(2)
        error_NB = q_NB - target_B
        by_q_NB = error_NB * (weight_B / batch_size)
        self._critics.backward(activations, by_q_NB.unsqueeze(2), into=self._critic_gradient)
        torch.dot(squared_losses(error_NB), weight_B, out=self._shared.scalars[0]).div_(batch_size)
        return torch.cat((error_NB.flatten(), q_NB.mean(0)))

    def _smoothing(self, batch_size: int) -> npt.NDArray[np.float32]:
        """[B, A] noise that has been cut, for the targets' actions (section 5.3, eq. 14)."""
        noise_BA = self._shared.noise(self._noise, 1, batch_size, self._actions.size)
        clip = self._config.target_noise_clip
        noise_BA *= np.float32(self._config.target_noise)
        return noise_BA.clip(-clip, clip)

    def _actor_backward(self, staged: StagedBatch) -> torch.Tensor:
        """Leaves the gradient of the mean of -Q of the first critic in place; [B] that Q."""
        batch_size = staged.batch_size
        features = staged.features[:batch_size]
        activations = self._actor.activations(features)
        action_BA = activations[-1].tanh()
        critic_activations = self._first_critic.activations(torch.cat((features, action_BA), 1))
        by_q_B = staged.scalars[2] / -batch_size
        by_action_BA = self._first_critic.input_gradient(
            critic_activations, by_q_B.view(1, -1, 1), first_column=self._num_features
        )
        by_raw_action_BA = by_action_BA.mul_(1 - action_BA.square())
        self._actor.backward(activations, by_raw_action_BA, into=self._actor_gradient)
        return critic_activations[-1].flatten()

    def _outcome(
        self, report: npt.NDArray[np.float64], weight_B: npt.NDArray[np.float32], *, moves_policy: bool
    ) -> UpdateOutcome:
        batch_size, num_critics = len(weight_B), self._config.num_critics
        num_rows = num_critics + 1 + moves_policy
        rows, means = report[: num_rows * batch_size].reshape(num_rows, batch_size), report[num_rows * batch_size :]
        error_NB, q_B = rows[:num_critics], rows[num_critics]
        loss, critic_norm = means[:2].tolist()
        magnitude_B = np.abs(error_NB).mean(0)
        if not np.isfinite(means).all():
            return UpdateOutcome.skipped(magnitude_B)
        figures = {
            "loss": loss,
            "grad_norm": critic_norm,
            "q_mean": float(q_B.mean()),
            "q_max": float(q_B.max()),
            "td_mean": float(magnitude_B.mean()),
        }
        if moves_policy:
            figures["actor_loss"] = -float(np.dot(rows[-1], weight_B)) / batch_size
        return UpdateOutcome(magnitude_B, figures)

    def _step(self, *, moves_policy: bool) -> None:
        self._critic_adam.step(self._critic_gradient.flat_P)
        if moves_policy:
            self._actor_adam.step(self._actor_gradient.flat_P)
            update_target(self._target_critics.flat_P, self._critics.flat_P, self._config.tau)
            update_target(self._target_actor.flat_P, self._actor.flat_P, self._config.tau)
        self.num_updates += 1

    def _state_tensors(self) -> dict[str, torch.Tensor]:
        actor_vectors = {
            "actor": self._actor.flat_P,
            "target_actor": self._target_actor.flat_P,
            "actor_mean": self._actor_adam.mean_P,
            "actor_square": self._actor_adam.square_P,
        }
        critic_vectors = {
            "critics": self._critics.flat_P,
            "target_critics": self._target_critics.flat_P,
            "critics_mean": self._critic_adam.mean_P,
            "critics_square": self._critic_adam.square_P,
        }
        return {**named_parts(self._actor_layout, actor_vectors), **named_parts(self._critic_layout, critic_vectors)}


class TD3Policy:
    """The actor's and the evaluator's half: the policy's actions with Gaussian noise, for M environments.

    Attributes:
        noise: [M] standard deviation of each environment's noise, in units of actions.
    """

    def __init__(self, config: TD3Config, spec: TableSpec, ladder: npt.NDArray[np.float64]) -> None:
        encoder = ObservationEncoder(spec)
        first, last = config.exploration_noise, config.exploration_noise_end
        self.noise = ladder_between(ladder, first=first, last=first if last is None else last)
        self._actions = BoxActions.of(spec, algorithm=config.name)
        self._network = ActingNetwork(
            _actor_layout(config, encoder, self._actions),
            encoder,
            random_until_updates=config.random_until_updates,
            what=f"{config.name}'s weights",
        )

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Acts with a copy of these from now on.

        Raises:
            SnapshotError: they belong to another network. The policy keeps the ones it has.
        """
        self._network.load(weights)

    def act(self, obs: Observation, rng: np.random.Generator) -> npt.NDArray[np.generic]:
        """[M, ...] noisy actions, or such from the whole Box as long as nothing has been learned.

        Raises:
            ValueError: no weights have been loaded, or `obs` is not M rows of the spec.
        """
        action_MA = np.tanh(self._network(obs))
        if self._network.is_random:
            return self._actions.from_units(self._actions.random_units(len(self.noise), rng))
        noise_MA = rng.standard_normal(action_MA.shape, np.float32) * self.noise[:, None]
        return self._actions.from_units(action_MA + noise_MA.astype(np.float32))

    def act_greedily(self, obs: Observation) -> npt.NDArray[np.generic]:
        """[M, ...] actions without noise.

        Raises:
            ValueError: as `act`.
        """
        return self._actions.from_units(np.tanh(self._network(obs)))


def _actor_layout(config: TD3Config, encoder: ObservationEncoder, actions: BoxActions) -> MlpLayout:
    return MlpLayout((encoder.num_features, *config.hidden_sizes, actions.size))
