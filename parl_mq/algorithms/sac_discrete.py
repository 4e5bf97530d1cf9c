"""Soft actor-critic for Discrete actions (Christodoulou 2019, arXiv 1910.07207).

Critics and policy give a number for each action, so that expectations over actions are sums and nothing is drawn. Both
gradients of an update, the critics' and the policy's, are taken at the same parameters: so one transfer back to the
host says whether all is finite, and an update is made whole or not at all.

Shape letters: B batch, A actions, N critics, M environments, P parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, log
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from parl_mq.algorithms.acting import ActingNetwork, acting_weights
from parl_mq.algorithms.base import Observation, TrainingBatch, UpdateOutcome
from parl_mq.algorithms.sac_discrete_config import SACDiscreteConfig
from parl_mq.algorithms.spaces import DiscreteActions
from parl_mq.algorithms.staging import StagedBatch, Staging
from parl_mq.algorithms.state import copied, count_in, named_parts, put_back
from parl_mq.algorithms.targets import n_step_target, squared_loss, update_target
from parl_mq.algorithms.temperature import Temperature
from parl_mq.model.adam import Adam
from parl_mq.model.encoder import ObservationEncoder
from parl_mq.model.networks import Mlp, MlpLayout, StackedMlp
from parl_mq.model.weights import check_shapes
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
    """The learner's half: policy, critics and their targets, temperature, and an optimizer for each.

    Attributes:
        num_updates: gradient steps taken, without the skipped ones.
    """

    def __init__(self, config: SACDiscreteConfig, spec: TableSpec, seed: int, device: torch.device) -> None:
        encoder = ObservationEncoder(spec)
        self._config = config
        self._actions = DiscreteActions.of(spec, algorithm="sac-discrete")
        self._staging = Staging(encoder, device)
        self._actor_layout = _layout(config, encoder, self._actions)
        self._critic_layout = MlpLayout(self._actor_layout.sizes, config.num_critics)
        actor_seed, critic_seed = np.random.SeedSequence(seed).generate_state(2).tolist()
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
        self._target_entropy = config.target_entropy_scale * log(self._actions.num_actions)
        self.num_updates = 0

    @property
    def temperature(self) -> float:
        """Weight of the entropy beside the reward."""
        return self._temperature.value

    def update(self, batch: TrainingBatch) -> UpdateOutcome:
        """One gradient step of critics, policy and temperature.

        Raises:
            ValueError: an action lies outside its space, or an observation has another shape. Nothing is changed then.
        """
        staged = self._staging.stage(batch, self._actions.to_indices(batch.action))
        with torch.inference_mode():
            # One transfer brings back all that the host needs; the steps behind it are not waited for.
            report = self._gradients_and_report(staged).cpu().numpy().astype(np.float64)
            outcome, lack = self._outcome(report, batch.weight)
            if not outcome.was_skipped:
                self._step(lack)
        return outcome

    def policy_weights(self) -> dict[str, torch.Tensor]:
        """The policy's parameters on the CPU, and the updates in them; later updates do not touch them."""
        return acting_weights(self._actor, self.num_updates)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Everything needed to go on exactly, on the CPU; later updates do not touch it."""
        values = {"num_updates": self.num_updates, "num_adam_steps": self._critic_adam.num_steps}
        return copied(self._state_tensors()), values

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> None:
        """Takes back what `state` gave.

        Raises:
            SnapshotError: a tensor or value is missing, unknown or of another kind. Nothing is changed then.
        """
        own, what = self._state_tensors(), "discrete SAC's state"
        check_shapes(own, tensors, what=what)
        num_updates, num_adam_steps = (count_in(values, name, what=what) for name in ("num_updates", "num_adam_steps"))
        put_back(own, tensors)
        self.num_updates = num_updates
        self._actor_adam.num_steps = self._critic_adam.num_steps = num_adam_steps
        self._temperature.resume(num_adam_steps)

    def _gradients_and_report(self, staged: StagedBatch) -> torch.Tensor:
        """Leaves both gradients in place.

        Returns:
            [N * B + 3 * B + 2]: TD errors of each critic; Q of the actions taken, the policy's entropies and soft
            values; norms of the critics' and of the policy's gradient.
        """
        batch_size, temperature = staged.batch_size, self.temperature
        reward_B, discount_B, weight_B = staged.scalars
        scale_B = weight_B / batch_size
        actor_activations = self._actor.activations(staged.features)  # of both halves: s and s'
        log_policy = actor_activations[-1].log_softmax(1)
        policy = log_policy.exp()

        next_q_BA = self._targets(staged.features[batch_size:]).amin(0)
        next_soft_BA = next_q_BA.sub_(log_policy[batch_size:], alpha=temperature)
        next_value_B = (policy[batch_size:] * next_soft_BA).sum(1)
        activations = self._critics.activations(staged.features[:batch_size])
        q_NBA = activations[-1]
        taken_NB1 = staged.action.expand(len(q_NBA), -1, -1)
        q_NB = q_NBA.gather(2, taken_NB1).squeeze(2)
        error_NB = q_NB - n_step_target(reward_B, discount_B, next_value_B)

        soft_BA = q_NBA.amin(0).sub_(log_policy[:batch_size], alpha=temperature)
        value_B = (policy[:batch_size] * soft_BA).sum(1)
        # of -value: the terms from the logarithm's own derivative cancel, since probabilities sum to 1
        by_logit_BA = policy[:batch_size] * (value_B.unsqueeze(1) - soft_BA) * scale_B.unsqueeze(1)
        self._actor.backward([part[:batch_size] for part in actor_activations], by_logit_BA, into=self._actor_gradient)
        by_q_NBA = torch.zeros_like(q_NBA).scatter_(2, taken_NB1, (error_NB * scale_B).unsqueeze(2))
        self._critics.backward(activations, by_q_NBA, into=self._critic_gradient)

        entropy_B = -(policy[:batch_size] * log_policy[:batch_size]).sum(1)
        norms = [torch.linalg.vector_norm(part.flat_P) for part in (self._critic_gradient, self._actor_gradient)]
        return torch.cat((error_NB.flatten(), q_NB.mean(0), entropy_B, value_B, torch.stack(norms)))

    def _outcome(
        self, report: npt.NDArray[np.float64], weight_B: npt.NDArray[np.float32]
    ) -> tuple[UpdateOutcome, float]:
        """The outcome, and by how much the weighted mean of the entropies is below its target."""
        batch_size = len(weight_B)
        error_NB = report[: -3 * batch_size - 2].reshape(-1, batch_size)
        q_B, entropy_B, value_B = report[-3 * batch_size - 2 : -2].reshape(3, batch_size)
        critic_norm, actor_norm = report[-2:].tolist()
        magnitude_B = np.abs(error_NB).mean(0)
        loss = squared_loss(error_NB, weight_B)
        lack = float(np.dot(self._target_entropy - entropy_B, weight_B)) / batch_size
        if not all(map(isfinite, (loss, lack, critic_norm, actor_norm))):
            # Rows whose error is not finite are to be drawn as rarely as the table allows.
            return UpdateOutcome(np.where(np.isfinite(magnitude_B), magnitude_B, 0.0), {}, was_skipped=True), 0.0
        figures = {
            "loss": loss,
            "grad_norm": critic_norm,
            "q_mean": float(q_B.mean()),
            "q_max": float(q_B.max()),
            "td_mean": float(magnitude_B.mean()),
            "actor_loss": -float(np.dot(value_B, weight_B)) / batch_size,
            "entropy": float(entropy_B.mean()),
            "temperature": self.temperature,
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
