"""Settings of DDPG; torch-free."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from parl_mq.algorithms.td3_config import TD3Config
from parl_mq.config.models import AlgorithmConfig
from parl_mq.spec import TableSpec


class DDPGConfig(AlgorithmConfig):
    """Deep deterministic policy gradients (Lillicrap et al. 2016), with Gaussian noise, for Box actions.

    Noise is measured in units of actions, whose bounds are -1 and 1.

    Attributes:
        learning_rate: of the critic, and of the policy where it has none of its own.
        actor_learning_rate: of the policy; None takes learning_rate.
        hidden_sizes: units of each hidden layer of the policy and of the critic.
        tau: share of the networks that their targets take at each update, in (0, 1].
        exploration_noise: standard deviation of what is added to actions, at the exploration ladder's first place.
        exploration_noise_end: the same at its last place; those between lie evenly. None: as at the first.
        random_until_updates: actors act uniformly at random until the weights have so many updates; 0: never.
    """

    name: str = "ddpg"
    actor_learning_rate: PositiveFloat | None = None
    hidden_sizes: Annotated[tuple[PositiveInt, ...], Field(max_length=16)] = (256, 256)
    tau: Annotated[float, Field(gt=0, le=1)] = 0.005
    exploration_noise: NonNegativeFloat = 0.1
    exploration_noise_end: NonNegativeFloat | None = None
    random_until_updates: NonNegativeInt = 1

    def as_td3(self) -> TD3Config:
        """DDPG is TD3 with one critic, whose policy is neither delayed nor smoothed."""
        return TD3Config(**self.model_dump(), num_critics=1, policy_delay=1, target_noise=0.0)

    def check_spaces(self, spec: TableSpec) -> None:
        """See AlgorithmConfig: there must be one Box action with finite bounds."""
        self.as_td3().check_spaces(spec)

    def num_parameters(self, spec: TableSpec) -> int:
        """See AlgorithmConfig; the policy's, which all processes hold."""
        return self.as_td3().num_parameters(spec)
