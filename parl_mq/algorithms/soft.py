"""What soft actor-critics share, be their actions a Box or Discrete: networks, optimizers and the outcome of an update.

Shape letters: B batch, N critics, P parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from parl_mq.algorithms.averaging import SharedGradients
from parl_mq.algorithms.base import UpdateOutcome
from parl_mq.algorithms.sac_config import SACConfig
from parl_mq.algorithms.sac_discrete_config import SACDiscreteConfig
from parl_mq.algorithms.state import count_in, named_parts, put_back
from parl_mq.algorithms.targets import squared_losses, update_target
from parl_mq.algorithms.temperature import Temperature
from parl_mq.model.adam import Adam
from parl_mq.model.networks import Mlp, MlpLayout, StackedMlp
from parl_mq.model.weights import check_shapes

Values = npt.NDArray[np.float64]


class SoftNetworks:
    """Policy, critics and their targets, temperature, and an optimizer for each.

    Attributes:
        actor: the policy.
        actor_gradient: to be filled before a step.
        critics: N of them.
        critic_gradient: to be filled before a step.
        targets: of the critics.
        entropy_weight: [] the temperature, on the device.
        shared: the memory of both gradients, and what is averaged with them: loss and lack of entropy.
        num_updates: gradient steps taken.
    """

    def __init__(
        self,
        config: SACConfig | SACDiscreteConfig,
        actor_layout: MlpLayout,
        critic_layout: MlpLayout,
        *,
        seeds: tuple[int, int],
        target_entropy: float,
        device: torch.device,
    ) -> None:
        """Makes new networks.

        Args:
            config: learning rates, temperature and tau.
            actor_layout: of the policy.
            critic_layout: of the critics.
            seeds: of the policy and of the critics.
            target_entropy: mean entropy, in nats, that the temperature is learned for.
            device: where they lie.
        """
        actor_P, critic_P = (
            layout.initial(seed).to(device) for layout, seed in zip((actor_layout, critic_layout), seeds, strict=True)
        )
        self.actor = Mlp(actor_layout, actor_P)
        self.shared = SharedGradients(len(critic_P), len(actor_P), num_scalars=2, device=device)
        self.actor_gradient = Mlp(actor_layout, self.shared.parts[1])
        self.critics = StackedMlp(critic_layout, critic_P)
        self.critic_gradient = StackedMlp(critic_layout, self.shared.parts[0])
        self.targets = StackedMlp(critic_layout, critic_P.clone())
        self.num_updates = 0
        self._actor_layout = actor_layout
        self._critic_layout = critic_layout
        self._actor_adam = Adam(actor_P, config.actor_learning_rate or config.learning_rate)
        self._critic_adam = Adam(critic_P, config.learning_rate)
        self._temperature = Temperature(
            config.temperature,
            (config.temperature_learning_rate or config.learning_rate) if config.learns_temperature else None,
            device,
        )
        self.entropy_weight = self._temperature.on_device
        self._target_entropy = target_entropy
        self._tau = config.tau

    @property
    def temperature(self) -> float:
        """Weight of the entropy beside the reward."""
        return self._temperature.value

    def leave_losses(self, error_NB: torch.Tensor, entropy_B: torch.Tensor, weight_B: torch.Tensor) -> None:
        """Leaves the critics' mean loss and the mean lack of entropy in place, to be averaged with the gradients.

        Args:
            error_NB: TD errors of each critic.
            entropy_B: of the policy, as far as it is known: of one of its actions, or of all.
            weight_B: importance weights.
        """
        means_B = torch.stack((squared_losses(error_NB), self._target_entropy - entropy_B))
        torch.mv(means_B, weight_B, out=self.shared.scalars).div_(len(weight_B))

    def finish(
        self,
        *,
        error_NB: Values,
        q_B: Values,
        entropy_B: Values,
        value_B: Values,
        means: Values,
        weight_B: npt.NDArray[np.float32],
    ) -> UpdateOutcome:
        """Makes the step that the gradients ask for, if all of it is finite.

        Args:
            error_NB: TD errors of each critic.
            q_B: means of the critics' values of the actions taken.
            entropy_B: of the policy, as far as it is known: of one of its actions, or of all.
            value_B: soft values of the policy, which it is to make large.
            means: [4] of the group: loss of the critics, lack of entropy, norms of the critics' and the policy's
                gradient, as SharedGradients.average gives them.
            weight_B: importance weights.
        """
        batch_size = len(weight_B)
        loss, lack, critic_norm, _ = means.tolist()
        magnitude_B = np.abs(error_NB).mean(0)
        if not all(map(isfinite, means)):
            return UpdateOutcome.skipped(magnitude_B)
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
        self._step(lack)
        return UpdateOutcome(magnitude_B, figures)

    def _step(self, lack: float) -> None:
        self._critic_adam.step(self.critic_gradient.flat_P)
        self._actor_adam.step(self.actor_gradient.flat_P)
        self._temperature.step(lack)
        update_target(self.targets.flat_P, self.critics.flat_P, self._tau)
        self.num_updates += 1

    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything that is learned, in place."""
        actor, critic = self._actor_adam, self._critic_adam
        actor_vectors = {"actor": self.actor.flat_P, "actor_mean": actor.mean_P, "actor_square": actor.square_P}
        critic_vectors = {
            "critics": self.critics.flat_P,
            "targets": self.targets.flat_P,
            "critics_mean": critic.mean_P,
            "critics_square": critic.square_P,
        }
        return {
            **named_parts(self._actor_layout, actor_vectors),
            **named_parts(self._critic_layout, critic_vectors),
            **self._temperature.tensors(),
        }

    def counts(self) -> dict[str, Any]:
        """The plain values that belong to `tensors`."""
        return {"num_updates": self.num_updates, "num_adam_steps": self._critic_adam.num_steps}

    def load(self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any], *, what: str) -> None:
        """Takes back `tensors` and, among other values, `counts`.

        Raises:
            SnapshotError: a tensor or value is missing, unknown or of another kind. Nothing is changed then.
        """
        own = self.tensors()
        check_shapes(own, tensors, what=what)
        num_updates, num_adam_steps = (count_in(values, name, what=what) for name in ("num_updates", "num_adam_steps"))
        put_back(own, tensors)
        self.num_updates = num_updates
        self._actor_adam.num_steps = self._critic_adam.num_steps = num_adam_steps
        self._temperature.resume(num_adam_steps)
