"""Settings of TD3; torch-free."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from parl_mq.algorithms.spaces import BoxActions
from parl_mq.config.models import AlgorithmConfig
from parl_mq.model.encoder import ObservationEncoder
from parl_mq.model.sizes import num_mlp_parameters
from parl_mq.spec import TableSpec


class TD3Config(AlgorithmConfig):
    """Twin delayed deterministic policy gradients (Fujimoto et al. 2018), for Box actions.

    Noise is measured in units of actions, whose bounds are -1 and 1.

    Attributes:
        learning_rate: of the critics, and of the policy where it has none of its own.
        actor_learning_rate: of the policy; None takes learning_rate.
        hidden_sizes: units of each hidden layer of the policy and of each critic.
        num_critics: critics, of which the smallest value counts in targets, and the first one's in the policy's loss.
        tau: share of the networks that their targets take at each of the policy's updates, in (0, 1].
        policy_delay: updates of the critics for each of the policy and of the targets.
        target_noise: standard deviation of what is added to the actions in targets.
        target_noise_clip: that noise is cut at plus and minus this.
        exploration_noise: standard deviation of what is added to actions, at the exploration ladder's first place.
        exploration_noise_end: the same at its last place; those between lie evenly. None: as at the first.
        random_until_updates: actors act uniformly at random until the weights have so many updates; 0: never.
    """

    name: str = "td3"
    actor_learning_rate: PositiveFloat | None = None
    hidden_sizes: Annotated[tuple[PositiveInt, ...], Field(max_length=16)] = (256, 256)
    num_critics: Annotated[int, Field(ge=1, le=64)] = 2
    tau: Annotated[float, Field(gt=0, le=1)] = 0.005
    policy_delay: PositiveInt = 2
    target_noise: NonNegativeFloat = 0.2
    target_noise_clip: NonNegativeFloat = 0.5
    exploration_noise: NonNegativeFloat = 0.1
    exploration_noise_end: NonNegativeFloat | None = None
    random_until_updates: NonNegativeInt = 1

    def check_spaces(self, spec: TableSpec) -> None:
        """See AlgorithmConfig: there must be one Box action with finite bounds."""
        BoxActions.of(spec, algorithm=self.name)

    def num_parameters(self, spec: TableSpec) -> int:
        """See AlgorithmConfig; the policy's, which all processes hold."""
        return num_mlp_parameters(
            (ObservationEncoder(spec).num_features, *self.hidden_sizes, BoxActions.of(spec, algorithm=self.name).size)
        )
